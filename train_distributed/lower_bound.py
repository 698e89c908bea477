"""What samples prove about a guarantee: ε is at least this much."""

import math

import numpy as np
from scipy.stats import beta
from torch import Tensor


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
    """
    halves = [losses.numpy().reshape(2, -1) for losses in (first, second)]
    thresholds = np.quantile(halves[0][0], np.linspace(0.02, 0.995, 79))
    tuned = [_bound(halves[0][0], halves[1][0], cut, delta, confidence) for cut in thresholds]
    cut = thresholds[int(np.argmax(tuned))]
    return max(0.0, _bound(halves[0][1], halves[1][1], cut, delta, confidence))


def _bound(
    first: np.ndarray, second: np.ndarray, cut: float, delta: float, confidence: float
) -> float:
    miss = (1 - confidence) / 2
    hits, false = int((first > cut).sum()), int((second > cut).sum())
    power = float(beta.ppf(miss, hits, len(first) - hits + 1)) if hits else 0.0
    size = float(beta.ppf(1 - miss, false + 1, len(second) - false)) if false < len(second) else 1.0
    return math.log((power - delta) / size) if power > delta else -math.inf
