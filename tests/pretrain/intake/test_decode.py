"""What becomes of every kind of picture, of HEIC and DICOM with their extras, and of others."""

import contextlib
import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pretrain.datasets import Seen, UnreadableImage
from pretrain.intake import files
from pretrain.intake.decode import MAX_PIXELS, decode, squared
from pretrain.sources import open_images
from tests.pretrain.conftest import encoded, png, put, table

RNG = np.random.default_rng(0)
COLOURS = RNG.integers(0, 256, (6, 9, 3), np.uint8)
GREY = RNG.integers(0, 256, (6, 9), np.uint8)
EIGHT = GREY.astype(np.uint16)
INKS = {(0, 0, 0, 0): (255, 255, 255), (255, 0, 0, 0): (0, 255, 255)}
INKS |= {(0, 255, 0, 0): (255, 0, 255), (0, 0, 0, 255): (0, 0, 0)}
WHOLE = encoded(COLOURS)
DAMAGED = (WHOLE[:60], WHOLE[:20], b"<svg/>", b"BM" + bytes(60), WHOLE[8:])
LARGE = png(EIGHT[:0], size=(14_000, 14_000))  # its header is enough
PAIR = np.dstack([EIGHT << 4, np.full((6, 9), 65535, np.uint16)])  # grey and alpha
TWELVE = png(EIGHT << 4, significant=b"\x0c")
SQUARE = Image.fromarray(np.tile(np.array([200, 90, 30], np.uint8), (16, 16, 1)))
KINDS = [("jfif", "JPEG"), ("JPE", "JPEG"), ("jpg", "MPO"), ("avif", "AVIF"), ("jp2", "JPEG2000")]
KINDS += [("apng", "PNG"), ("tga", "TGA"), ("ppm", "PPM"), ("qoi", "QOI"), ("ico", "ICO")]
PHOTOMETRIC, MOST, SIGNED = 262, 281, 339  # tags of TIFF
pydicom: Any = pytest.importorskip("pydicom")


def seen(data: bytes, **options: Any) -> np.ndarray:
    return decode(data, "it", **options)


def shown(data: bytes, **options: Any) -> np.ndarray:
    return decode(data, "it", **options)[..., 0].astype(int)


def grey(values: np.ndarray) -> np.ndarray:
    return np.repeat(values[..., None], 3, 2)


def turned(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def test_every_kind_of_pixels() -> None:
    for kind in ("PNG", "BMP", "TIFF", "WEBP", "GIF"):
        options = {"lossless": True} if kind == "WEBP" else {}
        assert (seen(encoded(GREY, kind, **options)) == grey(GREY)).all()
        assert kind == "GIF" or (seen(encoded(COLOURS, kind, **options)) == COLOURS).all()
    data = encoded(COLOURS, "JPEG", quality=60)
    assert (seen(data) == np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))).all()
    bits = GREY > 127
    assert (seen(encoded(bits)) == grey(np.where(bits, 255, 0).astype(np.uint8))).all()
    for ink, expected in INKS.items():
        cmyk = Image.new("CMYK", (16, 16), ink)
        for kind, most in (("TIFF", 0), ("JPEG", 3)):
            found = seen(encoded(cmyk, kind, quality=95)).astype(int)
            assert np.abs(found - expected).max() <= most
    wide = RNG.integers(0, 1 << 16, (5, 7)).astype(np.uint16)
    upper = grey((wide >> 8).astype(np.uint8))
    assert len(np.unique(upper)) > 20  # not all white
    big_endian = Image.frombytes("I;16B", (7, 5), wide.astype(">u2").tobytes())
    for data in (png(wide), encoded(wide), encoded(wide, "TIFF"), encoded(big_endian, "TIFF")):
        assert (seen(data) == upper).all()
    wide = RNG.integers(0, 1 << 16, (5, 7, 3)).astype(np.uint16)
    assert (seen(png(wide, 2)) == wide >> 8).all()


