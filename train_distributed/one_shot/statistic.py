"""Vectors that users send: length, scale and grid, and how far a record or a user moves them."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from embed import PublicTransform
from train_distributed.one_shot.users import Chunk


@dataclass(frozen=True)
class NoisedSum:
    """Sum of all users' submissions, as it was opened."""

    total: Tensor  # (D,) float64, unscaled
    rows: int  # N of the users in it
    noise_std: float  # of the noise in an entry of the scaled sum


class Submission(ABC):
    """Vector of numbers that every user sends, with the sensitivity of their sum.

    Movements are L2 norms of one of C equal parts of a scaled submission.
    """

    @property
    @abstractmethod
    def dimension(self) -> int:
        """D, the length of a submission."""

    @property
    def compositions(self) -> int:
        """C, the equal parts of a submission that a record moves; 1: all entries jointly."""
        return 1

    @property
    def scale(self) -> float | Tensor:
        """Factor, or (D,) factors, under which the sensitivity is stated."""
        return 1.0

    @property
    def grid_powers(self) -> Tensor | None:
        """(D,) int: entries are multiples of g**power if rows are multiples of g.

        None: they are not, whatever the rows.
        """
        return None

    @property
    def additive(self) -> bool:
        """True for a sum over rows: all users' rows pooled give the sum of their submissions.

        Entries on the rows' grid are then exact; of all others the rounding is charged.
        """
        return self.grid_powers is not None

    @abstractmethod
    def entry_bound(self, n: int) -> float:
        """Largest |entry| of the scaled submission of a user with n rows."""

    @abstractmethod
    def record_sensitivity(self, sizes: Tensor) -> float:
        """Movement when one record is replaced."""

    def user_sensitivity(self, sizes: Tensor) -> Tensor:
        """(users,) movement when all n_i records of a user are replaced: n_i times one's."""
        return sizes.double() * self.record_sensitivity(sizes)

    @abstractmethod
    def zero_out_sensitivity(self, sizes: Tensor) -> float:
        """Movement when one record is taken out and its user's published size stays."""

    def user_zero_out(self, sizes: Tensor) -> Tensor:
        """(users,) movement when all n_i records of a user are taken out."""
        return sizes.double() * self.zero_out_sensitivity(sizes)

    def norm_bounds(self, sizes: Tensor) -> Tensor:
        """(users,) largest L2 norms of scaled submissions: all records together move it so far."""
        return math.sqrt(self.compositions) * self.user_zero_out(sizes)


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
        chunk: their rows, in an order that nobody chose (`users`), on which the steps of SGD
            depend, and the rounding of every sum.
        grid: to whose multiples rows are rounded first, towards zero; None: rows as they are.
    """
    return statistic.submit(chunk.rounded(grid)) * statistic.scale
