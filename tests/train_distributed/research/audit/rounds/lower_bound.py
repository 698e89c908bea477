"""Lower bound of ε that exact privacy losses of two samples prove."""

import math

import numpy as np
from torch import Tensor

from train_distributed.research.audit.attack import power_and_size


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


def _bound(
    first: np.ndarray, second: np.ndarray, cut: float, delta: float, confidence: float
) -> float:
    hits, false = int((first > cut).sum()), int((second > cut).sum())
    power, size = map(float, power_and_size(hits, len(first), false, len(second), confidence))
    if not power > delta:
        return -math.inf
    return math.log((power - delta) / size) if size > 0 else math.inf
