"""Federated EMNIST's own files from end to end, with drawn letters: 62 classes by writer.

    python tests/benchmarks/bench_emnist.py --out DIR [--write FILE] [--writers 500] [--rows 110]

Needs `pip install -e '.[federated-emnist]'`. Writes `fed_emnist_train.h5` and `fed_emnist_test.h5`
as TensorFlow Federated does, dark on white: each writer has a typeface, slant, width, weight and
habit of placing of its own, each letter some unsteadiness. Public writers use other typefaces than
private ones. Then what a user of the real files types: `embed run --data fed-emnist:…` twice, and
`run` with nothing but data, public set and epsilon, each writer with its own letters; test letters
are of the same writers. O and 0, l and I and so on look alike, as in the real set.
"""

import json
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import tyro
from matplotlib import get_data_path
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from pretrain.cli.provenance import provenance
from pretrain.sources import EMNIST_CLASSES, EMNIST_SIDE
from tests.benchmarks.saving import save

ROOT = Path(__file__).parents[2]
FACES = ("DejaVuSans", "DejaVuSans-Oblique", "DejaVuSansMono", "DejaVuSerif", "DejaVuSerif-Italic")
PUBLIC_FACES = ("STIXGeneral", "STIXGeneralItalic", "STIXGeneralBol", "DejaVuSans-Bold")
METHODS, EPSILONS, SEEDS = ("discriminant", "softmax"), ("0.3", "1", "3", "8"), 3
LARGE = 4  # letters are drawn so many times too large


def letters(face: str, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(n, 28, 28) float32 in [0, 1], 1 is paper: one writer's letters."""
    path = Path(get_data_path()) / "fonts" / "ttf" / f"{face}.ttf"
    side = EMNIST_SIDE * LARGE
    font = ImageFont.truetype(str(path), int(side * rng.uniform(0.55, 0.8)))
    slant, width, turn = rng.normal(0, 0.15), rng.uniform(0.8, 1.25), rng.normal(0, 0.08)
    weight, off = int(rng.integers(0, 3)), rng.normal(0, 0.03, 2)
    pixels = np.empty((len(labels), EMNIST_SIDE, EMNIST_SIDE), np.float32)
    for row, label in enumerate(labels):
        sheet = Image.new("L", (side, side), 255)
        ImageDraw.Draw(sheet).text(
            (side / 2, side / 2), EMNIST_CLASSES[label], 0, font, "mm", stroke_width=weight
        )
        a, b = slant + rng.normal(0, 0.06), turn + rng.normal(0, 0.06)
        matrix = np.array([[1 / width * rng.uniform(0.92, 1.08), a], [b, rng.uniform(0.92, 1.08)]])
        shift = side / 2 - matrix @ np.full(2, side / 2) + side * (off + rng.normal(0, 0.02, 2))
        moved = sheet.transform(
            (side, side),
            Image.Transform.AFFINE,
            (*matrix[0], shift[0], *matrix[1], shift[1]),
            Image.Resampling.BILINEAR,
            fillcolor=255,
        )
        small = moved.filter(ImageFilter.GaussianBlur(LARGE / 3)).resize((EMNIST_SIDE, EMNIST_SIDE))
        pixels[row] = np.asarray(small, np.float32) / 255
    return np.clip(pixels + rng.normal(0, 0.02, pixels.shape).astype(np.float32), 0, 1)


def draw(folder: Path, faces: tuple[str, ...], writers: int, rows: int, seed: int) -> None:
    """Both files; a ninth of each writer's letters is for testing, as in the real set."""
    import h5py  # pyright: ignore[reportMissingImports]

    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    with (
        h5py.File(folder / "fed_emnist_train.h5", "w") as train,
        h5py.File(folder / "fed_emnist_test.h5", "w") as test,
    ):
        for writer in range(writers):
            count = int(rng.integers(rows // 2, rows * 3 // 2))
            labels = rng.integers(0, len(EMNIST_CLASSES), count)
            pixels = letters(faces[writer % len(faces)], labels, rng)
            split = count - count // 9
            for file, part in ((train, slice(split)), (test, slice(split, None))):
                group = file.create_group(f"examples/f{writer:04d}_00")
                group["pixels"], group["label"] = pixels[part], labels[part].astype(np.int32)


def main(out: Path, writers: int = 500, rows: int = 110, write: Path | None = None) -> None:
    """Draws, embeds, sweeps; a writer has so many letters on average."""
    draw(out / "files", FACES, writers, rows, 0)
    draw(out / "public_files", PUBLIC_FACES, writers // 4, rows, 1)
    for name, files in (("private", "files"), ("public", "public_files")):
        source = f"fed-emnist:{out / files}"
        run("embed", "run", "--data", source, "--resize", "32", "--out", str(out / name))
    runs = []
    for method, epsilon in product(METHODS, EPSILONS):
        found = []
        for seed in range(SEEDS):
            model = out / f"{method}-{epsilon}-{seed}"
            run(
                *("train_distributed", "run", "--method", method, "--seed", str(seed)),
                *("--embeddings", str(out / "private"), "--public", str(out / "public")),
                *("--epsilon", epsilon, "--delta", "1e-5", "--out", str(model)),
            )
            found.append(json.loads((model / "report.json").read_text())["test_accuracy"])
        runs.append({"method": method, "epsilon": float(epsilon), "accuracies": found})
        mean, spread = 100 * np.mean(found), 100 * np.std(found, ddof=1)
        print(f"{method:14} eps {epsilon:4} {mean:.1f} ± {spread:.1f}", flush=True)
    save(write, {**provenance(), "writers": writers, "runs": runs})


def run(room: str, *arguments: str) -> None:
    """One command, as it would be typed."""
    subprocess.run([sys.executable, "-m", room, *arguments], cwd=ROOT, check=True)


if __name__ == "__main__":
    tyro.cli(main)
