"""C1, C2 and the measured leakage from how often an attack recovers which record.

Algorithms 2 and 3 of Zhang et al. 2024: M models, T attacks on each; f̂(d | w_m) is the share of
the S·T reconstructions that are record d, and a dummy record d0 takes the failures. κ1 is the mean
over m, κ2 the same for a *blind* attack that never saw a gradient. Counts are smoothed by 1/2 per
record, or ξ would be infinite. Smoothing pulls leakage down when S·T is small; the interval of
`Leakage` therefore comes from unsmoothed success rates.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from train_distributed.protection.closed_forms import Constants

SMOOTHING = 0.5  # added to every record's count, d0 included
CONFIDENCE = 0.95


@dataclass(frozen=True, eq=False)
class Recoveries:
    """Which records an attack recovered.

    Raises:
        ValueError: not a boolean array of four non-empty dimensions.
    """

    hits: NDArray[np.bool_]  # (K clients, M models, T attacks, S records)
    independent: int  # (client, model) pairs whose attacks share nothing

    def __post_init__(self) -> None:
        if self.hits.ndim != 4 or self.hits.dtype != np.bool_ or not self.hits.size:
            raise ValueError(
                f"hits must be non-empty boolean (K, M, T, S), got {self.hits.dtype} "
                f"{self.hits.shape}"
            )
        if self.independent < 1:
            raise ValueError(f"independent must be >= 1, got {self.independent}")

    @property
    def rate(self) -> float:
        """Share of records recovered."""
        return float(self.hits.mean())

    @property
    def beliefs(self) -> NDArray[np.float64]:
        """(K, M, S + 1) smoothed f̂(d | w_m); the last entry is d0's."""
        _, _, attacks, records = self.hits.shape
        counts = self.hits.sum(2, dtype=np.float64)
        missed = attacks * records - counts.sum(2, keepdims=True)
        counts = np.concatenate([counts, missed], 2) + SMOOTHING
        return counts / counts.sum(2, keepdims=True)

    @property
    def interval(self) -> tuple[float, float]:
        """Clopper-Pearson at 95 % for the rate, counting independent pairs only.

        The attacks on one model share it, so they count as one observation of their mean.
        """
        records = self.hits.shape[3]
        trials, tail = self.independent * records, (1 - CONFIDENCE) / 2
        found = self.rate * trials
        low = 0.0 if found == 0 else float(beta.ppf(tail, found, trials - found + 1))
        high = 1.0 if found == trials else float(beta.ppf(1 - tail, found + 1, trials - found))
        return low, high


@dataclass(frozen=True)
class Leakage:
    """ε_p = mean over clients of √JS(F^A ‖ F^B), measured, natural logarithms."""

    value: float  # of smoothed beliefs, as C1
    low: float
    high: float
    rate: float  # share of records recovered
    rate_low: float
    rate_high: float

    def meets(self, budget: float) -> str:
        """Whether the budget is met: "yes" or "no" where the interval says so, else "open"."""
        if self.high <= budget:
            return "yes"
        return "no" if self.low > budget else "open"


def leakage(attack: Recoveries, blind: Recoveries) -> Leakage:
    """Measures a leakage, and the interval that its success rates allow.

    The interval is that of √JS between two coins, recovered or not, with rates at the ends of
    their own intervals: merging records into a coin never raises JS, so `high` covers records that
    are equally easy, and it is widened to hold `value`.
    """
    value = float(root_js(attack.beliefs.mean(1), blind.beliefs.mean(1)).mean())
    (low, high), (blind_low, blind_high) = attack.interval, blind.interval
    least = _coins(low, blind_high) if low > blind_high else 0.0
    most = max(_coins(high, blind_low), _coins(low, blind_high))
    return Leakage(value, min(value, least), max(value, most), attack.rate, low, high)


def constants(attack: Recoveries, blind: Recoveries) -> Constants:
    """C1 and C2 of the unprotected attack.

    ξ is the largest |ln f̂(d | w_m)/κ2(d)| over clients, records and models: the paper's w* is the
    model that leaks most (Assumption 7.1).
    """
    c1 = root_js(attack.beliefs.mean(1), blind.beliefs.mean(1)).mean()
    prior = blind.beliefs.mean(1, keepdims=True)
    xi = np.abs(np.log(attack.beliefs / prior)).max()
    return Constants(float(c1), float(np.expm1(2 * xi) / 2))


def root_js(p: NDArray[np.float64], q: NDArray[np.float64]) -> NDArray[np.float64]:
    """√JS(p ‖ q) over the last dimension, natural logarithms: in [0, √ln 2]."""
    p, q = np.broadcast_arrays(p, q)
    middle = (p + q) / 2
    return np.sqrt(np.maximum(0.0, (_kl(p, middle) + _kl(q, middle)) / 2))


def c1_error(attack: Recoveries) -> float:
    """The error bound of Theorem 7.1 on Ĉ1 that holds with probability 95 %; inf where vacuous.

    Lemma C.1: |κ̂1 − κ1| ≤ ε κ1 for all records with probability 1 − 2 Σ_d exp(−ε² T κ1(d)/3), here
    with the M·T attacks on a client, treated as independent as the lemma does, and κ̂1 for κ1.
    """
    beliefs = attack.beliefs.mean(1)
    trials = attack.hits.shape[1] * attack.hits.shape[2]
    low, high = 0.0, 1.0
    for _ in range(60):  # the least ε at which the lemma says 95 % for every client
        middle = (low + high) / 2
        failing = 2 * np.exp(-(middle**2) * trials * beliefs / 3).sum(1).max()
        low, high = (low, middle) if failing <= 1 - CONFIDENCE else (middle, high)
    return math.inf if high >= 1 - 1e-9 else theorem_7_1(high)


def theorem_7_1(relative: float) -> float:
    """|Ĉ1 − C1| at a relative error ε of κ̂1, eq. (28).

    Raises:
        ValueError: ε outside [0, 1).
    """
    if not 0 <= relative < 1:
        raise ValueError(f"relative must be in [0, 1), got {relative}")
    first = (1 + relative) * (math.log1p(relative) - math.log1p(-relative)) / 2
    second = (relative + max(math.log1p(relative), -math.log1p(-relative))) / 2
    return math.sqrt(first + second)


def _coins(p: float, q: float) -> float:
    return float(root_js(np.array([p, 1 - p]), np.array([q, 1 - q])))


def _kl(p: NDArray[np.float64], middle: NDArray[np.float64]) -> NDArray[np.float64]:
    ratio = np.divide(p, middle, out=np.ones_like(p), where=p > 0)
    return (p * np.log(ratio)).sum(-1)
