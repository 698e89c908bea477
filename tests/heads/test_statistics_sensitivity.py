"""Sensitivities of the one-shot statistics: ascent over both records finds nothing above them."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from heads import (
    class_sums,
    class_sums_sensitivity,
    least_squares_sensitivity,
    least_squares_statistics,
    second_moments,
    svec_scale,
)

ROUNDING = 1 + 1e-9


def ascend(objective: Callable[[Tensor], Tensor], shape: tuple[int, ...], length: float) -> Tensor:
    """(restarts,) largest objectives of rows (restarts, 2, d) of at most this length.

    By projected ascent from each start.
    """
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
    optimiser = torch.optim.Adam([rows], lr=0.05)
    best = torch.zeros(shape[0], dtype=torch.float64)
    for _ in range(150):
        norms = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
        moved = objective(length * rows / norms.clamp(min=1))
        best = torch.maximum(best, moved.detach())
        optimiser.zero_grad()
        (-moved.sum()).backward()
        optimiser.step()
    return best


OTHER = torch.tensor([0, 1]).repeat_interleave(8)  # of each restart, the second record's label
LABELS = torch.stack([torch.zeros_like(OTHER), OTHER], 1).flatten()[:, None]


def moved_by(statistic: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """(16,) distances between the two records' vectors, (32, D) of users with one row each."""
    first, second = statistic(rows.flatten(0, 1)[:, None]).unflatten(0, (16, 2)).unbind(1)
    return (first - second).square().sum(-1).sqrt()


def test_class_sums_sensitivity_is_never_exceeded_and_attained() -> None:
    for clip_norm, constant in ((34.854, 1.0), (2.0, 1.0), (1.0, 0.8), (1.0, 0.05)):

        def sums(rows: Tensor, a: float = constant) -> Tensor:
            return class_sums(functional.pad(rows, (1, 0), value=a), LABELS, 3).flatten(1)

        reach = math.sqrt(clip_norm**2 - constant**2)
        found = float(ascend(partial(moved_by, sums), (16, 2, 3), reach).max())
        stated = class_sums_sensitivity(clip_norm, constant)
        assert 0.999 * stated <= found <= stated * ROUNDING


@pytest.mark.parametrize("constant", [None, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("clip_norm", [1.0, 3.0])
@pytest.mark.parametrize("relative", [0.05, math.sqrt(0.5), 1.0, 4.0])
def test_least_squares_sensitivity_is_never_exceeded_and_attained(relative, clip_norm, constant):
    """Without a constant, moments of whole rows; with one, of the features alone."""
    alpha = relative / clip_norm
    a = None if constant is None else constant * clip_norm
    reach = clip_norm if a is None else math.sqrt(clip_norm**2 - a**2)

    def sums(rows: Tensor) -> Tensor:
        x = rows if a is None else functional.pad(rows, (1, 0), value=a)
        moments = second_moments(rows) * svec_scale(rows.shape[-1], alpha)
        return torch.cat([class_sums(x, LABELS, 2).flatten(1), moments], 1)

    found = float(ascend(partial(moved_by, sums), (16, 2, 3), reach).max())
    stated = least_squares_sensitivity(clip_norm, alpha, a)
    assert 0.999 * stated <= found <= stated * ROUNDING


def test_least_squares_worst_pair_of_the_theorem() -> None:
    """cos = −1/(2α²c²), same label: √2(αc² + 1/(2α)) exactly."""
    clip_norm, alpha = 2.0, 0.7
    cos = -1 / (2 * alpha**2 * clip_norm**2)
    rows = clip_norm * torch.tensor([[1, 0], [cos, math.sqrt(1 - cos**2)]], dtype=torch.float64)
    pair = least_squares_statistics(rows[:, None], torch.zeros(2, 1, dtype=torch.int64), 2, alpha)
    moved = sum((part[0] - part[1]).square().sum() for part in pair)
    stated = least_squares_sensitivity(clip_norm, alpha)
    assert math.sqrt(moved) == pytest.approx(stated, rel=1e-12)
