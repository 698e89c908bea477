"""What becomes of every kind of picture: files are made, and pixels compared."""

import contextlib
import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pretrain.intake.decode import MAX_PIXELS, UnreadableImage, decode, squared

RNG = np.random.default_rng(0)
COLOURS = RNG.integers(0, 256, (6, 9, 3), np.uint8)
GREY = RNG.integers(0, 256, (6, 9), np.uint8)


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def seen(data: bytes, **options: Any) -> np.ndarray:
    return decode(data, "it", **options)


def grey(values: np.ndarray) -> np.ndarray:
    return np.repeat(values[..., None], 3, 2)


def png(width: int, height: int, bits: int, colour: int, rows: bytes) -> bytes:
    """A PNG as its specification puts it together, without Pillow."""

    def chunk(name: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(name + content))
        return struct.pack(">I", len(content)) + name + content + check

    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "WEBP", "GIF"])
def test_colour_and_grey_of_every_format(kind: str) -> None:
    options = {"lossless": True} if kind == "WEBP" else {}
    if kind != "GIF":
        assert (seen(encoded(Image.fromarray(COLOURS), kind, **options)) == COLOURS).all()
    assert (seen(encoded(Image.fromarray(GREY), kind, **options)) == grey(GREY)).all()


def test_sixteen_bits_keep_their_upper_eight() -> None:
    wide = RNG.integers(0, 1 << 16, (5, 7)).astype(np.uint16)
    expected = grey((wide >> 8).astype(np.uint8))
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in wide)
    assert (seen(png(7, 5, 16, 0, rows)) == expected).all()
    assert (seen(encoded(Image.fromarray(wide), "PNG")) == expected).all()
    assert (seen(encoded(Image.fromarray(wide), "TIFF")) == expected).all()
    assert len(np.unique(expected)) > 20  # not all white
    big_endian = Image.frombytes("I;16B", (7, 5), wide.astype(">u2").tobytes())
    assert (seen(encoded(big_endian, "TIFF")) == expected).all()


def test_sixteen_bits_of_colour_too() -> None:
    wide = RNG.integers(0, 1 << 16, (5, 7, 3)).astype(np.uint16)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in wide)
    assert (seen(png(7, 5, 16, 2, rows)) == wide >> 8).all()


def test_wider_numbers_have_no_range() -> None:
    for values in (np.float32(GREY), np.int32(GREY)):
        with pytest.raises(UnreadableImage, match="it must have 8 or 16 bits per channel, got"):
            seen(encoded(Image.fromarray(values), "TIFF"))


def test_black_and_white() -> None:
    bits = GREY > 127
    expected = grey(np.where(bits, 255, 0).astype(np.uint8))
    assert (seen(encoded(Image.fromarray(bits))) == expected).all()


def palette(transparency: Any = None) -> tuple[bytes, np.ndarray, np.ndarray]:
    """The file, its colours (h, w, 3) and its indices (h, w)."""
    table = RNG.integers(0, 256, (4, 3), np.uint8)
    index = RNG.integers(0, 4, (6, 9), np.uint8)
    image = Image.fromarray(index).convert("P")
    image = Image.frombytes("P", (9, 6), index.tobytes())
    image.putpalette(table.tobytes())
    options = {} if transparency is None else {"transparency": transparency}
    return encoded(image, "PNG", **options), table[index], index


def test_palettes() -> None:
    data, colours, _ = palette()
    assert (seen(data) == colours).all()
    data, colours, index = palette(transparency=2)
    assert (seen(data) == np.where(index[..., None] == 2, 255, colours)).all()
    data, colours, index = palette(transparency=bytes([255, 0, 255, 255]))
    assert (seen(data) == np.where(index[..., None] == 1, 255, colours)).all()


def test_transparency_is_laid_on_white() -> None:
    alpha = np.zeros((6, 9), np.uint8)
    alpha[:3], alpha[3] = 255, 128
    image = Image.fromarray(np.dstack([COLOURS, alpha]))
    found = seen(encoded(image)).astype(int)
    assert (found[:3] == COLOURS[:3]).all()
    assert (found[4:] == 255).all()
    mixed = COLOURS[3] * (128 / 255) + 255 * (127 / 255)
    assert np.abs(found[3] - mixed).max() <= 1
    pair = Image.fromarray(np.dstack([GREY, alpha]))  # grey and alpha
    assert (seen(encoded(pair))[:3] == grey(GREY)[:3]).all()
    assert (seen(encoded(pair))[4:] == 255).all()
    keyed = encoded(Image.fromarray(COLOURS), "PNG", transparency=tuple(map(int, COLOURS[0, 0])))
    assert seen(keyed)[0, 0].tolist() == [255, 255, 255]
    assert (seen(keyed)[1:] == COLOURS[1:]).all()


