"""Exact discrete Gaussian noise N_Z(0, s²): P[z] ∝ exp(-z² / (2 s²)), z an integer.

**Proposal.** Let t = 2^k be 1 or a power of two with 1.1775 s ≤ t ≤ 2.355 s, so that t ≥ 1.1775 s.
A proposal is a sign, each with probability 1/2, a block v = 0, 1, 2, … with probability 2^-(v+1),
the number of trailing zeros of random bits, and a place u in it, uniform on 0 … t-1. It stands for
±x, x = v t + u, and is accepted with probability

    p = 2^v exp(-x² / (2 s²)),

except that -0 never is. Then ±x leaves with probability 2^-(v+1) p / (2t) ∝ exp(-x² / (2 s²)): the
law is exact, given p ≤ 1. Indeed x ≥ v t and v ≤ v², so p ≤ exp(v² (ln 2 - 1.1775²/2)) ≤ 1.

**Acceptance.** A proposal is accepted if U < p, U a uniform real number of which so many bits are
drawn as the comparison needs. From 53 of them and a double p̂ with |p̂ - p| < 2^-42, all but one
proposal in 2^38 are decided; the others go on in integer arithmetic until they are. So p is never
rounded, and s is the rational number that the double is.

**p̂.** IEEE 754 rounds +, -, *, / and integers to a relative h = 2^-53; no library's exp is trusted.
x/s is off by at most 3h relative (from u, the sum, the quotient; v t is exact), E = x²/(2s²) by
7.1h, G = E - v ln 2 by 11h E, as v ln 2 ≤ E. Since v² ln 2 ≤ E, G ≥ E - sqrt(E ln 2), and so
11h E exp(-G) < 2^-48. Where G > 32, p and p̂ are below 2^-46. With r = min(G, 32)/128 ≤ 1/4, exp(-r)
is its Taylor polynomial of degree 12 (remainder < 2^-58), evaluated within 6h, and seven squarings
make that a relative 128 (6h + h + 2^-57) < 2^-43 at most. Nothing is so small as to be subnormal.

**Randomness** is the operating system's alone, drawn afresh in every call: nothing is kept that
threads or forked processes could share.

**Time.** At least a quarter of all proposals are accepted. How many are not is independent of the
numbers returned, and every proposal takes the same steps, so that the time says nothing about the
noise, but for the one draw in 2^36 or rarer that needed more bits.
"""

import math
import os
from collections.abc import Callable
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pretrain import check

BLOCK_PER_STD = 1.1775  # > sqrt(2 ln 2)
LN2 = 0.6931471805599453
PROPOSALS = 2**14  # at a time: what they need stays in the second-level cache
UNIFORM_BITS = 53
MOST_STD = 2.0**53  # |z| >= 2^63, which wraps around, is then rarer than 2 exp(-2^19)
UNDECIDED = 2.0**-40  # > 2^-42, and the 2^-53 by which U may exceed its first bits
NoiseSampler = Callable[[float, int], NDArray[np.int64]]  # (std in steps, count) -> (count,) draws


def discrete_gaussian(std: float, count: int) -> NDArray[np.int64]:
    """(count,) int64, independent draws from N_Z(0, std²) with bits of the operating system.

    The standard deviation is in steps, and taken as the exact rational number that it is.

    Raises:
        ValueError: std not in (0, 2^53], or count < 0.
    """
    check.within("(0, 2^53]", std=std)  # MOST_STD
    check.at_least(0, count=count)
    std = float(std)
    k = max(0, math.frexp(BLOCK_PER_STD * std)[1])
    rate = max(1.0, math.sqrt(2 * math.pi) * std) / 2.0 ** (k + 2)  # accepted, all but exactly
    draws, done = np.empty(count, np.int64), 0
    while done < count:
        wanted = count - done
        found = _accepted(std, k, min(PROPOSALS, 16 + int(1.02 * wanted / rate)))[:wanted]
        draws[done : done + len(found)] = found
        done += len(found)
    return draws


def _words(count: int) -> NDArray[np.uint64]:
    return np.frombuffer(os.urandom(8 * count), np.uint64)


