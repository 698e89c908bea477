"""Convex losses of one record, stated so that a cutting plane method can ask about them."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Objective(Protocol):
    """A convex loss of records (x, y) at `problems` independent points in R^dimension."""

    @property
    def problems(self) -> int:
        """Points that are cut separately, but answered in one message (one-vs-rest: K)."""
        ...

    @property
    def dimension(self) -> int:
        """Numbers in one of the points."""
        ...

    def losses(self, points: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """(problems, dimension), (n, p), (n,) -> (n,) losses >= 0."""
        ...

    def gradients(self, points: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The losses' gradients, (n, problems, dimension)."""
        ...


@dataclass(frozen=True)
class OneVsRestLogistic:
    """Σ_k ln(1 + exp(-z_k w_k·x)) / K with z_k = +1 for the record's class, else -1."""

    num_classes: int  # K; 2 gives one problem, +1 for class 1
    dimension: int

    @property
    def problems(self) -> int:
        """K, or 1 for two classes."""
        return 1 if self.num_classes == 2 else self.num_classes

    def losses(self, points: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """(n,), mean over the problems."""
        return torch.nn.functional.softplus(-self._signs(y) * (x @ points.T)).mean(1)

    def gradients(self, points: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """(n, K, d) gradients."""
        signs = self._signs(y)
        slope = -signs * torch.sigmoid(-signs * (x @ points.T)) / self.problems
        return slope[..., None] * x[:, None]

    def _signs(self, y: Tensor) -> Tensor:
        if self.num_classes == 2:
            return 2.0 * y[:, None].double() - 1
        return 2.0 * torch.nn.functional.one_hot(y, self.num_classes).double() - 1


@dataclass(frozen=True)
class Distance:
    """½ ‖w - x‖²: the population's minimiser is the mean of x, the excess risk ½ ‖w - mean‖²."""

    dimension: int

    @property
    def problems(self) -> int:
        """One problem."""
        return 1

    def losses(self, points: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """(n,); y is not used."""
        return (points - x).square().sum(1) / 2

    def gradients(self, points: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """(n, 1, d) gradients; y is not used."""
        return (points - x)[:, None]
