"""Intervals of a model's metrics, from counts of right answers or from a private evaluation."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from scipy.stats import binomtest

from train_distributed.one_shot.report_file import Metrics, converted
from train_distributed.released.card.numbers import percent, percent_range

CONFIDENCE = 0.95
DRAWS = 2000  # of the bootstrap
BATCH = 50  # of them at a time
SEED = 0  # of it: a card made twice is the same card


def interval(hits: int, rows: int) -> tuple[float, float]:
    """Interval of a share of independent rows, by Clopper and Pearson 1934.

    It covers the share with a probability of at least CONFIDENCE.

    Examples:
        >>> low, high = interval(8, 10)
        >>> f"{low:.3f} {high:.3f}"
        '0.444 0.975'
    """
    found = binomtest(hits, rows).proportion_ci(CONFIDENCE, method="exact")
    return float(found.low), float(found.high)


def bootstrap(confusion: np.ndarray) -> dict[str, tuple[float, float]]:
    """Percentile intervals of balanced accuracy and macro F1: the counts are drawn again.

    Args:
        confusion: (K, K) counts by label and predicted class.
    """
    rows, size = int(confusion.sum()), len(confusion)
    rng = np.random.default_rng(SEED)
    used = confusion.ravel().nonzero()[0]  # pairs that did not occur are not drawn
    found = []
    for _ in range(DRAWS // BATCH):
        drawn = np.zeros((BATCH, size * size))
        drawn[:, used] = rng.multinomial(rows, confusion.ravel()[used] / rows, BATCH)
        found.append(balanced(drawn.reshape(BATCH, size, size)))
    draws = np.concatenate(found, axis=1)
    low, high = np.quantile(draws, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=1)
    names = ("balanced_accuracy", "macro_f1")
    return {name: (float(a), float(b)) for name, a, b in zip(names, low, high, strict=True)}


def balanced(confusion: np.ndarray) -> np.ndarray:
    """Mean recall of the classes that occur, mean F1 of those that occur or are predicted.

    Args:
        confusion: (..., K, K) counts.

    Returns:
        (2, ...) both.
    """
    hits = np.diagonal(confusion, axis1=-2, axis2=-1)
    present = confusion.sum(-1)
    either = present + confusion.sum(-2)
    recall = hits / np.maximum(present, 1)
    f1 = 2 * hits / np.maximum(either, 1)
    return np.stack(
        [
            recall.sum(-1) / np.maximum((present > 0).sum(-1), 1),
            f1.sum(-1) / np.maximum((either > 0).sum(-1), 1),
        ]
    )


def shown_intervals(metrics: Metrics) -> dict[str, str]:
    """Intervals by metric, in words; "" where the counts are not known."""
    ends = {"accuracy": interval(round(metrics.accuracy * metrics.rows), metrics.rows)}
    if metrics.confusion is not None:
        ends |= bootstrap(np.array(metrics.confusion))
    names = ("accuracy", "balanced_accuracy", "macro_f1")
    return {name: percent_range(*ends[name]) if name in ends else "" for name in names}


def class_rows(metrics: Metrics) -> list[list[str]]:
    """Rows of the table of classes: name, rows, recall and precision with their intervals."""
    predicted = [None] * len(metrics.per_class)
    if metrics.confusion is not None:
        predicted = np.array(metrics.confusion).sum(0).tolist()
    return [
        [name, f"{of.rows:,}", *_share(of.recall, of.rows), *_share(of.precision, guessed)]
        for (name, of), guessed in zip(metrics.per_class.items(), predicted, strict=True)
    ]


def _share(value: float | None, of: int | None) -> list[str]:
    """A share and its interval, where they are known."""
    if value is None:
        return ["–", ""]
    if not of:
        return [percent(value), ""]
    return [percent(value), percent_range(*interval(round(value * of), of))]


@dataclass(frozen=True, kw_only=True)
class EvaluatedShare:
    """A share of rows and its interval."""

    estimate: float | None  # None: too few rows
    low: float
    high: float

    @property
    def value(self) -> str:
        """The share in words."""
        return "too few rows" if self.estimate is None else percent(self.estimate)

    @property
    def interval(self) -> str:
        """The interval in words."""
        return percent_range(self.low, self.high)


@dataclass(frozen=True, kw_only=True)
class EvaluatedPrior:
    """Findings under one prior of the classes."""

    accuracy: EvaluatedShare
    balanced_accuracy: EvaluatedShare


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """Promise and findings of a private evaluation."""

    private: bool
    epsilon: float
    delta: float
    neighbouring: str
    users: int
    rows: int
    sampling: str
    confidence_level: float
    accuracy: EvaluatedShare
    recall: dict[str, EvaluatedShare]
    suitable_for_release: bool
    majority_baseline: EvaluatedShare | None = None
    majority_class: str = ""
    balanced_accuracy: EvaluatedShare | None = None
    warnings: list[str] = field(default_factory=list)
    expected_calibration_error: EvaluatedShare | None = None
    unsuitable_because: list[str] = field(default_factory=list)
    with_the_training: str | None = None
    prior: str | None = None  # that the model answered for
    by_prior: dict[str, EvaluatedPrior] = field(default_factory=dict)

    @classmethod
    def of(cls, written: Mapping[str, Any]) -> Self:
        """Evaluation from what `evaluate` wrote; raises ValueError for a missing or wrong key."""
        return converted(written, cls, "evaluation must be what `evaluate` writes")
