"""Files on disk: found by a pattern, and pictures read from them one after the other."""

import glob
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pretrain import check
from pretrain.datasets import decode_name
from pretrain.intake.decode import UnreadableImage
from pretrain.intake.paths import found_file


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