def test_transparency_is_laid_on_white() -> None:
    alpha = np.zeros((6, 9), np.uint8)
    alpha[:3], alpha[3] = 255, 128
    found = seen(encoded(np.dstack([COLOURS, alpha]))).astype(int)
    assert (found[:3] == COLOURS[:3]).all()
    assert (found[4:] == 255).all()
    mixed = COLOURS[3] * (128 / 255) + 255 * (127 / 255)
    assert np.abs(found[3] - mixed).max() <= 1
    pair = seen(encoded(np.dstack([GREY, alpha])))  # grey and alpha
    assert (pair[:3] == grey(GREY)[:3]).all()
    assert (pair[4:] == 255).all()
    colours, index = RNG.integers(0, 256, (4, 3), np.uint8), RNG.integers(0, 4, (6, 9), np.uint8)
    palette = Image.frombytes("P", (9, 6), index.tobytes())
    palette.putpalette(colours.tobytes())
    for clear, white in ((None, -1), (2, 2), (bytes([255, 0, 255, 255]), 1)):
        options: dict[str, Any] = {"transparency": clear} if clear else {}
        data = encoded(palette, **options)
        assert (seen(data) == np.where(index[..., None] == white, 255, colours[index])).all()
    keyed = seen(encoded(COLOURS, transparency=tuple(map(int, COLOURS[0, 0]))))
    assert keyed[0, 0].tolist() == [255, 255, 255]
    assert (keyed[1:] == COLOURS[1:]).all()
    with pytest.raises(UnreadableImage, match="must have visible pixels, got an alpha"):
        seen(encoded(np.dstack([COLOURS, 0 * alpha]), "TGA"))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
def test_pictures_are_turned_as_the_camera_says(orientation: int, kind: str) -> None:
    stored = {  # how a camera held so stores what it sees
        1: lambda x: x,
        2: lambda x: x[:, ::-1],
        3: lambda x: x[::-1, ::-1],
        4: lambda x: x[::-1],
        5: lambda x: x.swapaxes(0, 1),
        6: lambda x: np.rot90(x, 1),
        7: lambda x: x.swapaxes(0, 1)[::-1, ::-1],
        8: lambda x: np.rot90(x, -1),
    }[orientation]
    upright = np.zeros((16, 32, 3), np.uint8)
    upright[:8, :16], upright[8:, :16], upright[:8, 16:] = (250, 0, 0), (0, 250, 0), (0, 0, 250)
    image = np.ascontiguousarray(stored(upright))
    options = {"quality": 100, "subsampling": 0} if kind == "JPEG" else {}
    options |= {"lossless": True} if kind == "WEBP" else {}
    found = seen(encoded(image, kind, exif=turned(orientation), **options))
    assert found.shape == upright.shape
    assert np.abs(found.astype(int) - upright).max() <= (30 if kind == "JPEG" else 0)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_the_first_of_several_frames(kind: str) -> None:
    frames = [Image.fromarray(np.full((6, 9), value, np.uint8)) for value in (40, 200, 90)]
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    assert Image.open(io.BytesIO(data)).n_frames == 3  # pyright: ignore[reportAttributeAccessIssue]
    assert (seen(data) == 40).all()


def test_whatever_a_decoder_raises_is_one_error() -> None:
    noise = np.random.default_rng(1)
    for _ in range(200):
        broken = bytearray(encoded(COLOURS, "TIFF"))
        for place in noise.integers(0, len(broken), 6):
            broken[place] = noise.integers(0, 256)
        with contextlib.suppress(UnreadableImage):
            assert decode(bytes(broken), "it", 10_000).shape[2] == 3


def test_the_centre_square_is_kept() -> None:
    image = np.zeros((10, 30, 3), np.uint8)
    image[:, 10:20] = 200
    assert (squared(image, 10) == 200).all()
    assert squared(image, 4).shape == (4, 4, 3)
    picture = RNG.integers(0, 256, (30, 41, 3), np.uint8)
    for data in (encoded(picture, "JPEG"), encoded(picture, "JPEG", exif=turned(6))):
        assert (seen(data, size=7) == squared(seen(data), 7)).all()


def tiff(values: np.ndarray, bits: int, more: dict[int, int] | None = None) -> bytes:
    """An uncompressed TIFF of grey values, `bits` each, with more tags."""
    height, width = values.shape
    if bits == 16:
        body = values.astype("<u2").tobytes()
    else:
        lines = ["".join(f"{value:0{bits}b}" for value in row) for row in values]
        lines = [line + "0" * (-len(line) % 8) for line in lines]
        body = b"".join(int(line, 2).to_bytes(len(line) // 8, "big") for line in lines)
    tags = {256: width, 257: height, 258: bits, 259: 1, 262: 1, 273: 0, 277: 1}
    tags |= {278: height, 279: len(body)} | (more or {})
    tags[273] = 8 + 2 + 12 * len(tags) + 4
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, tags[tag]) for tag in sorted(tags))
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4) + body


