"""The losses that Charter minimises: their gradients, and that it learns to classify."""

import math

import pytest
import torch

from train_distributed.research import charter
from train_distributed.research.rows import as_columns

OBJECTIVES = [
    charter.OneVsRestLogistic(2, 4),
    charter.OneVsRestLogistic(3, 4),
    charter.Distance(4),
]


@pytest.mark.parametrize("objective", OBJECTIVES, ids=repr)
def test_gradients_are_those_of_the_losses(objective):
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(7, 4, generator=draw, dtype=torch.float64)
    y = torch.randint(2 if objective == OBJECTIVES[0] else 3, (7,), generator=draw)
    shape = objective.problems, objective.dimension
    points = torch.randn(shape, generator=draw, dtype=torch.float64, requires_grad=True)
    found = objective.gradients(points.detach(), x, y)
    assert found.shape == (7, *shape)
    for row in range(7):
        loss = objective.losses(points, x[row : row + 1], y[row : row + 1])[0]
        (expected,) = torch.autograd.grad(loss, points)
        assert torch.allclose(found[row], expected)
        assert loss >= 0


@pytest.mark.parametrize("objective", OBJECTIVES[:2], ids=repr)
def test_it_learns_to_classify(objective):
    draw = torch.Generator().manual_seed(4)
    classes = 2 if objective == OBJECTIVES[0] else 3
    centres = torch.randn(classes, 4, generator=draw, dtype=torch.float64)
    y = torch.randint(classes, (8000,), generator=draw)
    x = centres[y] + 0.2 * torch.randn(8000, 4, generator=draw)
    x = x / x.norm(dim=1, keepdim=True)
    total = objective.problems * objective.dimension
    task = charter.CharterTask(
        clients=2, rows=3000, dimension=total, epsilon=math.inf, delta=1e-5, diameter=2.0
    )
    plan = charter.make_plan(task, rounds=60, gradient_clip=1.0, loss_clip=6.0)
    points, _ = charter.run(
        [(x[:3000], y[:3000]), (x[3000:6000], y[3000:6000])],
        objective,
        plan,
        half_width=5.0,
        generator=torch.Generator().manual_seed(0),
    )
    guess = (x[6000:] @ as_columns(points)).argmax(1)
    assert (guess == y[6000:]).double().mean() > 0.9
