"""Decoding of a picture's bytes to (h, w, 3) uint8, with one rule per kind of file.

| kind | result |
|---|---|
| EXIF orientation | applied |
| 16 bits per channel | the upper 8 of those in use |
| 32-bit integers, floats | refused: no range is known |
| transparency | laid on white |
| palette, black and white, grey | colours looked up; grey three times |
| CMYK | Pillow's conversion; colour profiles are not applied |
| several frames or pages | the first |
| HEIC, DICOM | with the extras of these names |

A scanner's 12 bits are often stored in words of 16, which shown as they are come out black. The
bits in use are those that the file states, else those that the options declare, else all 16; never
those of other pictures, since a row may depend on its own file and on public options only.

| file of 16 bits | bits in use |
|---|---|
| PNG with `sBIT` | as it says if all values fit, else they were scaled up as the format asks |
| TIFF | `BitsPerSample` below 16, else those of `MaxSampleValue` |
| any other | `--bits` (a larger value is an error), else 16 |

Of DICOM it is the first frame as its header says it is to be shown. Grey values are rescaled (slope
and intercept, or a table), then shown in the file's first window or through its first table;
without either, over the whole range of its stored bits. In MONOCHROME1 the smallest value is white.
"""

import io
import re
import struct
import sys
import warnings
from collections.abc import Callable, Iterable, MutableSequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from pretrain.datasets import Seen, UnreadableImage
from pretrain.intake.files import HEAD, kind_of, library, pillow_formats, suffixes
from pretrain.intake.reading import MAX_PIXELS, Reading
from pretrain.preprocess import Size, pair

BITS_PER_SAMPLE, PHOTOMETRIC, MAX_SAMPLE = 258, 262, 281  # tags of TIFF
ORIENTATION = 0x0112
SHARE = 16  # a set is nearly black where no picture uses its range over this
OTHER_ORDER = {"B": "L", "L": "B", "N": "B" if sys.byteorder == "little" else "L"}


def is_wide(image: Image.Image) -> bool:
    """Whether a picture has more than 8 bits per channel; asked before its pixels are read."""
    grey = image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM"))
    return grey or ";16" in _rawmode(image)


def narrowed(image: Image.Image, data: bytes, bits: int | None, seen: Seen) -> Image.Image:
    """The picture with 8 bits per channel.

    Args:
        image: it, of a kind that `is_wide`.
        data: bytes of its file.
        bits: bits in use that the options declare.
        seen: receives whether the picture uses so little of its range that it is nearly black.

    Raises:
        ValueError: a negative value, one that does not fit in the declared bits, or one whose
            lower bits are needed and cannot be read.
    """
    grey, stated = image.mode.startswith("I"), _stated_bits(image, data)
    used = stated or bits or 16
    whole = image if grey or used == 16 else _lower_bytes(image, data)
    values = np.asarray(image)
    if values.min() < 0:  # a TIFF's signed numbers
        raise ValueError(f"must have values >= 0, got {values.min()}")
    values = values.astype(np.uint16)
    values = values if grey else (values << 8) + (np.asarray(whole) if whole is not image else 0)
    shown = values[..., :3] if values.ndim == 3 else values  # not its transparency
    least, most = int(shown.min()), int(shown.max())
    if most >> used:
        if stated is None:
            raise ValueError(f"must have values below 2^{used} with --bits {used}, got {most}")
        used = 16  # the file's values were scaled up
    if most - least < (1 << used) // SHARE and bits is None:
        seen.dark = seen.dark or f"values from {least} to {most} of {(1 << used) - 1}"
    else:
        seen.bright = True
    if used == 16 and not grey:
        return image
    eight = values << (8 - used) if used < 8 else values >> (used - 8)
    if image.format == "TIFF" and _tag(image, PHOTOMETRIC) == 0:  # white is 0, which Pillow ignores
        eight = 255 - eight
    if values.ndim == 3 and values.shape[2] == 4:
        eight[..., 3] = values[..., 3] >> 8
    elif isinstance(key := image.info.get("transparency"), int):
        eight[values == key] = 255
    made = Image.fromarray(eight.astype(np.uint8))
    made.getexif()[ORIENTATION] = image.getexif().get(ORIENTATION, 1)
    return made


