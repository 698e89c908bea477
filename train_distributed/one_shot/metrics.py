"""How good a classifier is on rows whose labels are known, with warnings in words.

Scores and labels are read once, block by block. Only what ranks rows (n K log-odds, for the areas
under the curves) is kept, in a temporary file where it is long. All numbers are scikit-learn's.
"""

import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, Self, get_args

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from embed.store import BLOCK
from train_distributed.one_shot.class_prior import Word
from train_distributed.one_shot.model import Release, log_odds, probabilities

MOST = 0.95  # prior: of the rows: classes beyond them are rare
SHIFTED = 0.1  # prior: total variation between class shares that is worth a word
Counts = NDArray[np.float64]


def few_classes(labels: Counts, predicted: Counts) -> list[str]:
    """Warning if most predictions are of half as many classes as most labels, or fewer.

    Args:
        labels: (K,) rows by label; what noise hides is 0.
        predicted: (K,) rows by predicted class.
    """
    held, used = _covering(labels, labels.sum()), _covering(predicted, labels.sum())
    if used is None or held is None or 2 * used > held:
        return []
    return [
        f"few classes: {100 * MOST:g} % of the rows hold {held} classes and are taken for {used}"
    ]


def shifted(
    learned: Mapping[str, float] | None, labels: Counts, names: Sequence[str], noise_std: float = 0
) -> list[str]:
    """Warning if the classes of rows have other shares than those that a model learned.

    Args:
        learned: share of every class that the model goes by; None: it goes by none.
        labels: (K,) rows by label.
        names: K names.
        noise_std: of the noise in each number of rows.
    """
    rows = labels.sum()
    if learned is None or set(learned) != set(names) or rows <= 0:
        return []
    shares = (labels / rows).clip(0, 1)
    chance = np.sqrt(shares * (1 - shares) / rows + (noise_std / rows) ** 2).sum()
    moved = shares - np.array([learned[name] for name in names])
    if np.abs(moved).sum() / 2 <= SHIFTED + chance:
        return []
    k = int(np.abs(moved).argmax())
    return [
        f"the classes are shifted: the model goes by {100 * learned[names[k]]:.1f} % of "
        f"{names[k]!r}, of these rows they are {100 * shares[k]:.1f} % (`predict --prior "
        "equal`, or a file of shares, is for others)"
    ]


def _covering(counts: Counts, rows: float) -> int | None:
    """Least number of classes with a share MOST of the rows; None: not even all have it."""
    enough = np.flatnonzero(np.sort(counts)[::-1].cumsum() >= MOST * rows)
    return int(enough[0]) + 1 if len(enough) and rows > 0 else None


BINS = 15  # size: of equal width, as Guo et al. 2017 use
SHOWN = 100  # size: classes up to which confusions are reported, and drawn with names


