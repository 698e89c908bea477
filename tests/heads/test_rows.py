"""Bad input is refused by a message that names the argument, the rule and the value."""

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from heads import SoftmaxHead, class_sums, fit_exact, fit_sgd, second_moments

HEAD = SoftmaxHead(num_classes=3, l2_reg=1.0, clip_norm=2.0)


def sgd(x: Tensor, y: Tensor, **options) -> object:
    return fit_sgd(HEAD, x, y, epochs=1, batch_size=2, **options)


def certified(x: Tensor, y: Tensor, **options) -> object:
    return fit_exact(HEAD, x, y, **options)


def sums(x: Tensor, y: Tensor, **options) -> object:
    return class_sums(x, y, 3, **options)


Fit = Callable[..., object]
each_solver = pytest.mark.parametrize("fit", [sgd, certified])
each_function = pytest.mark.parametrize("fit", [sgd, certified, sums])


def rows(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    return torch.ones(2, 4, 3, dtype=dtype), torch.zeros(2, 4, dtype=torch.int64)


def refused(message: str, fit: Fit, x: Tensor, y: Tensor, **options) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        fit(x, y, **options)


@each_solver
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e30, 3.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_that_are_not_finite_or_too_long(fit: Fit, value: float, dtype: torch.dtype) -> None:
    x, y = rows(dtype)
    x[1, 2, 0] = value
    refused("x must have finite rows of norm <= clip_norm = 2.0, got norm ", fit, x, y)
    refused("in row [1, 2]", fit, x, y)
    refused("in row [2]", fit, x[1], y[1])


@each_solver
def test_a_row_too_long_by_what_float32_cannot_see(fit: Fit) -> None:
    x, y = torch.zeros(1, 4, 3, dtype=torch.float64), torch.zeros(1, 4, dtype=torch.int64)
    x[..., 0] = 2.0
    fit(x, y)
    x[0, 3, 0] = 2.0 * (1 + 1e-10)
    refused("got norm 2.0000000002", fit, x, y)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_sums_of_rows_that_are_not_finite(value: float) -> None:
    x, y = rows()
    x[1, 2, 0] = value
    for fit in (sums, lambda x, y: second_moments(x)):
        refused("x must have finite rows", fit, x, y)


@each_solver
def test_types_of_rows(fit: Fit) -> None:
    x, y = rows()
    for dtype in (torch.int64, torch.float16, torch.bfloat16):
        refused(f"x must be float32 or float64, got {dtype}", fit, x.to(dtype), y)


@each_function
@pytest.mark.parametrize("label", [-1, 3])
def test_labels(fit: Fit, label: int) -> None:
    x, y = rows()
    y[1, 3] = label
    refused(f"y must lie in [0, 3), got {label}", fit, x, y)


@each_function
def test_shapes_and_label_type(fit: Fit) -> None:
    x, y = rows()
    refused("got x (2, 4, 3) and y (2, 3)", fit, x, y[:, :3])
    refused("got x (3,) and y ()", fit, x[0, 0], y[0, 0])
    refused("y must be int64, got torch.int32", fit, x, y.int())
    refused("x must hold at least one row and column, got shape (2, 0, 3)", fit, x[:, :0], y[:, :0])
    refused("x must hold at least one row and column, got shape (0, 4, 3)", fit, x[:0], y[:0])


@each_function
def test_counts(fit: Fit) -> None:
    x, y = rows()
    refused("counts must lie in [1, 4], got 0", fit, x, y, counts=torch.tensor([4, 0]))
    refused("counts must lie in [1, 4], got 5", fit, x, y, counts=torch.tensor([5, 1]))
    refused("counts must be of shape (2,), got (3,)", fit, x, y, counts=torch.tensor([1, 1, 1]))
    refused("counts must be int64, got torch.float32", fit, x, y, counts=torch.tensor([1.5, 2.0]))