def _stated_bits(image: Image.Image, data: bytes) -> int | None:
    """Bits in use as the file says; None where it says nothing."""
    if image.format == "PNG":
        return _significant_bits(data)
    if image.format == "TIFF":
        depth, most = _tag(image, BITS_PER_SAMPLE), _tag(image, MAX_SAMPLE)
        if isinstance(depth, int) and 8 < depth < 16:
            return depth
        return most.bit_length() if isinstance(most, int) and 0 < most < 1 << 15 else None
    return None


def _significant_bits(data: bytes) -> int | None:
    """The most that a PNG's chunk `sBIT` states for a colour."""
    place, colour = 8, data[25] if len(data) > 25 else 0
    while place + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, place)
        if kind == b"IDAT":
            break
        if kind == b"sBIT":
            stated = max(data[place + 8 : place + 8 + length][: 3 if colour & 2 else 1], default=0)
            return stated if 0 < stated < 16 else None
        place += length + 12
    return None


def _tag(image: Image.Image, tag: int) -> object:
    """First value of a TIFF's tag."""
    found = getattr(image, "tag_v2", {}).get(tag)
    return found[0] if isinstance(found, tuple) and found else found


def _rawmode(image: Image.Image) -> str:
    """Pillow's word for how a file's bytes lie; "" where it has none."""
    tile = getattr(image, "tile", None)
    args = tile[0][3] if tile else ""
    args = args[0] if isinstance(args, tuple) and args else args
    return args if isinstance(args, str) else ""


def _lower_bytes(image: Image.Image, data: bytes) -> Image.Image:
    """Lower bytes of 16-bit colours, of which Pillow gives the upper ones.

    Read in the other byte order, the upper byte of a number is its lower one.
    """
    with Image.open(io.BytesIO(data), formats=pillow_formats()) as again:
        stem, order = (rawmode := _rawmode(again))[:-1], rawmode[-1:]
        if stem not in ("RGB;16", "RGBA;16"):
            raise ValueError(f"must have 16 bits in use, or be grey or RGB, got Pillow's {rawmode}")
        swapped = stem + OTHER_ORDER[order]
        again.tile = [  # pyright: ignore[reportAttributeAccessIssue]
            part._replace(
                args=(swapped, *part.args[1:]) if isinstance(part.args, tuple) else swapped
            )
            for part in again.tile  # pyright: ignore[reportAttributeAccessIssue]
        ]
        again.load()
        return again


warnings.filterwarnings("ignore", category=UserWarning, module="pydicom")  # small repairs


def dicom_picture(
    data: bytes, max_pixels: int, bits: int | None = None, seen: Seen | None = None
) -> Image.Image:
    """Decodes a file's first frame to a picture of mode L or RGB.

    Args:
        data: bytes of the file.
        max_pixels: limit.
        bits: bits in use of grey values that fill 16 and have no window.
        seen: receives whether such values use so little of their range that they are nearly black.

    Raises:
        ValueError: no picture, too many pixels, values beyond the bits in use, a compression that
            is not installed, or pydicom is not.
    """
    library("DICOM")
    import pydicom.config
    from pydicom.pixels.processing import apply_color_lut
    from pydicom.pixels.utils import pixel_array
    from pydicom.uid import ImplicitVRLittleEndian

    pydicom.config.settings.reading_validation_mode = pydicom.config.IGNORE
    held = pydicom.dcmread(io.BytesIO(data), force=True)
    width, height = held.get("Columns"), held.get("Rows")
    if not (width and height) or "PixelData" not in held:
        raise ValueError(f"DICOM must hold a picture, got {held.get('Modality', 'other data')}")
    if width * height > max_pixels:
        got = f"{width} x {height}"
        raise ValueError(f"must have at most max_pixels = {max_pixels} pixels, got {got}")
    if held.file_meta.get("TransferSyntaxUID") is None:
        held.file_meta.TransferSyntaxUID = ImplicitVRLittleEndian
    pixels = pixel_array(held, index=0)
    kind = held.PhotometricInterpretation
    if kind == "PALETTE COLOR":
        depth = held.RedPaletteColorLookupTableDescriptor[2]
        pixels = apply_color_lut(pixels, held)
    elif pixels.ndim == 3:  # pydicom has made RGB of other colours
        depth = held.BitsStored
    else:
        shown = _shown(pixels, held, bits, Seen() if seen is None else seen)
        return Image.fromarray(255 - shown if kind == "MONOCHROME1" else shown)
    return Image.fromarray((pixels >> max(depth - 8, 0)).astype(np.uint8))


