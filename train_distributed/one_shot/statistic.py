"""Vectors that users send, computed from their rows, and the opened sum of them."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from embed import PublicTransform
from train_distributed.one_shot.users import Chunk
from train_distributed.privacy.guarantee import Submission


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
        chunk: their rows, in an order that nobody chose (`users`), on which the steps of SGD
            depend, and the rounding of every sum.
        grid: to whose multiples rows are rounded first, towards zero; None: rows as they are.
    """
    return statistic.submit(chunk.rounded(grid)) * statistic.scale
