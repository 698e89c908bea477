"""Pictures that are drawn, and releases from some: `kinds`, `emnist`, `mosaics` and `findings`."""

import io
import json
import string
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from sklearn.metrics import average_precision_score, roc_auc_score

from embed import EmbeddingSet, PublicTransform
from pretrain.cli.provenance import provenance
from pretrain.datasets import TEST as TEST_SPLIT
from pretrain.sources import EMNIST_CLASSES, EMNIST_SIDE
from tests.benchmarks.bench_releases import opened, places
from tests.benchmarks.common import DELTA, Table, command_line, save, spread
from train_distributed import Privacy, accounting, release

SIDE, LARGE = 32, 96  # pixels of a picture, and of the larger one that it is drawn as
TRAIN, TEST = 12_000, 3_000
Draw = Callable[[int, np.random.Generator], Image.Image]
FONTS = ("DejaVuSans", "DejaVuSerif", "DejaVuSansMono", "STIXGeneral", "cmr10", "cmss10", "cmtt10")
SUFFIXES = ("", "-Bold", "-Oblique", "-Italic", "Bol", "Italic", "BolIta")
CHARACTERS = string.digits + string.ascii_letters
TYPES = Path(matplotlib.get_data_path()) / "fonts/ttf"  # that matplotlib brings
FILES = [path for f, s in product(FONTS, SUFFIXES) if (path := TYPES / f"{f}{s}.ttf").exists()]


def letter(label: int, rng: np.random.Generator) -> Image.Image:
    """A white character on black, turned, sheared and of any weight, as if by hand."""
    picture = Image.new("L", (LARGE, LARGE))
    path = FILES[rng.integers(len(FILES))]
    font = ImageFont.truetype(str(path), int(rng.integers(52, 74)))
    ImageDraw.Draw(picture).text((LARGE / 2, LARGE / 2), CHARACTERS[label], 255, font, anchor="mm")
    turn, shear = rng.normal(0, 0.15), rng.normal(0, 0.2)
    x, y = rng.normal(0, 4, 2)
    c, s, m = np.cos(turn), np.sin(turn), LARGE / 2
    a = np.array([[c, s + shear], [-s, c]])
    move = np.array([m, m]) - a @ np.array([m + x, m + y])
    affine = (*a[0], move[0], *a[1], move[1])
    picture = picture.transform((LARGE, LARGE), Image.Transform.AFFINE, affine)
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
        centre, wide = side * rng.normal(0.2, 0.02), rng.uniform(0.1, 0.15)
        high = rng.uniform(0.25, 0.33)
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
    small, arrays = ((SIDE, SIDE), Image.Resampling.BOX), {}
    for split, count in (("train", TRAIN), ("test", TEST)):
        labels = rng.choice(len(shares), count, p=np.array(shares) / sum(shares))
        pictures = [draw(int(label), rng).resize(*small) for label in labels]
        arrays |= {f"x_{split}": np.stack([np.asarray(p) for p in pictures]), f"y_{split}": labels}
    return arrays


CHANGES: dict[str, Callable[[Image.Image], np.ndarray]] = {  # of grey pictures
    "inverted": lambda picture: 255 - np.asarray(picture),
    "thresholded": lambda p: np.uint8(255) * (np.asarray(p) > np.median(np.asarray(p))),
    "outlined": lambda picture: np.asarray(picture.filter(ImageFilter.FIND_EDGES)),
}


def of_blobs(path: Path, split: str) -> tuple[list[Image.Image], np.ndarray]:
    """Pictures and classes of an npz file of JPEG blobs."""
    with np.load(path) as archive:
        blob, off = archive[f"jpeg_{split}"].tobytes(), archive[f"off_{split}"]
        pictures: list[Image.Image] = [Image.open(io.BytesIO(blob[a:b])) for a, b in pairwise(off)]
        return pictures, np.asarray(archive[f"y_{split}"])


