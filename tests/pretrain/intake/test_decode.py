"""What becomes of every kind of picture: files are made, and pixels compared."""

import contextlib
import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pretrain.datasets import Seen, UnreadableImage
from pretrain.intake.decode import MAX_PIXELS, decode, squared
from pretrain.sources import open_images
from tests.pretrain.conftest import encoded, png, put

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


def seen(data: bytes, **options: Any) -> np.ndarray:
    return decode(data, "it", **options)


def shown(data: bytes, bits: int | None = None) -> np.ndarray:
    return decode(data, "it", bits=bits)[..., 0]


def grey(values: np.ndarray) -> np.ndarray:
    return np.repeat(values[..., None], 3, 2)


def turned(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "WEBP", "GIF"])
def test_colour_and_grey_of_every_format(kind: str) -> None:
    options = {"lossless": True} if kind == "WEBP" else {}
    if kind != "GIF":
        assert (seen(encoded(COLOURS, kind, **options)) == COLOURS).all()
    assert (seen(encoded(GREY, kind, **options)) == grey(GREY)).all()


def test_other_kinds_of_pixels() -> None:
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


def palette(transparency: Any = None) -> tuple[bytes, np.ndarray, np.ndarray]:
    """The file, its colours (h, w, 3) and its indices (h, w)."""
    table = RNG.integers(0, 256, (4, 3), np.uint8)
    index = RNG.integers(0, 4, (6, 9), np.uint8)
    image = Image.frombytes("P", (9, 6), index.tobytes())
    image.putpalette(table.tobytes())
    options = {} if transparency is None else {"transparency": transparency}
    return encoded(image, **options), table[index], index


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
    for clear, white in ((None, -1), (2, 2), (bytes([255, 0, 255, 255]), 1)):
        data, colours, index = palette(transparency=clear)
        assert (seen(data) == np.where(index[..., None] == white, 255, colours)).all()
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


def test_pictures_that_are_refused() -> None:
    for data, options, rule in (
        (encoded(GREY.astype(np.float32), "TIFF"), {}, "must have 8 or 16 bits per channel, got"),
        (encoded(GREY.astype(np.int32), "TIFF"), {}, "must have 8 or 16 bits per channel, got"),
        (LARGE, {}, f"at most max_pixels = {MAX_PIXELS} pixels, got 196000000 in all"),
        (encoded(GREY), {"max_pixels": 53}, "at most max_pixels = 53 pixels, got 9 x 6"),
        (b"", {}, "must be a readable image, got an empty file"),
        *((data, {}, "must be a readable image, got") for data in DAMAGED),
        (png(PAIR, 4), {"bits": 12}, "must .* or be grey or RGB, got Pillow's LA;16B"),
    ):
        with pytest.raises(UnreadableImage, match=f"^it .*{rule}"):
            seen(data, **options)
    assert seen(encoded(GREY), max_pixels=54).shape == (6, 9, 3)


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


def tiff(
    values: np.ndarray,
    bits: int,
    *,
    photometric: int = 1,
    most: int | None = None,
    kind: int | None = None,
) -> bytes:
    """An uncompressed TIFF of grey values, `bits` each."""
    height, width = values.shape
    if bits == 16:
        body = values.astype("<u2").tobytes()
    else:
        lines = ["".join(f"{value:0{bits}b}" for value in row) for row in values]
        lines = [line + "0" * (-len(line) % 8) for line in lines]
        body = b"".join(int(line, 2).to_bytes(len(line) // 8, "big") for line in lines)
    tags = {256: width, 257: height, 258: bits, 259: 1, 262: photometric, 273: 0, 277: 1}
    tags |= {278: height, 279: len(body)} | ({} if most is None else {281: most})
    tags |= {} if kind is None else {339: kind}
    tags[273] = 8 + 2 + 12 * len(tags) + 4
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, tags[tag]) for tag in sorted(tags))
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4) + body


