"""Tight Rényi bound between a batch with a record and the same batch with another.

A round's message is Gaussian around a mean that is a if the record is elsewhere, a + u if the
record is in the batch, a + v if its replacement is, where ‖u‖, ‖v‖ and ‖u - v‖ are at most Δ. Let
r, p, p' be the three densities, P = (1-θ) r + θ p and P' = (1-θ') r + θ' p' with θ, θ' in [0, q].
Then for whole α >= 2

    ∫ P^α P'^(1-α) <= 1 + Σ_{j=2..α} C(α, j) q^j T_j,    T_j >= sup over u, v of E_r |(p - p')/r|^j.

Proof. The left side is jointly convex in (P, P'), hence convex in (θ, θ'), hence largest at a
corner of [0, q]². At (q, q) expand P = P' + q (p - p') in powers of q; E_P' |(p - p')/P'|^j is
convex in P', so it is largest at P' = r, which is T_j, or at P' = p', which is T_j with u' = 0 and
v' = u - v. At (q, 0) and (0, q) likewise with r in place of p' and of p. The term j = 1 vanishes.
(Theorem 9 of Wang, Balle and Kasiviswanathan 2019 is the corner (q, q) for any mechanism.)

T_j for even j is exact. Let a = ‖u‖², b = ‖v‖², c = u·v in units of σ², p and p' stand for p/r and
p'/r, and M(a, b, c) = E_r (p - p')^j, a sum of exponentials of linear functions of a, b, c:

    ∂M/∂c = -j(j-1) E_r[p p' (p - p')^(j-2)] <= 0,  so ‖u - v‖ = Δ: c = (a + b - s)/2, s = Δ²/σ².
    (If ‖u‖ + ‖v‖ < Δ forbids that, u and v are opposite; longer ones have a larger M, since a
    contraction and noise lead back and |p - p'|^j r^(1-j) is jointly convex.)
    Along this, dM/da = ½ j(j-1) E_r[p (p - p')^(j-1)] has the sign of s + (j-1)(a - b): it is the
    mean of an odd increasing function, sinh^(j-1), of a Gaussian whose mean has that sign.

So M grows with the larger of a and b, which is s at the maximum; as the other goes from 0 to s, M
falls, then rises, and is largest at an end. With X ~ N(0, s) and Y ~ N((j-1) s/2, s) the ends are

    a = 0:  E_r (1 - p')^j = exp(s (j² - 2j)/8) E (2 sinh Y/2)^j
    a = s:  E_r (p - p')^j = exp(s (3j² - 4j)/8) E (2 sinh X/2)^j       (an equilateral triangle)

For odd j the Cauchy-Schwarz inequality gives T_j <= √(T_{j-1} T_{j+1}), and p^j + p'^j bounds
|p - p'|^j: T_j <= 2 exp(s j(j-1)/2).
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

Vector = NDArray[np.float64]

_STEP = 0.05  # of the trapezoidal rule, in standard deviations
_SLACK = 1e-9  # relative, added to every T_j: far above the rounding of the sums


def largest_order(noise_multiplier: float, wanted: int) -> int:
    """The highest order up to `wanted` at which `log_moments` is exact to its slack.

    The rule errs by at most exp(-2π²/step²) = e^-7895 of E (2 cosh X/2)^j, by Poisson's summation
    formula, and (2 sinh)^j is on average at least s^(j/2).
    """
    s = noise_multiplier**-2
    per_order = math.log(2) + s / 8 + max(0.0, -math.log(s) / 2)
    return min(wanted, int(7000 / per_order) - 2, int(200 / math.sqrt(s)) + 2)


def log_moments(noise_multiplier: float, largest: int) -> Vector:
    """(largest + 1,) ln T_j, -inf at j = 0 and 1.

    Args:
        noise_multiplier: σ/Δ.
        largest: the last j, at most `largest_order`.
    """
    s = noise_multiplier**-2
    even = np.arange(2.0, largest + 3, 2)
    triangle = s * (3 * even**2 - 4 * even) / 8 + _log_sinh_moment(even, 0 * even, s)
    line = s * (even**2 - 2 * even) / 8 + _log_sinh_moment(even, (even - 1) * s / 2, s)
    found = np.full(2 * len(even) + 1, -np.inf)
    found[2::2] = np.maximum(triangle, line)
    found[3::2] = (found[2:-1:2] + found[4::2]) / 2
    orders = np.arange(len(found))
    found[2:] = np.minimum(found, math.log(2) + s * orders * (orders - 1) / 2)[2:]
    return found[: largest + 1] + _SLACK


def log_divergence(order: int, rate: float, moments: Vector) -> float:
    """Logarithm of the bound on ∫ P^α P'^(1-α); over α - 1 it bounds the Rényi divergence.

    Args:
        order: α >= 2.
        rate: q.
        moments: ln T_j for j up to α at least.
    """
    j = np.arange(2, order + 1)
    binomial = gammaln(order + 1) - gammaln(j + 1) - gammaln(order - j + 1)
    terms = binomial + j * math.log(rate) + moments[2 : order + 1]
    return float(np.logaddexp(0, logsumexp(terms)))


def _log_sinh_moment(even: Vector, mean: Vector, variance: float) -> Vector:
    """ln E (2 sinh X/2)^j for X ~ N(mean_j, variance) by the trapezoidal rule, for every even j."""
    std = math.sqrt(variance)
    reach = even.max() * std + math.sqrt(even.max()) + 40
    z = np.arange(-reach, reach, _STEP)
    normal = -(z**2) / 2 - math.log(2 * math.pi) / 2 + math.log(_STEP)
    found = np.empty(len(even))
    for row, (power, centre) in enumerate(zip(even, mean, strict=True)):
        half = np.abs(centre + std * z) / 2
        with np.errstate(divide="ignore"):  # ln 0 where the sinh vanishes
            log_sinh = half + np.log(-np.expm1(-2 * half))
        found[row] = logsumexp(power * log_sinh + normal)
    return found
