"""What one Charter client does: answers with noisy gradients, then with noisy losses."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from train_distributed.privacy.float_noise import normal, uniform
from train_distributed.research.charter.encoding import Encoder
from train_distributed.research.charter.objectives import Objective
from train_distributed.research.charter.plan import CharterPlan
from train_distributed.research.charter.quantise import Quantiser


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
        """The next round's quantised message: the mean over its rows, with noise."""
        clipped, taken = self._clipped_sum(points)
        mean = clipped / self.plan.batch
        noisy = mean + self.plan.gradient_std * normal(tuple(mean.shape), self.generator)
        unbiased = noisy * (self.plan.batch / taken)
        return self.gradient_quantiser.encode(unbiased, self.generator)

    def gradient_share(self, points: Tensor, encoder: Encoder) -> NDArray[np.uint64]:
        """The next round's integers for the secure sum, with a noise share."""
        clipped, _ = self._clipped_sum(points)
        return encoder.encode(clipped / self.plan.batch, self.generator)

    def losses(self, iterates: Tensor) -> bytes:
        """Quantised noisy mean losses of all iterates (k, problems, d) on the verification rows."""
        mean = self._mean_losses(iterates)
        noisy = mean + self.plan.loss_std * normal(tuple(mean.shape), self.generator)
        return self.loss_quantiser.encode(noisy, self.generator)

    def loss_share(self, iterates: Tensor, encoder: Encoder) -> NDArray[np.uint64]:
        """The mean losses as integers for the secure sum, with a noise share."""
        return encoder.encode(self._mean_losses(iterates), self.generator)

    @property
    def gradient_quantiser(self) -> Quantiser:
        """Of a round's message."""
        return Quantiser(self.plan.gradient_limit, self.plan.gradient_bits)

    @property
    def loss_quantiser(self) -> Quantiser:
        """Of the verification message."""
        return Quantiser(self.plan.loss_limit, self.plan.loss_bits)

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
