"""Noise for gradients of sampled batches, where a record is used at most once.

In round k a client draws t_k of its unused learning rows; the sizes t_k are public and fixed, and
not all n learning rows are used. Two sound accounts of all rounds, the better of which is taken:

    once         No amplification: whatever the batches are, a record moves one message only, so
                 given the batches the run is one Gaussian mechanism, and so is their mixture.
    composition  Of Gaussian mechanisms on batches sampled without replacement at the rates
                 q_k = t_k / unused_k.

Why composition holds although what is unused stays hidden. Draw the batches in two steps: assign
the other records to all places, the target to one that is never used, and tell the observer; then
exchange the target with a place J drawn uniformly from all n. That is a uniform assignment, and
telling more cannot make it more private: the divergence is jointly convex. Round k is now a
Gaussian r around a known mean, or a Gaussian p at most 2G/b away if J is in round k (a mixture of
t_k of them: J is uniform there, whatever was sent before). Given earlier messages J is in round k
with probability θ_k = p_k / (1 - Σ p_j + Σ p_j r_j) <= q_k, where p_j = t_j/n and the sums run over
j < k, with r_j >= 0 a likelihood ratio. Between neighbours both θ_k and p differ; `moments` bounds
the divergence of a round over all θ_k, θ'_k in [0, q_k], whatever the earlier messages are, and
Rényi divergences so bounded add up.

The paper keeps the number of new rows random and divides by it. It is then known to the observer,
and given it the sampling rate is not the 1/(2K) that the proof uses but t_k / unused_k.
"""

import math
from functools import cache

import numpy as np

from pretrain import check
from train_distributed import accounting
from train_distributed.research.rivals.charter import renyi

_PRECISION = 1e-3  # of the noise, relative; rounded up
_ORDERS = (2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256)
_HIGH_ORDERS = (320, 384, 512, 640, 768, 1024)  # small ε
ORDERS = _ORDERS + _HIGH_ORDERS


@cache
def sampled_noise_multiplier(epsilon: float, delta: float, rates: tuple[float, ...]) -> float:
    """The least noise of the two accounts, over the L2 change of one batch mean.

    Args:
        epsilon: ε > 0.
        delta: δ.
        rates: q_k of every round.
    """
    once = accounting.noise_multiplier(epsilon, delta)
    if max(rates) >= 1:  # no place is left unused
        return once

    def enough(log_multiplier: float) -> bool:
        return composed_epsilon(math.exp(log_multiplier), delta, rates) <= epsilon

    high = math.log(once)
    if not enough(high):
        return once
    low = high - 1
    while enough(low):
        low, high = low - 1, low
    while high - low > _PRECISION:
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return min(once, math.exp(high))


def composed_epsilon(noise_multiplier: float, delta: float, rates: tuple[float, ...]) -> float:
    """ε of all rounds by composition.

    Of order α, exp((α-1)·divergence) is a polynomial of degree α in the rate with coefficients
    >= 0, so rounds at their rates' power mean of order α bound rounds at those rates (Jensen). Four
    groups of similar rates lose little by it.

    Args:
        noise_multiplier: over the L2 change of one batch mean.
        delta: δ.
        rates: q_k < 1 of every round.

    Raises:
        ValueError: a rate outside (0, 1).
    """
    check.within("(0, 1)", least_rate=min(rates), largest_rate=max(rates))
    groups = np.array_split(np.sort(rates), 4 if max(rates) > 1.2 * min(rates) else 1)
    largest = renyi.largest_order(noise_multiplier, _HIGH_ORDERS[-1])
    found = math.inf
    for orders in (_ORDERS, _HIGH_ORDERS):
        reached = [order for order in orders if order <= largest]
        if not reached:
            break
        table = renyi.log_moments(noise_multiplier, reached[-1])
        best = min((_epsilon(order, table, groups, delta), order) for order in reached)
        found = min(found, best[0])
        if best[1] < _ORDERS[-1]:
            break
    return found


def _epsilon(order: int, table: renyi.Vector, groups: list[np.ndarray], delta: float) -> float:
    """ε at δ of rounds of known Rényi divergence (Canonne, Kamath and Steinke 2020, Prop. 12)."""
    total = 0.0
    for group in (group for group in groups if len(group)):
        mean = group.max() * np.mean((group / group.max()) ** order) ** (1 / order)
        total += len(group) * renyi.log_divergence(order, mean * (1 + 1e-12), table)
    spent = total - math.log(delta * order)
    return max(0.0, spent / (order - 1) + math.log1p(-1 / order))
