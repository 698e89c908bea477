"""Noise for gradients of sampled batches, where a record is used at most once.

In round k a client draws t_k of its unused learning rows; the sizes t_k are public and fixed. Two
sound accounts of all rounds, the better of which is taken:

    once         No amplification: whatever the batches are, a record moves one message only, so
                 given the batches the run is one Gaussian mechanism, and so is their mixture.
    composition  Of Gaussian mechanisms on batches sampled without replacement at the rates
                 q_k = t_k / unused_k (Rényi bound of Wang, Balle and Kasiviswanathan 2019).

Why composition holds although what is unused stays hidden. Draw the batches in two steps: assign
the other records to all places, the target to one that is never used, and tell the observer; then
exchange the target with a place J drawn uniformly from all n. That is a uniform assignment. Round k
is now a Gaussian f0 around a known mean, shifted to f1 by at most 2G/b if J is in round k. Given
earlier messages J is there with probability θ_k = p_k / (1 - Σ p_j + Σ p_j r_j) <= q_k, where
p_j = t_j/n and the sums run over j < k, with r_j >= 0 a likelihood ratio. Between neighbours θ_k
and f1 differ, but exp((α-1)·Rényi divergence) is jointly convex, so it is largest at a corner of
(θ, θ') in [0, q_k]². At (q_k, q_k) it is what Wang et al. bound; at (q_k, 0) its terms
C(α, j) q^j E0[(r - 1)^j] are each at most theirs.

The paper keeps the number of new rows random and divides by it. It is then known to the observer,
and given it the sampling rate is not the 1/(2K) that the proof uses but t_k / unused_k.
"""

import math
from functools import cache

import dp_accounting
import numpy as np
from dp_accounting.rdp import RdpAccountant
from scipy.optimize import brentq

from train_distributed import accounting

_RESOLUTION = 10**9  # a rate as a fraction of integers, rounded up
_PRECISION = 1e-3  # of the noise, relative; rounded up
# Above 256 dp-accounting only has a loose bound: below ε of about .04 `once` is what remains.
_ORDERS = (2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256)


@cache
def sampled_noise_multiplier(epsilon: float, delta: float, rates: tuple[float, ...]) -> float:
    """The least noise of the two accounts, over the L2 change of one batch mean.

    Args:
        epsilon: ε > 0.
        delta: δ.
        rates: q_k of every round.
    """
    once = accounting.noise_multiplier(epsilon, delta)

    def excess(log_multiplier: float) -> float:
        return math.log(composed_epsilon(math.exp(log_multiplier), delta, rates) / epsilon)

    top = math.log(once)
    if excess(top) > 0:
        return once
    bottom = top - 1
    while excess(bottom) <= 0:
        bottom -= 1
    root: float = brentq(excess, bottom, top, xtol=_PRECISION)  # pyright: ignore
    while excess(root) > 0:  # the root may lie on the wrong side
        root += _PRECISION
    return min(once, math.exp(root))


def composed_epsilon(noise_multiplier: float, delta: float, rates: tuple[float, ...]) -> float:
    """ε of all rounds by composition.

    Of order α, exp((α-1)·divergence) is a polynomial of degree α in the rate with coefficients
    >= 0, so rounds at their rates' power mean of order α bound rounds at those rates (Jensen). Four
    groups of similar rates lose little by it.

    Args:
        noise_multiplier: over the L2 change of one batch mean.
        delta: δ.
        rates: q_k of every round.
    """
    groups = np.array_split(np.sort(rates), 4 if max(rates) > 1.2 * min(rates) else 1)
    found = []
    for order in _ORDERS:
        accountant = RdpAccountant([order], dp_accounting.NeighboringRelation.REPLACE_ONE)
        for group in (group for group in groups if len(group)):
            mean = group.max() * np.mean((group / group.max()) ** order) ** (1 / order)
            event = dp_accounting.SampledWithoutReplacementDpEvent(
                _RESOLUTION,
                min(_RESOLUTION, math.ceil(mean * (1 + 1e-12) * _RESOLUTION)),
                dp_accounting.GaussianDpEvent(noise_multiplier),
            )
            accountant.compose(event, len(group))
        found.append(float(accountant.get_epsilon(delta)))
    return min(found)


def estimate_random_round_delta(
    epsilon: float,
    noise_multiplier: float,
    shares: np.ndarray,
    *,
    draws: int,
    generator: np.random.Generator,
) -> tuple[float, float]:
    """What an exact account of "once, in a random round" might promise: an estimate of δ(ε).

    Monte Carlo over the pair in which the record moves one coordinate of its round's message by ±½
    of the sensitivity. No proof says that this pair is the worst, so nothing is released on it.

    Args:
        epsilon: ε.
        noise_multiplier: over the L2 change of one batch mean.
        shares: (K,) p_k = t_k / n, the chance that a record is used in round k.
        draws: sample size.
        generator: of the draws.

    Returns:
        The estimate and its standard error.
    """
    rounds, never = len(shares), 1 - shares.sum()
    values = np.empty(draws)
    for start in range(0, draws, 4096):
        count = min(4096, draws - start)
        noise = noise_multiplier * generator.standard_normal((count, rounds))
        chosen = generator.choice(rounds + 1, size=count, p=np.append(shares, never))
        hit = chosen < rounds
        noise[np.flatnonzero(hit), chosen[hit]] += 0.5
        # Both densities over that of pure noise are Σ_k p_k exp((±z_k/2 - 1/8)/σ²).
        lift = noise / (2 * noise_multiplier**2)
        shrink = math.exp(-1 / (8 * noise_multiplier**2))
        above = never + shrink * (np.exp(lift) @ shares)
        below = never + shrink * (np.exp(-lift) @ shares)
        values[start : start + count] = np.maximum(0, 1 - math.exp(epsilon) * below / above)
    return float(values.mean()), float(values.std(ddof=1) / math.sqrt(draws))
