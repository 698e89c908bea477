"""Predictions of `rehearse` beside what runs on held-out rows come to: coverage and width.

python tests/benchmarks/bench_rehearse.py --data DIR --write results/rehearse/coverage.json

DIR holds embedding sets of one encoder: tiny, cifar10, mnist_private, mnist_public, letters,
textures and spots, as `--names` says where they are called otherwise. In every combination the
private rows are held out of what the rehearsal sees, and in most their classes as well; ten seeds
of a release with float noise are compared with the interval of 80 %.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro

from embed import EmbeddingSet, PublicTransform
from embed.identity import found, known_rows, row_hashes
from pretrain.cli.provenance import provenance
from tests.benchmarks.saving import save
from train_distributed import Privacy, release
from train_distributed.partition import split
from train_distributed.simulation.prediction import Predictions
from train_distributed.simulation.rehearsal import Rehearsal, Sizes
from train_distributed.simulation.tasks import overlap

SEEDS = 10
TESTED = 0.25  # of the held-out rows, where these have no test split
MOST_TESTED = 5000


@dataclass(frozen=True)
class Combination:
    """A federation, and which rows it and its rehearsal have."""

    private: str
    like: str | None  # set whose other rows or classes the rehearsal sees; None: public ones only
    held_out: str  # "classes", "rows" or "set": what of the private set the rehearsal does not see
    num_classes: int
    users: int
    rows: int
    epsilon: float


COMBINATIONS = (
    Combination("tiny", None, "classes", 10, 20, 40, 1.0),
    Combination("tiny", None, "classes", 20, 20, 40, 3.0),
    Combination("tiny", None, "classes", 10, 50, 30, 0.3),
    Combination("tiny", None, "classes", 20, 100, 30, 1.0),
    Combination("tiny", None, "classes", 40, 1000, 7, 3.0),
    Combination("cifar10", None, "set", 10, 10, 50, 3.0),
    Combination("cifar10", "cifar10", "rows", 10, 1000, 50, 1.0),
    Combination("mnist_private", "mnist_public", "set", 10, 1000, 50, 0.3),
    Combination("mnist_private", "mnist_public", "set", 10, 20, 40, 3.0),
    Combination("letters", "letters", "classes", 10, 20, 40, 3.0),
    Combination("letters", "letters", "rows", 62, 100, 40, 3.0),
    Combination("textures", "textures", "rows", 10, 20, 40, 1.0),
)


def divided(
    asked: Combination, sets: Mapping[str, EmbeddingSet], seed: int
) -> tuple[EmbeddingSet, EmbeddingSet | None, EmbeddingSet]:
    """Public set, set like the private one or None, private rows."""
    public, own, rng = sets["tiny"], sets[asked.private], np.random.default_rng(seed)
    if asked.held_out == "set":
        return public, None if asked.like is None else sets[asked.like], own
    if asked.held_out == "classes":
        kept = rng.permutation(np.unique(own.labels))[: asked.num_classes]
        taken = np.isin(own.labels, kept)
    else:
        taken = rng.random(len(own)) < (0.5 if len(own) < 20_000 else 0.9)
    others = own.subset(~taken)
    taken &= ~found(row_hashes(np.asarray(own.embeddings)), known_rows(others.blocks()))
    private = own.subset(taken)
    return (others, None, private) if asked.like is None else (public, others, private)


def measured(
    asked: Combination, public: EmbeddingSet, private: EmbeddingSet
) -> tuple[list[float], list[float]]:
    """Accuracy and balanced accuracy of ten releases of the held-out rows."""
    transform = PublicTransform.fit(public)
    known, labels = np.unique(private.labels, return_inverse=True)
    right: list[tuple[float, float]] = []
    for seed in range(SEEDS):
        rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
        order = rng.permutation(len(labels))
        wanted = min(asked.users * asked.rows, int((1 - TESTED) * len(order)))
        train, test = order[:wanted], order[wanted : wanted + MOST_TESTED]
        rows = np.concatenate([train, test])
        place = split(torch.from_numpy(labels[train]), asked.users, "iid", generator=generator)
        users = np.zeros(len(rows), np.int64)
        owner = torch.repeat_interleave(torch.arange(asked.users), place.counts)
        users[place.order.numpy()] = owner.numpy()
        data = EmbeddingSet(
            embeddings=private.embeddings[rows],
            labels=labels[rows],
            users=users,
            split=np.repeat([0, 1], [len(train), len(test)]).astype(np.uint8),
            meta={"class_names": [f"class {number}" for number in range(len(known))]},
        )
        model = release(
            data,
            "discriminant",
            Privacy(asked.epsilon, 1e-5),
            transform=transform,
            noise="float",
            generator=generator,
            vouch_for_transform=True,
            allow_delta=True,
        )
        metrics = model.report["test_metrics"]
        right.append((metrics["accuracy"], metrics["balanced_accuracy"]))
    accuracy, balanced = zip(*right, strict=True)
    return list(accuracy), list(balanced)


def line_of(asked: Combination, sets: Mapping[str, EmbeddingSet], seed: int) -> dict[str, Any]:
    """Prediction and measurement of one combination."""
    public, like, private = divided(asked, sets, seed)
    began, worked = time.perf_counter(), time.process_time()
    sizes = Sizes(users=asked.users, rows_per_user=asked.rows, num_classes=asked.num_classes)
    rehearsal = Rehearsal.of(public, sizes, Privacy(asked.epsilon, 1e-5), like=like)
    cells = [cell for cells in rehearsal.played([asked.epsilon]) for cell in cells]
    shared, rows = overlap(rehearsal.tasks), rehearsal.drawn_from
    interval = Predictions(cells, shared, rows).of("private", asked.epsilon)
    seconds, cpu = time.perf_counter() - began, time.process_time() - worked
    accuracy, balanced = measured(asked, public, private)
    mean = float(np.mean(accuracy))
    return {
        **asdict(asked),
        "predicted": interval.as_dict(),
        "width": interval.high - interval.low,
        "measured": mean,
        "measured_sd": float(np.std(accuracy, ddof=1)),
        "measured_balanced": float(np.mean(balanced)),
        "covered": interval.low <= mean <= interval.high,
        "seconds": seconds,
        "processor_seconds": cpu,
    }


def main(
    data: Path,
    names: tuple[str, ...] = ("tiny=tiny_simclr", "cifar10=cifar10_simclr"),
    only: tuple[int, ...] = (),
    seed: int = 0,
    write: Path | None = None,
) -> None:
    """All combinations, or those of some numbers; the seed is of what is held out."""
    called = dict(pair.split("=") for pair in names)
    chosen = [COMBINATIONS[n] for n in only or range(len(COMBINATIONS))]
    wanted = {"tiny"} | {name for c in chosen for name in (c.private, c.like) if name}
    sets = {name: EmbeddingSet.open(data / called.get(name, name)) for name in wanted}
    lines = []
    for number, asked in enumerate(chosen):
        lines.append(line_of(asked, sets, seed + number))
        print(json.dumps(lines[-1]), flush=True)
    covered = sum(line["covered"] for line in lines)
    print(f"{covered} of {len(lines)} covered")
    save(write, {**provenance(), "seed": seed, "covered": covered, "lines": lines})


if __name__ == "__main__":
    tyro.cli(main)
