"""Charter: private minimisation with few bits, by cutting planes (Salgia et al. 2025, Alg. 1)."""

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pretrain import check
from train_distributed.research.charter.client import Client
from train_distributed.research.charter.objectives import Objective
from train_distributed.research.charter.plan import LARGEST, CharterPlan, check_scale
from train_distributed.research.charter.vaidya import Cutting, Vector, cutting_planes

_HEADER_BITS = 64  # round number and length, of every message


@dataclass(frozen=True, eq=False)
class CharterResult:
    """The iterate with the best verified loss, and the costs of the run."""

    points: Tensor  # (problems, d) float64
    report: dict[str, Any]


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
    check_scale(half_width=half_width)
    began = time.perf_counter()
    gradients, losses = plan.gradient_encoding, plan.loss_encoding
    clients = [Client(x, y, plan, objective, generator) for x, y in data]
    searched = objective.dimension, half_width, Cutting()
    planes = [cutting_planes(*searched) for _ in range(objective.problems)]
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
    return CharterResult(iterates[best], report)


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
