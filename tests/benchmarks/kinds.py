"""Pictures of other kinds than colour photographs: drawn ones, and photographs made strange.

python tests/benchmarks/kinds.py --out DIR [--cifar10 cifar10_jpeg.npz]

Writes `letters.npz`, `textures.npz`, `shapes.npz` and `spots.npz` (faint ones on lungs) in DIR, at
32 px, for `embed run`; with --cifar10 also its photographs in grey, as `inverted.npz`,
`thresholded.npz` (black and white) and `outlined.npz` (edges alone). Seeds are fixed.
"""

import io
import string
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import tyro
from PIL import Image, ImageDraw, ImageFilter, ImageFont

SIDE, LARGE = 32, 96  # pixels of a picture, and of the larger one that it is drawn as
TRAIN, TEST = 12_000, 3_000
Draw = Callable[[int, np.random.Generator], Image.Image]
FONTS = ("DejaVuSans", "DejaVuSerif", "DejaVuSansMono", "STIXGeneral", "cmr10", "cmss10", "cmtt10")
SUFFIXES = ("", "-Bold", "-Oblique", "-Italic", "Bol", "Italic", "BolIta")
CHARACTERS = string.digits + string.ascii_letters


def fonts() -> list[Path]:
    """Fonts that matplotlib brings, with letters and digits."""
    folder = Path(matplotlib.get_data_path()) / "fonts/ttf"
    paths = (folder / f"{name}{suffix}.ttf" for name in FONTS for suffix in SUFFIXES)
    return [path for path in paths if path.exists()]


def letter(label: int, rng: np.random.Generator) -> Image.Image:
    """A white character on black, turned, sheared and of any weight, as if by hand."""
    picture = Image.new("L", (LARGE, LARGE))
    path = fonts()[rng.integers(len(fonts()))]
    font = ImageFont.truetype(str(path), int(rng.integers(52, 74)))
    ImageDraw.Draw(picture).text((LARGE / 2, LARGE / 2), CHARACTERS[label], 255, font, anchor="mm")
    turn, shear = rng.normal(0, 0.15), rng.normal(0, 0.2)
    x, y = rng.normal(0, 4, 2)
    c, s, m = np.cos(turn), np.sin(turn), LARGE / 2
    a = np.array([[c, s + shear], [-s, c]])
    move = np.array([m, m]) - a @ np.array([m + x, m + y])
    picture = picture.transform(
        (LARGE, LARGE), Image.Transform.AFFINE, (*a[0], move[0], *a[1], move[1])
    )
    bend = np.stack([smooth(rng, 10) for _ in range(2)]) * 5
    rows, columns = np.mgrid[:LARGE, :LARGE]
    at = np.clip(np.stack([rows, columns]) + bend, 0, LARGE - 1).astype(int)
    picture = Image.fromarray(np.asarray(picture)[at[0], at[1]])
    return picture.filter(ImageFilter.MaxFilter(3)) if rng.random() < 0.4 else picture


def texture(label: int, rng: np.random.Generator) -> Image.Image:
    """Waves of one of five widths, straight or crossed, on noise of its own grain."""
    width = (5, 8, 12, 18, 27)[label % 5] * np.exp(rng.normal(0, 0.08))
    rows, columns = np.mgrid[:LARGE, :LARGE]
    turn = rng.uniform(0, np.pi)
    waves = np.sin(2 * np.pi * (rows * np.cos(turn) + columns * np.sin(turn)) / width)
    if label >= 5:
        waves = waves * np.sin(2 * np.pi * (rows * np.sin(turn) - columns * np.cos(turn)) / width)
    field = waves * rng.uniform(0.2, 1) + 0.7 * smooth(rng, rng.uniform(1, 4))
    return grey(0.5 + 0.2 * field + rng.normal(0, 0.1))


def shape(label: int, rng: np.random.Generator) -> Image.Image:
    """A polygon of 3 to 7 corners, a disc, a ring or a cross, coloured, on a coloured ground."""
    picture = Image.new("RGB", (LARGE, LARGE), tuple(rng.integers(0, 256, 3).tolist()))
    pen = ImageDraw.Draw(picture)
    colour = tuple(rng.integers(0, 256, 3).tolist())
    x, y = rng.uniform(35, 61, 2)
    radius, turn = rng.uniform(14, 32), rng.uniform(0, 2 * np.pi)
    if label < 5:
        angles = turn + 2 * np.pi * np.arange(label + 3) / (label + 3)
        corners = zip(x + radius * np.cos(angles), y + radius * np.sin(angles), strict=True)
        pen.polygon([(float(a), float(b)) for a, b in corners], fill=colour)
    elif label < 7:
        box = (x - radius, y - radius, x + radius, y + radius)
        pen.ellipse(box, fill=colour if label == 5 else None, outline=colour, width=6)
    else:
        for angle in (turn, turn + np.pi / 2):
            a, b = radius * np.cos(angle), radius * np.sin(angle)
            pen.line((x - a, y - b, x + a, y + b), fill=colour, width=8)
    noisy = np.asarray(picture) + rng.normal(0, 20, (LARGE, LARGE, 3))
    return Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8))


