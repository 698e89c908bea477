"""Users that stream in: some users' rows at a time, so memory does not grow with their number.

**Every user's rows come in an order that nobody chose**, drawn by the operating system before
anything is computed of them, and again whenever they are read. Kernels round a row by its place,
and sums by their order; both would be the record's own if each record kept its place, but class
folders put rows in the order of their classes, so that a record of another class moves all after
it. In an order drawn uniformly, whatever it was before, two neighbouring data sets can be given
the same one: each common record has one place in both, and so has the record that is replaced.
Given that order the two sums differ by one record alone, so (ε, δ) holds whatever a kernel does;
and as it holds given every order, it holds of their mixture (the inequality is linear in the two
distributions).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from embed.store import BLOCK
from heads.rows import SLACK, check_rows, row_norms
from pretrain.datasets import TRAIN
from train_distributed.partition import Partition, drawn_keys, split
from train_distributed.privacy.fixed_point import is_power_of_two

CHUNK = 1 << 25  # size: numbers of embeddings in one chunk


@dataclass(frozen=True)
class Chunk:
    """Rows of some users, padded at the end to the longest of them."""

    users: Tensor  # (u,) int64: which
    x: Tensor  # (u, n, d) rows [a, x], norm <= c
    y: Tensor  # (u, n) int64
    counts: Tensor  # (u,) int64: true rows of each
    grid: float | None = None  # of which all entries are multiples, where `rounded` made them so

    @property
    def own(self) -> Tensor:
        """(u, n) bool: True for true rows, False for padding."""
        return torch.arange(self.x.shape[1]) < self.counts[:, None]

    def select(self, users: Tensor) -> "Chunk":
        """Those of its users for which (u,) `users` is true."""
        if users.all():
            return self
        parts = (self.users[users], self.x[users], self.y[users], self.counts[users])
        return Chunk(*parts, self.grid)

    def pooled(self) -> "Chunk":
        """All true rows as if one user, number 0, held them."""
        own = self.own
        x, y = (self.x[own], self.y[own]) if not own.all() else (self.x, self.y)
        x, y = x.reshape(1, -1, x.shape[-1]), y.reshape(1, -1)
        return Chunk(torch.zeros(1, dtype=torch.int64), x, y, self.counts.sum()[None], self.grid)

    def portions(self, users: int) -> Iterator["Chunk"]:
        """Parts of the chunk, with at most so many users each."""
        for start in range(0, len(self.users), users):
            part = slice(start, start + users)
            x, y = self.x[part], self.y[part]
            yield Chunk(self.users[part], x, y, self.counts[part], self.grid)

    def shuffled(self, generator: torch.Generator | None = None) -> "Chunk":
        """Every user's true rows in a random order, as `Partition.shuffled`; padding stays last."""
        keys = drawn_keys(tuple(self.y.shape), generator)
        keys = keys.where(self.own, torch.iinfo(torch.int64).max)
        order = keys.argsort(dim=1, stable=True)
        x = self.x.gather(1, order[..., None].expand_as(self.x))
        return replace(self, x=x, y=self.y.gather(1, order))

    def rounded(self, grid: float | None) -> "Chunk":
        """Every entry rounded towards zero to a multiple of `grid`, float64.

        No norm grows, so a sensitivity proven for rows ‖x‖ ≤ c holds for the rounded rows, and
        their sums are whole multiples of the grid: nothing is charged for rounding.

        Args:
            grid: a power of two, so that quotient and product are exact; None: rows as they are.

        Raises:
            ValueError: grid is not a power of two.
        """
        if grid is None:
            return self
        if not is_power_of_two(grid):
            raise ValueError(f"grid must be a power of two, got {grid}")
        return replace(self, x=(self.x.double() / grid).trunc() * grid, grid=grid)


