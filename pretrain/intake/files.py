"""Files on disk: found by a pattern or another spelling, read, and known when named twice.

What Pillow opens is a picture in every intake. HEIC and DICOM need an extra; other formats of
pictures are known by name, so that they are refused instead of passed over.
"""

import glob
import importlib.util
import os
import stat
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from PIL import Image

from pretrain import check
from pretrain.datasets import UnreadableImage, decode_name

# Without pixels to decode (the first six), or programs that Ghostscript or Windows would run.
NO_PICTURES = frozenset({"BUFR", "GRIB", "HDF5", "MPEG", "PALM", "PDF", "EPS", "WMF"})
EXTRAS = {"HEIC": "pillow_heif", "DICOM": "pydicom"}  # format -> module; the extra is its name
OTHERS = {
    "HEIC": (".heic", ".heif", ".hif"),
    "DICOM": (".dcm", ".dicom"),
    "camera raw": (".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".rw2", ".raf", ".pef", ".srw"),
    "EPS": (".eps",),
    "JPEG XL": (".jxl",),
    "NIfTI": (".nii",),
    "OpenEXR": (".exr",),
    "SVG": (".svg", ".svgz"),
}
FORMAT_OF = {suffix: kind for kind, suffixes in OTHERS.items() for suffix in suffixes}
HEIC_BRANDS = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx"})
HEAD = 132  # bytes that tell what a file is
BARE = tuple(bytes([8, 0, element, 0]) for element in (0, 5, 8, 0x12, 0x16, 0x18))  # DICOM
STARTS = (b"\xff\xd8\xff", b"\x89PNG\r\n", b"GIF8", b"BM", b"II*\0", b"MM\0*")


@cache
def suffixes() -> frozenset[str]:
    """Suffixes of pictures in lower case, of those that cannot be read as well."""
    Image.init()
    known = Image.registered_extensions().items()
    return frozenset({end for end, kind in known if kind not in NO_PICTURES} | FORMAT_OF.keys())


@cache
def pillow_formats() -> tuple[str, ...]:
    """Formats that Pillow may be asked to open."""
    Image.init()
    return tuple(kind for kind in Image.OPEN if kind not in NO_PICTURES)


def suffix_of(name: str) -> str:
    """Suffix of a file in lower case; "" where it has none, or a number, as DICOM's names have.

    Examples:
        >>> [suffix_of(name) for name in ("a.JPG", "IM0001", "1.2.840", "b.tif.jpg")]
        ['.jpg', '', '', '.jpg']
    """
    suffix = PurePath(name).suffix.lower()
    return "" if suffix[1:].isdecimal() else suffix


def kind_of(head: bytes) -> str:
    """HEIC, DICOM, or "picture" of other formats that are often met; "" for anything else."""
    if head[128:132] == b"DICM" or head[:4] in BARE:
        return "DICOM"
    if head[4:8] == b"ftyp":
        brands = {head[at : at + 4] for at in range(8, min(len(head), head[3] + 256 * head[2]), 4)}
        return "HEIC" if brands & HEIC_BRANDS else "picture"
    webp = head[:4] == b"RIFF" and head[8:12] == b"WEBP"
    return "picture" if webp or head.startswith(STARTS) else ""


def remedy(kind: str) -> str:
    """Command or conversion that makes a format readable; "" where it is."""
    if kind not in EXTRAS:
        return "" if kind not in OTHERS else "convert to PNG or JPEG"
    if importlib.util.find_spec(EXTRAS[kind]) is not None:
        return ""
    return f"pip install 'blind-averaging[{kind.lower()}]'"


def library(kind: str) -> None:
    """Imports the library of HEIC or DICOM; ValueError if it is not installed."""
    module = EXTRAS[kind]
    found = check.installed(module, kind, extra=kind.lower(), package=module.replace("_", "-"))
    if kind == "HEIC" and "HEIF" not in pillow_formats():
        found.register_heif_opener()
        pillow_formats.cache_clear()


def unreadable_suffixes(names: Iterable[str]) -> Counter[str]:
    """How many names are of which suffix that cannot be read here."""
    known = {suffix for suffix, kind in FORMAT_OF.items() if remedy(kind)}
    return Counter(suffix for name in names if (suffix := suffix_of(name)) in known)


def refuse_unreadable(where: str, found: Counter[str], count: int) -> None:
    """Raises ValueError for `unreadable_suffixes` among `count` names."""
    if not found:
        return
    kinds: dict[str, list[str]] = {}
    for suffix, number in found.most_common():
        kinds.setdefault(FORMAT_OF[suffix], []).append(f"{number} {suffix}")
    got = "; ".join(f"{', '.join(each)} ({kind}: {remedy(kind)})" for kind, each in kinds.items())
    raise ValueError(
        f"{where} must hold pictures that can be read (or pass --skip-unreadable), got {got} "
        f"among {count}"
    )


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
