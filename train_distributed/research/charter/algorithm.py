"""Charter: private minimisation with few bits, by cutting planes (Salgia et al. 2025, Alg. 1)."""

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from train_distributed.research.charter.client import Client
from train_distributed.research.charter.encoding import Encoder
from train_distributed.research.charter.objectives import Objective
from train_distributed.research.charter.plan import LARGEST, CharterPlan, check_scale
from train_distributed.research.charter.quantise import Quantiser
from train_distributed.research.charter.vaidya import Cutting, Vector, cutting_planes

_HEADER_BITS = 64  # round number and length, beside every message
_WORD_BITS = 64  # of a secure sum


@dataclass(frozen=True, eq=False)
class CharterResult:
    """The iterate with the best verified loss, and what the run cost."""

    points: Tensor  # (problems, d) float64
    report: dict[str, Any]


@dataclass
class _Traffic:
    """Bits that a client really sent."""

    payload: int = 0
    framing: int = 0

    def count(self, message: bytes, bits: int) -> None:
        self.payload += bits
        self.framing += 8 * len(message) - bits + _HEADER_BITS


def run(
    data: Sequence[tuple[Tensor, Tensor]],
    objective: Objective,
    plan: CharterPlan,
    *,
    half_width: float,
    generator: torch.Generator | None = None,
) -> CharterResult:
    """Learns and verifies; the server sees quantised messages, or sums if the plan has honest.

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
    check_scale("half_width", half_width)
    began = time.perf_counter()
    clients = [Client(x, y, plan, objective, generator) for x, y in data]
    exchange = _Quantised(clients) if plan.honest is None else _Summed(clients)
    searched = objective.dimension, half_width, Cutting()
    planes = [cutting_planes(*searched) for _ in range(objective.problems)]
    points = torch.tensor(np.stack([next(one) for one in planes]))
    iterates = []
    for _ in range(plan.rounds):
        iterates.append(points)
        gradient = exchange.gradient(points).reshape(points.shape).numpy()
        points = torch.tensor(
            np.stack([_answer(*cut) for cut in zip(planes, gradient, points.numpy(), strict=True)])
        )
    verified = exchange.losses(torch.stack(iterates))
    best = int(verified.argmin())
    traffic = exchange.traffic
    report = {
        "server_sees": "every client's messages" if plan.honest is None else "sums over clients",
        "rounds": plan.rounds + 1,
        "payload_bits_per_user": traffic.payload,
        "framing_bits_per_user": traffic.framing,
        "bits_per_user": traffic.payload + traffic.framing,
        "simulation_only": {"seconds": time.perf_counter() - began},
    }
    return CharterResult(iterates[best], report)


def _answer(planes: Generator[Vector, Vector, None], gradient: Vector, point: Vector) -> Vector:
    """The next point; the last one for ever once its polyhedron has nothing left to cut."""
    try:
        return planes.send(gradient)
    except StopIteration:
        return point


class _Quantised:
    """Every client's messages reach the server, quantised."""

    def __init__(self, clients: Sequence[Client]) -> None:
        self.clients, self.traffic = clients, _Traffic()

    def gradient(self, points: Tensor) -> Tensor:
        messages = [client.gradient(points) for client in self.clients]
        return self._mean(messages, self.clients[0].gradient_quantiser, points.numel())

    def losses(self, iterates: Tensor) -> Tensor:
        messages = [client.losses(iterates) for client in self.clients]
        return self._mean(messages, self.clients[0].loss_quantiser, len(iterates))

    def _mean(self, messages: list[bytes], quantiser: Quantiser, numbers: int) -> Tensor:
        self.traffic.count(messages[0], numbers * quantiser.bits)
        total = torch.zeros(numbers, dtype=torch.float64)
        for message in messages:
            total += quantiser.decode(message, numbers)
        return total / len(messages)


class _Summed:
    """The server sees sums of integers over all clients, and nothing else."""

    def __init__(self, clients: Sequence[Client]) -> None:
        self.clients, self.traffic, self._round = clients, _Traffic(), 0
        plan = clients[0].plan
        assert plan.honest is not None
        count = clients[0].objective.problems * clients[0].objective.dimension
        moved = 2 * plan.gradient_clip / plan.batch
        common = {"parties": len(clients), "honest": plan.honest}
        self._gradients = Encoder(plan.gradient_std, moved, count, plan.gradient_clip, **common)
        moved = plan.loss_clip / plan.verification_rows
        self._losses = Encoder(plan.loss_std, moved, plan.rounds, plan.loss_clip, **common)

    def gradient(self, points: Tensor) -> Tensor:
        shares = [client.gradient_share(points, self._gradients) for client in self.clients]
        self.traffic.count(shares[0].tobytes(), _WORD_BITS * len(shares[0]))
        plan = self.clients[0].plan
        taken, self._round = plan.fresh[self._round], self._round + 1
        return self._gradients.decode(shares) * (plan.batch / taken) / len(self.clients)

    def losses(self, iterates: Tensor) -> Tensor:
        shares = [client.loss_share(iterates, self._losses) for client in self.clients]
        self.traffic.count(shares[0].tobytes(), _WORD_BITS * len(shares[0]))
        return self._losses.decode(shares) / len(self.clients)


def _check(data: Sequence[tuple[Tensor, Tensor]], objective: Objective, plan: CharterPlan) -> None:
    task = plan.task
    if len(data) != task.clients:
        raise ValueError(f"data must have {task.clients} clients as planned, got {len(data)}")
    for x, y in data:
        if len(x) != task.rows or len(y) != task.rows:
            raise ValueError(f"clients must hold {task.rows} rows as planned, got {len(x)}")
        if x.dtype != torch.float64:
            raise ValueError(f"rows must be float64, got {x.dtype}")
        if not bool(torch.isfinite(x).all()):
            raise ValueError("rows must be finite, got NaN or infinity")
        if not float(x.abs().max()) <= LARGEST:
            raise ValueError(f"rows must not exceed {LARGEST:g}, got {float(x.abs().max())}")
    count = objective.problems * objective.dimension
    if count != task.dimension:
        raise ValueError(f"dimension must be {task.dimension} as planned, got {count}")
