"""Charter: private minimisation with few bits, by cutting planes (Salgia et al. 2025, Alg. 1)."""

import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from pretrain import check
from train_distributed.privacy.float_noise import uniform
from train_distributed.research.rivals.charter.plan import LARGEST, CharterPlan, check_scale
from train_distributed.research.rivals.charter.vaidya import Vector, cutting_planes
from train_distributed.research.rivals.common import one_vs_rest


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
        return torch.nn.functional.softplus(
            -one_vs_rest(y, self.num_classes) * (x @ points.T)
        ).mean(1)

    def gradients(self, points: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """(n, K, d) gradients."""
        signs = one_vs_rest(y, self.num_classes)
        slope = -signs * torch.sigmoid(-signs * (x @ points.T)) / self.problems
        return slope[..., None] * x[:, None]


_HEADER_BITS = 64  # round number and length, of every message


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


def run(
    data: Sequence[tuple[Tensor, Tensor]],
    objective: Objective,
    plan: CharterPlan,
    *,
    half_width: float,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, dict[str, Any]]:
    """Learns and verifies; the server sees quantised messages, or sums if the plan has honest.

    The result is (problems, d) float64, the iterate with the best verified loss, and the costs.

    Args:
        data: (x (N, p) float64, y (N,) int64) of every client, in random order.
        objective: the loss of a record.
        plan: rounds, noise and bits, for these clients and rows.
        half_width: half the side of the cube that is searched.
        generator: of sampling, noise and rounding; None draws from the operating system.

    Raises:
        ValueError: data that do not fit the plan.
    """
    _check(data, objective, plan)
    check_scale(half_width=half_width)
    began = time.perf_counter()
    gradients, losses = plan.gradient_encoding, plan.loss_encoding
    clients = [Client(x, y, plan, objective, generator) for x, y in data]
    planes = [cutting_planes(objective.dimension, half_width) for _ in range(objective.problems)]
    points = torch.tensor(np.stack([next(one) for one in planes]))
    iterates, sent = [], 0
    for taken in plan.fresh:
        iterates.append(points)
        messages = [client.gradient(points) for client in clients]
        sent += 8 * len(messages[0])
        gradient = gradients.mean(messages, points.numel(), scale=plan.batch / taken)
        cuts = zip(planes, gradient.reshape(points.shape).numpy(), points.numpy(), strict=True)
        points = torch.tensor(np.stack([_answer(*cut) for cut in cuts]))
    messages = [client.losses(torch.stack(iterates)) for client in clients]
    sent += 8 * len(messages[0]) + (plan.rounds + 1) * _HEADER_BITS
    best = int(losses.mean(messages, plan.rounds).argmin())
    report = {
        "server_sees": "every client's messages" if plan.honest is None else "sums over clients",
        "rounds": plan.rounds + 1,
        "payload_bits_per_user": plan.payload_bits,
        "framing_bits_per_user": sent - plan.payload_bits,
        "bits_per_user": sent,
        "simulation_only": {"seconds": time.perf_counter() - began},
    }
    return iterates[best], report


def _answer(planes: Generator[Vector, Vector, None], gradient: Vector, point: Vector) -> Vector:
    """The next point; the last one for ever once its polyhedron has nothing left to cut."""
    try:
        return planes.send(gradient)
    except StopIteration:
        return point


def _check(data: Sequence[tuple[Tensor, Tensor]], objective: Objective, plan: CharterPlan) -> None:
    task = plan.task
    check.equal(task.clients, clients=len(data))
    for x, y in data:
        check.equal(task.rows, rows=len(x), labels=len(y))
        check.equal(torch.float64, dtype=x.dtype)
        check.within(f"[0, {LARGEST}]", rows=float(x.abs().max()))
    check.equal(task.dimension, dimension=objective.problems * objective.dimension)