def check_stream(chunk: Chunk, clip_norm: float, constant: float) -> None:
    """Refuses rows of users that stream in by themselves, on which no sensitivity would hold.

    The true rows of the chunk are looked at, not the padding, and compared in float64 with the clip
    norm c and the constant a, whatever the rows' type: a constant that float32 cannot hold is not
    the one that a float32 row begins with, and the difference may leave the features longer than
    √(c² − a²), so these have a bound of their own.

    Raises:
        ValueError: a row that is not finite, longer than c, begins with another number than a, or
            whose features are longer than √(c² − a²).
    """
    own = chunk.own
    reach = math.sqrt(clip_norm**2 - constant**2)
    step = max(1, BLOCK // chunk.x[0].numel())
    for start in range(0, len(own), step):
        part = slice(start, start + step)
        labels, rows = chunk.y[part][own[part]], chunk.x[part][own[part]]
        check_rows(rows, labels, int(labels.max()) + 1, clip_norm)
        first = rows[:, 0].double()
        wrong = first[first != constant]
        if len(wrong):
            raise ValueError(f"rows must begin with the constant {constant}, got {float(wrong[0])}")
        norms = row_norms(rows[:, 1:])
        if (norms > reach * (1 + SLACK)).any():
            raise ValueError(
                f"rows must have features of norm <= sqrt(clip_norm^2 - constant^2) = {reach}, "
                f"got {float(norms.max())}"
            )


@runtime_checkable
class Users(Protocol):
    """All users of a run. Sizes are public; rows are not."""

    @property
    def sizes(self) -> Tensor:
        """(users,) int64 n_i >= 1."""
        ...

    @property
    def dim(self) -> int:
        """Columns of a row, the constant included."""
        ...

    def chunks(self) -> Iterator[Chunk]:
        """Every user exactly once."""
        ...


@dataclass(frozen=True)
class EmbeddingUsers:
    """The training rows of an `EmbeddingSet`, shuffled and transformed while they are read."""

    embeddings: EmbeddingSet
    transform: PublicTransform
    partition: Partition  # of the training rows, in their order
    generator: torch.Generator | None = None  # of the shuffles; None: the operating system

    @property
    def sizes(self) -> Tensor:
        """(users,) int64 n_i."""
        return self.partition.counts

    @property
    def dim(self) -> int:
        """q + 1: the constant and the transform's q features."""
        return self.transform.dim

    def chunks(self) -> Iterator[Chunk]:
        """Every user once, those of similar size together, with (u, n, q + 1) rows."""
        train = np.flatnonzero(self.embeddings.split == TRAIN)
        width = max(self.embeddings.dim, self.dim)
        for bucket in self.partition.shuffled(self.generator).buckets(max(1, CHUNK // width)):
            flat = train[bucket.rows.flatten().numpy()]
            rows = self.transform(self.embeddings.embeddings[flat])
            labels = torch.from_numpy(self.embeddings.labels[flat])
            yield Chunk(
                bucket.users,
                rows.unflatten(0, tuple(bucket.rows.shape)),
                labels.unflatten(0, tuple(bucket.rows.shape)),
                bucket.counts,
            )


def own_partition(
    embeddings: EmbeddingSet, part: int = TRAIN, *, single: bool = False
) -> Partition:
    """The users that a set names for the rows of a split; where it names none, a `single` one.

    Raises ValueError for no such row, no labels, or no users where nobody declared a single one.
    """
    embeddings.need_labels()
    rows = embeddings.split == part
    if not rows.any():
        what = "training" if part == TRAIN else "evaluation"
        raise ValueError(f"embeddings must hold {what} rows (split {part}), got none")
    labels = torch.from_numpy(embeddings.labels[rows])
    if embeddings.users is None:
        if not single:
            raise ValueError(
                "users must be named by the embedding set (zeros: all rows are one user's own) or "
                "given by a partition, got None"
            )
        return split(labels, 1)
    return split(labels, None, "by-writer", writers=torch.from_numpy(embeddings.users[rows]))
