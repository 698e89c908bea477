"""Lower bounds of ε that samples prove."""

import math

import numpy as np
from scipy.stats import beta, norm
from torch import Tensor

from train_distributed import accounting

Counts = int | np.ndarray


def epsilon_below(
    first: Tensor, second: Tensor, delta: float, *, confidence: float = 0.999
) -> float:
    """A lower bound of ε at δ from losses drawn under either data set; at least 0.

    The threshold comes from one half of the draws and the Clopper-Pearson bounds from the other, so
    they hold at the stated confidence.

    Args:
        first: (R,) losses with the first data set as truth.
        second: (R,) with the second.
        delta: δ.
        confidence: of the bound.

    Examples:
        >>> import torch
        >>> losses = torch.linspace(-1, 1, 1000)
        >>> epsilon_below(losses, losses, delta=1e-5)
        0.0
    """
    halves = [losses.numpy().reshape(2, -1) for losses in (first, second)]
    thresholds = np.quantile(halves[0][0], np.linspace(0.02, 0.995, 79))
    tuned = [_bound(halves[0][0], halves[1][0], cut, delta, confidence) for cut in thresholds]
    cut = thresholds[int(np.argmax(tuned))]
    return max(0.0, _bound(halves[0][1], halves[1][1], cut, delta, confidence))


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


def _bound(
    first: np.ndarray, second: np.ndarray, cut: float, delta: float, confidence: float
) -> float:
    hits, false = int((first > cut).sum()), int((second > cut).sum())
    power, size = power_and_size(hits, len(first), false, len(second), confidence)
    return _one_sided(float(power), float(size), delta)


def _one_sided(yes: float, no: float, delta: float) -> float:
    if not yes > delta:
        return -math.inf
    return math.log((yes - delta) / no) if no > 0 else math.inf
