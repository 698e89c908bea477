"""Estimates from the noisy sums of an evaluation: shares with their confidence intervals.

Two things are random: which rows were held out (T of N right answers is binomial, with the design
effect D ≥ 1 of rows that come in clusters), and the noise, Gaussian of known standard deviation.
What is noted of an interval here was tried by simulation, in
`tests/train_distributed/released/`.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc, gammaln, ndtr, ndtri, xlog1py, xlogy
from torch import Tensor

from pretrain import check
from train_distributed.one_shot.metrics import few_classes, shifted
from train_distributed.released.evaluation import Evaluation
from train_distributed.released.numbers import percent, percent_range

WIDE = 12  # standard deviations of a binomial beyond which its terms do not count
FEW = 4.0  # standard deviations of noise: of fewer rows nothing is said
HALVINGS = 34  # of the range of a share
DRAWS, SEED = 20_000, 0  # of a sum of absolute values, for its quantile
Sampling = Literal["rows", "users"]
LEAST_CONFIDENCE, MOST_CONFIDENCE = 0.5, 0.999


@dataclass(frozen=True)
class Interval:
    """A share with the bounds between which it lies at the stated confidence."""

    low: float
    high: float
    estimate: float | None  # None: the rows do not say

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high <= 1:
            raise ValueError(f"an interval must lie in [0, 1], got [{self.low}, {self.high}]")

    @property
    def value(self) -> str:
        """The share in words."""
        return "too few rows" if self.estimate is None else percent(self.estimate)

    @property
    def ends(self) -> str:
        """Both ends in words."""
        return percent_range(self.low, self.high)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {"estimate": self.estimate, "low": self.low, "high": self.high}


def proportion(
    count: float, rows: int, noise_std: float, *, confidence: float, design_effect: float = 1.0
) -> Interval:
    """The share of right answers, from their noisy number among `rows`.

    The tests "as many or more" and "as few or less" of binomial plus Gaussian noise, inverted:
    without noise the interval of Clopper and Pearson (1934). Never covers less often than stated.

    Args:
        count: T + N(0, noise_std²).
        rows: N, known exactly.
        noise_std: of the noise in `count`, >= 0.
        confidence: in (0, 1).
        design_effect: D; as many independent rows as N/D.
    """
    trials = max(1, math.floor(rows / design_effect))
    seen, std = count * trials / rows, noise_std * trials / rows
    miss = (1 - confidence) / 2

    low = _least(seen, trials, std, miss)
    high = max(low, 1 - _least(trials - seen, trials, std, miss))
    return Interval(low, high, min(max(count / rows, low), high))


@dataclass(frozen=True)
class ClassRecalls:
    """The shares hits/(hits + misses) of several classes, where both are noisy.

    Fieller (1954): a share r is possible where (1 − r) hits − r misses, zero on average, is not too
    far from zero. Its variance is (1 − r)² a + r² b of the noise plus D n r(1 − r) of the rows, n
    as estimated; a whole row, D of them in clusters, is allowed for counts being whole numbers.
    Limits may lie beyond [0, 1], where the rows' part is none.

    Where the number of rows is less than `FEW` times its noise nothing is said of a class.
    """

    estimates: NDArray[np.float64]  # (k,) without the bias (r (a + b) − a)/n² of a ratio
    low: NDArray[np.float64]  # (k,)
    high: NDArray[np.float64]  # (k,)
    known: NDArray[np.bool_]  # (k,)
    rows: NDArray[np.float64]  # (k,) n, estimated

    @classmethod
    def of(
        cls,
        hits: ArrayLike,
        misses: ArrayLike,
        variances: tuple[float, float],
        *,
        confidence: float,
        design_effect: float = 1.0,
    ) -> "ClassRecalls":
        """Recalls from (k,) right and (k,) wrong answers with noise of variances a and b."""
        hit, rows = np.asarray(hits, float), np.add(hits, misses, dtype=float)
        a, b = variances
        known = rows > max(FEW * math.sqrt(a + b), 0.5)
        n = np.where(known, rows, 1.0)
        share = hit / n
        limits = [
            _fieller(hit + side * design_effect, n, a, b, design_effect * n, side, confidence)
            for side in (-1, 1)
        ]
        return cls(
            estimates=share - (share * (a + b) - a) / n**2,
            low=np.minimum(limits[0], share),
            high=np.maximum(limits[1], share),
            known=known,
            rows=rows,
        )

    def intervals(self) -> list[Interval]:
        """One by one, each at the stated confidence."""
        limits = (np.clip(each, 0, 1) for each in (self.low, self.high, self.estimates))
        return [
            Interval(float(low), float(high), float(min(max(middle, low), high)))
            if known
            else Interval(0.0, 1.0, None)
            for low, high, middle, known in zip(*limits, self.known, strict=True)
        ]

    def mean(self) -> Interval:
        """Mean of all classes alike, at the stated confidence.

        Distances of limits from shares add up in squares (MOVER, Zou and Donner 2008), for classes
        are independent. A class of which nothing is known may have any share.
        """
        middle = self.estimates[self.known]
        share = np.clip(middle, self.low[self.known], self.high[self.known])
        down, up = (math.hypot(*(each[self.known] - share)) for each in (self.low, self.high))
        unknown, classes = int((~self.known).sum()), len(self.known)
        low, high = np.clip([share.sum() - down, share.sum() + up], 0, len(share)) / classes
        high += unknown / classes
        estimate = None if unknown else float(min(max(middle.mean(), low), high))
        return Interval(float(low), float(high), estimate)


def absolute_sum(
    gaps: NDArray[np.float64], stds: NDArray[np.float64], rows: int, *, confidence: float
) -> Interval:
    """Σ|D_b| / rows from D_b + e_b, e_b Gaussian: (k,) gaps with their (k,) standard deviations.

    Noise in a gap makes it look larger, so the bounds differ. With the true signs t,
    Σ|D_b + e_b| ≥ Σ|D_b| + Σ t_b e_b, whose last sum is Gaussian: the upper bound. And
    Σ|D_b + e_b| ≤ Σ|D_b| + Σ|e_b|: the lower. The estimate takes from each squared gap what noise
    adds to it.
    """
    miss = (1 - confidence) / 2
    seen = float(np.abs(gaps).sum())
    drawn = np.abs(np.random.default_rng(SEED).standard_normal((DRAWS, len(gaps)))) @ stds
    low = seen - float(np.quantile(drawn, 1 - miss))
    high = seen + float(-ndtri(miss)) * math.hypot(*stds)
    low, high = (min(max(bound / rows, 0.0), 1.0) for bound in (low, high))
    estimate = float(np.sqrt(np.clip(gaps**2 - stds**2, 0, None)).sum()) / rows
    return Interval(low, high, min(max(estimate, low), high))


def _least(seen: float, trials: int, std: float, miss: float) -> float:
    """The least share at which `seen` or more is not too rare."""
    if _tail(seen, trials, 0.0, std) >= miss:
        return 0.0
    if _tail(seen, trials, 1.0, std) <= miss:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _tail(seen, trials, middle, std) < miss else (low, middle)
    return low


def _tail(seen: float, trials: int, share: float, std: float) -> float:
    """P[X + N(0, std²) >= seen], X binomial; without noise P[X >= seen] up to double rounding."""
    if not std:
        least = math.ceil(seen - 1e-9)
        return float(betainc(least, trials - least + 1, share)) if least > 0 else 1.0
    middle, reach = trials * share, WIDE * math.sqrt(trials * share * (1 - share)) + 1
    counts = np.arange(max(0, int(middle - reach)), min(trials, math.ceil(middle + reach)) + 1)
    ways = gammaln(trials + 1) - gammaln(counts + 1) - gammaln(trials - counts + 1)
    logs = ways + xlogy(counts, share) + xlog1py(trials - counts, -share)
    return float(np.exp(logs) @ ndtr((counts - seen) / std))


def _fieller(
    hits: NDArray[np.float64],
    rows: NDArray[np.float64],
    a: float,
    b: float,
    spread: NDArray[np.float64],
    side: int,
    confidence: float,
) -> NDArray[np.float64]:
    """(k,) the larger (side 1) or smaller solution r of (hits − r rows)² = z² V(r).

    V(r) = (1 − r)² a + r² b + r(1 − r) spread; beyond [0, 1] without its last term.
    """
    z2 = float(ndtri((1 - confidence) / 2)) ** 2
    found = []
    for extra in (spread, np.zeros_like(spread)):
        square = rows**2 - z2 * (a + b - extra)
        linear = -2 * hits * rows + 2 * z2 * a - z2 * extra
        inner = linear**2 - 4 * square * (hits**2 - z2 * a)
        root = (-linear + side * np.sqrt(np.maximum(inner, 0))) / (2 * square)
        found.append(np.where(inner >= 0, root, math.nan))
    within, beyond = found
    return np.where((within >= 0) & (within <= 1), within, beyond)


@dataclass(frozen=True)
class Estimates:
    """Estimates for the rows' population, each with its interval at one confidence."""

    confidence: float
    accuracy: Interval
    majority: Interval  # share of the most frequent class
    majority_class: int  # as the noisy counts say
    balanced_accuracy: Interval
    recalls: tuple[Interval, ...]  # of every class: the share of its rows that are answered right
    class_rows: tuple[float, ...]  # of every class, estimated
    class_std: float  # noise in each of them
    calibration_error: Interval | None  # expected, over the bins; None: no bins
    confusion: Tensor  # (K, K) float64 estimated counts: they may be below 0
    noise_std: float  # in every one of them
    bins: tuple[dict[str, float | None], ...]  # of every bin: rows, accuracy, mean confidence

    def as_dict(
        self, class_names: Sequence[str], learned: Mapping[str, float] | None = None
    ) -> dict[str, Any]:
        """JSON-ready, by names of classes; `learned` as `cautions.shifted` takes them."""
        error = self.calibration_error
        return {
            "confidence_level": self.confidence,
            "accuracy": self.accuracy.as_dict(),
            "majority_baseline": self.majority.as_dict(),
            "majority_class": class_names[self.majority_class],
            "balanced_accuracy": self.balanced_accuracy.as_dict(),
            "expected_calibration_error": None if error is None else error.as_dict(),
            "recall": {
                name: share.as_dict()
                | {"rows": rows}
                | ({"too_few_rows": True} if share.estimate is None else {})
                for name, share, rows in zip(
                    class_names, self.recalls, self.class_rows, strict=True
                )
            },
            "confusion": self.confusion.tolist(),
            "bins": list(self.bins),
            "noise_std": self.noise_std,
            "warnings": self._warnings(class_names, learned),
        }

    def _warnings(
        self, class_names: Sequence[str], learned: Mapping[str, float] | None
    ) -> list[str]:
        """Words of caution, as far as the noisy counts let anything be seen."""
        most, words = self.majority, []
        if self.accuracy.low <= most.high and (most.estimate or 0) < 1:
            above = (self.accuracy.estimate or 0) > (most.estimate or 0)
            words.append(
                f"accuracy is not {'certainly ' if above else ''}above the {_share(most)} of "
                "always answering with the most frequent class"
            )
        labels = np.array(self.class_rows)
        predicted = self.confusion.sum(0).numpy()
        column_std = self.noise_std * math.sqrt(len(labels))
        words += few_classes(
            np.where(labels > FEW * self.class_std, labels, 0.0),
            np.where(predicted > FEW * column_std, predicted, 0.0),
        )
        return words + shifted(learned, labels, class_names, self.class_std)