@pytest.mark.parametrize("bits", [9, 10, 12, 14, 15])
def test_bits_that_a_file_states(bits: int) -> None:
    values = (EIGHT << (bits - 8)) + 1
    for data in (
        png(values, significant=bytes([bits])),
        tiff(values, 16, {MOST: (1 << bits) - 1}),
        tiff(values, 16, {MOST: int(values.max())}),
    ):
        assert (shown(data) == EIGHT).all()
        assert (shown(data, bits=16) == EIGHT).all()  # the file knows better
    assert (shown(tiff((EIGHT << 4) + 5, 12)) == EIGHT).all()  # packed
    body = ((EIGHT << 4) + 1).astype(">u2").tobytes()
    assert np.abs(shown(b"P5 9 6 4095\n" + body) - EIGHT).max() <= 1
    scaled = (EIGHT << 8) + EIGHT  # what was scaled up is left
    for data in (png(scaled, significant=b"\x0c"), png(scaled), tiff(scaled, 16, {MOST: 4095})):
        assert (shown(data) == EIGHT).all()
    for shift, most in ((8, {}), (4, {MOST: 4095})):
        white_is_zero = tiff(EIGHT << shift, 16, {PHOTOMETRIC: 0} | most)
        assert (shown(white_is_zero) == 255 - EIGHT).all()


