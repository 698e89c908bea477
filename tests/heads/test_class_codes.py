"""Class codes: searches over both records reach the theorem's bound and nothing exceeds it."""

import math
from itertools import product

import pytest
import torch
from torch import Tensor

from heads import ClassCode
from tests.heads.test_statistics_sensitivity import ROUNDING, ascend

REACH = 1.7
SETTINGS = list(product((2, 3, 10), (0.1, 0.45, 1.0), (0.0, 0.3, 0.7, 2.0)))


def codes(classes: int, shared: float) -> Tensor:
    """(K, K) a_y in rows, by the formula alone."""
    return torch.eye(classes).double() - (1 - shared) / classes


def moved(rows: Tensor, labels: Tensor, code: ClassCode, constant: Tensor, alpha: float) -> Tensor:
    """(restarts,) L2 distances of what two records add: (restarts, 2, q) rows, (restarts, 2)."""
    a, hot = codes(code.num_classes, code.shared), torch.eye(code.num_classes).double()
    sent = [
        torch.einsum("rpq,rpk->rpqk", rows, a[labels]).flatten(2),
        constant[:, None, None] * hot[labels],
        alpha * torch.einsum("rpi,rpj->rpij", rows, rows).flatten(2),
    ]
    first, second = torch.cat(sent, 2).unbind(1)
    return (first - second).square().sum(1).sqrt()


@pytest.mark.parametrize(("classes", "shared", "relative"), SETTINGS)
def test_the_bound_is_reached_and_never_exceeded(
    classes: int, shared: float, relative: float
) -> None:
    code, alpha = ClassCode(classes, shared), relative / REACH
    constants = (0.05, code.free_constant(REACH, alpha), 1.5)
    constant = torch.tensor(constants, dtype=torch.float64).repeat_interleave(6)
    labels = torch.tensor([[0, 0], [0, 1]]).repeat_interleave(3, 0).repeat(3, 1)
    found = ascend(lambda x: moved(x, labels, code, constant, alpha), (18, 2, 3), REACH)
    for one, largest in zip(constants, found.unflatten(0, (3, 6)).amax(1).tolist(), strict=True):
        stated = code.sensitivity(REACH, one, alpha)
        assert 0.999 * stated <= largest <= stated * ROUNDING


@pytest.mark.parametrize(("classes", "shared", "relative"), SETTINGS)
def test_counts_are_as_heavy_as_costs_nothing(classes: int, shared: float, relative: float) -> None:
    code, alpha = ClassCode(classes, shared), relative / REACH
    free = code.free_constant(REACH, alpha)
    assert free > 0
    least = code.sensitivity(REACH, 0.0, alpha)
    assert code.sensitivity(REACH, free, alpha) == pytest.approx(least, rel=1e-12)
    assert code.sensitivity(REACH, 1.01 * free, alpha) > least * (1 + 1e-9)


@pytest.mark.parametrize("shared", [0.1, 0.45, 1.0])
@pytest.mark.parametrize("classes", [2, 3, 10, 101])
def test_coordinates_are_whole_and_keep_the_codes_lengths(classes: int, shared: float) -> None:
    code = ClassCode(classes, shared)
    sums = torch.randint(-50, 50, (4, classes), generator=torch.Generator().manual_seed(classes))
    sent = code.encode(sums)
    assert sent.dtype == torch.int64
    assert torch.equal(code.encode(sums.double()), sent.double())  # nothing is rounded
    assert torch.allclose(code.decode(sent.double()), sums.double(), atol=1e-9)
    scale = code.scale()
    scale[0] *= 1 if shared == 1 else shared
    expected = (sums.double() @ codes(classes, shared)).norm(dim=1)
    assert torch.allclose((sent * scale).norm(dim=1), expected, rtol=1e-12)
    assert torch.allclose((sent * code.scale()).norm(dim=1), sums.double().norm(dim=1), rtol=1e-12)


def test_the_longest_record() -> None:
    code, alpha = ClassCode(3, 0.45), 0.6
    u = torch.tensor([[[REACH, 0.0], [0.0, 0.0]]], dtype=torch.float64)
    labels = torch.zeros(1, 2, dtype=torch.int64)
    zeros = moved(u, labels, code, torch.zeros(1), alpha)  # the second record adds nothing
    whole = math.hypot(float(zeros), 0.4)
    assert code.norm(REACH, 0.4, alpha) == pytest.approx(whole, rel=1e-12)


def test_two_classes_need_a_fifth_less_noise() -> None:
    """Beside moments of the usual weight, and 1/√2 less at most."""
    plain, code = ClassCode(2), ClassCode(2, 0.45)
    alpha = math.sqrt(0.5)
    ratio = code.sensitivity(1.0, code.free_constant(1.0, alpha), alpha) / 2
    assert plain.sensitivity(1.0, 0.5, alpha) == 2
    assert ratio == pytest.approx((1 + code.own) / 2, rel=1e-12)
    assert 0.79 < ratio < 0.81
