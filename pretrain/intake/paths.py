"""Files that tables name: found under another spelling, and known when they are named twice."""

import os
import unicodedata
from collections.abc import Callable
from pathlib import Path

import numpy as np


def found_file(folder: Path, name: str) -> Path:
    r"""The file that a table in a folder names.

    Where there is none of this name, `\` may be meant for `/`, and each part may be there in the
    other form of its letters: systems write `ü` as one character or as two.
    """
    for spelled in (name, name.replace("\\", "/")):
        if os.path.exists(folder / spelled):
            return folder / spelled
        if (other := _in_other_form(folder, spelled)) is not None:
            return other
    return folder / name


def _in_other_form(folder: Path, name: str) -> Path | None:
    """The file below a folder, each part of its name in the form that exists; None without one."""
    if name.isascii():
        return None
    place = folder
    for part in Path(name).parts:
        forms = (part, *(unicodedata.normalize(form, part) for form in ("NFC", "NFD")))
        there = [place / form for form in forms if os.path.exists(place / form)]
        if not there:
            return None
        place = there[0]
    return place


def same_file(rows: np.ndarray, file: Callable[[int], Path | None]) -> tuple[int, int] | None:
    """First two of the rows that are one file, by whatever names; None if there are none.

    Args:
        rows: (n,) row numbers.
        file: row number -> its file; None where the table itself holds the picture.
    """
    keys = np.array([_hash(file(row), row) for row in rows.tolist()], np.int64)
    order = np.argsort(keys, kind="stable")
    again = np.flatnonzero(keys[order][1:] == keys[order][:-1])
    if not len(again):
        return None
    pairs = [(int(rows[order[k]]), int(rows[order[k + 1]])) for k in again.tolist()]
    return min(pairs, key=lambda pair: pair[1])


def _hash(path: Path | None, row: int) -> int:
    """Hash of what a file is on its disk; of its name if it is missing or has several."""
    if path is None:
        return hash(("row", row))
    try:
        found = os.stat(path)
        if found.st_nlink == 1 and found.st_ino:
            return hash((found.st_dev, found.st_ino))
    except (OSError, ValueError):  # a name may hold a null character
        return hash(str(path))
    return hash(os.path.realpath(path))
