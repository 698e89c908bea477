"""Many releases of the same users: methods x ε x partitions x seeds, as simulations."""

import math
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby, product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from embed.store import TEST, TRAIN
from train_distributed.guarantee import Guarantee
from train_distributed.methods import Method, build_method
from train_distributed.noise import gaussian
from train_distributed.partition import Partition, split
from train_distributed.privacy import Privacy
from train_distributed.users import Chunk


@dataclass(frozen=True)
class Setting:
    """A method with everything that is chosen before private data is seen."""

    label: str
    method: str
    transform: str = "default"  # which of the transforms that are at hand
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    """One released model's accuracy on the test split."""

    label: str
    method: str
    scheme: str
    epsilon: float | None  # None: without noise
    seed: int
    accuracy: float
    options: Mapping[str, Any]
    transform: str

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


@dataclass(frozen=True)
class RowsInMemory:
    """The training rows of a set, transformed once: for many passes over the same users."""

    x: Tensor  # (N, d)
    y: Tensor  # (N,) int64
    partition: Partition
    chunk_numbers: int = 1 << 25

    @property
    def sizes(self) -> Tensor:
        """(users,) n_i."""
        return self.partition.counts

    @property
    def dim(self) -> int:
        """D."""
        return self.x.shape[1]

    def chunks(self) -> Iterator[Chunk]:
        """Users of similar size together."""
        for bucket in self.partition.buckets(max(1, self.chunk_numbers // self.dim)):
            yield Chunk(bucket.users, self.x[bucket.rows], self.y[bucket.rows], bucket.counts)


def simulate(
    users: RowsInMemory,
    method: Method,
    promises: Iterable[Privacy],
    generator: torch.Generator,
) -> Iterator[Tensor]:
    """The weights of one release per promise, all from one pass over the users.

    The sum is the same for every ε; only the noise, float and seeded, is drawn anew. Not for
    release: several promises kept on one sum compose.

    Yields:
        (d, K) weights.
    """
    total = torch.zeros(method.dimension, dtype=torch.float64)
    for chunk in users.chunks():
        total += method.submit(chunk).sum(0)
    rows = int(users.sizes.sum())
    for promise in promises:
        guarantee = Guarantee.of(users.sizes, method, promise)
        std = guarantee.local_std * math.sqrt(guarantee.users)
        noise = gaussian(method.dimension, std, generator) / method.scale
        yield method.classifier(total + noise, rows, std)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is run: every setting x partition x seed is one job, trained once for all ε."""

    settings: Sequence[Setting]
    users: int
    schemes: Sequence[str]
    epsilons: Sequence[float]
    delta: float
    seeds: Sequence[int]
    num_classes: int
    honest_fraction: float | None = None

    def validate(self) -> None:
        """Checks what can be checked before any work.

        Raises:
            ValueError: naming the field, its rule and its value.
        """
        if not (self.seeds and self.schemes and self.epsilons):
            raise ValueError("seeds, schemes and epsilons must not be empty")
        for promise in self.promises:
            promise.validate()

    @property
    def promises(self) -> list[Privacy]:
        """One per ε."""
        return [Privacy(epsilon, self.delta, self.honest_fraction) for epsilon in self.epsilons]


def run_jobs(
    embeddings: EmbeddingSet,
    transforms: Mapping[str, PublicTransform],
    plan: Plan,
    *,
    finished: Collection[str] = (),
) -> Iterator[tuple[str, list[Cell]]]:
    """The cells of every job that is not finished, with the job's key.

    A seed fixes the partition; noise is drawn from a generator of each job's own, so the cells of
    a job do not depend on which others were run. The test split's labels are read to report
    accuracies: choosing a setting by them costs privacy that no ε here accounts for.
    """
    train, test = (np.flatnonzero(embeddings.split == part) for part in (TRAIN, TEST))
    y_train, y_test = (torch.from_numpy(embeddings.labels[part]) for part in (train, test))
    for name, transform in transforms.items():
        jobs = [
            (setting, scheme, seed)
            for scheme, seed in product(plan.schemes, plan.seeds)
            for setting in plan.settings
            if setting.transform == name and job_key(setting, scheme, seed) not in finished
        ]
        if not jobs:
            continue
        x_train = transform(embeddings.embeddings[train])
        x_test = transform(embeddings.embeddings[test]).double()
        for (scheme, seed), group in groupby(jobs, key=lambda job: job[1:]):
            generator = torch.Generator().manual_seed(seed)
            held = RowsInMemory(
                x_train, y_train, split(y_train, plan.users, scheme, generator=generator)
            )
            for setting, *_ in group:
                key = job_key(setting, scheme, seed)
                noise = torch.Generator().manual_seed(zlib.crc32(key.encode()))
                method = build_method(setting.method, transform, plan.num_classes, setting.options)
                released = simulate(held, method, plan.promises, noise)
                accuracies = [
                    ((x_test @ weights).argmax(1) == y_test).double().mean().item()
                    for weights in released
                ]
                yield key, _cells(setting, scheme, seed, plan.epsilons, accuracies)


def job_key(setting: Setting, scheme: str, seed: int) -> str:
    """Names a job; equal keys give equal cells."""
    options = ", ".join(f"{name}={value}" for name, value in sorted(setting.options.items()))
    return f"{setting.method}({options}) on {setting.transform}, {scheme}, seed {seed}"


def _cells(
    setting: Setting,
    scheme: str,
    seed: int,
    epsilons: Sequence[float],
    accuracies: Sequence[float],
) -> list[Cell]:
    return [
        Cell(
            setting.label,
            setting.method,
            scheme,
            None if math.isinf(epsilon) else epsilon,
            seed,
            accuracy,
            dict(setting.options),
            setting.transform,
        )
        for epsilon, accuracy in zip(epsilons, accuracies, strict=True)
    ]
