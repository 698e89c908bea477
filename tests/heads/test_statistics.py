"""Class sums and least squares: one total under every partition, and sensitivities.

Built neighbours at any scale stay below these, and ascent over both records reaches them.
"""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from heads import (
    class_sums,
    class_sums_sensitivity,
    least_squares_sensitivity,
    least_squares_statistics,
    second_moments,
    svec_scale,
    symmetric,
)
from tests.heads.extremes import Dice

CLASSES, DIM, ALPHA = 4, 6, 0.3
partitions = st.lists(st.integers(1, 30), min_size=1, max_size=12)


def rows(n: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, DIM, generator=generator, dtype=torch.float64).relu() + 0.1
    x[:, 0] = 1
    return x, torch.randint(CLASSES, (n,), generator=generator)


def shares(x: Tensor, y: Tensor, sizes: list[int], seed: int) -> list[tuple[Tensor, Tensor]]:
    """The rows in another order, cut into users of these sizes."""
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    return list(zip(x[order].split(sizes), y[order].split(sizes), strict=True))


@given(sizes=partitions, seed=st.integers(0, 100))
@settings(derandomize=True, deadline=None, max_examples=40)
def test_totals_do_not_depend_on_the_partition(sizes: list[int], seed: int) -> None:
    x, y = rows(sum(sizes))
    whole = least_squares_statistics(x, y, CLASSES, ALPHA)
    parts = [least_squares_statistics(*part, CLASSES, ALPHA) for part in shares(x, y, sizes, seed)]
    for total, pieces in zip(whole, zip(*parts, strict=True), strict=True):
        assert (torch.stack(pieces).sum(0) - total).norm() <= 1e-12 * total.norm()


@given(sizes=partitions, seed=st.integers(0, 100))
@settings(derandomize=True, deadline=None, max_examples=40)
def test_totals_on_the_grid_are_equal_bit_for_bit(sizes: list[int], seed: int) -> None:
    """As float64 multiples of 2⁻²⁰, as integers in float64, and as int64."""
    x, y = rows(sum(sizes))
    integers = (x * 2**20).round()
    for grid in (integers / 2**20, integers, integers.long()):
        parts = shares(grid, y, sizes, seed)
        sums = torch.stack([class_sums(*part, CLASSES) for part in parts]).sum(0)
        moments = torch.stack([second_moments(part) for part, _ in parts]).sum(0)
        assert torch.equal(sums, class_sums(grid, y, CLASSES))
        assert torch.equal(moments, second_moments(grid))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_class_sums_equal_a_plain_loop(dtype: torch.dtype) -> None:
    x, y = rows(20)
    x = (x * 8).to(dtype)
    expected = torch.zeros(DIM, CLASSES, dtype=torch.float64)
    for row, label in zip(x, y, strict=True):
        expected[:, label] += row.double()
    sums = class_sums(x, y, CLASSES)
    assert sums.dtype == (torch.int64 if dtype == torch.int64 else torch.float64)
    torch.testing.assert_close(sums.double(), expected, rtol=1e-13, atol=0)


def test_svec_keeps_the_frobenius_norm_and_can_be_undone() -> None:
    x, y = rows(20)
    triangle = least_squares_statistics(x, y, CLASSES, ALPHA).second_moments
    matrix = x.mT @ x
    assert triangle.norm().item() == pytest.approx(ALPHA * matrix.norm().item(), rel=1e-13)
    torch.testing.assert_close(symmetric(triangle / svec_scale(DIM, ALPHA), DIM), matrix)


@pytest.mark.parametrize("value", [7.0, float("nan"), float("inf")])
def test_padding_does_not_matter(value: float) -> None:
    x, y = rows(20)
    x, y, counts = x.view(2, 10, DIM).clone(), y.view(2, 10), torch.tensor([4, 9])
    x[0, 4:] = x[1, 9:] = value
    padded = least_squares_statistics(x, y, CLASSES, ALPHA, counts=counts)
    for user, n in enumerate(counts.tolist()):
        alone = least_squares_statistics(x[user, :n], y[user, :n], CLASSES, ALPHA)
        single = least_squares_statistics(x[user], y[user], CLASSES, ALPHA, counts=counts[[user]])
        for whole, own, one in zip(padded, alone, single, strict=True):
            torch.testing.assert_close(whole[user], own, rtol=1e-13, atol=0)
            torch.testing.assert_close(one, own, rtol=1e-13, atol=0)


def constants(dice: Dice) -> tuple[float, float]:
    """(c, a): the constant from a trifle to all but a trifle of the clip norm."""
    clip_norm = dice.scale()
    gap = dice.scale(-12, 0)
    return clip_norm, clip_norm * (gap if dice.often(0.5) else math.sqrt(1 - gap / 2))


def neighbours(dice: Dice, reach: float, constant: float) -> tuple[Tensor, Tensor]:
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


def holds(dice: Dice) -> int:
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
def test_statistics_at_any_scale(seeds: int) -> None:
    assert all(holds(Dice(seed)) for seed in range(seeds))


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
