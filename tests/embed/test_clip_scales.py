"""Clipped rows at any scale: the exact norm of the stored floats is at most the bound."""

import math
import re
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor

from embed.clip import add_constant_and_clip


def squared(row: Tensor) -> Fraction:
    """Σ x², without any rounding."""
    return sum((Fraction(value) ** 2 for value in row.tolist()), Fraction(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_exact_norms_at_any_scale(dtype: torch.dtype) -> None:
    draw = np.random.default_rng(0)
    low, high = (-44, 38) if dtype == torch.float32 else (-320, 307)
    for _ in range(60):
        clip_norm = 10.0 ** draw.uniform(-12, 12)
        constant = float(torch.tensor(clip_norm * draw.uniform(0, 0.999), dtype=dtype))
        shape = (8, int(draw.integers(1, 200)))
        sizes = 10.0 ** draw.uniform(low, high, (8, 1)) / 10
        x = torch.from_numpy(draw.standard_normal(shape) * sizes).to(dtype)
        rows = add_constant_and_clip(x, clip_norm, constant)
        assert (rows[:, 0] == constant).all()
        bound = Fraction(clip_norm**2 - constant**2)
        for row, given in zip(rows[:, 1:], x, strict=True):
            found = squared(row)
            assert found <= bound
            if math.isfinite(float(found)) and squared(given) > bound > 1e-24:
                assert found >= bound * Fraction(1 - 1e-5)


def test_many_columns_are_summed_with_a_margin_of_their_own() -> None:
    x = torch.rand(2, 100_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for row in add_constant_and_clip(x, 1.0, 0.5)[:, 1:]:
        assert squared(row) <= Fraction(3, 4)


@pytest.mark.parametrize("clip_norm", [1e-300, 1e-61, 1e61, 1e200])
def test_clip_norms_out_of_scale_are_refused(clip_norm: float) -> None:
    message = re.escape(f"clip_norm must be in [1e-60, 1e+60], got {clip_norm}")
    with pytest.raises(ValueError, match=message):
        add_constant_and_clip(torch.ones(1, 1, dtype=torch.float64), clip_norm, 0.0)
