"""Sums of rows at any scale move as stated, or their constants are refused by name.

pytest -n 0 tests/heads/test_extreme_statistics.py -m slow
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from heads import (
    class_sums,
    class_sums_sensitivity,
    least_squares_sensitivity,
    least_squares_statistics,
)

CLASSES = 3


def constants(dice: Any) -> tuple[float, float]:
    """(c, a): the constant from a trifle to all but a trifle of the clip norm."""
    clip_norm = dice.scale()
    gap = dice.scale(-12, 0)
    return clip_norm, clip_norm * (gap if dice.often(0.5) else math.sqrt(1 - gap / 2))


def neighbours(dice: Any, reach: float, constant: float) -> tuple[Tensor, Tensor]:
    """(2, pairs, n, d) rows [a, u], ‖u‖ ≤ reach, float64, and labels; one record differs."""
    pairs, n, d = 12, dice.whole(1, 8), dice.whole(2, 8)
    u = dice.draw.standard_normal((2, pairs, n, d)) * 10.0 ** dice.draw.uniform(-3, 0, (n, 1))
    u[1, :, :-1] = u[0, :, :-1]
    y = dice.draw.integers(0, CLASSES, (2, pairs, n))
    y[1, :, :-1] = y[0, :, :-1]
    for pair in range(pairs):  # the last record: antipode, orthogonal, any angle, or itself
        first, second = u[:, pair, -1]
        orthogonal = second - first * (second @ first) / (first @ first)
        angle = dice.draw.uniform(0, math.pi)
        turned = math.cos(angle) * first / np.linalg.norm(first)
        turned += math.sin(angle) * orthogonal / np.linalg.norm(orthogonal)
        u[1, pair, -1] = (-first, orthogonal, turned, first)[pair % 4]
        y[1, pair, -1] = (y[0, pair, -1] + pair // 4) % CLASSES
    full = np.linalg.norm(u[:, :, -1:], axis=-1, keepdims=True)
    u[:, :, -1:] *= reach * (1 - 1e-14) / full
    u[:, :, :-1] *= reach / 10
    x = np.concatenate([np.full((*u.shape[:-1], 1), constant), u], -1)
    return torch.from_numpy(x), torch.from_numpy(y)


def holds(dice: Any) -> int:
    """Sums one draw; the number of pairs."""
    clip_norm, constant = constants(dice)
    reach = math.sqrt(clip_norm**2 - constant**2)
    x, y = neighbours(dice, reach, constant)
    n, flat = x.shape[2], x.flatten(0, 1)
    alpha = dice.scale(-3, 3) / reach if dice.often(0.8) else dice.scale()
    sums = class_sums(flat, y.flatten(0, 1), CLASSES)
    joint = least_squares_statistics(flat[..., 1:], y.flatten(0, 1), CLASSES, alpha)
    part = [s.unflatten(0, x.shape[:2]) for s in (sums, joint.second_moments)]
    rounding = 1 + 1e-12
    moved = (part[0][0] - part[0][1]).flatten(1).norm(dim=1)
    lost = n**2 * 2.0**-50 * clip_norm
    assert moved.max() <= class_sums_sensitivity(clip_norm, constant) * rounding + lost
    moments = (part[1][0] - part[1][1]).norm(dim=1)
    stated = least_squares_sensitivity(clip_norm, alpha, constant)
    lost += n**2 * 2.0**-49 * alpha * reach**2
    assert torch.hypot(moved, moments).max() <= stated * rounding + lost
    assert math.isfinite(stated)
    return x.shape[1]


@pytest.mark.parametrize("seeds", [200, pytest.param(1850, marks=pytest.mark.slow)])
def test_statistics_at_any_scale(dice: Callable[[int], Any], seeds: int) -> None:
    assert all(holds(dice(seed)) for seed in range(seeds))


@pytest.mark.parametrize("scale", [1e-300, 1e-61, 1e61, 1e200, math.inf, math.nan, 0.0, -1.0])
def test_constants_out_of_scale_are_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="clip_norm must"):
        class_sums_sensitivity(scale, scale / 2)
    for argument, given in (("clip_norm", (scale, 1.0)), ("alpha", (1.0, scale))):
        with pytest.raises(ValueError, match=f"{argument} must"):
            least_squares_sensitivity(*given)
    with pytest.raises(ValueError, match="alpha must"):
        least_squares_statistics(torch.ones(2, 2), torch.zeros(2, dtype=torch.int64), 2, scale)