def check_reading(confidence: float, sampling: Sampling) -> None:
    """Raises ValueError for a level at which the intervals were not tried, or another sampling."""
    check.within(f"[{LEAST_CONFIDENCE}, {MOST_CONFIDENCE}]", confidence=confidence)
    check.one_of(get_args(Sampling), sampling=sampling)


def design_effect(sizes: Tensor, sampling: Sampling) -> float:
    """D: how much more than for independent rows a share may vary.

    Where `users` are drawn and each brings all of its n_i rows, which may be as alike as can
    be, it is Σ n_i²/N at most (Kish 1965).
    """
    rows = sizes.double()
    return float(rows.square().sum() / rows.sum()) if sampling == "users" else 1.0


def estimate(
    method: Evaluation,
    total: Tensor,
    sizes: Tensor,
    noise_std: float,
    *,
    confidence: float,
    sampling: Sampling,
    grid: float,
) -> Estimates:
    """Reads the (D,) noised sum of users of (users,) sizes n_i, with noise σ in every entry.

    The largest share of a class has the bounds of the class with most counted rows, at a confidence
    at which those of all classes hold together.

    All parts count the same N rows, which is public: what their noise adds to N is taken out, and
    their numbers of right answers are averaged with the weights of least variance. Every interval
    has the confidence by itself; for `sampling` see `design_effect`.
    """
    check_reading(confidence, sampling)
    classes, rows = method.num_classes, int(sizes.sum())
    effect = design_effect(sizes, sampling)
    matrix, by_class, by_bin, rest = method.parts(total)
    matrix = matrix + (rows - matrix.sum()) / classes**2
    counted = [(float(matrix.trace()), classes - 1.0)]  # right answers, their noise in σ²
    for pairs in (by_class, by_bin):
        if len(pairs):
            missing = (rows - pairs.sum()) / 2
            counted.append((float(pairs[:, 1].sum() + missing), len(pairs) / 2))
    precision = sum(1 / variance for _, variance in counted)
    right = sum(count / variance for count, variance in counted) / precision
    accuracy = proportion(
        right, rows, noise_std / precision**0.5, confidence=confidence, design_effect=effect
    )
    raw = method.parts(total)[0]
    hits = (raw.diagonal() + by_class[:, 1]) / 2  # variances σ²/2 and σ²(K − 1)/K
    wrong = raw.sum(1) - raw.diagonal()
    misses = ((classes - 1) * by_class[:, 0] + wrong) / classes
    variances = (noise_std**2 / 2, noise_std**2 * (classes - 1) / classes)
    shares = ClassRecalls.of(
        hits.numpy(), misses.numpy(), variances, confidence=confidence, design_effect=effect
    )
    most, class_std = int(shares.rows.argmax()), math.sqrt(sum(variances))
    majority = proportion(
        float(shares.rows[most]),
        rows,
        class_std,
        confidence=1 - (1 - confidence) / classes,  # any class may be the one: Bonferroni
        design_effect=effect,
    )
    error, bins = None, ()
    if method.bins:
        middles = method.middles(grid)
        wrong, answered = by_bin.unbind(1)
        gaps = (1 - middles) * answered - middles * wrong - rest
        squares = (1 - middles).square(), middles.square()
        noise = noise_std**2 * (sum(squares) + method.weight**-2)
        drawn = effect * (squares[0] * answered + squares[1] * wrong).clamp(min=0)
        stds = (noise + drawn).sqrt().numpy()
        error = absolute_sum(gaps.numpy(), stds, rows, confidence=confidence)
        bins = tuple(_bins(method, by_bin, middles, rest, noise_std))
    return Estimates(
        confidence=confidence,
        accuracy=accuracy,
        majority=majority,
        majority_class=most,
        balanced_accuracy=shares.mean(),
        recalls=tuple(shares.intervals()),
        class_rows=tuple(shares.rows.tolist()),
        class_std=class_std,
        calibration_error=error,
        confusion=matrix,
        noise_std=noise_std,
        bins=bins,
    )


def _bins(
    method: Evaluation, by_bin: Tensor, middles: Tensor, rest: Tensor, noise_std: float
) -> Iterator[dict[str, float | None]]:
    """Bin by bin: its range, its rows and, where they are enough, both means."""
    for place, (wrong, right) in enumerate(by_bin.tolist(), method.first_bin):
        at, rows = place - method.first_bin, wrong + right
        few = rows <= max(FEW * noise_std * 2**0.5, 0.5)
        mean = float(middles[at]) + float(rest[at]) / max(rows, 1.0)
        yield {
            "from": place / method.bins,
            "to": (place + 1) / method.bins,
            "rows": rows,
            "accuracy": None if few else right / rows,
            "confidence": None if few else mean,
        }


def _share(share: Interval) -> str:
    between = f"{100 * share.low:.1f} to {100 * share.high:.1f} %"
    return f"{100 * (share.estimate or 0):.1f} % ({between})"