def test_signed_words_hold_no_negative_number() -> None:
    values = EIGHT.astype(np.int16) << 7
    assert (shown(tiff(values, 16, {SIGNED: 2})) == EIGHT // 2).all()
    with pytest.raises(UnreadableImage, match=r"it .*must have values >= 0, got -1000"):
        shown(tiff(np.where(EIGHT > 128, -1000, values), 16, {SIGNED: 2}))


@pytest.mark.parametrize("bits", [8, 10, 12, 14])
def test_bits_that_the_options_declare(bits: int) -> None:
    values = EIGHT << (bits - 8)
    for data in (png(values), tiff(values, 16), encoded(values)):
        assert (shown(data, bits=bits) == EIGHT).all()
    rotated = encoded(values, exif=turned(6))
    assert (shown(rotated, bits=bits) == np.rot90(EIGHT, -1)).all()
    values[0, 0] = 1 << bits
    rule = rf"below 2\^{bits} with --bits {bits}, got {1 << bits}"
    with pytest.raises(UnreadableImage, match=rule):
        shown(png(values), bits=bits)


def test_bits_of_colours() -> None:
    colours = RNG.integers(0, 256, (6, 9, 4)).astype(np.uint16)
    for colour, channels in ((2, 3), (6, 4)):
        values = (colours[..., :channels] << 4) + 3
        if channels == 4:
            values[..., 3] = 65535
        for data in (png(values, colour, significant=bytes([12] * channels)), png(values, colour)):
            assert (decode(data, "it", bits=12) == colours[..., :3]).all()
        assert not (decode(png(values, colour), "it") >> 4).any()  # nearly black
    assert (shown(png(np.dstack([EIGHT << 8, PAIR[..., 1]]), 4)) == EIGHT).all()


def test_a_picture_that_would_be_black_is_known() -> None:
    for data, bits, dark in (
        (png(EIGHT << 4), None, True),
        (png((EIGHT << 2) + 40_000), None, True),  # one grey, with signs as an offset
        (png(EIGHT << 8), None, False),
        (png(EIGHT << 4), 12, False),
        (png(EIGHT << 4), 16, False),  # meant to be dark
        (encoded(GREY), None, False),
        (TWELVE, None, False),
    ):
        decode(data, "it", bits=bits, seen=(noted := Seen()))
        assert bool(noted.dark) == dark


def written(root: Path, **files: bytes) -> str:
    for name, content in files.items():
        put(root / name.replace("__", "/").replace("_", "."), content)
    return str(root)


def test_a_picture_is_read_alike_among_others(tmp_path: Path) -> None:
    others = {"dark": png(EIGHT << 1), "bright": png(EIGHT << 8), "none": b"", "stated": TWELVE}
    for name, other in others.items():
        source = written(tmp_path / name, cat__0_png=other, cat__1_png=png(EIGHT << 5))
        images = open_images(source)
        if other:
            images.images(slice(0, 1))
        assert (images.images(slice(1, 2))[0, 0] == EIGHT >> 3).all()


def heic(picture: Image.Image = SQUARE, **options) -> bytes:
    pillow_heif = pytest.importorskip("pillow_heif")
    pillow_heif.from_pillow(picture).save(buffer := io.BytesIO(), quality=95, **options)
    return buffer.getvalue()


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
        seen(eps)
    with pytest.raises(ValueError, match=r"got 1 \.eps \(EPS: convert to PNG or JPEG\) among 2"):
        open_images(written(tmp_path, cat__a_eps=eps, cat__b_png=encoded(SQUARE, "PNG")))


def test_heic(tmp_path: Path) -> None:
    source = written(tmp_path, u__cat__1_HEIC=heic(), u__cat__2_heif=heic(), u__cat__3_jpg=heic())
    pixels = open_images(source, layout="user-class").images(slice(None))
    assert np.abs(pixels.astype(int) - np.asarray(SQUARE).transpose(2, 0, 1)).max() <= 6
    upright = np.zeros((16, 32, 3), np.uint8)
    upright[:, :16] = 240
    held = Image.fromarray(np.rot90(upright).copy())
    found = seen(heic(held, exif=turned(6).tobytes()))
    assert found.shape == upright.shape
    assert np.abs(found[:, [4, 28]].astype(int) - upright[:, [4, 28]]).max() <= 6
    with pytest.raises(UnreadableImage, match="at most max_pixels = 255 pixels, got 16 x 16"):
        seen(heic(), max_pixels=255)
    with pytest.raises(UnreadableImage, match="it must be a readable image"):
        seen(heic()[:200])


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
    held, allocated = pydicom.Dataset(), 8 * pixels.dtype.itemsize
    held.file_meta = pydicom.dataset.FileMetaDataset()
    held.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    held.SOPClassUID, held.SOPInstanceUID = pydicom.uid.CTImageStorage, "1.2.3"
    held.Rows, held.Columns, held.SamplesPerPixel = (*pixels.shape, 1)[:3]
    held.PhotometricInterpretation = "RGB" if pixels.ndim == 3 else "MONOCHROME2"
    if pixels.ndim == 3:
        held.PlanarConfiguration = 0
    held.BitsAllocated, held.BitsStored = allocated, min(stored, allocated)
    held.HighBit, held.PixelRepresentation = held.BitsStored - 1, int(pixels.dtype.kind == "i")
    held.PixelData = pixels.tobytes()
    for name, value in more.items():
        setattr(held, name, value)
    return kept(held, enforce_file_format=True)


def test_bits_of_dicom_as_stored_or_declared() -> None:
    for bits in (8, 10, 12, 16):
        assert np.abs(shown(dicom(EIGHT << (bits - 8), stored=bits)) - EIGHT).max() <= 1
    assert np.abs(shown(dicom(EIGHT.astype(np.uint8), stored=8)) - EIGHT).max() == 0
    signed = (EIGHT.astype(np.int16) << 4) - 2048
    assert np.abs(shown(dicom(signed)) - EIGHT).max() <= 1
    smallest_is_white = dicom(EIGHT << 4, PhotometricInterpretation="MONOCHROME1")
    assert np.abs(shown(smallest_is_white) - (255 - EIGHT.astype(int))).max() <= 1
    data, noted = dicom(EIGHT << 4, stored=16), Seen()  # twelve bits that say they are sixteen
    decode(data, "it", seen=noted)
    assert noted.dark
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
    assert (seen(dicom(colours, stored=8)) == colours).all()
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


GOOD = dicom(EIGHT << 4)
DAMAGED += (GOOD[:200], bytes(128) + b"DICM", bytes(128) + b"DICM" + bytes(500), GOOD[:-9])


def test_pictures_that_are_refused() -> None:
    report = pydicom.dcmread(io.BytesIO(dicom(EIGHT, Modality="SR")))
    del report.PixelData
    wide = dicom(EIGHT << 8, stored=16)
    for data, options, rule in (
        (encoded(GREY.astype(np.float32), "TIFF"), {}, "must have 8 or 16 bits per channel, got"),
        (encoded(GREY.astype(np.int32), "TIFF"), {}, "must have 8 or 16 bits per channel, got"),
        (LARGE, {}, f"at most max_pixels = {MAX_PIXELS} pixels, got 196000000 in all"),
        *((data, {"max_pixels": 53}, "53 pixels, got 9 x 6") for data in (encoded(GREY), GOOD)),
        (b"", {}, "must be a readable image, got an empty file"),
        *((data, {}, "must be a readable image, got") for data in DAMAGED),
        (png(PAIR, 4), {"bits": 12}, "must .* or be grey or RGB, got Pillow's LA;16B"),
        (kept(report), {}, "DICOM must hold a picture, got SR"),
        (wide, {"bits": 12}, r"values of 12 bits, 0 to 4095, got \d+ to \d+"),
    ):
        with pytest.raises(UnreadableImage, match=f"^it .*{rule}"):
            seen(data, **options)
    assert seen(encoded(GREY), max_pixels=54).shape == (6, 9, 3)