def kinds(out: Path, cifar10: Path | None = None) -> None:
    """Pictures of other kinds than colour photographs, at 32 px, for `embed run`; seeds are fixed.

    Writes `letters.npz`, `textures.npz`, `shapes.npz` and `spots.npz` (faint ones on lungs); of
    CIFAR-10 also its photographs in grey, as `inverted.npz`, `thresholded.npz` (black and white)
    and `outlined.npz` (edges alone).
    """
    out.mkdir(parents=True, exist_ok=True)
    for kind in KINDS:
        np.savez(out / f"{kind}.npz", **drawn(kind))
    if cifar10 is None:
        return
    for name, change in CHANGES.items():
        arrays: dict[str, Any] = {}
        for split in ("train", "test"):
            pictures, arrays[f"y_{split}"] = of_blobs(cifar10, split)
            arrays[f"x_{split}"] = np.stack([change(each.convert("L")) for each in pictures])
        np.savez(out / f"{name}.npz", **arrays)


ROOT = Path(__file__).parents[2]
FACES = ("DejaVuSans", "DejaVuSans-Oblique", "DejaVuSansMono", "DejaVuSerif", "DejaVuSerif-Italic")
PUBLIC_FACES = ("STIXGeneral", "STIXGeneralItalic", "STIXGeneralBol", "DejaVuSans-Bold")
METHODS, EPSILONS, SEEDS = ("discriminant", "softmax"), ("0.3", "1", "3", "8"), 3
TIMES, LETTERS = 4, 110  # letters are drawn so many times too large; of a writer on average


