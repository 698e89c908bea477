"""Class sums and least squares: the same totals under every partition."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from heads import class_sums, least_squares_statistics, second_moments, svec_scale, symmetric

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
