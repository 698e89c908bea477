"""A confidence interval for a mean of independent numbers in [0, 1], valid at every sample size."""

import math

import numpy as np
from numpy.typing import NDArray

STAKES = np.arange(1, 21) / 20  # shares of the wealth that bettors put on every number
STEPS = 30  # of bisection


def mean_interval(values: NDArray[np.float64], confidence: float) -> tuple[float, float]:
    """Both ends for the mean of the numbers' expectations; nothing else is assumed of them.

    By betting (Waudby-Smith and Ramdas 2024): were the mean m, then 1 - s (x - m)/(1 - m), s in
    [0, 1], would be on average 1, and so would the mean over stakes s of their products. A product
    of 1/tail has a chance of at most tail (Markov), so every m that yields more is excluded. It
    narrows where the numbers vary little, as success rates over models do, and needs no
    approximation for rates of 0 and 1.

    Args:
        values: (n,) independent, in [0, 1].
        confidence: 1 - 2·tail.

    Raises:
        ValueError: no values, one outside [0, 1], or a confidence outside (0, 1).
    """
    if not len(values) or not (0 <= values.min() <= values.max() <= 1):
        raise ValueError(f"values must be in [0, 1], at least one, got {values}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be in (0, 1), got {confidence}")
    tail = (1 - confidence) / 2
    return 1 - _upper(1 - values, tail), _upper(values, tail)


def _upper(values: NDArray[np.float64], tail: float) -> float:
    """The least m that is excluded, rounded up; wealth grows with m. 1 where every value is."""
    if values.min() == 1:
        return 1.0
    distinct, counts = np.unique(values, return_counts=True)
    low, high = float(values.mean()), 1.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        if _log_wealth(distinct, counts, middle) < -math.log(tail):
            low = middle
        else:
            high = middle
    return high


def _log_wealth(values: NDArray[np.float64], counts: NDArray[np.int64], mean: float) -> float:
    gains = 1 - STAKES[:, None] * (values - mean) / (1 - mean)
    with np.errstate(divide="ignore"):  # everything staked and lost
        wealth = np.log(np.maximum(gains, 0)) @ counts
    return float(np.logaddexp.reduce(wealth) - math.log(len(STAKES)))
