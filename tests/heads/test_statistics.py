"""Class sums and least squares: one total under every partition; sensitivities, by ascent."""

import math
from collections.abc import Callable

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

CLASSES, DIM, ALPHA = 4, 6, 0.3


def rows(n: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, DIM, generator=generator, dtype=torch.float64).relu() + 0.1
    x[:, 0] = 1
    return x, torch.randint(CLASSES, (n,), generator=generator)


@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=12), seed=st.integers(0, 100))
@settings(derandomize=True, deadline=None, max_examples=40)
def test_totals_on_the_grid_are_equal_bit_for_bit(sizes: list[int], seed: int) -> None:
    """As float64 multiples of 2⁻²⁰, as integers in float64, and as int64."""
    x, y = rows(sum(sizes))
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    integers = (x * 2**20).round()
    for grid in (integers / 2**20, integers, integers.long()):
        parts = list(zip(grid[order].split(sizes), y[order].split(sizes), strict=True))
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


ROUNDING = 1 + 1e-9
OTHER = torch.tensor([0, 1]).repeat_interleave(8)  # of each restart, the second record's label
LABELS = torch.stack([torch.zeros_like(OTHER), OTHER], 1).flatten()[:, None]


def farthest(statistic: Callable[[Tensor], Tensor], length: float) -> float:
    """Largest distance of (32, D) statistics of (32, 1, 3) records, by ascent from 16 starts."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(16, 2, 3, generator=generator, dtype=torch.float64).requires_grad_()
    optimiser, best = torch.optim.Adam([rows], lr=0.05), 0.0
    for _ in range(150):
        norms = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
        sums = statistic((length * rows / norms.clamp(min=1)).flatten(0, 1)[:, None])
        first, second = sums.unflatten(0, (16, 2)).unbind(1)
        moved = torch.linalg.vector_norm(first - second, dim=-1)
        best = max(best, float(moved.detach().max()))
        optimiser.zero_grad()
        (-moved.sum() / length).backward()
        optimiser.step()
    return best


BOUNDS = [  # clip norm, constant's share of it
    *[(1.0, share) for share in (None, 0.1, 0.5, 0.9)],
    *[(34.854, 1 / 34.854), (3e12, None), (3e12, 1e-6), (3e-12, 0.1), (3e-12, 1 - 1e-6)],
]


@pytest.mark.parametrize(("clip_norm", "share"), [bound for bound in BOUNDS if bound[1]])
def test_class_sums_sensitivity_is_never_exceeded_and_attained(clip_norm, share) -> None:
    constant = share * clip_norm
    reach = math.sqrt(clip_norm**2 - constant**2)

    def sums(rows: Tensor) -> Tensor:
        return class_sums(functional.pad(rows, (1, 0), value=constant), LABELS, 3).flatten(1)

    stated = class_sums_sensitivity(clip_norm, constant)
    assert 0.999 * stated <= farthest(sums, reach) <= stated * ROUNDING


@pytest.mark.parametrize(("clip_norm", "share"), BOUNDS)
@pytest.mark.parametrize("relative", [1e-3, 0.05, math.sqrt(0.5), 1.0, 4.0, 1e3])
def test_least_squares_sensitivity_is_never_exceeded_and_attained(relative, clip_norm, share):
    """Without a constant, moments of whole rows; with one, of the features alone."""
    alpha = relative / clip_norm
    a = None if share is None else share * clip_norm
    reach = clip_norm if a is None else math.sqrt(clip_norm**2 - a**2)

    def sums(rows: Tensor) -> Tensor:
        x = rows if a is None else functional.pad(rows, (1, 0), value=a)
        moments = second_moments(rows) * svec_scale(rows.shape[-1], alpha)
        return torch.cat([class_sums(x, LABELS, 2).flatten(1), moments], 1)

    stated = least_squares_sensitivity(clip_norm, alpha, a)
    assert 0.999 * stated <= farthest(sums, reach) <= stated * ROUNDING


def test_least_squares_worst_pair_of_the_theorem() -> None:
    """cos = −1/(2α²c²), same label: √2(αc² + 1/(2α)) exactly."""
    clip_norm, alpha = 2.0, 0.7
    cos = -1 / (2 * alpha**2 * clip_norm**2)
    rows = clip_norm * torch.tensor([[1, 0], [cos, math.sqrt(1 - cos**2)]], dtype=torch.float64)
    pair = least_squares_statistics(rows[:, None], torch.zeros(2, 1, dtype=torch.int64), 2, alpha)
    moved = sum((part[0] - part[1]).square().sum() for part in pair)
    stated = least_squares_sensitivity(clip_norm, alpha)
    assert math.sqrt(moved) == pytest.approx(stated, rel=1e-12)
