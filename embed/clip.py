"""Rows [a, clip(x)] whose stored floats have norm at most c, computed in blocks of one shape.

No bit of a row depends on its place or on other rows, and no product of finite rows overflows.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from pretrain import check

ROWS, COLUMNS = 1024, 16  # size: rows of a block; a product has a multiple of these columns
LARGE = 400  # guard: binary exponent from which rows are scaled down, and results stay so


def as_tensor(x: Tensor | np.ndarray) -> Tensor:
    """The rows as a tensor of their own dtype."""
    return x if isinstance(x, Tensor) else torch.from_numpy(np.array(x))


def in_blocks(
    x: Tensor | np.ndarray, compute: Callable[[Tensor, int], Tensor], out: Tensor
) -> Tensor:
    """Computes every row of `out` from its row of x, in blocks of `ROWS` rows.

    Matrix products sum in another order for fewer rows, and for the last rows. The last block is
    filled with zeros, so that a row's result depends neither on the number of other rows nor on
    those before it; `tests/embed/test_neighbours.py` compares the bits.

    Args:
        x: (n, ...) rows.
        compute: (ROWS, ...) rows, number of the first row -> (ROWS, ...) results.
        out: (n, ...) to be filled.
    """
    for start in range(0, len(x), ROWS):
        block = as_tensor(x[start : start + ROWS])
        count = len(block)
        if count < ROWS:
            block = torch.cat([block, block.new_zeros(ROWS - count, *block.shape[1:])])
        out[start : start + count] = compute(block, start)[:count]
    return out


def project(x: Tensor, mean: Tensor, basis: Tensor | None, scale: Tensor) -> Tensor:
    """Projects rows in float64, scaled by a power of two where they would overflow.

    Every result is finite and has the right direction. Its length is right too, or at least 2^300
    where float64 might not hold it.

    Args:
        x: (n, p) finite floats.
        mean: (p,) m.
        basis: (p, q) P; None: the identity.
        scale: (q,) s > 0.

    Returns:
        (n, q) float64: |Pᵀ(x − m)/s| < 2^(LARGE + 1 + 128 + 149) p before it is scaled back.
    """
    wide = x.double()
    down = (_exponents(wide) - LARGE).clip(min=0)
    factor = _power(-down)
    centred = wide * factor - mean.double() * factor
    projected = (centred if basis is None else product(centred, basis.double())) / scale.double()
    return projected * _power(np.minimum(down, (LARGE - _exponents(projected)).clip(min=0)))


def product(rows: Tensor, matrix: Tensor) -> Tensor:
    """(n, q) rows @ matrix, in which a row's bits do not depend on its place or on other rows.

    What a kernel returns for a row depends on the row's place, by rounding, where the number of
    rows or columns is no whole multiple of its tiles, and where a factor is strided. Whoever
    chooses the matrix can make rounding decide (two equal columns times 10^88). So both factors are
    contiguous here, columns are filled up to a multiple of `COLUMNS`, and rows are multiplied in
    blocks of `ROWS`, copied to one place in memory. No other product in this package, or in any
    after it, may have private rows as a factor; `tests/embed/test_neighbours.py` reads the code.

    Args:
        rows: (n, p) float32 or float64.
        matrix: (p, q) of the same type.
    """
    count = matrix.shape[1]
    filled = torch.nn.functional.pad(matrix, (0, -count % COLUMNS)).contiguous()
    block, made = rows.new_zeros(ROWS, rows.shape[1]), rows.new_empty(len(rows), count)
    for start in range(0, len(rows), ROWS):
        part = rows[start : start + ROWS]
        block[: len(part)] = part
        block[len(part) :] = 0
        made[start : start + ROWS] = (block @ filled)[: len(part), :count]
    return made


def _exponents(rows: Tensor) -> np.ndarray:
    """(n,) e with max|row| < 2^e."""
    return np.frexp(rows.abs().amax(1).numpy())[1]


def _power(exponents: np.ndarray) -> Tensor:
    """(n, 1) float64 2^e, exactly."""
    return torch.from_numpy(np.ldexp(1.0, exponents))[:, None]


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
