"""Rows [a, clip(x)] whose stored floats have norm at most c."""

import math

import torch
from torch import Tensor

from embed.project import in_blocks
from pretrain import check

LEAST, LARGEST = 1e-60, 1e60  # guard: of numbers whose powers must stay normal numbers


def add_constant_and_clip(
    x: Tensor, clip_norm: float, constant: float = 1.0, *, dtype: torch.dtype | None = None
) -> Tensor:
    """Rows [a, min(1, sqrt(c² - a²)/‖x‖) x], whose exact norm is at most c.

    The true norm of the stored floats, not of their unrounded values, is bounded: a row that
    rounding left above c is scaled down further.

    Args:
        x: (n, p) float16, bfloat16, float32 or float64, finite.
        clip_norm: c > a.
        constant: a >= 0, exactly representable in the result's dtype; 0 still adds the column.
        dtype: of the result; None: that of x.

    Returns:
        (n, p + 1) rows, the constant first.

    Examples:
        >>> x = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
        >>> add_constant_and_clip(x, clip_norm=2**0.5)  # only the first is too long
        tensor([[1.0000, 0.6000, 0.8000],
                [1.0000, 0.3000, 0.4000]])
    """
    dtype = dtype or x.dtype
    if x.ndim != 2 or not x.is_floating_point():
        raise ValueError(f"x must be a float (n, p), got {x.dtype} of shape {tuple(x.shape)}")
    check_bounds(clip_norm, constant)
    if float(torch.tensor(constant, dtype=dtype)) != constant:
        raise ValueError(f"constant must be representable in {dtype}, got {constant}")
    check_finite(x, "x")
    out = torch.empty(len(x), x.shape[1] + 1, dtype=dtype, device=x.device)
    out[:, 0] = constant
    in_blocks(x, lambda rows, _: _clip(rows, clip_norm**2 - constant**2, dtype), out[:, 1:])
    return out


def check_bounds(clip_norm: float, constant: float) -> None:
    """Raises ValueError unless c > a >= 0, and c lies in [1e-60, 1e60]."""
    if not (constant >= 0 and clip_norm > constant and math.isfinite(clip_norm)):
        raise ValueError(f"clip_norm must be > constant >= 0, got {clip_norm} and {constant}")
    check.within(f"[{LEAST}, {LARGEST}]", clip_norm=clip_norm)


def _clip(x: Tensor, bound: float, dtype: torch.dtype) -> Tensor:
    """Rows scaled and rounded so that their exact squared norm is at most `bound`."""
    wide = x.to(torch.float64)
    largest = wide.abs().amax(1, keepdim=True).clamp_min(1e-300)  # squares must not overflow
    squared = (wide / largest).square().sum(1, keepdim=True)
    limit = bound * (1 - (x.shape[1] + 8) * 2.0**-53)  # float64's own error in sums of squares
    shrink = ((limit / squared).sqrt() / largest).clamp_max(1)
    scaled = (wide * shrink).to(dtype)
    step = torch.finfo(dtype).eps
    while (excess := scaled.to(torch.float64).square().sum(1, keepdim=True) > limit).any():
        # Rounding to nearest went up: aim lower, at last at zero.
        scaled = torch.where(excess, (wide * (shrink * max(0.0, 1 - step))).to(dtype), scaled)
        step *= 2
    return scaled


def check_finite(x: Tensor, name: str, first_row: int = 0) -> None:
    """Raises ValueError naming the first row of `x` that holds a NaN or an infinity.

    Args:
        x: (n, p).
        name: name of x in the error.
        first_row: number of the first row of x.
    """
    if x.sum().isfinite():  # which a NaN or an infinity would prevent; fast
        return
    bad = ~torch.isfinite(x).all(1)
    if bad.any():
        row = int(bad.nonzero()[0])
        value = x[row][~torch.isfinite(x[row])][0].item()
        raise ValueError(f"{name} must be finite, got {value} in row {first_row + row}")
