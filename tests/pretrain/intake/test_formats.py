"""What Pillow opens is read in every intake; other pictures are refused by name."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pretrain.datasets import ImageSet, UnreadableImage
from pretrain.intake import files
from pretrain.intake.decode import decode
from pretrain.sources import open_images

SQUARE = Image.fromarray(np.tile(np.array([200, 90, 30], np.uint8), (16, 16, 1)))


@pytest.fixture
def without_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = {"HEIC": "no_such_heif", "DICOM": "no_such_dicom"}
    monkeypatch.setattr(files, "EXTRAS", missing)


def heic(picture: Image.Image = SQUARE, **options) -> bytes:
    pillow_heif = pytest.importorskip("pillow_heif")
    buffer = io.BytesIO()
    pillow_heif.from_pillow(picture).save(buffer, quality=95, **options)
    return buffer.getvalue()


def written(root: Path, **files: bytes) -> str:
    for name, content in files.items():
        place = root / name.replace("__", "/").replace("_", ".")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    return str(root)


def saved(kind: str, **options) -> bytes:
    buffer = io.BytesIO()
    SQUARE.save(buffer, kind, **options)
    return buffer.getvalue()


KINDS = [("jfif", "JPEG"), ("JPE", "JPEG"), ("jpg", "MPO"), ("avif", "AVIF"), ("jp2", "JPEG2000")]
KINDS += [("apng", "PNG"), ("tga", "TGA"), ("ppm", "PPM"), ("qoi", "QOI"), ("ico", "ICO")]


@pytest.mark.parametrize(("suffix", "kind"), KINDS)
def test_what_pillow_opens_is_read(tmp_path: Path, suffix: str, kind: str) -> None:
    data = saved(kind, **({"sizes": [(16, 16)]} if kind == "ICO" else {}))
    source = written(tmp_path, **{f"cat__a_{suffix}": data, "cat__b_png": saved("PNG")})
    images = open_images(source)
    assert len(images) == 2
    pixels = images.images(slice(None)).astype(int)
    assert np.abs(pixels[0] - pixels[1]).max() <= 12
    (tmp_path / "t.csv").write_text(f"path\ncat/a.{suffix}\n")
    table = open_images(f"csv:{tmp_path}/t.csv")
    assert (table.images(slice(None)) == pixels[0]).all()


def test_what_runs_a_program_is_not_opened(tmp_path: Path) -> None:
    eps = saved("EPS")
    with pytest.raises(UnreadableImage, match="of no known format"):
        decode(eps, "it")
    with pytest.raises(ValueError, match=r"got 1 \.eps \(EPS: convert to PNG or JPEG\) among 2"):
        open_images(written(tmp_path, cat__a_eps=eps, cat__b_png=saved("PNG")))


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


@pytest.mark.usefixtures("without_extras")
def test_without_the_extras_all_are_counted(tmp_path: Path) -> None:
    files = {f"u{u}__cat__{k}_jpg": saved("JPEG") for u in range(2) for k in range(3)}
    files |= {f"u2__cat__{k}_HEIC": b"?" for k in range(4)} | {"u2__cat__9_svg": b"<svg/>"}
    files |= {"u1__cat__9_dcm": b"?", "u1__cat__8_heif": b"?"}
    source = written(tmp_path, **files)
    rule = (
        r"or pass --skip-unreadable\), got 4 \.heic, 1 \.heif \(HEIC: pip install "
        r"'blind-averaging\[heic\]'\); 1 \.dcm \(DICOM: pip install 'blind-averaging\[dicom\]'\); "
        r"1 \.svg \(SVG: convert to PNG or JPEG\) among 13"
    )
    with pytest.raises(ValueError, match=rule):
        open_images(source, layout="user-class")
    images = open_images(source, layout="user-class", skip_unreadable=True)
    assert len(images) == 13
    (tmp_path / "t.csv").write_text("path\nu2/cat/1.HEIC\nu0/cat/1.jpg\n")
    with pytest.raises(ValueError, match=r"got 1 \.heic \(HEIC: .* among 2"):
        open_images(f"csv:{tmp_path}/t.csv")


def test_a_renamed_picture_is_named_by_its_format(tmp_path, request) -> None:
    data = heic()
    request.getfixturevalue("without_extras")
    images: ImageSet = open_images(written(tmp_path, cat__1_jpg=data))
    with pytest.raises(UnreadableImage, match=r"1.jpg must .* HEIC must have .*averaging\[heic\]"):
        images.images(slice(None))


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (bytes(128) + b"DICM", "DICOM"),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "HEIC"),
        (b"\0\0\0\x18ftypmif1\0\0\0\0mif1heic", "HEIC"),
        (b"\0\0\0\x1cftypmif1\0\0\0\0mif1avifmiaf", "picture"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "picture"),
        (b"II*\0", "picture"),
        (b"RIFF\0\0\0\0WAVE", ""),
        (b"", ""),
        (b"A table of pictures", ""),
    ],
)
def test_kinds_by_their_first_bytes(head: bytes, kind: str) -> None:
    assert files.kind_of(head) == kind
