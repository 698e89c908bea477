"""DICOM is shown as its own header says: slope, window, tables, and which end is white."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pretrain.datasets import Seen, UnreadableImage
from pretrain.intake.decode import decode
from pretrain.sources import open_images
from tests.pretrain.conftest import put

pydicom: Any = pytest.importorskip("pydicom")
EIGHT = np.random.default_rng(5).integers(0, 256, (6, 9)).astype(np.uint16)


def saved(held: Any, **options: Any) -> bytes:
    held.save_as(buffer := io.BytesIO(), **options)
    return buffer.getvalue()


def dicom(pixels: np.ndarray, *, stored: int = 12, **more: Any) -> bytes:
    """A file of grey values (h, w) or colours (h, w, 3), with entries of its header."""
    held = pydicom.Dataset()
    held.file_meta = pydicom.dataset.FileMetaDataset()
    held.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    held.SOPClassUID, held.SOPInstanceUID = pydicom.uid.CTImageStorage, "1.2.3"
    held.Rows, held.Columns = pixels.shape[:2]
    held.SamplesPerPixel = pixels.shape[2] if pixels.ndim == 3 else 1
    held.PhotometricInterpretation = "RGB" if pixels.ndim == 3 else "MONOCHROME2"
    if pixels.ndim == 3:
        held.PlanarConfiguration = 0
    allocated = 8 * pixels.dtype.itemsize
    held.BitsAllocated, held.BitsStored = allocated, min(stored, allocated)
    held.HighBit = held.BitsStored - 1
    held.PixelRepresentation = int(pixels.dtype.kind == "i")
    held.PixelData = pixels.tobytes()
    for name, value in more.items():
        setattr(held, name, value)
    return saved(held, enforce_file_format=True)


def shown(data: bytes, **options: Any) -> np.ndarray:
    return decode(data, "it", **options)[..., 0].astype(int)


def test_bits_as_stored() -> None:
    for bits in (8, 10, 12, 16):
        assert np.abs(shown(dicom(EIGHT << (bits - 8), stored=bits)) - EIGHT).max() <= 1
    assert np.abs(shown(dicom(EIGHT.astype(np.uint8), stored=8)) - EIGHT).max() == 0
    signed = (EIGHT.astype(np.int16) << 4) - 2048
    assert np.abs(shown(dicom(signed)) - EIGHT).max() <= 1
    smallest_is_white = dicom(EIGHT << 4, PhotometricInterpretation="MONOCHROME1")
    assert np.abs(shown(smallest_is_white) - (255 - EIGHT.astype(int))).max() <= 1


def test_slope_and_window() -> None:
    hounsfield = np.array([[-1024, -160, 40, 239, 240, 3000]])
    stored = (hounsfield + 1024).astype(np.uint16)
    more: dict[str, Any] = {"RescaleSlope": "1", "RescaleIntercept": "-1024"}
    data = dicom(stored, WindowCenter=["40", "300"], WindowWidth=["400", "2000"], **more)
    centred = ((40 - 39.5) / 399 + 0.5) * 255
    assert np.abs(shown(data)[0] - [0, 0, centred, 255, 255, 255]).max() <= 1
    more |= {"WindowCenter": "40", "WindowWidth": "400"}
    exact = dicom(stored, VOILUTFunction="LINEAR_EXACT", **more)
    assert np.abs(shown(exact)[0][2] - 127.5) <= 1
    found = shown(dicom(stored, VOILUTFunction="SIGMOID", **more))[0]
    assert np.abs(found[1:4] - 255 / (1 + np.exp([2, 0, -1.99]))).max() <= 1
    halves = dicom(EIGHT << 4, RescaleSlope="0.5", RescaleIntercept="7")
    assert np.abs(shown(halves) - EIGHT).max() <= 1  # no window: the whole range
    inverted = dicom(EIGHT << 4, RescaleSlope="-1", RescaleIntercept="4095")
    assert np.abs(shown(inverted) - (255 - EIGHT.astype(int))).max() <= 1


def test_colours_and_the_first_frame() -> None:
    colours = np.random.default_rng(6).integers(0, 256, (5, 8, 3)).astype(np.uint8)
    assert (decode(dicom(colours, stored=8), "it") == colours).all()
    frames = np.stack([EIGHT, EIGHT[::-1]]).astype(np.uint8)
    data = dicom(frames[0], stored=8, NumberOfFrames=2, PixelData=frames.tobytes())
    assert (shown(data) == EIGHT).all()


def test_files_without_a_preamble_or_a_suffix(tmp_path: Path) -> None:
    data = dicom(EIGHT << 4)
    bare = pydicom.Dataset(pydicom.dcmread(io.BytesIO(data)))
    assert (shown(saved(bare, implicit_vr=True, little_endian=True)) == shown(data)).all()
    for name in ("scan.dcm", "IM0001", "1.2.840.1"):
        put(tmp_path / "normal" / name, data)
    assert len(open_images(str(tmp_path)).images(slice(None))) == 3


def without_pixels() -> bytes:
    held = pydicom.dcmread(io.BytesIO(dicom(EIGHT, Modality="SR")))
    del held.PixelData
    return saved(held)


GOOD = dicom(EIGHT << 4)
DAMAGED = (GOOD[:200], bytes(128) + b"DICM", bytes(128) + b"DICM" + bytes(500), GOOD[:-9])


@pytest.mark.parametrize(
    ("data", "options", "rule"),
    [
        (GOOD, {"max_pixels": 53}, "at most max_pixels = 53 pixels, got 9 x 6"),
        *((data, {}, "it must be a readable image, got: ") for data in DAMAGED),
        (without_pixels(), {}, "DICOM must hold a picture, got SR"),
        (
            dicom(EIGHT << 8, stored=16),
            {"bits": 12},
            r"values of 12 bits, 0 to 4095, got \d+ to \d+",
        ),
    ],
)
def test_what_cannot_be_shown_is_named(data: bytes, options: dict[str, Any], rule: str) -> None:
    with pytest.raises(UnreadableImage, match=rule):
        decode(data, "it", **options)


def test_twelve_bits_that_say_they_are_sixteen() -> None:
    data, seen = dicom(EIGHT << 4, stored=16), Seen()
    decode(data, "it", seen=seen)
    assert seen.dark
    assert np.abs(shown(data, bits=12, seen=(declared := Seen())) - EIGHT).max() <= 1
    assert declared.bright
