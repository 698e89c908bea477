"""Polynomials over Field64 at roots of unity: number-theoretic transforms.

A polynomial of degree < n is an array of its n coefficients, lowest first; its values are taken at
w^0, ..., w^(n-1), w of order n, n a power of two. All functions work on the last axis.
"""

from functools import lru_cache

import numpy as np

from train_distributed.proofs import field
from train_distributed.proofs.field import MODULUS, Elements

_GENERATOR = pow(7, 2**32 - 1, MODULUS)  # order 2^32, the generator of the drafts


def root_of_unity(order: int) -> int:
    """The element of this order, a power of two, that the drafts use."""
    return pow(_GENERATOR, 2**32 // order, MODULUS)


def evaluate(coefficients: Elements) -> Elements:
    """Values (..., n) of polynomials with these coefficients (..., n)."""
    return _transform(coefficients, root_of_unity(coefficients.shape[-1]))


def interpolate(values: Elements) -> Elements:
    """Coefficients (..., n) of the polynomials with these values (..., n)."""
    count = values.shape[-1]
    inverse = pow(root_of_unity(count), -1, MODULUS)
    return field.multiply(_transform(values, inverse), np.uint64(pow(count, -1, MODULUS)))


def lagrange(point: int, count: int) -> Elements:
    """(count,) weights whose dot product with values is the polynomial at `point`.

    Of the value at w^k it is (t^n - 1) w^k / (n (t - w^k)); t must be none of the places.
    """
    scale = (pow(point, count, MODULUS) - 1) * pow(count, -1, MODULUS)
    places = _powers(root_of_unity(count), count).tolist()
    weights = [scale * place * pow(point - place, -1, MODULUS) % MODULUS for place in places]
    return np.array(weights, np.uint64)


def at(coefficients: Elements, point: int) -> int:
    """The polynomial (n,) at a point, by Horner's rule."""
    value = 0
    for coefficient in reversed(coefficients.tolist()):
        value = (value * point + coefficient) % MODULUS
    return value


def _transform(values: Elements, root: int) -> Elements:
    """Fast transform by halves: even and odd places are transformed as two rows."""
    count = values.shape[-1]
    if count == 1:
        return values
    halves = np.stack([values[..., 0::2], values[..., 1::2]], axis=-2)
    halves = _transform(halves, root * root % MODULUS)
    even = halves[..., 0, :]
    odd = field.multiply(halves[..., 1, :], _powers(root, count // 2))
    return np.concatenate([field.add(even, odd), field.subtract(even, odd)], axis=-1)


_powers = lru_cache(maxsize=64)(field.powers)  # of roots of unity
