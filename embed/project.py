"""Pᵀ(x − m)/s of finite rows without overflow, computed in blocks of one shape."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

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
    after it, may have private rows as a factor; `tests/embed/test_products.py` reads the code.

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
