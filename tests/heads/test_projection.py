"""The projection is the nearest point of the ball, and never expands."""

import pytest
import torch

from heads import project_ball

BOTH = pytest.mark.parametrize("dims", [(-2, -1), (-2,)])


@BOTH
def test_no_point_of_the_ball_is_nearer(dims: tuple[int, ...]) -> None:
    """⟨W − ΠW, V − ΠW⟩ ≤ 0 for every V in the ball characterises the projection."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(200, 5, 4, generator=generator, dtype=torch.float64)
    others = project_ball(
        torch.randn(200, 5, 4, generator=generator, dtype=torch.float64), 1.3, dims
    )
    nearest = project_ball(weights, 1.3, dims)
    assert ((weights - nearest) * (others - nearest)).sum(dims).max() <= 1e-12


@BOTH
def test_never_expands(dims: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(1)
    first, second = torch.randn(2, 500, 5, 4, generator=generator, dtype=torch.float64).unbind()
    second = torch.where(torch.arange(500)[:, None, None] % 2 == 0, first + 1e-3 * second, second)
    before = (first - second).square().sum(dims)
    after = (project_ball(first, 0.9, dims) - project_ball(second, 0.9, dims)).square().sum(dims)
    assert (after <= before * (1 + 1e-12)).all()
