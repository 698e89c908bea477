"""Many releases of the same users: methods x ε x partitions x seeds, as simulations."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
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


def cells(
    embeddings: EmbeddingSet,
    transforms: Mapping[str, PublicTransform],
    settings: Sequence[Setting],
    *,
    users: int,
    schemes: Sequence[str],
    epsilons: Sequence[float],
    delta: float,
    seeds: Sequence[int],
    num_classes: int,
    honest_fraction: float | None = None,
) -> Iterator[Cell]:
    """Every setting x scheme x seed x ε, in the order of the transforms.

    A seed fixes the partition and the noise. The test split's labels are read to report
    accuracies: choosing a setting by them costs privacy that no ε here accounts for.
    """
    train, test = (np.flatnonzero(embeddings.split == part) for part in (TRAIN, TEST))
    y_train, y_test = (torch.from_numpy(embeddings.labels[part]) for part in (train, test))
    promises = [Privacy(epsilon, delta, honest_fraction) for epsilon in epsilons]
    for name, transform in transforms.items():
        chosen = [setting for setting in settings if setting.transform == name]
        if not chosen:
            continue
        x_train = transform(embeddings.embeddings[train])
        x_test = transform(embeddings.embeddings[test])
        for scheme in schemes:
            for seed in seeds:
                generator = torch.Generator().manual_seed(seed)
                partition = split(y_train, users, scheme, generator=generator)
                held = RowsInMemory(x_train, y_train, partition)
                for setting in chosen:
                    method = build_method(setting.method, transform, num_classes, setting.options)
                    released = simulate(held, method, promises, generator)
                    for epsilon, weights in zip(epsilons, released, strict=True):
                        predicted = (x_test.double() @ weights).argmax(1)
                        yield Cell(
                            setting.label,
                            setting.method,
                            scheme,
                            None if math.isinf(epsilon) else epsilon,
                            seed,
                            (predicted == y_test).double().mean().item(),
                            dict(setting.options),
                            name,
                        )


@dataclass(frozen=True)
class Summary:
    """Mean and standard deviation over seeds."""

    mean: float
    std: float
    seeds: int

    def __str__(self) -> str:
        return f"{100 * self.mean:5.1f} ± {100 * self.std:3.1f}"


def summarise(rows: Iterable[Cell]) -> dict[tuple[str, str, float | None], Summary]:
    """(label, scheme, ε) -> mean and sample deviation over the seeds of one setting.

    Of several settings under one label the best mean is shown, as the paper does per cell; that
    choice looks at the test split.
    """
    groups: dict[tuple[str, str, float | None], dict[str, list[float]]] = {}
    for row in rows:
        key = (row.label, row.scheme, row.epsilon)
        setting = f"{row.transform} {sorted(row.options.items())}"
        groups.setdefault(key, {}).setdefault(setting, []).append(row.accuracy)
    best = {key: max(of_setting.values(), key=np.mean) for key, of_setting in groups.items()}
    return {
        key: Summary(
            float(np.mean(values)),
            float(np.std(values, ddof=1)) if len(values) > 1 else 0.0,
            len(values),
        )
        for key, values in best.items()
    }


def table(rows: Sequence[Cell]) -> str:
    """Accuracy in per cent: a line per method and partition, a column per ε."""
    summary = summarise(rows)
    labels = list(dict.fromkeys(row.label for row in rows))
    schemes = list(dict.fromkeys(row.scheme for row in rows))
    epsilons = list(dict.fromkeys(row.epsilon for row in rows))
    width = max(len(label) for label in labels)
    heads = ["not private" if e is None else f"eps {e:g}" for e in epsilons]
    lines = [f"{'method':{width}}  {'users hold':10}" + "".join(f"{h:>14}" for h in heads)]
    for scheme in schemes:
        for label in labels:
            found = [summary.get((label, scheme, epsilon)) for epsilon in epsilons]
            values = "".join(f"{s!s:>14}" if s else f"{'-':>14}" for s in found)
            lines.append(f"{label:{width}}  {scheme:10}{values}")
    return "\n".join(lines)
