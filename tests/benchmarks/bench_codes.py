"""Two classes with and without a class code: noise of a release, and balanced accuracy.

python tests/benchmarks/bench_codes.py --embeddings DIR --public DIR --output results/class_codes
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from train_distributed.one_shot.class_sums import ClassSums

from embed import EmbeddingSet, PublicTransform
from embed.transform_options import TransformOptions
from pretrain.cli.output import new_directory, refuse_existing, write_json
from pretrain.cli.provenance import provenance
from train_distributed import Privacy
from train_distributed.one_shot.method import Method
from train_distributed.one_shot.registry import build_method
from train_distributed.partition import split
from train_distributed.privacy import Guarantee
from train_distributed.simulation.shared_training import RowsInMemory, released, totals

USERS, ROWS, DELTA, CODE, MORE = 100, 50, 1e-5, 0.45, 1.24
PAIRS = ((3, 5), (0, 2), (1, 9), (4, 7))
EPSILONS = (0.05, 0.1, 0.2, 0.4, 0.6, 1.2, 3.0)
EQUAL: dict[str, Any] = {"prior": "equal"}  # as balanced accuracy asks for
SHARES = {"equal": 1.0, "1:4": 0.25}  # rows of the first class that are kept


def draws(method: Method, seed: int) -> Any:
    """Noise for `released` that is the same in every class, whatever the sums' coordinates."""
    generator = torch.Generator().manual_seed(seed)

    def draw(_: int, dimension: int) -> Tensor:
        noise = torch.randn(dimension, generator=generator, dtype=torch.float64)
        statistic = method.statistic
        assert isinstance(statistic, ClassSums)
        code, size = statistic.code, statistic.transform.dim * statistic.num_classes
        basis = code.encode(torch.eye(code.num_classes, dtype=torch.float64)) * code.scale()
        return torch.cat(
            [(noise[:size].view(-1, code.num_classes) @ basis).flatten(), noise[size:]]
        )

    return draw


def task(
    data: EmbeddingSet, transform: PublicTransform, pair: tuple[int, int], kept: float
) -> tuple[RowsInMemory, Tensor, Tensor]:
    """Users of rows of two classes, and all test rows of both."""
    rng = np.random.default_rng(pair)
    own = np.isin(data.labels, pair)
    thinned = own & ((data.labels != pair[0]) | (rng.random(len(data)) < kept))
    train = rng.permutation(np.flatnonzero(thinned & (data.split == 0)))[: USERS * ROWS]
    test = np.flatnonzero(own & (data.split == 1))
    labels = torch.from_numpy((data.labels == pair[1]).astype(np.int64))
    x = transform(data.embeddings[train])
    users = RowsInMemory(x, labels[train], split(labels[train], USERS))
    return users, transform(data.embeddings[test]), labels[test]


def balanced(weights: Tensor, x: Tensor, y: Tensor) -> float:
    """Mean accuracy of both classes."""
    right = ((x.double() @ weights).argmax(1) == y).double()
    return float((right[y == 0].mean() + right[y == 1].mean()) / 2)


def main() -> None:
    """Reads the options, prints and writes balanced accuracies."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--embeddings", type=Path, required=True)
    parser.add_argument("--public", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=8)
    arguments = parser.parse_args()
    refuse_existing(arguments.output, overwrite=False)
    data, public = EmbeddingSet.open(arguments.embeddings), EmbeddingSet.open(arguments.public)
    transform = TransformOptions(components=64, directions="mixed").fit(public)
    kinds: Mapping[str, tuple[dict[str, Any], float]] = {
        "plain": (EQUAL, 1.0),
        f"plain at {MORE} eps": (EQUAL, MORE),
        "code": (EQUAL | {"class_code": CODE}, 1.0),
    }
    methods = {
        name: build_method("discriminant", transform, 2, o) for name, (o, _) in kinds.items()
    }
    rows: list[dict[str, Any]] = []
    for shares, kept in SHARES.items():
        tasks = [task(data, transform, pair, kept) for pair in PAIRS]
        sums = {
            name: [totals(u, [m.statistic])[0] for u, *_ in tasks] for name, m in methods.items()
        }
        for epsilon in EPSILONS:
            row: dict[str, Any] = {"shares": shares, "epsilon": epsilon}
            for name, (_, more) in kinds.items():
                method, promise = methods[name], Privacy(more * epsilon, DELTA)
                row[name] = 100 * np.mean(
                    [
                        balanced(
                            released(method, total, u, u.sizes, promise, draws(method, seed))
                            .fitted()
                            .weights,
                            x,
                            y,
                        )
                        for (u, x, y), total in zip(tasks, sums[name], strict=True)
                        for seed in range(arguments.seeds)
                    ]
                )
                sizes = tasks[0][0].sizes
                row[f"noise, {name}"] = Guarantee.of(sizes, method.statistic, promise).float_std
            rows.append(row)
            words = ", ".join(f"{name} {row[name]:.2f}" for name in kinds)
            less = 1 - row["noise, code"] / row["noise, plain"]
            print(f"{shares}, eps {epsilon}: {words}; {less:.1%} less noise", flush=True)
    with new_directory(arguments.output) as partial:
        write_json(partial / "results.json", provenance() | {"users": USERS, "cells": rows})


if __name__ == "__main__":
    main()
