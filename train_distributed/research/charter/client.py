"""One client of Charter: answers with noisy gradients, then with noisy losses."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from train_distributed.privacy.float_noise import uniform
from train_distributed.research.charter.objectives import Objective
from train_distributed.research.charter.plan import CharterPlan


@dataclass(eq=False)
class Client:
    """One client's rows, and the secret order in which rounds use them.

    The split in learning and verification rows is by position: shuffle rows that have an order.
    """

    x: Tensor  # (N, p) float64
    y: Tensor  # (N,) int64
    plan: CharterPlan
    objective: Objective
    generator: torch.Generator | None  # None: the operating system
    _batches: Iterator[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        order = uniform((self.plan.learning_rows,), self.generator).argsort()
        used = sum(self.plan.fresh)
        self._batches = iter(order[:used].split(list(self.plan.fresh)))

    def gradient(self, points: Tensor) -> bytes:
        """The next round's message: the clipped mean over its rows, with noise."""
        clipped, taken = self._clipped_sum(points)
        batch, encoding = self.plan.batch, self.plan.gradient_encoding
        return encoding.encode(clipped / batch, self.generator, scale=batch / taken)

    def losses(self, iterates: Tensor) -> bytes:
        """Noisy mean losses of all iterates (k, problems, d) on the verification rows."""
        return self.plan.loss_encoding.encode(self._mean_losses(iterates), self.generator)

    def _clipped_sum(self, points: Tensor) -> tuple[Tensor, int]:
        """(problems · d,) sum of clipped gradients over the round's rows, and their number."""
        rows = next(self._batches)
        gradients = self.objective.gradients(points, self.x[rows], self.y[rows]).flatten(1)
        norms = gradients.norm(dim=1, keepdim=True)
        over = norms > self.plan.gradient_clip
        clipped = torch.where(over, gradients * (self.plan.gradient_clip / norms), gradients)
        return clipped.sum(0), len(rows)

    def _mean_losses(self, iterates: Tensor) -> Tensor:
        x, y = self.x[self.plan.learning_rows :], self.y[self.plan.learning_rows :]
        means = [
            self.objective.losses(points, x, y).clamp(0, self.plan.loss_clip).mean()
            for points in iterates
        ]
        return torch.stack(means)