def _accepted(std: float, k: int, proposals: int) -> NDArray[np.int64]:
    """Those of so many proposals that are accepted, in blocks of 2^k."""
    block_bits, place_bits, uniform_bits = _words(3 * proposals).reshape(3, -1)
    v = np.bitwise_count(~block_bits & (block_bits - np.uint64(1))).astype(np.int64)
    for i in np.flatnonzero(block_bits == 0):  # once in 2^64 proposals
        v[i] += _more_zeros()
    u = (place_bits & np.uint64(2**k - 1)).view(np.int64)
    p = _acceptance(v, u, k, std)
    drawn = (uniform_bits >> np.uint64(64 - UNIFORM_BITS)).view(np.int64)
    excess = drawn * 2.0**-UNIFORM_BITS - p
    accepted = excess < 0
    for i in np.flatnonzero(np.abs(excess) <= UNDECIDED):
        accepted[i] = _decide(int(drawn[i]), int(v[i]), (int(v[i]) << k) + int(u[i]), std)
    x = (v << k) + u
    negative = place_bits >> np.uint64(63) == 1  # no bit of u, as k <= 54
    accepted &= (x != 0) | ~negative
    return np.where(negative, -x, x)[accepted]


def _more_zeros() -> int:
    """Zeros up to the first one in a row of fair bits."""
    zeros = 0
    while not (word := int(_words(1)[0])):
        zeros += 64
    return zeros + (word & -word).bit_length() - 1


def _acceptance(
    v: NDArray[np.int64], u: NDArray[np.int64], k: int, std: float
) -> NDArray[np.float64]:
    """p̂ of proposals, within 2^-42 of p; v, u and the result (n,)."""
    with np.errstate(over="ignore"):  # x / s of a tiny s may be infinite
        ratio = (v * 2.0**k + u) / std
        exponent = 0.5 * ratio * ratio - v * LN2
    r = np.minimum(exponent, 32.0) / 128
    p = np.ones_like(r)
    for degree in range(12, 0, -1):
        p *= r
        p *= -1 / degree
        p += 1
    for _ in range(7):
        p *= p
    return p


def _decide(drawn: int, v: int, x: int, std: float) -> bool:
    """True where U < 2^v exp(-x²/(2 std²)): U's first 53 bits are `drawn`, more as it takes."""
    gamma = Fraction(x) ** 2 / (2 * Fraction(std) ** 2)
    bits = UNIFORM_BITS
    while True:
        low, high = _between(gamma, bits + v)
        if drawn + 1 <= low:
            return True
        if drawn >= high:
            return False
        drawn = drawn << 64 | int(_words(1)[0])
        bits += 64


def _between(gamma: Fraction, bits: int) -> tuple[int, int]:
    """Integers around 2^bits exp(-gamma), gamma >= 0, nearer to it by factors with more bits.

    exp(-gamma) is the 2^h-th power of exp(-R), R = gamma / 2^h <= 1/2, whose series alternates.
    In units of 2^-scale every term is off by at most 4: by half of what the one before was, 1 from
    rounding R and 1 of its own. So are those left out together, as they fall and alternate.
    """
    halvings = math.ceil(2 * gamma).bit_length()
    scale = bits + halvings + 16
    r = (gamma.numerator << (scale - halvings)) // gamma.denominator
    total, term, k = 0, 1 << scale, 0
    while term:
        total += -term if k % 2 else term
        k += 1
        term = term * r // (k << scale)
    low, high = total - 4 * (k + 1), total + 4 * (k + 1)
    for _ in range(halvings):
        low, high = low * low >> scale, (high * high >> scale) + 1
    return low >> (scale - bits), (high >> (scale - bits)) + 1


def add_noise(
    encoded: NDArray[np.uint64], stds: ArrayLike, sampler: NoiseSampler = discrete_gaussian
) -> NDArray[np.uint64]:
    """One party's submission: its integers (d,) uint64 plus its share of the noise, modulo 2^64.

    Standard deviations are in steps: one number, or (d,) one per coordinate. The sampler is called
    once per distinct one, in rising order.

    Raises:
        ValueError: shapes that do not fit, or a standard deviation out of range.
    """
    if encoded.dtype != np.uint64 or encoded.ndim != 1:
        raise ValueError(f"encoded must be (d,) uint64, got {encoded.shape} {encoded.dtype}")
    per_coordinate = np.broadcast_to(np.asarray(stds, np.float64), encoded.shape)
    noise = np.empty(len(encoded), np.int64)
    for std in np.unique(per_coordinate):
        mask = per_coordinate == std
        noise[mask] = sampler(float(std), int(mask.sum()))
    return encoded + noise.view(np.uint64)
