"""Accuracy at equal ε where half-honest users add the noise, and where two servers do.

    python tests/benchmarks/bench_noise_by.py --embeddings cifar10_lite0 --public tiny_lite0 \
        [--epsilons 0.4 1.2 3] [--seeds 3] [--write results/secure_sum/noise_by.json]

Whole releases by `discriminant` with the transform of the public rule and discrete noise from the
operating system; a seed decides who holds which rows, for both alike.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from embed import EmbeddingSet, PublicTransform
from pretrain.cli.output import new_file
from pretrain.cli.provenance import provenance
from pretrain.datasets import TRAIN
from train_distributed import Privacy, release
from train_distributed.partition import split
from train_distributed.privacy.promise import SERVERS, NoiseBy

METHOD = "discriminant"


def main() -> None:
    """Prints a line for every ε."""
    parser = argparse.ArgumentParser(description="noise of users and of servers")
    parser.add_argument("--embeddings", required=True)
    parser.add_argument("--public", required=True)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.4, 1.2, 3.0])
    parser.add_argument("--users", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    private, public = EmbeddingSet.open(given.embeddings), EmbeddingSet.open(given.public)
    labels = torch.from_numpy(private.labels[private.split == TRAIN])
    lines: list[dict[str, Any]] = []
    for epsilon in given.epsilons:
        found: dict[NoiseBy, list[float]] = {"users": [], "servers": []}
        stds: dict[NoiseBy, float] = {}
        for seed in range(given.seeds):
            draw = torch.Generator().manual_seed(seed)
            parts = split(labels, given.users, "iid", generator=draw)
            transform = PublicTransform.fit(public)
            for by, accuracies in found.items():
                privacy = Privacy(epsilon, 1e-5, noise_by=by)
                made = release(
                    private, METHOD, privacy, transform=transform, partition=parts, noise="discrete"
                )
                accuracies.append(100 * made.report["test_accuracy"])
                parties = given.users if by == "users" else SERVERS
                stds[by] = made.report["local_noise_std"] * math.sqrt(parties)
        means = {by: round(float(np.mean(each)), 2) for by, each in found.items()}
        differences = np.subtract(found["servers"], found["users"])
        error = float(differences.std(ddof=1)) / math.sqrt(given.seeds)
        lines.append(
            {
                "epsilon": epsilon,
                "mean accuracy": means,
                "servers less users": round(float(differences.mean()), 2),
                "standard error of that": round(error, 2),
                "noise in an entry of the scaled sum": stds,
                "accuracies": {by: [round(a, 2) for a in each] for by, each in found.items()},
            }
        )
        print(json.dumps(lines[-1]), flush=True)
    if given.write:
        with new_file(given.write) as path:
            result = {"machine": provenance(), "users": given.users, "releases": lines}
            path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
