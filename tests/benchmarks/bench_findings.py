r"""Several findings a picture: one sum for all of them, beside a release of each.

    python tests/benchmarks/bench_findings.py draw --tiles cifar10.npz --out mosaics.npz
    blind-averaging embed run --data mosaics.npz --findings --out mosaics \
        --encoder timm:tf_efficientnet_lite0@128 --weights package
    python tests/benchmarks/bench_findings.py play --pairs mosaics:tiny --seeds 5 --write FILE

`draw` makes mosaics of 2 x 2 photographs or digits that show one to four of ten classes, each in a
fourteenth to two fifths of them. `play` releases from each pair's first set, with the public
transform of the second: the default's one sum, and, as `composed`, ten releases of one finding each
that keep (ε, δ) together. Figures are means over seeds of macro AUROC, average precision and
calibration error, in per cent.
"""

import io
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from PIL import Image
from sklearn.metrics import average_precision_score, roc_auc_score

from embed import EmbeddingSet, PublicTransform
from pretrain.cli.provenance import provenance
from pretrain.datasets import TEST, TRAIN
from tests.benchmarks.saving import save
from train_distributed import Privacy, accounting, release

SIZES, TILE, MOST, BINS = {"train": 12_000, "test": 4000}, 32, 4, 15
CELLS = {1: (0.3, 1.0, 3.0), 4: (1.0, 3.0, 8.0)}  # of all rows, and of a quarter
USERS, DELTA = 100, 1e-5


def pictures_of(path: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """(n, 32, 32, 3) uint8 and (n,) classes, of JPEG files in one array or of grey digits."""
    with np.load(path) as held:
        classes = np.asarray(held[f"y_{part}"])
        if f"x_{part}" in held:  # grey, of 28 pixels
            grey = np.pad(held[f"x_{part}"], ((0, 0), (2, 2), (2, 2)))
            return np.stack([grey] * 3, -1), classes
        content, ends = held[f"jpeg_{part}"], held[f"off_{part}"]
    files = [content[a:b].tobytes() for a, b in itertools.pairwise(ends)]
    pixels = [np.asarray(Image.open(io.BytesIO(each)).convert("RGB")) for each in files]
    return np.stack(pixels), classes


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


def draw(tiles: Path, out: Path, seed: int = 0) -> None:
    """Writes mosaics of an npz file's pictures of ten classes."""
    generator, arrays = np.random.default_rng(seed), dict[str, np.ndarray]()
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


def share(epsilon: float, releases: int) -> float:
    """ε of each of so many releases that keep (ε, δ) together."""
    multiplier, low, high = accounting.noise_multiplier(epsilon, DELTA, releases), 1e-4, epsilon
    for _ in range(60):
        middle = (low + high) / 2
        much = accounting.noise_multiplier(middle, DELTA, 1) < multiplier
        low, high = (low, middle) if much else (middle, high)
    return low


def played(
    rows: EmbeddingSet, transform: PublicTransform, chosen: np.ndarray, epsilon: float, seed: int
) -> Iterator[tuple[str, np.ndarray]]:
    """Probabilities of all test rows by one sum, and by a release of each finding."""
    x, findings, users = rows.embeddings[chosen], rows.findings, np.arange(len(chosen))
    assert findings is not None
    test, users = rows.embeddings[rows.split == TEST], users * USERS // len(chosen)

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
    each, meta = share(epsilon, k), {"class_names": ["absent", "present"]}
    composed = [
        probabilities(each, k * seed + i, labels=findings[chosen, i].astype(int), meta=meta)[:, 1]
        for i in range(k)
    ]
    yield "composed", np.stack(composed, 1)


def play(pairs: tuple[str, ...], seeds: int = 5, write: Path | None = None) -> None:
    """Prints a line for every pair, number of rows, ε and way; a pair is FINDINGS:PUBLIC."""
    result: list[dict[str, Any]] = []
    for pair in pairs:
        name, _, public = pair.partition(":")
        rows, transform = EmbeddingSet.open(name), PublicTransform.fit(EmbeddingSet.open(public))
        train, truth = np.flatnonzero(rows.split == TRAIN), rows.targets[rows.split == TEST] == 1
        for part, epsilons in CELLS.items():
            for epsilon in epsilons:
                found: dict[str, list[list[float]]] = {}
                for seed in range(seeds):
                    order = np.random.default_rng(seed).permutation(train)[: len(train) // part]
                    for way, said in played(rows, transform, order, epsilon, seed):
                        found.setdefault(way, []).append(figures(said, truth))
                for way, each in found.items():
                    mean, spread = np.mean(each, 0).round(1), np.std(each, 0).round(1)
                    line = [Path(name).name, len(train) // part, epsilon, way]
                    print(*line, "AUROC, AP, ECE", mean, "±", spread, flush=True)
                    names = ("pictures", "rows", "epsilon", "way")
                    cell = dict(zip(names, line, strict=True))
                    result.append(cell | {"mean": mean.tolist(), "deviation": spread.tolist()})
    save(write, {**provenance(), "seeds": seeds, "cells": result})


COMMANDS: dict[str, Callable[..., None]] = {"draw": draw, "play": play}

if __name__ == "__main__":
    sys.exit(tyro.extras.subcommand_cli_from_dict(COMMANDS))
