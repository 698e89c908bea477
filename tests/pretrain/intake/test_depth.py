"""Pictures of more than 8 bits: shown by the bits in use, or refused where nobody says them."""

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pretrain.datasets import Seen, UnreadableImage
from pretrain.intake.decode import decode
from pretrain.sources import open_images

RNG = np.random.default_rng(3)
EIGHT = RNG.integers(0, 256, (6, 9)).astype(np.uint16)
COLOURS = RNG.integers(0, 256, (6, 9, 4)).astype(np.uint16)


def png(values: np.ndarray, colour: int, *, significant: bytes = b"") -> bytes:
    """A PNG of 16 bits per channel, as its specification puts it together."""

    def chunk(name: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(name + content))
        return struct.pack(">I", len(content)) + name + content + check

    height, width = values.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    parts = [chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 16, colour, 0, 0, 0))]
    parts += [chunk(b"sBIT", significant)] if significant else []
    parts += [chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def tiff(values: np.ndarray, bits: int, *, photometric: int = 1, most: int | None = None) -> bytes:
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
    tags[273] = 8 + 2 + 12 * len(tags) + 4
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, tags[tag]) for tag in sorted(tags))
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4) + body


def shown(data: bytes, bits: int | None = None) -> np.ndarray:
    return decode(data, "it", bits=bits)[..., 0]


@pytest.mark.parametrize("bits", [9, 10, 12, 14, 15])
def test_bits_that_a_file_states(bits: int) -> None:
    values = (EIGHT << (bits - 8)) + 1
    for data in (
        png(values, 0, significant=bytes([bits])),
        tiff(values, 16, most=(1 << bits) - 1),
        tiff(values, 16, most=int(values.max())),
    ):
        assert (shown(data) == EIGHT).all()
        assert (shown(data, bits=16) == EIGHT).all()  # the file knows better
    assert (shown(tiff((EIGHT << 4) + 5, 12)) == EIGHT).all()  # packed


def test_values_that_were_scaled_up_are_left(tmp_path: Path) -> None:
    scaled = (EIGHT << 8) + EIGHT
    assert (shown(png(scaled, 0, significant=b"\x0c")) == EIGHT).all()
    assert (shown(png(scaled, 0)) == EIGHT).all()
    assert (shown(tiff(scaled, 16, most=4095)) == EIGHT).all()


@pytest.mark.parametrize("bits", [8, 10, 12, 14])
def test_bits_that_the_options_declare(bits: int) -> None:
    values = EIGHT << (bits - 8)
    for data in (png(values, 0), tiff(values, 16)):
        assert (shown(data, bits) == EIGHT).all()
    stored = io.BytesIO()
    Image.fromarray(values).save(stored, "PNG")
    assert (shown(stored.getvalue(), bits) == EIGHT).all()
    values[0, 0] = 1 << bits
    with pytest.raises(
        UnreadableImage, match=rf"below 2\^{bits} with --bits {bits}, got {1 << bits}"
    ):
        shown(png(values, 0), bits)


def test_colours_too() -> None:
    for colour, channels in ((2, 3), (6, 4)):
        values = (COLOURS[..., :channels] << 4) + 3
        if channels == 4:
            values[..., 3] = 65535
        for data in (png(values, colour, significant=bytes([12] * channels)), png(values, colour)):
            found = decode(data, "it", bits=12)
            assert (found == COLOURS[..., :3]).all()
        assert not (decode(png(values, colour), "it") >> 4).any()  # nearly black
    pair = np.dstack([EIGHT << 4, np.full((6, 9), 65535, np.uint16)])
    with pytest.raises(UnreadableImage, match="or be grey or RGB, got Pillow's LA;16B"):
        decode(png(pair, 4), "it", bits=12)
    assert (shown(png(np.dstack([EIGHT << 8, pair[..., 1]]), 4)) == EIGHT).all()


def test_white_may_be_zero() -> None:
    assert (shown(tiff(EIGHT << 8, 16, photometric=0)) == 255 - EIGHT).all()
    assert (shown(tiff(EIGHT << 4, 16, photometric=0, most=4095)) == 255 - EIGHT).all()


def test_the_camera_is_asked_here_as_well() -> None:
    turned = Image.Exif()
    turned[0x0112] = 6
    stored = io.BytesIO()
    Image.fromarray(EIGHT << 4).save(stored, "PNG", exif=turned)
    assert (shown(stored.getvalue(), 12) == np.rot90(EIGHT, -1)).all()


def test_portable_grey_maps_state_their_maximum() -> None:
    body = ((EIGHT << 4) + 1).astype(">u2").tobytes()
    assert np.abs(shown(b"P5 9 6 4095\n" + body).astype(int) - EIGHT).max() <= 1


def written(root: Path, *files: bytes) -> str:
    (root / "cat").mkdir(parents=True, exist_ok=True)
    for k, data in enumerate(files):
        (root / "cat" / f"{k}.png").write_bytes(data)
    return str(root)


def test_a_set_that_would_be_black_is_known(tmp_path: Path) -> None:
    dark, bright = png(EIGHT << 4, 0), png(EIGHT << 8, 0)
    usual = io.BytesIO()
    Image.fromarray(EIGHT.astype(np.uint8)).save(usual, "PNG")
    images = open_images(written(tmp_path / "dark", dark, usual.getvalue(), dark))
    images.images(slice(None))
    rule = r"or pass --bits 12 .*, got at most values from \d+ to \d+ of 65535"
    with pytest.raises(ValueError, match=rule):
        images.refuse_dark()
    for name, files, bits in (
        ("one is bright", (dark, bright), None),
        ("declared", (dark, dark), 12),
        ("meant to be dark", (dark, dark), 16),
        ("8 bits", (usual.getvalue(),), None),
        ("stated", (png(EIGHT << 4, 0, significant=b"\x0c"),), None),
    ):
        images = open_images(written(tmp_path / name, *files), bits=bits)
        images.images(slice(None))
        images.refuse_dark()
    narrow = Seen()
    decode(png((EIGHT << 2) + 40_000, 0), "it", seen=narrow)  # one grey, with signs as an offset
    assert narrow.dark


def test_a_picture_is_read_alike_among_others(tmp_path: Path) -> None:
    mine = png(EIGHT << 5, 0)
    others = {"dark": png(EIGHT << 1, 0), "bright": png(EIGHT << 8, 0), "none": b""}
    others["stated"] = png(EIGHT << 4, 0, significant=b"\x0c")
    for name, other in others.items():
        images = open_images(written(tmp_path / name, other, mine))
        if other:
            images.images(slice(0, 1))
        assert (images.images(slice(1, 2))[0, 0] == EIGHT >> 3).all()


@pytest.mark.parametrize("bits", [7, 17, 0])
def test_bits_out_of_range(bits: int) -> None:
    with pytest.raises(ValueError, match=rf"bits must be in \[8, 16\], got {bits}"):
        open_images("anywhere", bits=bits)
