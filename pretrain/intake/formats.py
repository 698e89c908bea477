"""Formats of pictures by the names and the first bytes of files.

What Pillow opens is a picture in every intake. HEIC and DICOM need an extra; other formats of
pictures are known by name, so that they are refused instead of passed over.
"""

import importlib.util
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import PurePath

from PIL import Image

from pretrain import check

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
