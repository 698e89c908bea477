"""Steps of projected SGD for all users at once: visited rows and learning rates."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from heads.head import Head
from heads.rounding import gram_step_error

Rows = slice | Tensor  # of a batch: a view in the given order, or (users, b) indices


@dataclass(frozen=True)
class Step:
    """One batch of every user."""

    rows: Rows
    shrink: float | Tensor  # 1 − α_m Λ, per user (users, 1, 1) if padded; 1 where no batch is left
    rate: float | Tensor  # α_m / b, nominal b; 0 where no batch is left
    first: bool  # of an epoch


class Schedule:
    """Rows that every user visits, and learning rates."""

    def __init__(
        self,
        beta: float,
        l2_reg: float,
        epochs: int,
        batch_size: int,
        shape: torch.Size,
        counts: Tensor | None,
        like: Tensor,
        generator: torch.Generator | None,
    ) -> None:
        self.beta, self.l2_reg, self.epochs = beta, l2_reg, epochs
        self.users, self.n = shape
        self.batch_size = min(batch_size, self.n)
        self.counts, self.like, self.generator = counts, like, generator
        place = torch.arange(self.n, device=like.device)
        self.mask = None if counts is None else (place < counts[:, None]).to(like.dtype)[..., None]

    def __iter__(self) -> Iterator[Step]:
        batches = math.ceil(self.n / self.batch_size)
        for epoch in range(self.epochs):
            order = self._order()
            for batch in range(batches):
                start = batch * self.batch_size
                stop = min(start + self.batch_size, self.n)
                rows = slice(start, stop) if order is None else order[:, start:stop]
                shrink, rate = self._rates(epoch, batch, batches)
                yield Step(rows, shrink, rate, first=batch == 0)

    def may_leave(self, head: Head, norm2: Tensor, first: Step, dim: int) -> Tensor:
        """Marks models that may leave their ball in this epoch, a step moving W by αL; (...) bool.

        Rounding is counted (`heads.rounding`): ‖W‖² computed afresh is off by less than 2NuS², a
        step by NuS. Every model is marked where users are padded.
        """
        if head.radius is None or isinstance(first.rate, Tensor):
            return torch.ones_like(norm2, dtype=torch.bool)
        steps = math.ceil(self.n / self.batch_size)
        lost = gram_step_error(head, self.n, dim, norm2.dtype)
        reach = steps * (first.rate * self.batch_size * head.lipschitz + lost)
        largest = (norm2 + 2 * lost * head.lipschitz / head.l2_reg).sqrt()
        return ~(largest + reach <= head.radius)

    def _order(self) -> Tensor | None:
        """(users, n): a permutation of each user's own rows, padding left at the end."""
        if self.generator is None:
            return None
        keys = torch.rand(
            self.users, self.n, generator=self.generator, device=self.generator.device
        ).to(self.like.device)
        if self.mask is not None:
            keys = keys.where(self.mask.squeeze(-1) > 0, 2.0)
        return keys.argsort(1)

    def _rates(self, epoch: int, batch: int, batches: int) -> tuple[float | Tensor, float | Tensor]:
        if self.counts is None:
            alpha = min(1 / self.beta, 1 / (self.l2_reg * (epoch * batches + batch + 1)))
            return max(0.0, 1 - alpha * self.l2_reg), alpha / self.batch_size
        nominal = self.counts.clamp(max=self.batch_size)
        own_batches = -(-self.counts // nominal)
        own_step = (epoch * own_batches + batch + 1).to(self.like.dtype)
        alpha = (1 / (self.l2_reg * own_step)).clamp(max=1 / self.beta)
        alpha = alpha.where(batch < own_batches, 0.0)[:, None, None]
        return (1 - alpha * self.l2_reg).clamp(min=0), alpha / nominal[:, None, None]


def take(values: Tensor, rows: Rows) -> Tensor:
    """values[:, rows]: (users, n, k) -> (users, b, k)."""
    if isinstance(rows, slice):
        return values[:, rows]
    return values.gather(1, rows[..., None].expand(-1, -1, values.shape[2]))


def columns(values: Tensor, rows: Rows) -> Tensor:
    """values[..., rows]: (users, k, n) -> (users, k, b)."""
    if isinstance(rows, slice):
        return values[..., rows]
    return values.gather(2, rows[:, None].expand(-1, values.shape[1], -1))


def subtract(values: Tensor, rows: Rows, change: Tensor) -> None:
    """values[..., rows] −= change."""
    if isinstance(rows, slice):
        values[..., rows].sub_(change)
    else:
        values.scatter_add_(2, rows[:, None].expand_as(change), -change)
