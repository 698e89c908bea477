"""The exact privacy curve of the Gaussian mechanism, rounded so that no promise is too good.

All three functions speak about C releases of sensitivity 1 each, with Gaussian noise of standard
deviation `noise_multiplier`. Together they are one Gaussian mechanism of sensitivity √C (Def. 3.13
of Kirschte et al. 2024; Theorem 8 of Balle and Wang 2018): with μ = √C/σ, a = ε/μ - μ/2 and
b = ε/μ + μ/2,

    δ(ε) = Φ(-a) - e^ε Φ(-b) = φ(a) (M(a) - M(b)) = φ(a) ∫_a^b (1 - u M(u)) du,

where M(u) = Φ(-u)/φ(u) is the Mills ratio. The guarantee is for whichever neighbours the
sensitivity was measured between; in this project those that differ in one replaced record.

Every result is rounded towards less privacy: δ, ε and σ are never below their exact values.
Numbers of other types, such as numpy's float32, are taken as the doubles that they are.
"""

import math
import struct
from collections.abc import Callable
from functools import cache

import numpy as np
import scipy  # scipy.special comes when it is asked for

from pretrain import check

SMALLEST_DELTA = 1e-290  # the curve's own numbers keep all their digits down to there
DISCRETISED_ERROR = 1e-15  # of δ a composition; against the exact curve it is below 4e-17
_ULP = 2.0**-52
_INFINITY_BITS = 0x7FF0000000000000  # a positive double's bits, read as an integer, keep its order


def delta(epsilon: float, noise_multiplier: float, compositions: int = 1) -> float:
    """The smallest δ for which C Gaussian releases are (ε, δ)-private, to 12 digits.

    Args:
        epsilon: ε > 0; infinity gives 0.
        noise_multiplier: σ, noise standard deviation over the sensitivity of one release.
        compositions: C, the number of releases.

    Raises:
        ValueError: an argument outside its range.

    Examples:
        >>> f"{delta(1.0, 3.73):.2e}"
        '1.00e-05'
    """
    _check_epsilon(epsilon)
    check.at_least(0, noise_multiplier=noise_multiplier)
    _check_compositions(compositions)
    return _delta_above(float(epsilon), _mu(noise_multiplier, compositions))


def epsilon(delta: float, noise_multiplier: float, compositions: int = 1) -> float:
    """The smallest ε for which C Gaussian releases are (ε, δ)-private; 0 if δ suffices alone.

    A relative error of δ moves ε by κ = δ / (ε e^ε Φ(-b)) times as much, relative. κ is large only
    where δ nearly suffices alone (2·10⁴ at ε = 1e-5, δ = 0.1). The relative error of the result is
    at most 4e-14 (1 + κ): 9 digits or more for ε from 1e-5 to 50 and δ from 1e-14 to 0.1.

    Args:
        delta: 0 < δ < 1.
        noise_multiplier: σ, noise standard deviation over the sensitivity of one release;
            0 gives infinity.
        compositions: C, the number of releases.

    Raises:
        ValueError: an argument outside its range.

    Examples:
        >>> sigma = noise_multiplier(0.5, 1e-5, compositions=10)
        >>> f"{epsilon(1e-5, sigma, compositions=10):.9f}"
        '0.500000000'
        >>> epsilon(1e-5, 0.0)
        inf
    """
    _check_delta(delta)
    check.at_least(0, noise_multiplier=noise_multiplier)
    _check_compositions(compositions)
    mu, delta = _mu(noise_multiplier, compositions), float(delta)
    if _delta_above(0.0, mu) <= delta:
        return 0.0
    return _smallest(lambda epsilon: _delta_above(epsilon, mu) <= delta)


