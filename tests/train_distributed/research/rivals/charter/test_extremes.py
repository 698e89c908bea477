"""Charter over extreme scales: no record moves a message by more than the noise is planned for."""

import math

import numpy as np
import pytest
import torch

from train_distributed.research.rivals.charter import plan as planning
from train_distributed.research.rivals.charter.algorithm import (
    Client,
    Distance,
    OneVsRestLogistic,
    run,
)
from train_distributed.research.rivals.charter.encoding import Summed
from train_distributed.research.rivals.charter.plan import CharterTask, make_plan


def setting(case):
    """A plan, its objective, one client's rows and a neighbour's."""
    rounds, classes, features = case.whole(1, 5), case.whole(2, 4), case.whole(1, 6)
    rows = case.draw.choice((3 * rounds, 3 * rounds + 1, 60))
    objective = case.draw.choice((OneVsRestLogistic(classes, features), Distance(features)))
    bound = case.scale()
    x = case.rows(rows, features, bound)
    y = torch.randint(classes, (rows,), generator=case.generator())
    plan = make_plan(
        CharterTask(
            clients=2,
            rows=rows,
            dimension=objective.problems * objective.dimension,
            epsilon=case.draw.choice((1e-12, 1e-3, 1.0, 30.0, 1e6, 1e12)),  # few: noise is cached
            delta=case.draw.choice((1e-12, 1e-5, 0.9)),
            diameter=case.scale(),
        ),
        rounds=rounds,
        gradient_clip=case.draw.choice((bound * case.scale(-3, 1), case.scale(-200, 200))),
        loss_clip=case.scale(),
        secure_sum=case.draw.random() < 0.5,
        bits=case.draw.choice((1, 16, 32)),
    )
    return objective, plan, (x, y), case.neighbour(x, y, classes, bound)


def answers(case, objective, plan, pair, seed):
    """(2, K, ...) a client's clipped means at random points, and its mean losses, per neighbour."""
    draw = torch.Generator().manual_seed(seed)
    shape = (plan.rounds, objective.problems, objective.dimension)
    points = case.scale() * torch.randn(shape, generator=draw, dtype=torch.float64)
    found = []
    for x, y in pair:
        client = Client(x, y, plan, objective, torch.Generator().manual_seed(seed))
        sums = [client._clipped_sum(at)[0] / plan.batch for at in points]
        found.append((torch.stack(sums), client._mean_losses(points)))
    return found


def distance(a, b):
    """‖a − b‖ without the rounding of the difference."""
    return float(np.linalg.norm(a.numpy().astype(np.longdouble) - b.numpy()))


def check(case):
    objective, plan, *pair = setting(case)
    seed = case.draw.getrandbits(30)
    (gradients, losses), (others, other_losses) = answers(case, objective, plan, pair, seed)
    largest = 2 * plan.gradient_clip / plan.batch
    stretched = largest * planning.rounding(plan.batch, plan.task.dimension)
    moved = [distance(a, b) for a, b in zip(gradients, others, strict=True)]
    assert sum(one > 0 for one in moved) <= 1  # a record is used at most once
    assert max(moved) <= stretched
    charged = math.sqrt(plan.rounds) * plan.loss_clip / plan.verification_rows
    assert distance(losses, other_losses) <= charged * planning.rounding(plan.verification_rows, 1)
    if plan.honest is not None:
        encoder = plan.gradient_encoding
        assert isinstance(encoder, Summed)
        assert encoder.moved == largest
        words = [encoder.fixed_point.encode(both[0].numpy()) for both in (gradients, others)]
        integers = float(np.linalg.norm((words[0] - words[1]).view(np.int64).astype(float)))
        assert integers * encoder.step <= stretched + encoder.step * math.sqrt(encoder.count)
        assert encoder.local_std * math.sqrt(plan.honest) >= plan.gradient_std
    half_width = case.scale(-14, 14)
    data = [pair[0][0], pair[1][0]], [pair[0][1], pair[1][1]]
    rows, draw = list(zip(*data, strict=True)), case.generator()
    points, _ = run(rows, objective, plan, half_width=half_width, generator=draw)
    assert bool(torch.isfinite(points).all())
    assert float(points.abs().max()) <= half_width


@pytest.mark.parametrize(
    "count", [12, pytest.param(3000, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_no_record_moves_a_message_by_more_than_is_charged(count, held):
    held("charter", count, check)


def test_many_rows_and_numbers_are_charged_for_their_rounding():
    """Float64 sums of n clipped gradients are exact to n 2^-53 of n G on either neighbour."""
    for rows, numbers in ((10, 5), (10**5, 1), (10, 10**8)):
        charged = planning.rounding(rows, numbers) - 1
        assert charged >= (rows**2 + numbers) * 2.0**-53
        assert charged < 1e-5


@pytest.mark.parametrize("value", [1e-170, 1e170, 0.0, math.nan])
def test_lengths_that_have_no_square_are_refused(value):
    """A gradient of 1e-165 has a computed norm of 0: it would pass any smaller clip."""
    task = CharterTask(clients=2, rows=60, dimension=3, epsilon=1.0, delta=1e-5, diameter=1.0)
    with pytest.raises(ValueError, match=r"gradient_clip must be in \[1e-100, 1e\+100\]"):
        make_plan(task, rounds=3, gradient_clip=value, loss_clip=1.0)
    plan = make_plan(task, rounds=3, gradient_clip=1.0, loss_clip=1.0)
    data = [(torch.zeros(60, 3).double(), torch.zeros(60).long())] * 2
    with pytest.raises(ValueError, match="half_width must be in"):
        run(data, Distance(3), plan, half_width=value)