def spot(label: int, rng: np.random.Generator) -> Image.Image:
    """Two grey lungs; class 1 has faint spots in one of them. Three of four are of class 1."""
    rows, columns = np.mgrid[:LARGE, :LARGE] / LARGE - 0.5
    field = 0.75 + 0.1 * smooth(rng, 16)
    lungs = np.zeros((LARGE, LARGE))
    for side in (-1, 1):
        centre, wide, high = (
            side * rng.normal(0.2, 0.02),
            rng.uniform(0.1, 0.15),
            rng.uniform(0.25, 0.33),
        )
        lungs += np.exp(-((((columns - centre) / wide) ** 2 + (rows / high) ** 2) ** 2))
    field -= rng.uniform(0.35, 0.5) * lungs
    for _ in range(int(rng.integers(1, 4)) * label):
        x, y = rng.choice([-1, 1]) * rng.normal(0.2, 0.04), rng.normal(0.05, 0.12)
        size, height = rng.uniform(0.03, 0.1), rng.uniform(0.08, 0.25)
        field += height * np.exp(-((columns - x) ** 2 + (rows - y) ** 2) / (2 * size**2))
    ribs = 0.05 * np.sin(2 * np.pi * (rows + 0.3 * columns**2) * rng.uniform(7, 9))
    return grey(field + ribs * lungs + 0.03 * rng.normal(size=(LARGE, LARGE)) + rng.normal(0, 0.04))


def smooth(rng: np.random.Generator, width: float) -> np.ndarray:
    """(LARGE, LARGE) a smooth random field of mean 0 and standard deviation 1."""
    frequency = np.fft.fftfreq(LARGE)
    damping = np.exp(-2 * (np.pi * width) ** 2 * (frequency[:, None] ** 2 + frequency**2))
    field = np.fft.ifft2(np.fft.fft2(rng.normal(size=(LARGE, LARGE))) * damping).real
    return (field - field.mean()) / field.std()


def grey(values: np.ndarray) -> Image.Image:
    """A grey picture of values in [0, 1]."""
    return Image.fromarray((255 * np.clip(values, 0, 1)).astype(np.uint8))


KINDS: dict[str, tuple[Draw, tuple[float, ...]]] = {  # and shares of the classes
    "letters": (letter, (1.0,) * len(CHARACTERS)),
    "textures": (texture, (1.0,) * 10),
    "shapes": (shape, (1.0,) * 8),
    "spots": (spot, (1.0, 3.0)),
}


def drawn(kind: str) -> dict[str, Any]:
    """Arrays of `embed run`'s npz layout."""
    draw, shares = KINDS[kind]
    rng = np.random.default_rng(sorted(KINDS).index(kind))
    arrays = {}
    for split, count in (("train", TRAIN), ("test", TEST)):
        labels = rng.choice(len(shares), count, p=np.array(shares) / sum(shares))
        pictures = [
            draw(int(label), rng).resize((SIDE, SIDE), Image.Resampling.BOX) for label in labels
        ]
        arrays |= {f"x_{split}": np.stack([np.asarray(p) for p in pictures]), f"y_{split}": labels}
    return arrays


def thresholded(picture: Image.Image) -> np.ndarray:
    """Black and white, half of the pixels each."""
    pixels = np.asarray(picture)
    return np.where(pixels > np.median(pixels), 255, 0).astype(np.uint8)


CHANGES: dict[str, Callable[[Image.Image], np.ndarray]] = {  # of grey pictures
    "inverted": lambda picture: 255 - np.asarray(picture),
    "thresholded": thresholded,
    "outlined": lambda picture: np.asarray(picture.filter(ImageFilter.FIND_EDGES)),
}


def changed(path: Any, change: Callable[[Image.Image], np.ndarray]) -> dict[str, Any]:
    """CIFAR-10's pictures of JPEG blobs in grey, changed."""
    arrays = {}
    with np.load(path) as archive:
        for split in ("train", "test"):
            blob, off = archive[f"jpeg_{split}"].tobytes(), archive[f"off_{split}"]
            pictures = [
                change(Image.open(io.BytesIO(blob[a:b])).convert("L")) for a, b in pairwise(off)
            ]
            arrays |= {f"x_{split}": np.stack(pictures), f"y_{split}": archive[f"y_{split}"]}
    return arrays


def main(out: Path, cifar10: Path | None = None) -> None:
    """Writes all kinds, and changes of CIFAR-10 where its archive is given."""
    out.mkdir(parents=True, exist_ok=True)
    for kind in KINDS:
        np.savez(out / f"{kind}.npz", **drawn(kind))
    for name, change in CHANGES.items() if cifar10 else ():
        np.savez(out / f"{name}.npz", **changed(cifar10, change))


if __name__ == "__main__":
    tyro.cli(main)
