"""Shamir's secret sharing of 32-byte secrets over the prime field of 2^256 + 297 elements.

The secret is f(0) of a polynomial f of degree threshold - 1 whose other coefficients are uniform;
the share of x is f(x). Any `threshold` shares fix f (Lagrange). Any threshold - 1 reveal nothing:
for every candidate secret exactly one polynomial of that degree fits it and them, and each is
equally likely.
"""

import math
import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache

from pretrain import check
from train_distributed.secure_sum.errors import InconsistentShares, check_enough

PRIME = 2**256 + 297  # the smallest prime above 2^256, so that every 32-byte secret is an element
SECRET_BYTES = 32
SHARE_BYTES = 33


def split(secret: bytes, threshold: int, points: Sequence[int]) -> list[bytes]:
    """Shares of a 32-byte secret, of which any `threshold` reconstruct it and fewer reveal nothing.

    Each has 33 bytes; they are in the order of the points, distinct x with 0 < x < 2^16.

    Raises:
        ValueError: an argument outside its range, or fewer points than the threshold.
    """
    check.byte_length(SECRET_BYTES, secret=secret)
    check.within(f"[1, {len(points)}]", threshold=threshold)
    if len(set(points)) != len(points) or not all(0 < x < 2**16 for x in points):
        raise ValueError(f"points must be distinct and in (0, 2^16), got {list(points)}")
    coefficients = [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    coefficients.append(int.from_bytes(secret, "big"))  # highest degree first
    return [_evaluate(coefficients, x).to_bytes(SHARE_BYTES, "big") for x in points]


@lru_cache(maxsize=1024)
def weights(points: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange weights λ with f(0) = Σ λ_i f(x_i): λ_i = Π_{j≠i} x_j / (x_j - x_i).

    Those of 1..n are (-1)^(x+1) binom(n, x); every missing m multiplies by (m - x)/m.
    """
    n = max(points)
    missing = sorted(set(range(1, n)).difference(points))
    inverse = pow(math.prod(missing), -1, PRIME)
    return tuple(
        (-1) ** (x + 1) * math.comb(n, x) * math.prod([m - x for m in missing]) * inverse % PRIME
        for x in points
    )


def reconstruct(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The secret of which `shares` (point -> share) are shares; uses `threshold` of them.

    Raises:
        TooFewUsers: fewer shares than the threshold.
        InconsistentShares: the shares are not of one 32-byte secret, as far as this can be seen.
    """
    check_enough(len(shares), threshold, "shares")
    points = tuple(sorted(shares)[:threshold])
    values = [int.from_bytes(shares[x], "big") for x in points]
    secret = sum(w * v for w, v in zip(weights(points), values, strict=True)) % PRIME
    if max(values) >= PRIME or secret >= 2 ** (8 * SECRET_BYTES):
        raise InconsistentShares(f"shares must be of one 32-byte secret, got points {list(points)}")
    return secret.to_bytes(SECRET_BYTES, "big")


def _evaluate(coefficients: Sequence[int], x: int) -> int:
    """f(x) by Horner's rule."""
    value = 0
    for coefficient in coefficients:
        value = (value * x + coefficient) % PRIME
    return value
