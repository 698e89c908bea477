"""Accuracy at equal ε where half-honest users add the noise, and where two servers do.

    python tests/benchmarks/bench_noise_by.py --embeddings cifar10_lite0 --public tiny_lite0 \
        [--epsilons 0.4 1.2 3] [--seeds 3] [--write results/secure_sum/noise_by.json]

Whole releases by `discriminant` with the transform of the public rule and discrete noise from the
operating system; a seed decides who holds which rows, for both alike.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro

from embed import EmbeddingSet, PublicTransform
from pretrain.cli.provenance import provenance
from pretrain.datasets import TRAIN
from tests.benchmarks.saving import save
from train_distributed import Privacy, release
from train_distributed.partition import split
from train_distributed.privacy.promise import SERVERS, NoiseBy

METHOD = "discriminant"


def main(
    embeddings: Path,
    public: Path,
    epsilons: tuple[float, ...] = (0.4, 1.2, 3.0),
    users: int = 1000,
    seeds: int = 3,
    write: Path | None = None,
) -> None:
    """Prints a line for every ε."""
    private, transform = (
        EmbeddingSet.open(embeddings),
        PublicTransform.fit(EmbeddingSet.open(public)),
    )
    labels = torch.from_numpy(private.labels[private.split == TRAIN])
    lines: list[dict[str, Any]] = []
    for epsilon in epsilons:
        found: dict[NoiseBy, list[float]] = {"users": [], "servers": []}
        stds: dict[NoiseBy, float] = {}
        for seed in range(seeds):
            draw = torch.Generator().manual_seed(seed)
            parts = split(labels, users, "iid", generator=draw)
            for by, accuracies in found.items():
                privacy = Privacy(epsilon, 1e-5, noise_by=by)
                made = release(
                    private, METHOD, privacy, transform=transform, partition=parts, noise="discrete"
                )
                accuracies.append(100 * made.report["test_accuracy"])
                parties = users if by == "users" else SERVERS
                stds[by] = made.report["local_noise_std"] * math.sqrt(parties)
        means = {by: round(float(np.mean(each)), 2) for by, each in found.items()}
        differences = np.subtract(found["servers"], found["users"])
        error = float(differences.std(ddof=1)) / math.sqrt(seeds)
        line = {
            "epsilon": epsilon,
            "mean accuracy": means,
            "servers less users": round(float(differences.mean()), 2),
            "standard error of that": round(error, 2),
            "noise in an entry of the scaled sum": stds,
            "accuracies": {by: [round(a, 2) for a in each] for by, each in found.items()},
        }
        lines.append(line)
        print(json.dumps(lines[-1]), flush=True)
    save(write, {"machine": provenance(), "users": users, "releases": lines})


if __name__ == "__main__":
    tyro.cli(main)
