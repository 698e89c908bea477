"""Leakage by formula and by attack: the least protection that a budget asks for.

Zhang et al. 2024 (arXiv 2305.18400) measure leakage by

    ε̃_p(g) = 2 C1 − C2 TV(g)                                                             (8)

and ask for the weakest g with ε̃_p(g) ≤ budget, that is TV(g) = τ = (2 C1 − budget) / C2. All
logarithms are natural.

**What is proven.** The triangle inequality gives ε_p ≤ C1 + C2 TV. That is at most (8) only where
C2 TV ≤ C1/2, so the formula is a theorem only for budgets of at least 1.5 C1 — which no protection
meets too, as it leaks exactly C1. Below that it is a heuristic, and is labelled so.

**Two optima differ from the paper's Table 1.** It prints those of Paillier and secret sharing
without the "1 −" in front of (2 C1 − ε)/C2, against its own bounds (18) and (19), which the forms
here solve.

**C1, C2 and the measured leakage** come from how often an attack recovers which record (Algorithms
2 and 3): M models, T attacks on each; f̂(d | w_m) is the share of the S·T reconstructions that are
record d, and a dummy record d0 takes the failures. κ1 is the mean over m, κ2 the same for a *blind*
attack that never saw a gradient. For ξ, and only there, counts are smoothed by 1/2 per record, or
it would be infinite; √JS is finite without, and smoothing would make a sure recovery look like .61
instead of .83 after four attacks.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pretrain import check
from train_distributed.research.protection.mechanisms import FormulaInputs, Mechanism

Label = Literal["unconstrained", "within proof", "heuristic", "infeasible"]
LARGEST_C1 = math.sqrt(math.log(2)) * (1 + 1e-12)  # of √JS in natural logarithms, rounded up
STAKES = np.arange(1, 21) / 20  # shares of the wealth that bettors put on every number
STEPS = 30  # of bisection
SMOOTHING = 0.5  # added to every record's count for ξ, d0 included
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Constants:
    """C1 and C2 of one attacked model.

    Raises:
        ValueError: C1 outside [0, √ln 2] or C2 not finite and >= 0.
    """

    c1: float  # mean over clients of √JS(F^O ‖ F^B)
    c2: float  # (e^{2ξ} − 1)/2

    def __post_init__(self) -> None:
        check.within(f"[0, {LARGEST_C1}]", c1=self.c1)
        check.within("[0, inf)", c2=self.c2)

    def distortion(self, budget: float) -> float:
        """τ, the total variation that the budget asks for: <= 0 none, +inf out of reach."""
        check.within("[0, inf)", budget=budget)
        short = 2 * self.c1 - budget
        if self.c2 == 0:
            return 0.0 if short <= 0 else math.inf
        return short / self.c2

    def label(self, budget: float, mechanism: type[Mechanism]) -> Label:
        """Worth of the formula for a mechanism at a budget."""
        tau = self.distortion(budget)
        if tau <= 0:
            return "unconstrained"
        if not mechanism.reaches(tau):
            return "infeasible"
        return "within proof" if budget >= 1.5 * self.c1 else "heuristic"

    def solve(self, budget: float, mechanism: type[Mechanism], facts: FormulaInputs) -> "Optimum":
        """The weakest parameter of a mechanism that (8) lets meet the budget.

        Raises:
            ValueError: the budget is not finite or negative.

        Examples:
            >>> from train_distributed.research.protection.mechanisms import Sparsification
            >>> optimum = Constants(c1=0.5, c2=2.0).solve(0.4, Sparsification, FormulaInputs(10))
            >>> optimum.label, round(optimum.tau, 3), round(optimum.parameter, 4)
            ('heuristic', 0.3, 0.965)
        """
        tau, label = self.distortion(budget), self.label(budget, mechanism)
        if label in ("unconstrained", "infeasible"):
            return Optimum(mechanism.name, label, tau, None)
        return Optimum(mechanism.name, label, tau, mechanism.log_parameter(tau, facts))

    def require_reachable(self, budget: float, mechanisms: Sequence[type[Mechanism]]) -> None:
        """Refuses a budget that none of the mechanisms can meet by (8).

        Raises:
            ValueError: naming the least budget that is reachable.
        """
        if all(self.label(budget, each) == "infeasible" for each in mechanisms):
            least = max(0.0, 2 * self.c1 - self.c2 * max(each.reach for each in mechanisms))
            raise ValueError(
                f"budget must be >= {least:.6g}, the least that any "
                f"mechanism reaches by 2 C1 - C2 TV with C1 = {self.c1:.6g}, C2 = {self.c2:.6g}, "
                f"got {budget}"
            )


@dataclass(frozen=True)
class Optimum:
    """A mechanism's parameter by the formula."""

    mechanism: str
    label: Label
    tau: float  # TV asked for
    log_parameter: float | None  # ln g*, −inf for compression that sends nothing; None: no choice

    @property
    def parameter(self) -> float | None:
        """g* itself: noise variance, n, r or ρ; None where there is nothing to choose."""
        return None if self.log_parameter is None else math.exp(self.log_parameter)


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
    check.within("(0, 1)", confidence=confidence)
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