@pytest.mark.parametrize("bits", [9, 10, 12, 14, 15])
def test_bits_that_a_file_states(bits: int) -> None:
    values = (EIGHT << (bits - 8)) + 1
    for data in (
        png(values, significant=bytes([bits])),
        tiff(values, 16, most=(1 << bits) - 1),
        tiff(values, 16, most=int(values.max())),
    ):
        assert (shown(data) == EIGHT).all()
        assert (shown(data, bits=16) == EIGHT).all()  # the file knows better
    assert (shown(tiff((EIGHT << 4) + 5, 12)) == EIGHT).all()  # packed
    body = ((EIGHT << 4) + 1).astype(">u2").tobytes()
    assert np.abs(shown(b"P5 9 6 4095\n" + body).astype(int) - EIGHT).max() <= 1
    scaled = (EIGHT << 8) + EIGHT  # what was scaled up is left
    for data in (png(scaled, significant=b"\x0c"), png(scaled), tiff(scaled, 16, most=4095)):
        assert (shown(data) == EIGHT).all()
    for data in (
        tiff(EIGHT << 8, 16, photometric=0),
        tiff(EIGHT << 4, 16, photometric=0, most=4095),
    ):
        assert (shown(data) == 255 - EIGHT).all()  # white is zero


def test_signed_words_hold_no_negative_number() -> None:
    values = EIGHT.astype(np.int16) << 7
    assert (shown(tiff(values, 16, kind=2)) == EIGHT // 2).all()
    with pytest.raises(UnreadableImage, match=r"it .*must have values >= 0, got -1000"):
        shown(tiff(np.where(EIGHT > 128, -1000, values), 16, kind=2))


@pytest.mark.parametrize("bits", [8, 10, 12, 14])
def test_bits_that_the_options_declare(bits: int) -> None:
    values = EIGHT << (bits - 8)
    for data in (png(values), tiff(values, 16), encoded(values)):
        assert (shown(data, bits) == EIGHT).all()
    rotated = encoded(values, exif=turned(6))
    assert (shown(rotated, bits) == np.rot90(EIGHT, -1)).all()
    values[0, 0] = 1 << bits
    rule = rf"below 2\^{bits} with --bits {bits}, got {1 << bits}"
    with pytest.raises(UnreadableImage, match=rule):
        shown(png(values), bits)


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


def written(root: Path, *files: bytes) -> str:
    for k, data in enumerate(files):
        put(root / "cat" / f"{k}.png", data)
    return str(root)


def test_a_set_that_would_be_black_is_known(tmp_path: Path) -> None:
    dark, bright, usual = png(EIGHT << 4), png(EIGHT << 8), encoded(GREY)
    images = open_images(written(tmp_path / "dark", dark, usual, dark))
    images.images(slice(None))
    rule = r"or pass --bits 12 .*, got at most values from \d+ to \d+ of 65535"
    with pytest.raises(ValueError, match=rule):
        images.refuse_dark()
    for name, files, bits in (
        ("one is bright", (dark, bright), None),
        ("declared", (dark, dark), 12),
        ("meant to be dark", (dark, dark), 16),
        ("8 bits", (usual,), None),
        ("stated", (png(EIGHT << 4, significant=b"\x0c"),), None),
    ):
        images = open_images(written(tmp_path / name, *files), bits=bits)
        images.images(slice(None))
        images.refuse_dark()
    narrow = Seen()
    decode(png((EIGHT << 2) + 40_000), "it", seen=narrow)  # one grey, with signs as an offset
    assert narrow.dark


def test_a_picture_is_read_alike_among_others(tmp_path: Path) -> None:
    mine = png(EIGHT << 5)
    others = {"dark": png(EIGHT << 1), "bright": png(EIGHT << 8), "none": b""}
    others["stated"] = png(EIGHT << 4, significant=b"\x0c")
    for name, other in others.items():
        images = open_images(written(tmp_path / name, other, mine))
        if other:
            images.images(slice(0, 1))
        assert (images.images(slice(1, 2))[0, 0] == EIGHT >> 3).all()
