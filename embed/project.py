"""Pᵀ(x − m)/s of any finite row, without overflow, and rows by rows in blocks of one shape."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from embed.public_rows import as_tensor

ROWS, COLUMNS = 1024, 16  # of a block of rows, and of which a product has a multiple
LARGE, FULL = 400, 900  # binary exponents: of what is projected, and of what comes back


def in_blocks(
    x: Tensor | np.ndarray, compute: Callable[[Tensor, int], Tensor], out: Tensor
) -> Tensor:
    """Computes every row of `out` from its row of x, in blocks of `ROWS` rows.

    Products of matrices sum in another order where there are fewer rows, and for the last of them.
    The last block is filled up with zeros, so what a row gives does not depend on how many others
    there are, nor on which of them stand before it: `tests/embed/test_neighbours.py` looks at that.

    Args:
        x: (n, ...) rows.
        compute: (ROWS, ...) rows and the number of the first one to (ROWS, ...) results.
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

    What comes back for any row is finite and has its direction. Its length is right as well, or
    beyond 2^800 where float64 cannot hold it.

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
    return projected * _power(np.minimum(down, (FULL - _exponents(projected)).clip(min=0)))


def product(rows: Tensor, matrix: Tensor) -> Tensor:
    """(n, q) rows @ matrix, computed with a whole number of `COLUMNS`.

    Kernels treat a last few columns by themselves, and then not every row alike.
    """
    count = matrix.shape[1]
    filled = torch.nn.functional.pad(matrix, (0, -count % COLUMNS))
    return (rows @ filled)[:, :count]


def within(rows: Tensor, exponent: int) -> Tensor:
    """(n, q) float64 rows; one with an entry of 2^exponent or more is divided by a power of two."""
    return rows * _power((exponent - _exponents(rows)).clip(max=0))


def _exponents(rows: Tensor) -> np.ndarray:
    """(n,) e with max|row| < 2^e."""
    return np.frexp(rows.abs().amax(1).numpy())[1]


def _power(exponents: np.ndarray) -> Tensor:
    """(n, 1) float64 2^e, exactly."""
    return torch.from_numpy(np.ldexp(1.0, exponents))[:, None]
