"""A simulated federation: who holds which rows, and how many users each one represents."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pretrain import check
from train_distributed.partition import Partition, split, uneven_sizes


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Partition of rows over users; equal scenarios and seeds give equal partitions."""

    users: int | None  # w; None for by-writer
    scheme: str = "iid"  # one of partition.SCHEMES
    rows_per_user: int | None = None  # n on average, drawn at random; None: all rows are spread
    concentration: float | None = None  # of classes, dirichlet only
    size_concentration: float | None = None  # of local sizes; None: equal ones
    stands_for: tuple[int, int] | None = None  # (users, rows each) whose sums and noise these are

    @property
    def name(self) -> str:
        """The scheme with its concentrations, for keys and legends."""
        words = [self.scheme]
        if self.concentration is not None:
            words.append(f"{self.concentration:g}")
        if self.size_concentration is not None:
            words.append(f"sizes {self.size_concentration:g}")
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
        sizes = None
        if self.size_concentration is not None and self.users is not None:
            sizes = uneven_sizes(len(rows), self.users, self.size_concentration, generator)
        by_writer = self.scheme == "by-writer"
        if by_writer and writers is None:
            raise ValueError("embeddings must name their users for scheme 'by-writer', got none")
        partition = split(
            labels[rows],
            self.users,
            self.scheme,
            sizes=sizes,
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
