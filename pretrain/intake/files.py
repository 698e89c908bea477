"""Files on disk: found by a pattern or another spelling, read, and known when named twice."""

import glob
import os
import stat
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pretrain import check
from pretrain.datasets import decode_name
from pretrain.intake.decode import UnreadableImage


def matching_files(pattern: str) -> list[Path]:
    """Files that `DIR/part-{000..009}.tar::other/*.tar` means, in its order.

    Braces are expanded as WebDataset does; files that match a star are sorted.

    Raises:
        ValueError: a file that does not exist, or a star that matches none.
    """
    found: list[Path] = []
    for each in pattern.split("::"):
        for name in _expanded(each):
            files = sorted(glob.glob(name)) if glob.has_magic(name) else [name]
            missing = [file for file in files if not Path(file).is_file()]
            if missing or not files:
                raise ValueError(f"files must exist, got {(missing or [name])[0]}")
            found += map(Path, files)
    return found


def _expanded(pattern: str) -> list[str]:
    if "{" not in pattern:
        return [pattern]
    library = check.installed("braceexpand", "braces", extra="intake")
    try:
        return list(library.braceexpand(pattern))
    except ValueError as error:
        raise ValueError(f"braces must be closed, got {pattern}") from error


def file_reader(folder: Path, names: np.ndarray) -> Callable[[np.ndarray], Iterator[bytes]]:
    """Function that reads the files of some rows, one after the other.

    Args:
        folder: directory that relative names start from.
        names: (N,) bytes; see `encode_names`.
    """
    return lambda rows: (
        read_picture(found_file(folder, decode_name(names[row]))) for row in rows.tolist()
    )


def read_picture(path: Path) -> bytes:
    """Bytes of a regular file.

    Raises:
        UnreadableImage: it cannot be read.
    """
    try:
        return _content(path)
    except (OSError, ValueError) as error:  # a name may hold a null character
        reason = getattr(error, "strerror", None) or error
        raise UnreadableImage(f"{path} must be a readable image, got: {reason}") from error


def start_of(path: Path, size: int) -> bytes:
    """First bytes of a file; none if it cannot be read."""
    try:
        return _content(path, size)
    except (OSError, ValueError):
        return b""


def _content(path: Path, size: int = -1) -> bytes:
    # a pipe that nobody writes would be waited for without O_NONBLOCK
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("a folder, pipe or device instead of a file")
        return file.read(size)


def picture_bytes(cell: Any, folder: Path, where: str) -> bytes:
    """Bytes of the picture in a table's cell: bytes, a path, or a dict with either.

    Raises:
        UnreadableImage: the cell holds neither, or the file cannot be read.
    """
    if isinstance(cell, dict):
        cell = cell.get("bytes") or cell.get("path")
    if isinstance(cell, str):
        try:
            return read_picture(found_file(folder, cell))
        except UnreadableImage as error:
            raise UnreadableImage(f"{where}: {error}") from error
    if not isinstance(cell, bytes):
        got = "none" if cell is None else type(cell).__name__
        raise UnreadableImage(f"{where} must hold an image's bytes or its path, got {got}")
    return cell


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
