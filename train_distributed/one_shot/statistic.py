"""Rows of users, the vectors that they send of them, and the opened sum of these.

Rows stream in, some users' at a time, so memory does not grow with the number of users.

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

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from embed import PublicTransform
from train_distributed.partition import drawn_keys
from train_distributed.privacy.fixed_point import is_power_of_two
from train_distributed.privacy.guarantee import Submission

CHUNK = 1 << 25  # size: numbers of embeddings in one chunk


@dataclass(frozen=True)
class Chunk:
    """Rows of some users, padded at the end to the longest of them."""

    users: Tensor  # (u,) int64: which
    x: Tensor  # (u, n, d) rows [a, x], norm <= c
    y: Tensor  # (u, n) int64 classes, or (u, n, K) int8 findings: 1, 0, and -1 where unknown
    counts: Tensor  # (u,) int64: true rows of each
    grid: float | None = None  # of which all entries are multiples, where `rounded` made them so

    @property
    def own(self) -> Tensor:
        """(u, n) bool: True for true rows, False for padding."""
        return torch.arange(self.x.shape[1]) < self.counts[:, None]

    @property
    def one_class(self) -> Tensor:
        """(u, n) int64 zeros: every row is of the same class."""
        return torch.zeros(self.x.shape[:2], dtype=torch.int64)

    def select(self, users: Tensor) -> "Chunk":
        """Those of its users for which (u,) `users` is true."""
        if users.all():
            return self
        parts = (self.users[users], self.x[users], self.y[users], self.counts[users])
        return Chunk(*parts, self.grid)

    def pooled(self) -> "Chunk":
        """All true rows as one user's, number 0."""
        own = self.own
        x, y = (self.x[own], self.y[own]) if not own.all() else (self.x, self.y)
        x, y = x.reshape(1, -1, x.shape[-1]), y.reshape(1, -1, *self.y.shape[2:])
        return Chunk(torch.zeros(1, dtype=torch.int64), x, y, self.counts.sum()[None], self.grid)

    def portions(self, users: int) -> Iterator["Chunk"]:
        """Parts of the chunk, with at most so many users each."""
        for start in range(0, len(self.users), users):
            part = slice(start, start + users)
            x, y = self.x[part], self.y[part]
            yield Chunk(self.users[part], x, y, self.counts[part], self.grid)

    def shuffled(self, generator: torch.Generator | None = None) -> "Chunk":
        """Every user's true rows in a random order, as `Partition.shuffled`; padding stays last."""
        keys = drawn_keys(tuple(self.x.shape[:2]), generator)
        keys = keys.where(self.own, torch.iinfo(torch.int64).max)
        order = keys.argsort(dim=1, stable=True)
        users = torch.arange(len(order))[:, None]
        return replace(self, x=self.x[users, order], y=self.y[users, order])

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
class NoisedSum:
    """Sum of all users' submissions, as it was opened."""

    total: Tensor  # (D,) float64, unscaled
    rows: int  # N of the users in it
    noise_std: float  # of the noise in an entry of the scaled sum


class Statistic(Submission):
    """Submission that is computed from a user's rows."""

    @abstractmethod
    def submit(self, chunk: Chunk) -> Tensor:
        """(u, D) float64 submissions, unscaled, without noise."""

    def validate(self) -> None:
        """Raises ValueError for a setting that the transform and the data cannot know."""

    def check_rows(self, transform: PublicTransform) -> None:
        """Raises ValueError unless the sensitivity is stated for the rows of a transform."""

    @property
    def unclipped(self) -> "Statistic":
        """The statistic without a users' clip."""
        return self

    @property
    def expected_row(self) -> Tensor | None:
        """(D,) float64 unscaled submission of a public row, with part of its count; None: zero."""
        return None

    def positions(self, wide: "Statistic") -> Tensor:
        """(D,) places of its numbers in the submission of one like it of `wide`r rows."""
        return torch.arange(self.dimension)

    def clipped_(self, submitted: Tensor, counts: Tensor, grid: float | None = None) -> Tensor:
        """Applies the users' clip, if there is one, to (u, D) unscaled submissions in place."""
        return submitted

    def counted_rows(self, noised: NoisedSum) -> tuple[float, float]:
        """Number of rows that a noised sum shows, and its variance; N where it counts none."""
        return noised.rows, 0.0

    def restored(self, noised: NoisedSum) -> NoisedSum:
        """The sum with what its users left out because it is public."""
        return noised

    def report(self) -> dict[str, Any]:
        """Settings that the report states."""
        return {}


def submissions(statistic: Statistic, chunk: Chunk, grid: float | None) -> Tensor:
    """(u, D) float64 scaled submissions of these users, before their noise.

    Args:
        statistic: what they submit.
        chunk: their rows, in an order that nobody chose, on which the steps of SGD
            depend, and the rounding of every sum.
        grid: to whose multiples rows are rounded first, towards zero; None: rows as they are.
    """
    return statistic.submit(chunk.rounded(grid)) * statistic.scale
