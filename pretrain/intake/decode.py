"""Decoding of a picture's bytes to (h, w, 3) uint8, with one rule per kind of file.

| kind | result |
|---|---|
| EXIF orientation | applied |
| 16 bits per channel | the upper 8 of those in use, see `pretrain.intake.depth` |
| 32-bit integers, floats | refused: no range is known |
| transparency | laid on white |
| palette, black and white, grey | colours looked up; grey three times |
| CMYK | Pillow's conversion; colour profiles are not applied |
| several frames or pages | the first |
| HEIC, DICOM | with the extras of these names, see `pretrain.intake.depth` |
"""

import io
import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from pretrain.datasets import Seen
from pretrain.intake.depth import dicom_picture, is_wide, narrowed
from pretrain.intake.formats import HEAD, kind_of, library, pillow_formats, suffixes
from pretrain.intake.reading import MAX_PIXELS, Reading
from pretrain.preprocess import Size, pair

SUFFIXES = suffixes()
UNBOUNDED_MODES = ("I", "F")

# Larger pictures are refused below, in one line.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


class UnreadableImage(ValueError):
    """A picture that cannot be decoded, or is refused; the message names it."""


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
