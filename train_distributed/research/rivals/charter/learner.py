"""Charter as a learner: one-vs-rest logistic losses, clients of equal size."""

import math
from typing import Any

import torch
from torch import Tensor

from train_distributed import accounting
from train_distributed.partition import Partition
from train_distributed.privacy.float_noise import uniform
from train_distributed.privacy.promise import Privacy
from train_distributed.research.rivals.charter.algorithm import OneVsRestLogistic, run
from train_distributed.research.rivals.charter.plan import CharterPlan, CharterTask, make_plan
from train_distributed.research.rivals.common import UserRows, as_columns, excess
from train_distributed.research.rivals.options import CharterOptions

SUMMED = {"charter": False, "charter-sum": True}
_LOSS_CLIP = 1.0  # G1: a mean over problems, ln 2 at the start


def charter_task(
    options: CharterOptions, users: Partition, dimension: int, problems: int, privacy: Privacy
) -> CharterTask:
    """The problem; every client uses as many rows as the smallest one has."""
    return CharterTask(
        clients=users.users,
        rows=int(users.counts.min()),
        dimension=problems * dimension,
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        diameter=2 * options.half_width * math.sqrt(dimension),
    )


def learn_by_charter(
    rows: UserRows,
    method: str,
    privacy: Privacy,
    options: CharterOptions,
    generator: torch.Generator | None,
    measure_risk: bool,
) -> tuple[Tensor, dict[str, Any]]:
    """(d, K) weights with the best verified loss, and their costs.

    Every client uses as many of its rows as the smallest one has, in an order that is drawn without
    looking at them.

    Args:
        rows: of all users, in the clear: a simulation of clients and server on one machine.
        method: "charter" or "charter-sum".
        privacy: of each client's records against whom the method shows messages.
        options: the searched cube, clipping, rounds and bits.
        generator: of orders, sampling, noise and rounding; None draws from the operating system.
        measure_risk: whether to find the excess risk.

    Raises:
        ValueError: constants out of range, more rounds than the smallest client's rows allow.
    """
    dimension, each = rows.x.shape[1], int(rows.users.counts.min())
    objective = OneVsRestLogistic(rows.num_classes, dimension)
    plan = make_plan(
        charter_task(options, rows.users, dimension, objective.problems, privacy),
        rounds=options.rounds(dimension),
        constants=options.constants,
        gradient_clip=options.gradient_clip * rows.clip_norm,
        loss_clip=_LOSS_CLIP,
        secure_sum=SUMMED[method],
        honest_fraction=float(privacy.fraction(rows.users.users)),
        bits=options.bits,
    )
    data = [_client(rows, user, each, generator) for user in range(rows.users.users)]
    half_width = options.half_width
    points, report = run(data, objective, plan, half_width=half_width, generator=generator)
    report |= _promised(plan, privacy)
    report["who_sees_what"] = f"the server sees {report.pop('server_sees')}"
    if measure_risk:
        risk = excess(lambda at: objective.losses(at, rows.x, rows.y).mean(), points, half_width)
        report["simulation_only"]["excess_risk"] = risk
    return as_columns(points), report | {"rows_used_per_user": each}


def _client(
    rows: UserRows, user: int, count: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Rows of one user in random order: the position decides what they are used for."""
    own = rows.users.rows(user)
    chosen = own[uniform((len(own),), generator).argsort()[:count]]
    return rows.x[chosen], rows.y[chosen]


def _promised(plan: CharterPlan, privacy: Privacy) -> dict[str, Any]:
    """Privacy loss of all rounds and of one round."""
    report: dict[str, Any] = {} if plan.honest is None else {"honest_users": plan.honest}
    if privacy.private:
        multiplier = plan.gradient_std / (2 * plan.gradient_clip / plan.batch)
        report |= {
            "epsilon_per_iteration": accounting.epsilon(privacy.delta, multiplier),
            "cut_noise_multiplier": multiplier,
            "epsilon_composed": plan.task.epsilon,
            "epsilon_learning": plan.task.epsilon,
            "epsilon_verification": plan.task.epsilon,  # other records: the maximum, not the sum
        }
    return report