def _shown(pixels: np.ndarray, held: Any, bits: int | None, seen: Seen) -> np.ndarray:
    """(h, w) uint8 of grey values as stored."""
    from pydicom.pixels.processing import apply_modality_lut, apply_voi

    used = bits if bits and held.BitsStored == 16 else held.BitsStored
    least = -(1 << (used - 1)) if held.get("PixelRepresentation", 0) else 0
    ends = np.array([least, least + (1 << used) - 1])
    if pixels.min() < ends[0] or pixels.max() > ends[1]:
        got = f"{pixels.min()} to {pixels.max()}"
        raise ValueError(f"must have values of {used} bits, {ends[0]} to {ends[1]}, got {got}")
    values = apply_modality_lut(pixels, held)
    if sequence := held.get("ModalityLUTSequence"):
        ends = np.array([0, (1 << sequence[0].LUTDescriptor[2]) - 1])
    else:
        ends = apply_modality_lut(ends, held)
    center, width = _first(held.get("WindowCenter")), _first(held.get("WindowWidth"))
    if center is not None and width is not None:
        return _windowed(values, center, width, held.get("VOILUTFunction", "LINEAR"))
    if sequence := held.get("VOILUTSequence"):
        values = apply_voi(values.astype(np.int64), held, index=0)
        ends = np.array([0, (1 << sequence[0].LUTDescriptor[2]) - 1])
    share = (values - float(ends.min())) / float(ends.max() - ends.min())
    if used == 16 and bits is None and share.max() - share.min() < 1 / SHARE:
        seen.dark = seen.dark or f"shares from {share.min():.3f} to {share.max():.3f}"
    else:
        seen.bright = True
    return _scaled(share)


def _first(values: Any) -> float | None:
    """First of one or several numbers of a header."""
    if values is None or values == "":
        return None
    return float(values[0] if isinstance(values, MutableSequence) else values)


def _windowed(values: np.ndarray, center: float, width: float, function: str) -> np.ndarray:
    """Grey through a window, as part 3 of the standard, C.11.2.1, says."""
    if function == "SIGMOID":
        return _scaled(1 / (1 + np.exp(-4 * (values - center) / width)))
    if function == "LINEAR_EXACT":
        return _scaled((values - center) / width + 0.5)
    return _scaled((values - (center - 0.5)) / max(width - 1, 1e-9) + 0.5)


def _scaled(share: np.ndarray) -> np.ndarray:
    return (np.clip(share, 0, 1) * 255 + 0.5).astype(np.uint8)


SUFFIXES = suffixes()
UNBOUNDED_MODES = ("I", "F")

# Larger pictures are refused below, in one line.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


def decode(
    data: bytes,
    where: str,
    max_pixels: int = MAX_PIXELS,
    size: int | None = None,
    *,
    bits: int | None = None,
    seen: Seen | None = None,
) -> np.ndarray:
    """Decodes a picture to (h, w, 3) uint8.

    Args:
        data: bytes of a file, in any format that Pillow reads, HEIC or DICOM.
        where: description of the picture for errors.
        max_pixels: limit, so that a small file cannot fill the memory.
        size: side of the square that `squared` makes of it; None: the picture's own size.
        bits: bits in use of a picture that has 16 and does not say it itself.
        seen: receives what kind of picture it is.

    Raises:
        UnreadableImage: damaged, too large, or of a kind without a known range.
    """
    seen = Seen() if seen is None else seen
    try:
        if (kind := kind_of(data[:HEAD])) == "DICOM":
            picture = dicom_picture(data, max_pixels, bits, seen).convert("RGB")
            seen.add(kind, picture.size)
        else:
            if kind == "HEIC":
                library(kind)
            picture = _opened(data, max_pixels, bits, seen)
        return np.asarray(picture if size is None else _squared(picture, size))
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        found = re.search(r"\d+", str(error))  # Pillow's first number
        pixels = "more" if found is None else f"{found[0]} in all"
        raise UnreadableImage(f"{where} {_too_large(pixels, max_pixels)}") from error
    except UnreadableImage as error:
        raise UnreadableImage(f"{where} {error}") from error
    except UnidentifiedImageError as error:
        got = f"{len(data)} bytes of no known format" if data else "an empty file"
        raise UnreadableImage(f"{where} must be a readable image, got {got}") from error
    except MemoryError:
        raise
    except Exception as error:  # decoders of hostile bytes raise anything
        raise UnreadableImage(f"{where} must be a readable image, got: {error}") from error


