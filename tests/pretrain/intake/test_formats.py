"""What Pillow opens is read, HEIC and DICOM with their extras; other pictures are named."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pretrain.datasets import Seen, UnreadableImage
from pretrain.intake import files
from pretrain.intake.decode import decode
from pretrain.sources import open_images
from tests.pretrain.conftest import encoded, put, table

SQUARE = Image.fromarray(np.tile(np.array([200, 90, 30], np.uint8), (16, 16, 1)))
KINDS = [("jfif", "JPEG"), ("JPE", "JPEG"), ("jpg", "MPO"), ("avif", "AVIF"), ("jp2", "JPEG2000")]
KINDS += [("apng", "PNG"), ("tga", "TGA"), ("ppm", "PPM"), ("qoi", "QOI"), ("ico", "ICO")]
pydicom: Any = pytest.importorskip("pydicom")
EIGHT = np.random.default_rng(5).integers(0, 256, (6, 9)).astype(np.uint16)


def heic(picture: Image.Image = SQUARE, **options) -> bytes:
    pillow_heif = pytest.importorskip("pillow_heif")
    pillow_heif.from_pillow(picture).save(buffer := io.BytesIO(), quality=95, **options)
    return buffer.getvalue()


def written(root: Path, **files: bytes) -> str:
    for name, content in files.items():
        put(root / name.replace("__", "/").replace("_", "."), content)
    return str(root)


@pytest.mark.parametrize(("suffix", "kind"), KINDS)
def test_what_pillow_opens_is_read(tmp_path: Path, suffix: str, kind: str) -> None:
    data = encoded(SQUARE, kind, **({"sizes": [(16, 16)]} if kind == "ICO" else {}))
    source = written(tmp_path, **{f"cat__a_{suffix}": data, "cat__b_png": encoded(SQUARE, "PNG")})
    images = open_images(source)
    assert len(images) == 2
    pixels = images.images(slice(None)).astype(int)
    assert np.abs(pixels[0] - pixels[1]).max() <= 12
    named = open_images(table(tmp_path, f"path\ncat/a.{suffix}\n"))
    assert (named.images(slice(None)) == pixels[0]).all()


def test_what_runs_a_program_is_not_opened(tmp_path: Path) -> None:
    eps = encoded(SQUARE, "EPS")
    with pytest.raises(UnreadableImage, match="of no known format"):
        decode(eps, "it")
    with pytest.raises(ValueError, match=r"got 1 \.eps \(EPS: convert to PNG or JPEG\) among 2"):
        open_images(written(tmp_path, cat__a_eps=eps, cat__b_png=encoded(SQUARE, "PNG")))


def test_heic(tmp_path: Path) -> None:
    source = written(tmp_path, u__cat__1_HEIC=heic(), u__cat__2_heif=heic(), u__cat__3_jpg=heic())
    pixels = open_images(source, layout="user-class").images(slice(None))
    assert np.abs(pixels.astype(int) - np.asarray(SQUARE).transpose(2, 0, 1)).max() <= 6
    turned = Image.Exif()
    turned[0x0112] = 6
    upright = np.zeros((16, 32, 3), np.uint8)
    upright[:, :16] = 240
    held = Image.fromarray(np.rot90(upright).copy())
    seen = decode(heic(held, exif=turned.tobytes()), "it")
    assert seen.shape == upright.shape
    assert np.abs(seen[:, [4, 28]].astype(int) - upright[:, [4, 28]]).max() <= 6
    wide = Image.fromarray(np.zeros((40, 50, 3), np.uint8))
    with pytest.raises(UnreadableImage, match="at most max_pixels = 1999 pixels, got 50 x 40"):
        decode(heic(wide), "it", 1999)
    with pytest.raises(UnreadableImage, match="it must be a readable image"):
        decode(heic()[:200], "it")


def test_without_the_extras_all_are_counted(tmp_path: Path, monkeypatch) -> None:
    renamed = written(tmp_path / "renamed", cat__1_jpg=heic())
    monkeypatch.setattr(files, "EXTRAS", {"HEIC": "no_such_heif", "DICOM": "no_such_dicom"})
    with pytest.raises(UnreadableImage, match=r"1.jpg must .* HEIC must have .*averaging\[heic\]"):
        open_images(renamed).images(slice(None))
    held = {f"u{u}__cat__{k}_jpg": encoded(SQUARE, "JPEG") for u in range(2) for k in range(3)}
    held |= {f"u2__cat__{k}_HEIC": b"?" for k in range(4)} | {"u2__cat__9_svg": b"<svg/>"}
    held |= {"u1__cat__9_dcm": b"?", "u1__cat__8_heif": b"?"}
    source = written(tmp_path / "set", **held)
    rule = (
        r"or pass --skip-unreadable\), got 4 \.heic, 1 \.heif \(HEIC: pip install "
        r"'blind-averaging\[heic\]'\); 1 \.dcm \(DICOM: pip install 'blind-averaging\[dicom\]'\); "
        r"1 \.svg \(SVG: convert to PNG or JPEG\) among 13"
    )
    with pytest.raises(ValueError, match=rule):
        open_images(source, layout="user-class")
    images = open_images(source, layout="user-class", skip_unreadable=True)
    assert len(images) == 13
    with pytest.raises(ValueError, match=r"got 1 \.heic \(HEIC: .* among 2"):
        open_images(table(tmp_path / "set", "path\nu2/cat/1.HEIC\nu0/cat/1.jpg\n"))


def test_kinds_by_their_first_bytes() -> None:
    for kind, heads in {
        "DICOM": [bytes(128) + b"DICM"],
        "HEIC": [b"\0\0\0\x18ftyp" + brand + b"\0\0\0\0mif1heic" for brand in (b"heic", b"mif1")],
        "picture": [b"\0\0\0\x1cftypmif1\0\0\0\0mif1avifmiaf", b"RIFF\0\0\0\0WEBPVP8 ", b"II*\0"],
        "": [b"RIFF\0\0\0\0WAVE", b"", b"A table of pictures"],
    }.items():
        assert {files.kind_of(head) for head in heads} == {kind}


def kept(held: Any, **options: Any) -> bytes:
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
    return kept(held, enforce_file_format=True)


def shown(data: bytes, **options: Any) -> np.ndarray:
    return decode(data, "it", **options)[..., 0].astype(int)


def test_bits_as_stored_or_declared() -> None:
    for bits in (8, 10, 12, 16):
        assert np.abs(shown(dicom(EIGHT << (bits - 8), stored=bits)) - EIGHT).max() <= 1
    assert np.abs(shown(dicom(EIGHT.astype(np.uint8), stored=8)) - EIGHT).max() == 0
    signed = (EIGHT.astype(np.int16) << 4) - 2048
    assert np.abs(shown(dicom(signed)) - EIGHT).max() <= 1
    smallest_is_white = dicom(EIGHT << 4, PhotometricInterpretation="MONOCHROME1")
    assert np.abs(shown(smallest_is_white) - (255 - EIGHT.astype(int))).max() <= 1
    data, seen = dicom(EIGHT << 4, stored=16), Seen()  # twelve bits that say they are sixteen
    decode(data, "it", seen=seen)
    assert seen.dark
    assert np.abs(shown(data, bits=12, seen=(declared := Seen())) - EIGHT).max() <= 1
    assert declared.bright


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
    assert (shown(kept(bare, implicit_vr=True, little_endian=True)) == shown(data)).all()
    for name in ("scan.dcm", "IM0001", "1.2.840.1"):
        put(tmp_path / "normal" / name, data)
    assert len(open_images(str(tmp_path)).images(slice(None))) == 3


def without_pixels() -> bytes:
    held = pydicom.dcmread(io.BytesIO(dicom(EIGHT, Modality="SR")))
    del held.PixelData
    return kept(held)


GOOD = dicom(EIGHT << 4)
DAMAGED = (GOOD[:200], bytes(128) + b"DICM", bytes(128) + b"DICM" + bytes(500), GOOD[:-9])


def test_what_cannot_be_shown_is_named() -> None:
    wide = dicom(EIGHT << 8, stored=16)
    for data, options, rule in (
        (GOOD, {"max_pixels": 53}, "at most max_pixels = 53 pixels, got 9 x 6"),
        *((data, {}, "it must be a readable image, got: ") for data in DAMAGED),
        (without_pixels(), {}, "DICOM must hold a picture, got SR"),
        (wide, {"bits": 12}, r"values of 12 bits, 0 to 4095, got \d+ to \d+"),
    ):
        with pytest.raises(UnreadableImage, match=rule):
            decode(data, "it", **options)  # pyright: ignore[reportArgumentType]
