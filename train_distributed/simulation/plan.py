"""What is simulated, as values: a federation, and a grid of methods, promises and seeds."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pretrain import check
from train_distributed.one_shot.registry import METHODS
from train_distributed.partition import Partition, split
from train_distributed.privacy.promise import Privacy
from train_distributed.simulation.shared_training import CLIP, TRAINED

SUBMITTED = ("sums", "components", "class_noise")  # options that say which sums there are
TOGETHER = ("clip", "noise")  # options of descents that are trained at once


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Partition of rows over users; equal scenarios and seeds give equal partitions."""

    users: int | None  # w; None for by-writer
    scheme: str = "iid"  # one of partition.SCHEMES
    rows_per_user: int | None = None  # n on average, drawn at random; None: all rows are spread
    concentration: float | None = None  # of classes, dirichlet only
    stands_for: tuple[int, int] | None = None  # (users, rows each) whose sums and noise these are

    @property
    def name(self) -> str:
        """The scheme with its concentration, for keys and legends."""
        words = [self.scheme]
        if self.concentration is not None:
            words.append(f"{self.concentration:g}")
        if self.stands_for is not None:
            words.append("for {} x {}".format(*self.stands_for))
        elif self.rows_per_user is not None:
            words.append(f"{self.rows_per_user} rows each")
        return " ".join(words)

    @property
    def key(self) -> str:
        """Names the scenario; equal keys are equal scenarios."""
        return f"{self.name}, users={self.users}, rows={self.rows_per_user}"

    def sizes(self, held: Tensor) -> Tensor:
        """(users,) int64 local sizes of the federation, where those of the rows held are given."""
        if self.stands_for is None:
            return held
        users, rows = self.stands_for
        return torch.full((users,), rows)

    def place(
        self, labels: Tensor, writers: Tensor | None, generator: torch.Generator
    ) -> tuple[Tensor, Partition]:
        """(M,) int64 rows that take part, drawn first and alike by all schemes; their partition.

        Of (N,) int64 labels; (N,) int64 writers are for by-writer only. Raises ValueError for more
        rows than there are, or a partition that `split` refuses.
        """
        rows = torch.arange(len(labels))
        if self.rows_per_user is not None:
            wanted = (self.users or 1) * self.rows_per_user
            check.within(f"[1, {len(labels)}]", **{"users * rows_per_user": wanted})
            rows = torch.randperm(len(labels), generator=generator)[:wanted].sort().values
        by_writer = self.scheme == "by-writer"
        if by_writer and writers is None:
            raise ValueError("embeddings must name their users for scheme 'by-writer', got none")
        partition = split(
            labels[rows],
            self.users,
            self.scheme,
            concentration=self.concentration,
            writers=writers[rows] if by_writer and writers is not None else None,
            generator=None if self.users == 1 else generator,  # a single user's order is free
        )
        return rows, partition