def _opened(data: bytes, max_pixels: int, bits: int | None, seen: Seen) -> Image.Image:
    with Image.open(io.BytesIO(data), formats=pillow_formats()) as image:
        if image.width * image.height > max_pixels:
            raise UnreadableImage(_too_large(f"{image.width} x {image.height}", max_pixels))
        mode, shown = image.mode, image
        if is_wide(image):
            mode = "16-bit grey" if image.mode.startswith("I") else f"16-bit {image.mode}"
            shown = narrowed(image, data, bits, seen)
        ImageOps.exif_transpose(shown, in_place=True)
        seen.add(mode, shown.size)
        return _in_colours(shown)


def _too_large(size: str, max_pixels: int) -> str:
    return f"must have at most max_pixels = {max_pixels} pixels, got {size}"


def _in_colours(image: Image.Image) -> Image.Image:
    if image.mode in UNBOUNDED_MODES:
        raise UnreadableImage(f"must have 8 or 16 bits per channel, got Pillow's {image.mode!r}")
    if image.has_transparency_data:
        opaque = image.convert("RGBA")
        if opaque.getchannel("A").getextrema() == (0, 0):  # of programs without alpha
            raise UnreadableImage("must have visible pixels, got an alpha channel of 0")
        white = Image.new("RGBA", opaque.size, "white")
        return Image.alpha_composite(white, opaque).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def squared(image: np.ndarray, size: Size) -> np.ndarray:
    """(size, size, 3), bicubic: the shorter side becomes `size`, the centre square is kept.

    Of a (height, width) the picture that just covers it is cut to it.

    Raises:
        UnreadableImage: so long a picture would have more pixels than any may have.
    """
    return np.asarray(_squared(Image.fromarray(image), size))


def _squared(picture: Image.Image, size: Size) -> Image.Image:
    rows, columns = pair(size)
    height, width = covering(picture.height, picture.width, size)
    if width * height > MAX_PIXELS:
        words = f"must have at most {MAX_PIXELS} pixels once its shorter side has resize = {size}"
        raise UnreadableImage(f"{words}, got {width} x {height}")
    left, top = (width - columns) // 2, (height - rows) // 2
    resized = picture.resize((width, height), Image.Resampling.BICUBIC)
    return resized.crop((left, top, left + columns, top + rows))


def covering(height: int, width: int, size: Size) -> tuple[int, int]:
    """(height, width) to which a picture is scaled so that it just covers `size`."""
    rows, columns = pair(size)
    scale = max(columns / width, rows / height)
    return max(rows, round(height * scale)), max(columns, round(width * scale))


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """Encoded pictures; a call decodes some rows."""

    fetch: Callable[[np.ndarray], Iterable[bytes]]  # (b,) row numbers -> their files' bytes
    where: Callable[[int], str]  # place of a row, for errors
    source: str  # name of the whole source, for errors
    reading: Reading = field(default_factory=Reading)
    seen: Seen = field(default_factory=Seen)

    def __post_init__(self) -> None:
        self.seen.bits = self.reading.bits

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """(b,) row numbers -> (b, h, w, 3) uint8.

        Raises:
            UnreadableImage: one of them.
            ValueError: sizes that differ, without `resize`.
        """
        images = [
            decode(
                data,
                self.where(row),
                self.reading.max_pixels,
                self.reading.resize,
                bits=self.reading.bits,
                seen=self.seen,
            )
            for row, data in zip(rows.tolist(), self.fetch(rows), strict=True)
        ]
        for row, image in zip(rows.tolist(), images, strict=True):
            if image.shape != images[0].shape:
                raise ValueError(
                    f"{self.source} (or pass --resize): all images must have one size, got "
                    f"{image.shape[:2]} at row {row} and {images[0].shape[:2]} at row {rows[0]}"
                )
        return np.stack(images)
