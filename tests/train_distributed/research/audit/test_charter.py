"""Charter's learning stage against the best test of its messages."""

import pytest
import torch

from train_distributed.research import charter
from train_distributed.research.audit.charter import learning_losses
from train_distributed.research.audit.lower_bound import epsilon_below

DELTA = 0.01


def losses(plan, *, noise_scale=1.0):
    draw = torch.Generator().manual_seed(0)
    first, second = (
        learning_losses(plan, truth=truth, replicas=600, generator=draw, noise_scale=noise_scale)
        for truth in (0, 1)
    )
    return first, second


@pytest.fixture(scope="module")
def plan():
    task = charter.CharterTask(
        clients=1, rows=12, dimension=1, epsilon=1.0, delta=DELTA, diameter=1.0
    )
    return charter.make_plan(task, rounds=2, gradient_clip=1.0, loss_clip=1.0)


def test_the_lower_bound_stays_below_the_guarantee(plan):
    first, second = losses(plan)
    assert epsilon_below(first, second, DELTA) <= 1.0
    assert float((-first).exp().mean()) == pytest.approx(1, abs=0.1)


def test_a_twentieth_of_the_noise_is_caught(plan):
    assert epsilon_below(*losses(plan, noise_scale=0.05), DELTA) > 1.0


def test_a_longer_message_is_refused():
    task = charter.CharterTask(
        clients=1, rows=12, dimension=2, epsilon=1.0, delta=0.1, diameter=1.0
    )
    plan = charter.make_plan(task, rounds=2, gradient_clip=1.0, loss_clip=1.0)
    with pytest.raises(ValueError, match="dimension must be 1 to be watched, got 2"):
        learning_losses(plan, truth=0, replicas=1, generator=torch.Generator())
