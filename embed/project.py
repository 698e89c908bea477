"""Pᵀ(x − m)/s of any finite row, without overflow."""

import numpy as np
import torch
from torch import Tensor

LARGE, FULL = 400, 900  # binary exponents: of what is projected, and of what comes back


def project(x: Tensor, mean: Tensor, basis: Tensor | None, scale: Tensor) -> Tensor:
    """Projects rows; one that overflows is projected once more in float64, scaled first.

    What comes back for such a row is finite and has its direction. Its length is right as well, or
    beyond 2^800 where float64 cannot hold it. Every row's result is a function of that row and of
    the shape of x alone.

    Args:
        x: (n, p) finite floats.
        mean: (p,) m, in the precision to compute in.
        basis: (p, q) P; None: the identity.
        scale: (q,) s > 0.

    Returns:
        (n, q) in that precision, or float64 if a row has overflowed.
    """
    centred = x.to(mean.dtype) - mean
    direct = (centred if basis is None else centred @ basis) / scale
    finite = torch.isfinite(direct).all(1, keepdim=True)
    if finite.all():
        return direct
    # All rows again: a product of another shape may round otherwise, and the other rows, which
    # this one may not move, would be in it.
    return torch.where(finite, direct.double(), _scaled(x, mean, basis, scale))


def _scaled(x: Tensor, mean: Tensor, basis: Tensor | None, scale: Tensor) -> Tensor:
    """(n, q) float64: |Pᵀ(x − m)/s| < 2^(LARGE + 1 + 128 + 149) p before it is scaled back."""
    wide = x.double()
    down = (_exponents(wide) - LARGE).clip(min=0)
    factor = _power(-down)
    centred = wide * factor - mean.double() * factor
    projected = (centred if basis is None else centred @ basis.double()) / scale.double()
    return projected * _power(np.minimum(down, (FULL - _exponents(projected)).clip(min=0)))


def within(rows: Tensor, exponent: int) -> Tensor:
    """(n, q) float64 rows; one with an entry of 2^exponent or more is divided by a power of two."""
    return rows * _power((exponent - _exponents(rows)).clip(max=0))


def _exponents(rows: Tensor) -> np.ndarray:
    """(n,) e with max|row| < 2^e."""
    return np.frexp(rows.abs().amax(1).numpy())[1]


def _power(exponents: np.ndarray) -> Tensor:
    """(n, 1) float64 2^e, exactly."""
    return torch.from_numpy(np.ldexp(1.0, exponents))[:, None]
