"""DICOM: the first frame of a file as its own header says it is to be shown, 8 bits per channel.

Grey values are rescaled (slope and intercept, or a table), then shown in the file's first window or
through its first table; without either, over the whole range of its stored bits. MONOCHROME1 means
that the smallest value is white. Nothing depends on the values of the picture, nor on other files.
"""

import io
import warnings
from collections.abc import MutableSequence
from typing import Any

import numpy as np
from PIL import Image

from pretrain.datasets import Seen
from pretrain.intake.formats import library

warnings.filterwarnings("ignore", category=UserWarning, module="pydicom")  # small repairs
SHARE = 16  # as for other pictures of 16 bits, see `pretrain.intake.depth`


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