class ClassifierMetrics:
    """Rows with labels, block by block, and what they show together.

    Args:
        class_names: K names.
        rows: n, of all blocks together.
        temperature: T of the model's probabilities.
        learned: share of every class that the model goes by; None: it goes by none.
        shifts: (K,) what scores have more under priors of these names; None: nothing is known.
    """

    def __init__(
        self,
        class_names: Sequence[str],
        rows: int,
        temperature: float = 1.0,
        learned: Mapping[str, float] | None = None,
        shifts: Mapping[str, Tensor] | None = None,
    ) -> None:
        if rows < 1:
            raise ValueError(f"rows with labels must be >= 1, got {rows}")
        classes = len(class_names)
        self.class_names, self.rows, self.temperature = tuple(class_names), rows, temperature
        self.learned = learned
        self.confusion = np.zeros((classes, classes), np.int64)  # by label and predicted class
        self.shifts = shifts or {}
        self._under = {name: np.zeros((classes, classes), np.int64) for name in self.shifts}
        self._labels = np.empty(rows, np.int64)
        self._odds = _array((classes, rows))
        self._bins = np.zeros((3, BINS))  # per bin: rows, sum of confidence, hits
        self._seen = 0

    @classmethod
    def of(cls, released: Release, rows: int) -> Self:
        """Metrics of a model on so many rows, under every prior that it supports."""
        shifts = None
        if released.class_shares is not None:
            shifts = {word: released.prior_shift(word) for word in get_args(Word)}
        learned = released.report.learned_shares
        return cls(released.class_names, rows, released.temperature, learned, shifts)

    def add(self, scores: Tensor, labels: np.ndarray) -> None:
        """Counts (b, K) float64 scores with their (b,) labels in [0, K)."""
        classes, y = len(self.class_names), np.asarray(labels, np.int64)
        if len(y) and not 0 <= y.min() <= y.max() < classes:
            raise ValueError(f"labels must lie in [0, {classes}), got {y.min()} to {y.max()}")
        here = slice(self._seen, self._seen + len(y))
        if here.stop > self.rows:
            raise ValueError(f"rows must be {self.rows} in all, got {here.stop} or more")
        self._seen = here.stop
        predicted = scores.argmax(1).numpy()
        np.add.at(self.confusion, (y, predicted), 1)
        for name, shift in self.shifts.items():
            np.add.at(self._under[name], (y, (scores + shift).argmax(1).numpy()), 1)
        self._labels[here] = y
        self._odds[:, here] = log_odds(scores, self.temperature).numpy().T
        sure = probabilities(scores, self.temperature).amax(1).numpy()
        bins = np.clip(np.ceil(sure * BINS).astype(int) - 1, 0, BINS - 1)
        for values, into in zip((1.0, sure, predicted == y), self._bins, strict=True):
            np.add.at(into, bins, values)

    def leave_out(self, rows: int) -> None:
        """Lowers the expected number of rows by those that cannot be read."""
        self.rows -= rows
        self._labels, self._odds = self._labels[: self.rows], self._odds[:, : self.rows]

    def report(self) -> dict[str, Any]:
        """All metrics, ready for JSON; raises ValueError if announced rows are missing."""
        if self._seen != self.rows:
            raise ValueError(f"rows must be {self.rows} in all, got {self._seen}")
        from sklearn.metrics import precision_recall_fscore_support  # it takes a second

        truth, guess = self.confusion.nonzero()
        counts = self.confusion[truth, guess]
        accuracy = float(counts[truth == guess].sum() / self.rows)
        present, ever = self.confusion.sum(1), self.confusion.sum(0)
        found = precision_recall_fscore_support(
            truth,
            guess,
            labels=np.arange(len(self.class_names)),
            sample_weight=counts,
            zero_division=0.0,  # pyright: ignore[reportArgumentType]
        )
        precision, recall, f1 = map(np.asarray, found[:3])
        areas = self._areas()
        majority = int(present.argmax())
        _, sure, hits = self._bins
        per_class = {
            name: {
                "rows": int(present[k]),
                "precision": _if(ever[k], precision[k]),
                "recall": _if(present[k], recall[k]),
                "f1": _if(present[k] + ever[k], f1[k]),
                "auroc": areas[k],
            }
            for k, name in enumerate(self.class_names)
        }
        small = len(self.class_names) <= SHOWN
        by_prior = {name: _shares_right(counts) for name, counts in self._under.items()}
        return {
            "rows": self.rows,
            "accuracy": accuracy,
            "majority_baseline": int(present[majority]) / self.rows,
            "majority_class": self.class_names[majority],
            "balanced_accuracy": float(recall[present > 0].mean()),
            "macro_f1": float(f1[present + ever > 0].mean()),
            **self._auroc(areas),
            "expected_calibration_error": float(np.abs(hits - sure).sum() / self.rows),
            "calibration_bins": f"{BINS} of equal width, by the probability of the class predicted",
            "per_class": per_class,
            **({"confusion": self.confusion.tolist()} if small else {}),
            **({"by_prior": by_prior} if by_prior else {}),
            "warnings": self._warnings(accuracy),
        }

    def _areas(self) -> list[float | None]:
        """One-vs-rest area under the ROC curve by class; None where a side has no rows."""
        from sklearn.metrics import roc_auc_score

        areas: list[float | None] = []
        for k, odds in enumerate(self._odds):
            mine = self._labels == k
            both = 0 < mine.sum() < self.rows
            areas.append(float(roc_auc_score(mine, np.asarray(odds))) if both else None)
        return areas

    def _auroc(self, areas: list[float | None]) -> dict[str, Any]:
        names = self.class_names
        known = [area for area in areas if area is not None]
        missing = [name for name, area in zip(names, areas, strict=True) if area is None]
        if not known:
            return {"auroc": None, "auroc_of": "none: all rows are of one class"}
        if len(names) == 2:
            return {"auroc": areas[1], "auroc_of": f"{names[1]!r} against {names[0]!r}"}
        left_out = {"auroc_classes_absent": missing} if missing else {}
        words = f"macro: mean of {len(known)} classes, each against the rest"
        return {"auroc": float(np.mean(known)), "auroc_of": words, **left_out}

    def _warnings(self, accuracy: float) -> list[str]:
        labels, predicted = (self.confusion.sum(axis).astype(float) for axis in (1, 0))
        words = few_classes(labels, predicted)
        if (predicted > 0).sum() == 1:
            name = self.class_names[int(predicted.argmax())]
            words = [f"one class only: all {self.rows} rows are taken for {name!r}"]
        largest = labels.max() / self.rows
        if accuracy <= largest < 1:
            words.append(
                f"accuracy {100 * accuracy:.1f} % is not above the {100 * largest:.1f} % of always "
                "answering with the most frequent class"
            )
        return words + shifted(self.learned, labels, self.class_names)


def brief(metrics: dict[str, Any]) -> Sequence[tuple[str, str]]:
    """Names and values of the metrics to print, warnings last."""
    names = ("balanced_accuracy", "macro_f1", "auroc", "expected_calibration_error")
    known = [(name, metrics[name]) for name in names]
    lines = [(name, "unknown" if value is None else f"{value:.4f}") for name, value in known]
    under = metrics.get("by_prior", {})
    if len({tuple(shares.values()) for shares in under.values()}) > 1:  # else it is one model
        for name, shares in under.items():
            words = ", ".join(f"{metric} {value:.4f}" for metric, value in shares.items())
            lines.append((f"with prior {name}", words))
    return [*lines, *(("warning", words) for words in metrics["warnings"])]


def _shares_right(confusion: np.ndarray) -> dict[str, float]:
    """Accuracy and balanced accuracy, from (K, K) counts by label and predicted class."""
    hits, present = confusion.diagonal(), confusion.sum(1)
    return {
        "accuracy": float(hits.sum() / present.sum()),
        "balanced_accuracy": float((hits[present > 0] / present[present > 0]).mean()),
    }


def _if(count: int, value: float) -> float | None:
    """The value as a float; None without rows."""
    return float(value) if count else None


def _array(shape: tuple[int, int]) -> np.ndarray:
    if shape[0] * shape[1] <= BLOCK:
        return np.empty(shape)
    with tempfile.TemporaryFile() as file:  # mapped beyond its closing, gone with the mapping
        return np.memmap(file, np.float64, "w+", shape=shape)
