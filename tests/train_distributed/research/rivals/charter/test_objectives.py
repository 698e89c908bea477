"""The gradients of the losses that Charter minimises."""

import pytest
import torch

from train_distributed.research.rivals.charter.algorithm import Distance, OneVsRestLogistic

OBJECTIVES = [
    OneVsRestLogistic(2, 4),
    OneVsRestLogistic(3, 4),
    Distance(4),
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