def held_out(
    labels: np.ndarray, split: np.ndarray, folds: int | None, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """(training rows, test rows): the predefined split, or one of `folds` stratified folds.

    Seed s tests on fold s mod `folds` of repetition ⌊s / folds⌋, whose order is drawn anew; the
    folds of one repetition cover all rows once. The (N,) uint8 split is 0 in training, 1 in
    testing.

    Examples:
        >>> labels = np.array([0, 0, 0, 0, 1, 1, 1, 1])
        >>> tested = [held_out(labels, labels, 2, seed)[1] for seed in (0, 1)]
        >>> [labels[rows].tolist() for rows in tested]
        [[0, 0, 1, 1], [0, 0, 1, 1]]
        >>> sorted(row for rows in tested for row in rows.tolist())
        [0, 1, 2, 3, 4, 5, 6, 7]
    """
    if folds is None:
        return np.flatnonzero(split == 0), np.flatnonzero(split == 1)
    check.at_least(2, folds=folds)
    repetition, fold = divmod(seed, folds)
    order = np.random.default_rng(repetition).permutation(len(labels))
    by_class = order[np.argsort(labels[order], kind="stable")]
    tested = np.arange(len(labels)) % folds == fold
    return np.sort(by_class[~tested]), np.sort(by_class[tested])


@dataclass(frozen=True)
class MethodConfig:
    """A method with everything that is chosen before private data is seen."""

    label: str
    method: str
    transform: str = "default"  # which of the transforms that are at hand
    options: Mapping[str, Any] = field(default_factory=dict)
    complete: bool = False  # nothing is filled in: rows are the transform's, in one sum

    @property
    def training(self) -> str:
        """Key of the training: configurations with equal keys share one, whatever else differs.

        Examples:
            >>> one, other = (MethodConfig("a", "softmax", options={"radius": r}) for r in (1, 2))
            >>> one.training == other.training  # an exact head is projected after training
            True
        """
        statistics = sums_rows(self.method)
        exact = self.options.get("solver", "exact") == "exact"
        seen = dict(self.options)
        if statistics:
            seen = {name: value for name, value in seen.items() if name in SUBMITTED}
        elif exact:
            unseen = (*TRAINED, *TOGETHER)
            seen = {name: value for name, value in seen.items() if name not in unseen}
        clipped = ", users' clip" if CLIP in self.options else ""
        words = ", ".join(f"{name}={value}" for name, value in sorted(seen.items()))
        return f"{self.method}({words}) on {self.transform}{clipped}"


@dataclass(frozen=True)
class Result:
    """One released model's accuracy on the test rows."""

    label: str
    method: str
    scheme: str
    epsilon: float | None  # None: without noise
    seed: int
    accuracy: float
    options: Mapping[str, Any]
    transform: str
    users: int = 0  # that held rows, whatever the scenario stands for
    rows: int = 0  # that they held
    delta: float | None = None
    balanced: float | None = None  # mean accuracy of the classes; None: not measured
    majority: float | None = None  # share of the largest class of the test rows; None: likewise
    # "equal" and "private", each with accuracy and balanced_accuracy; None: it has one prior alone
    by_prior: Mapping[str, Mapping[str, float]] | None = None

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON takes them."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Grid of trials. One training serves a trial: a scenario, a seed, settings, every ε."""

    settings: Sequence[MethodConfig]
    scenarios: Sequence[Scenario]
    promises: Sequence[Privacy]
    seeds: Sequence[int]
    num_classes: int
    folds: int | None = None  # None: the predefined split; else see `scenario.held_out`

    def validate(self) -> None:
        """Raises ValueError for an empty list or a promise that cannot be kept."""
        if not (self.seeds and self.scenarios and self.promises and self.settings):
            raise ValueError("settings, scenarios, promises and seeds must not be empty")
        for promise in self.promises:
            promise.validate()

    def trials(self) -> list["Trial"]:
        """All trials, those on one transform and of one partition together."""
        families: dict[str, dict[str, list[MethodConfig]]] = {}
        for setting in self.settings:
            of_transform = families.setdefault(setting.transform, {})
            of_transform.setdefault(setting.training, []).append(setting)
        return [
            Trial(tuple(family), scenario, seed)
            for of_transform in families.values()
            for scenario, seed in product(self.scenarios, self.seeds)
            for family in of_transform.values()
        ]


@dataclass(frozen=True)
class Trial:
    """Settings that one training serves, in one scenario, with one seed."""

    family: tuple[MethodConfig, ...]
    scenario: Scenario
    seed: int

    @property
    def shared(self) -> bool:
        """True where its sums do not depend on who holds which rows: not for clipped users."""
        first = self.family[0]
        return sums_rows(first.method) and CLIP not in first.options

    @property
    def key(self) -> str:
        """Name of a trial in its grid; equal keys give equal results."""
        return f"{self.family[0].training}, {self.scenario.key}, seed {self.seed}"

    def noise(self, promise: Privacy, number: int, dimension: int) -> Tensor:
        """(dimension,) draws from N(0, 1), alike in all trials of a seed.

        Other promises and further sums of one release have other draws. Settings and partitions
        are compared under the same noise (common random numbers), so their difference is not that
        of two draws.
        """
        words = f"noise, seed {self.seed}, epsilon {promise.epsilon}, delta {promise.delta}"
        words += f", sum {number}" if number else ""
        generator = torch.Generator().manual_seed(zlib.crc32(words.encode()))
        return torch.randn(dimension, generator=generator, dtype=torch.float64)


def sums_rows(method: str) -> bool:
    """True where users send a sum over their rows, whoever holds them."""
    return method in METHODS and METHODS[method].sums_rows
