"""Lower bounds of ε that samples prove."""

import math

import numpy as np
from scipy.stats import beta, norm

from train_distributed import accounting

Counts = int | np.ndarray


def power_and_size(
    hits: Counts, trials: int, false: Counts, false_trials: int, confidence: float
) -> tuple[np.ndarray, np.ndarray]:
    """(least power, largest size) of a test, or of each of n, jointly at this confidence.

    One-sided intervals of Clopper and Pearson (1934), each missed with chance (1 − confidence)/2:
    exact for every number of trials.

    Args:
        hits: how often the test says "first" where that is true.
        trials: how often it was asked there.
        false: how often it says "first" where the second is true.
        false_trials: how often it was asked there.
        confidence: of both together.

    Returns:
        Twice (n,) of (n,) counts, twice () of a single test.
    """
    miss = (1 - confidence) / 2
    powers = beta.ppf(miss, np.maximum(hits, 1), trials - hits + 1)
    sizes = beta.isf(miss, false + 1, np.maximum(false_trials - false, 1))
    return (
        np.where(np.greater(hits, 0), powers, 0.0),
        np.where(np.less(false, false_trials), sizes, 1.0),
    )


def epsilon_of_test(power: float, size: float, delta: float) -> float:
    """The ε that a test of at least this power and at most this size rules out, at least 0.

    (ε, δ) promises power ≤ e^ε size + δ, and as much with the two data sets exchanged
    (Kairouz, Oh and Viswanath 2015).
    """
    sides = ((power, size), (1 - size, 1 - power))
    return max(0.0, *(_one_sided(yes, no, delta) for yes, no in sides))


def gaussian_epsilon(power: float, size: float, delta: float) -> float:
    """The ε at δ of the weakest Gaussian mechanism that admits a test of this power and size.

    μ-Gaussian privacy promises Φ⁻¹(power) − Φ⁻¹(size) ≤ μ (Dong, Roth and Su 2022), so a promise
    made with the Gaussian curve is broken where this exceeds it; other promises need not be
    (Nasr et al. 2023, Sec. 4).
    """
    mu = float(norm.ppf(power) - norm.ppf(size))
    if not mu > 0:
        return 0.0
    return accounting.epsilon(delta, 1 / mu) if math.isfinite(mu) else math.inf


def _one_sided(yes: float, no: float, delta: float) -> float:
    if not yes > delta:
        return -math.inf
    return math.log((yes - delta) / no) if no > 0 else math.inf