def noise_multiplier(epsilon: float, delta: float, compositions: int = 1) -> float:
    """The smallest σ with which C Gaussian releases are (ε, δ)-private, to 9 digits or better.

    Args:
        epsilon: ε > 0; infinity asks for no privacy and gives 0.
        delta: 0 < δ < 1.
        compositions: C, the number of releases.

    Raises:
        ValueError: an argument outside its range.

    Examples:
        >>> f"{noise_multiplier(1.0, 1e-5):.4f}"
        '3.7306'
        >>> f"{noise_multiplier(1.0, 1e-5, compositions=4):.4f}"  # √4 times as much
        '7.4613'
        >>> noise_multiplier(float("inf"), 1e-5)
        0.0
    """
    _check_epsilon(epsilon)
    _check_delta(delta)
    _check_compositions(compositions)
    if math.isinf(epsilon):
        return 0.0
    return _noise_multiplier(float(epsilon), float(delta), compositions)


@cache
def _noise_multiplier(epsilon: float, delta: float, compositions: int) -> float:
    """Every release asks for it again, with the same arguments."""
    return _smallest(lambda sigma: _delta_above(epsilon, _mu(sigma, compositions)) <= delta)


def discretised_delta(delta: float, compositions: int) -> float:
    """The δ to ask of a privacy loss distribution on a grid, so that ε is enough for `delta`.

    Fourier transforms of the distribution round, in absolute terms, whatever δ is.

    Args:
        delta: 0 < δ < 1.
        compositions: how many mechanisms were composed.

    Returns:
        δ less what rounding may hide; 0 or less where nothing is left of it.
    """
    return delta - (100 + compositions) * DISCRETISED_ERROR


def _delta_above(epsilon: float, mu: float) -> float:
    """δ(ε) rounded up: the curve at inputs moved outwards by more than its rounding errors.

    Those are a few ulp of b in a, which e^(-a²/2) magnifies by |a|, and a few ulp of the result.
    """
    outward = _curve(epsilon * (1 - 4 * _ULP), mu * (1 + 4 * _ULP)) * (1 + 16 * _ULP)
    least = SMALLEST_DELTA if mu > 0 and math.isfinite(epsilon) else 0.0  # underflow is not zero
    return min(1.0, max(outward, least))


def _curve(epsilon: float, mu: float) -> float:
    """δ(ε) of a Gaussian mechanism with sensitivity over noise μ, to rounding errors."""
    if mu == 0 or math.isinf(epsilon):
        return 0.0
    if math.isinf(mu):
        return 1.0
    a, b = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    if math.isinf(a):
        return 0.0 if a > 0 else 1.0
    density = math.exp(-a * a / 2) / math.sqrt(2 * math.pi)
    if 2 * _mills(b) <= _mills(a):  # the difference loses at most two bits
        return float(scipy.special.erfc(a / math.sqrt(2)) / 2 - density * _mills(b))
    nodes, weights = _gauss_legendre()
    u = (a + b) / 2 + mu / 2 * nodes  # an interval this short holds no more than M's halving
    return float(density * mu / 2 * (weights @ (1 - u * _mills(u))))


def _mills(u):
    """Φ(-u)/φ(u), infinite where it exceeds the largest double."""
    return math.sqrt(math.pi / 2) * scipy.special.erfcx(u / math.sqrt(2))


@cache
def _gauss_legendre() -> tuple[np.ndarray, np.ndarray]:
    return np.polynomial.legendre.leggauss(20)


def _smallest(holds: Callable[[float], bool]) -> float:
    """The smallest positive double with `holds`, which is false below it and true from it on."""
    low, high = 0, _INFINITY_BITS
    while high - low > 1:
        middle = (low + high) // 2
        if holds(_double(middle)):
            high = middle
        else:
            low = middle
    return _double(high)


def _double(bits: int) -> float:
    return struct.unpack("<d", struct.pack("<q", bits))[0]


def _mu(noise_multiplier: float, compositions: int) -> float:
    return math.sqrt(compositions) / float(noise_multiplier) if noise_multiplier > 0 else math.inf


def _check_epsilon(epsilon: float) -> None:
    if not epsilon > 0:
        raise ValueError(f"epsilon must be > 0, got {epsilon}")


def _check_delta(delta: float) -> None:
    check.within("(0, 1)", delta=delta)
    check.at_least(SMALLEST_DELTA, delta=delta)


def _check_compositions(compositions: int) -> None:
    if compositions != int(compositions) or compositions < 1:
        raise ValueError(f"compositions must be a whole number >= 1, got {compositions}")
