"""Estimates from the noisy sums of an evaluation: shares with their intervals."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from torch import Tensor

from pretrain import check
from train_distributed.one_shot.metrics import few_classes, shifted
from train_distributed.released.evaluation import Evaluation
from train_distributed.released.evaluation_intervals import (
    FEW,
    ClassRecalls,
    Interval,
    absolute_sum,
    proportion,
)

Sampling = Literal["rows", "users"]
LEAST_CONFIDENCE, MOST_CONFIDENCE = 0.5, 0.999


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