@dataclass(frozen=True, eq=False)
class Recoveries:
    """Records that an attack recovered.

    Raises:
        ValueError: not a boolean array of four non-empty dimensions.
    """

    hits: NDArray[np.bool_]  # (K clients, M models, T attacks, S records)
    shared: bool = True  # whether all attacks on one model share it; blind ones share nothing

    def __post_init__(self) -> None:
        if self.hits.ndim != 4 or self.hits.dtype != np.bool_ or not self.hits.size:
            raise ValueError(
                f"hits must be non-empty boolean (K, M, T, S), got {self.hits.dtype} "
                f"{self.hits.shape}"
            )

    @property
    def rate(self) -> float:
        """Share of records recovered."""
        return float(self.hits.mean())

    @property
    def shares(self) -> NDArray[np.float64]:
        """(K, S + 1) mean over models of f̂(d | w_m); the last entry is d0's."""
        found = self.hits.mean((1, 2)) / self.hits.shape[3]
        return np.concatenate([found, 1 - found.sum(1, keepdims=True)], 1)

    @property
    def beliefs(self) -> NDArray[np.float64]:
        """(K, M, S + 1) smoothed f̂(d | w_m); the last entry is d0's."""
        _, _, attacks, records = self.hits.shape
        counts = self.hits.sum(2, dtype=np.float64)
        missed = attacks * records - counts.sum(2, keepdims=True)
        counts = np.concatenate([counts, missed], 2) + SMOOTHING
        return counts / counts.sum(2, keepdims=True)

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """For the rate on these records, whatever depends on what within one model."""
        each = self.hits.mean((0, 2, 3)) if self.shared else self.hits.mean(3).ravel()
        return mean_interval(each, confidence)


@dataclass(frozen=True)
class Leakage:
    """ε_p = mean over clients of √JS(F^A ‖ F^B), measured, natural logarithms."""

    value: float
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
    """Measures a leakage, and an interval that holds it at 95 %, however clients differ.

    With p the rate of the attack, q of the blind one, both means over clients, and g the least
    concave function above √JS between a coin of rate t and one that never falls:

        |p - q|/√2 <= mean over clients of √JS <= g(p + q).

    Left: Pinsker, JS >= TV²/2. Right: of all P and Q with such totals those that share no record
    are furthest apart, there JS is at most that of a coin of rate p + q as x ln x is convex, and
    the mean over clients is Jensen's inequality.
    """
    value = float(root_js(attack.shares, blind.shares).mean())
    each = (1 + CONFIDENCE) / 2  # of two intervals, which hold together at CONFIDENCE
    (low, high), (_, blind_high) = attack.interval(each), blind.interval(each)
    least = max(0.0, low - blind_high) / math.sqrt(2)
    most = _concave(min(1.0, high + blind_high))
    return Leakage(value, least, most, attack.rate, *attack.interval())


def constants(attack: Recoveries, blind: Recoveries) -> Constants:
    """C1 and C2 of the unprotected attack.

    ξ is the largest |ln f̂(d | w_m)/κ2(d)| over clients, records and models: the paper's w* is the
    model that leaks most (Assumption 7.1).
    """
    c1 = root_js(attack.shares, blind.shares).mean()
    prior = blind.beliefs.mean(1, keepdims=True)
    xi = np.abs(np.log(attack.beliefs / prior)).max()
    return Constants(float(c1), float(np.expm1(2 * xi) / 2))


def root_js(p: NDArray[np.float64], q: NDArray[np.float64]) -> NDArray[np.float64]:
    """√JS(p ‖ q) over the last dimension, natural logarithms: in [0, √ln 2]."""
    p, q = np.broadcast_arrays(p, q)
    middle = (p + q) / 2
    return np.sqrt(np.maximum(0.0, (_kl(p, middle) + _kl(q, middle)) / 2))


def _concave(rate: float) -> float:
    """The least concave function above √JS of coins: a chord to rate 1 where the curve bends up."""
    start = np.append(np.linspace(0, rate, 4096, endpoint=False), rate)
    curve = root_js(np.stack([start, 1 - start], 1), np.array([0.0, 1.0]))
    if rate == 1:
        return float(curve[-1])
    return float(
        ((curve * (1 - rate) + math.sqrt(math.log(2)) * (rate - start)) / (1 - start)).max()
    )


def _kl(p: NDArray[np.float64], middle: NDArray[np.float64]) -> NDArray[np.float64]:
    ratio = np.divide(p, middle, out=np.ones_like(p), where=p > 0)
    return (p * np.log(ratio)).sum(-1)