def test_cmyk() -> None:
    for ink, expected in (
        ((0, 0, 0, 0), (255, 255, 255)),
        ((255, 0, 0, 0), (0, 255, 255)),
        ((0, 255, 0, 0), (255, 0, 255)),
        ((0, 0, 0, 255), (0, 0, 0)),
    ):
        image = Image.new("CMYK", (16, 16), ink)
        assert np.abs(seen(encoded(image, "TIFF")).astype(int) - expected).max() == 0
        jpeg = encoded(image, "JPEG", quality=95)
        assert np.abs(seen(jpeg).astype(int) - expected).max() <= 3


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
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = Image.fromarray(np.ascontiguousarray(stored(upright)))
    options = {"quality": 100, "subsampling": 0} if kind == "JPEG" else {}
    options |= {"lossless": True} if kind == "WEBP" else {}
    found = seen(encoded(image, kind, exif=exif, **options))
    assert found.shape == upright.shape
    assert np.abs(found.astype(int) - upright).max() <= (30 if kind == "JPEG" else 0)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_the_first_of_several_frames(kind: str) -> None:
    frames = [Image.fromarray(np.full((6, 9), value, np.uint8)) for value in (40, 200, 90)]
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    assert Image.open(io.BytesIO(data)).n_frames == 3  # pyright: ignore[reportAttributeAccessIssue]
    assert (seen(data) == 40).all()


def test_same_bytes_same_pixels(tmp_path: Path) -> None:
    data = encoded(Image.fromarray(COLOURS), "JPEG", quality=60)
    assert (seen(data) == seen(bytes(data))).all()
    assert (seen(data) == np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))).all()


def test_large_pictures_are_refused_before_they_are_decoded() -> None:
    data = png(14_000, 14_000, 8, 0, b"")  # its header is enough
    rule = f"it must have at most max_pixels = {MAX_PIXELS} pixels, got 196000000 in all"
    with pytest.raises(UnreadableImage, match=rule):
        seen(data)
    with pytest.raises(UnreadableImage, match="at most max_pixels = 53 pixels, got 9 x 6"):
        seen(encoded(Image.fromarray(GREY)), max_pixels=53)
    assert seen(encoded(Image.fromarray(GREY)), max_pixels=54).shape == (6, 9, 3)


def test_damaged_pictures_are_named() -> None:
    whole = encoded(Image.fromarray(COLOURS))
    with pytest.raises(UnreadableImage, match="it must be a readable image, got an empty file"):
        seen(b"")
    for damaged in (whole[:60], whole[:20], b"<svg/>", b"BM" + bytes(60), whole[8:]):
        with pytest.raises(UnreadableImage, match="it must be a readable image, got"):
            seen(damaged)
    noise = np.random.default_rng(1)
    for _ in range(200):  # whatever a decoder raises is one error
        broken = bytearray(encoded(Image.fromarray(COLOURS), "TIFF"))
        for place in noise.integers(0, len(broken), 6):
            broken[place] = noise.integers(0, 256)
        with contextlib.suppress(UnreadableImage):
            assert decode(bytes(broken), "it", 10_000).shape[2] == 3


def test_the_centre_square_is_kept() -> None:
    image = np.zeros((10, 30, 3), np.uint8)
    image[:, 10:20] = 200
    assert (squared(image, 10) == 200).all()
    assert squared(image, 4).shape == (4, 4, 3)
    picture = Image.fromarray(RNG.integers(0, 256, (30, 41, 3), np.uint8))
    turned = Image.Exif()
    turned[0x0112] = 6  # a quarter to the right
    for data in (encoded(picture, "JPEG"), encoded(picture, "JPEG", exif=turned)):
        assert (seen(data, size=7) == squared(seen(data), 7)).all()