def letters(face: str, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(n, 28, 28) float32 in [0, 1], 1 is paper: one writer's letters."""
    side = EMNIST_SIDE * TIMES
    font = ImageFont.truetype(str(TYPES / f"{face}.ttf"), int(side * rng.uniform(0.55, 0.8)))
    slant, width, turn = rng.normal(0, 0.15), rng.uniform(0.8, 1.25), rng.normal(0, 0.08)
    weight, off = int(rng.integers(0, 3)), rng.normal(0, 0.03, 2)
    pixels = np.empty((len(labels), EMNIST_SIDE, EMNIST_SIDE), np.float32)
    for row, label in enumerate(labels):
        sheet = Image.new("L", (side, side), 255)
        middle, drawn = (side / 2, side / 2), EMNIST_CLASSES[label]
        ImageDraw.Draw(sheet).text(middle, drawn, 0, font, "mm", stroke_width=weight)
        a, b = slant + rng.normal(0, 0.06), turn + rng.normal(0, 0.06)
        matrix = np.array([[1 / width * rng.uniform(0.92, 1.08), a], [b, rng.uniform(0.92, 1.08)]])
        shift = side / 2 - matrix @ np.full(2, side / 2) + side * (off + rng.normal(0, 0.02, 2))
        affine = (*matrix[0], shift[0], *matrix[1], shift[1])
        how = Image.Transform.AFFINE, affine, Image.Resampling.BILINEAR
        moved = sheet.transform((side, side), *how, fillcolor=255)
        small = moved.filter(ImageFilter.GaussianBlur(TIMES / 3)).resize((EMNIST_SIDE, EMNIST_SIDE))
        pixels[row] = np.asarray(small, np.float32) / 255
    return np.clip(pixels + rng.normal(0, 0.02, pixels.shape).astype(np.float32), 0, 1)


def write_files(folder: Path, faces: tuple[str, ...], writers: int, seed: int) -> None:
    """Both files; a ninth of each writer's letters is for testing, as in the real set."""
    import h5py  # pyright: ignore[reportMissingImports]

    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    with (
        h5py.File(folder / "fed_emnist_train.h5", "w") as train,
        h5py.File(folder / "fed_emnist_test.h5", "w") as test,
    ):
        for writer in range(writers):
            count = int(rng.integers(LETTERS // 2, LETTERS * 3 // 2))
            labels = rng.integers(0, len(EMNIST_CLASSES), count)
            pixels = letters(faces[writer % len(faces)], labels, rng)
            split = count - count // 9
            for file, part in ((train, slice(split)), (test, slice(split, None))):
                group = file.create_group(f"examples/f{writer:04d}_00")
                group["pixels"], group["label"] = pixels[part], labels[part].astype(np.int32)


def emnist(out: Path, writers: int = 500, write: Path | None = None) -> None:
    """Federated EMNIST's own files from end to end, with drawn letters: 62 classes by writer.

    Needs `pip install -e '.[federated-emnist]'`. Writes `fed_emnist_train.h5` and
    `fed_emnist_test.h5` as TensorFlow Federated does, dark on white: each writer has a typeface,
    slant, width, weight and habit of placing of its own, each letter some unsteadiness, and 110
    letters on average. Public writers use other typefaces than private ones. Then what a user of
    the real files types: `embed run --data fed-emnist:…` twice, and `run` with nothing but data,
    public set and epsilon; test letters are of the same writers. O and 0, l and I and so on look
    alike, as in the real set.
    """
    made = (("private", FACES, writers), ("public", PUBLIC_FACES, writers // 4))
    for seed, (name, faces, count) in enumerate(made):
        files = out / f"{name}_files"
        write_files(files, faces, count, seed)
        typed = ("--data", f"fed-emnist:{files}", "--resize", 32, "--out", out / name)
        run("embed", "run", *typed)
    runs, table = [], Table()
    sets = ("--embeddings", out / "private", "--public", out / "public")
    for method, epsilon in product(METHODS, EPSILONS):
        found = []
        for seed in range(SEEDS):
            model = out / f"{method}-{epsilon}-{seed}"
            given = f"--method {method} --seed {seed} --epsilon {epsilon} --delta 1e-5".split()
            run("train_distributed", "run", *given, *sets, "--out", model)
            found.append(json.loads((model / "report.json").read_text())["test_accuracy"])
        runs.append({"method": method, "epsilon": float(epsilon), "accuracies": found})
        mean, deviation = spread(found)
        table.add({"method": method, "epsilon": epsilon, "accuracy": mean, "spread": deviation})
    save(write, provenance() | {"writers": writers, "runs": runs})


def run(*words: object) -> None:
    """One command, as it would be typed."""
    subprocess.run([sys.executable, "-m", *map(str, words)], cwd=ROOT, check=True)


SIZES, TILE, MOST, BINS = {"train": 12_000, "test": 4000}, 32, 4, 15
CELLS = {1: (0.3, 1.0, 3.0), 4: (1.0, 3.0, 8.0)}  # of all rows, and of a quarter
USERS, MEASURES = 100, ("AUROC", "AP", "ECE")


def pictures_of(path: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """(n, 32, 32, 3) uint8 and (n,) classes, of JPEG files in one array or of grey digits."""
    with np.load(path) as held:
        if f"x_{part}" in held:  # grey, of 28 pixels
            grey = np.pad(held[f"x_{part}"], ((0, 0), (2, 2), (2, 2)))
            return np.stack([grey] * 3, -1), np.asarray(held[f"y_{part}"])
    pictures, classes = of_blobs(path, part)
    return np.stack([np.asarray(each.convert("RGB")) for each in pictures]), classes


def mosaics(pixels: np.ndarray, classes: np.ndarray, count: int, draw: np.random.Generator):
    """(count, 64, 64, 3) uint8 pictures, and (count, K) uint8 findings."""
    k, width = int(classes.max()) + 1, 2 * TILE
    shares = np.linspace(0.06, 0.4, k)
    shares /= shares.sum()
    of_class = [np.flatnonzero(classes == each) for each in range(k)]
    pictures = np.zeros((count, width, width, 3), np.uint8)
    findings = np.zeros((count, k), np.uint8)
    for picture, shown in zip(pictures, findings, strict=True):
        chosen = draw.choice(k, draw.integers(1, MOST + 1), replace=False, p=shares)
        shown[chosen] = 1
        tiles = draw.permutation([*chosen, *draw.choice(chosen, MOST - len(chosen))])
        for place, each in enumerate(tiles):
            top, left = (TILE * i for i in divmod(place, 2))
            picture[top : top + TILE, left : left + TILE] = pixels[draw.choice(of_class[each])]
    return pictures, findings


def draw_mosaics(tiles: Path, out: Path) -> None:
    """Writes mosaics of 2 x 2 pictures of an npz file that show one to four of ten classes.

    Each class is in a fourteenth to two fifths of them. For `embed run --findings`.
    """
    generator, arrays = np.random.default_rng(0), dict[str, np.ndarray]()
    for part, count in SIZES.items():
        made = mosaics(*pictures_of(tiles, part), count, generator)
        arrays[f"x_{part}"], arrays[f"y_{part}"] = made
        print(f"{part}: {count} mosaics; findings in", made[1].mean(0).round(2), "of them")
    np.savez(out, **arrays)  # pyright: ignore[reportArgumentType]


def figures(probabilities: np.ndarray, findings: np.ndarray) -> list[float]:
    """Macro AUROC, average precision and calibration error, in per cent."""
    found = []
    for p, y in zip(probabilities.T, findings.T, strict=True):
        places, error = np.minimum((p * BINS).astype(int), BINS - 1), 0.0
        for each in np.unique(places):
            here = places == each
            error += abs(p[here].mean() - y[here].mean()) * here.mean()
        found.append((roc_auc_score(y, p), average_precision_score(y, p), error))
    return [100 * float(value) for value in np.mean(found, 0)]


def played(
    rows: EmbeddingSet, transform: PublicTransform, chosen: np.ndarray, epsilon: float, seed: int
) -> Iterator[tuple[str, np.ndarray]]:
    """Probabilities of all test rows by one sum, and by a release of each finding."""
    x, findings, users = rows.embeddings[chosen], rows.findings, np.arange(len(chosen))
    assert findings is not None
    test, users = rows.embeddings[rows.split == TEST_SPLIT], users * USERS // len(chosen)

    def probabilities(epsilon: float, seed: int, **held: Any) -> np.ndarray:
        own = EmbeddingSet(embeddings=x, users=users, **held)
        generator = torch.Generator().manual_seed(seed)
        privacy, fixed = Privacy(epsilon, DELTA), {"transform": transform, "noise": "float"}
        if own.findings is None:
            fixed |= {"prior": "private"}
        model = release(own, "discriminant", privacy, generator=generator, **fixed)
        return model.predict_proba(test).numpy()

    k, none = findings.shape[1], np.full(len(chosen), -1)
    meta = {"class_names": [str(each) for each in range(k)]}
    yield "one sum", probabilities(epsilon, seed, labels=none, findings=findings[chosen], meta=meta)
    multiplier = accounting.noise_multiplier(epsilon, DELTA, k)  # of each of k releases
    each, meta = accounting.epsilon(DELTA, multiplier), {"class_names": ["absent", "present"]}
    composed = [
        probabilities(each, k * seed + i, labels=findings[chosen, i].astype(int), meta=meta)[:, 1]
        for i in range(k)
    ]
    yield "composed", np.stack(composed, 1)


def play(pairs: tuple[str, ...], seeds: int = 5, write: Path | None = None) -> None:
    """Several findings a picture: one sum for all of them, beside a release of each.

    From each pair FINDINGS:PUBLIC: the default's one sum, and, as `composed`, ten releases of one
    finding each that keep (ε, δ) together. Figures are means over seeds of macro AUROC, average
    precision and calibration error, in per cent.
    """
    table = Table()
    for pair, (part, epsilons) in product(pairs, CELLS.items()):
        name, _, public = pair.partition(":")
        rows, transform = opened(Path(name), Path(public))
        (train, test), found = places(rows), dict[tuple[float, str], list[list[float]]]()
        for epsilon, seed in product(epsilons, range(seeds)):
            order = np.random.default_rng(seed).permutation(train)[: len(train) // part]
            for way, said in played(rows, transform, order, epsilon, seed):
                measured = figures(said, rows.targets[test] == 1)
                found.setdefault((epsilon, way), []).append(measured)
        for (epsilon, way), each in found.items():
            cell = {"pictures": Path(name).name, "rows": len(train) // part, "epsilon": epsilon}
            mean, deviation = (of(each, 0).round(1) for of in (np.mean, np.std))
            shown = cell | {"way": way} | dict(zip(MEASURES, mean.tolist(), strict=True))
            table.add(shown, mean=mean.tolist(), deviation=deviation.tolist())
    save(write, provenance() | {"seeds": seeds, "cells": table.rows})


if __name__ == "__main__":
    command_line(kinds=kinds, emnist=emnist, mosaics=draw_mosaics, findings=play)
