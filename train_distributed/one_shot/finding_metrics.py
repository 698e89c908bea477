"""How good a model of several findings a picture is on rows whose findings are known.

Each finding is a problem of its own: ranking (area under the ROC curve, average precision) and
calibration. Rows of which a finding is unknown do not count for it. Intervals have 95 % coverage
each, for independent rows: of areas by DeLong et al. 1988 on the logit scale, of average precision
by Boyd et al. 2013 (logit), of shares by Wilson 1927. The mean over findings takes them as fully
correlated, which is the widest interval.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any, Self

import numpy as np
from scipy.stats import binomtest, rankdata
from sklearn.metrics import average_precision_score, roc_curve
from torch import Tensor

from train_distributed.one_shot.metrics import BINS, _array
from train_distributed.one_shot.model import Release

AREAS = ("auroc", "average_precision")


class FindingMetrics:
    """Rows with findings, block by block, and what they show together.

    Args:
        names: K names.
        rows: n, of all blocks together.
        temperature: T of the model's probabilities.
        thresholds: (K,) log odds from which a finding is said to be present; None: 0.
    """

    def __init__(
        self,
        names: Sequence[str],
        rows: int,
        temperature: float = 1.0,
        thresholds: Tensor | None = None,
    ) -> None:
        if rows < 1:
            raise ValueError(f"rows with findings must be >= 1, got {rows}")
        self.names, self.rows, self.temperature = tuple(names), rows, temperature
        self.thresholds = np.zeros(len(names)) if thresholds is None else thresholds.numpy()
        self._findings = np.empty((rows, len(names)), np.int8)
        self._odds = _array((rows, len(names)))
        self._seen = 0

    @classmethod
    def of(cls, released: Release, rows: int, thresholds: Tensor | None = None) -> Self:
        """Metrics of a model on so many rows."""
        return cls(released.class_names, rows, released.temperature, thresholds)

    def add(self, scores: Tensor, findings: np.ndarray) -> None:
        """Counts (b, K) float64 scores with their (b, K) findings of 0, 1 and -1: unknown."""
        if findings.shape != scores.shape or (len(findings) and abs(findings).max() > 1):
            raise ValueError(
                f"findings must be {tuple(scores.shape)} of 0, 1 and -1, got {findings.shape}"
            )
        here = slice(self._seen, self._seen + len(findings))
        if here.stop > self.rows:
            raise ValueError(f"rows must be {self.rows} in all, got {here.stop} or more")
        self._seen = here.stop
        self._findings[here], self._odds[here] = findings, scores / self.temperature

    def leave_out(self, rows: int) -> None:
        """Lowers the expected number of rows by those that cannot be read."""
        self.rows -= rows
        self._findings, self._odds = self._findings[: self.rows], self._odds[: self.rows]

    def report(self) -> dict[str, Any]:
        """All metrics, ready for JSON; raises ValueError if announced rows are missing."""
        if self._seen != self.rows:
            raise ValueError(f"rows must be {self.rows} in all, got {self._seen}")
        each = {name: self._one(k) for k, name in enumerate(self.names)}
        absent = [name for name, of in each.items() if of["auroc"] is None]
        macro: dict[str, Any] = {}
        for area in AREAS:
            known = [of[area] for of in each.values() if of[area] is not None]
            means = {part: float(np.mean([of[part] for of in known])) for part in INTERVAL}
            macro[area] = means if known else None
        whole = (self._findings >= 0).all(1)
        right = ((self._odds > self.thresholds) == (self._findings == 1)).all(1) & whole
        return {
            "rows": self.rows,
            "macro": macro,
            **({"findings_on_one_side": absent} if absent else {}),
            "exact_match": _share(int(right.sum()), int(whole.sum())),
            "expected_calibration_error": float(
                np.mean([of["expected_calibration_error"] for of in each.values()])
            ),
            "calibration_bins": f"{BINS} of equal width, by the probability of the finding; a mean",
            "per_finding": each,
        }

    def _one(self, k: int) -> dict[str, Any]:
        known = self._findings[:, k] >= 0
        odds, has = np.asarray(self._odds[known, k]), self._findings[known, k] == 1
        said, rows, positive = odds > self.thresholds[k], len(has), int(has.sum())
        both = 0 < positive < rows
        probability = np.exp(-np.logaddexp(0, -odds))
        bins = np.clip(np.ceil(probability * BINS).astype(int) - 1, 0, BINS - 1)
        gaps = np.bincount(bins, has - probability, BINS)
        return {
            "rows": rows,
            "unknown": self.rows - rows,
            "present": positive,
            "prevalence": _share(positive, rows),
            "auroc": auroc(odds, has) if both else None,
            "average_precision": average_precision(odds, has) if both else None,
            "roc": roc(odds, has) if both else None,
            "precision": _share(int((said & has).sum()), int(said.sum())),
            "recall": _share(int((said & has).sum()), positive),
            "expected_calibration_error": float(np.abs(gaps).sum() / max(1, rows)),
        }


def right_findings(scores: Tensor, findings: np.ndarray) -> tuple[float, float]:
    """Share of (n,) rows with all K findings right, and the mean area; 0.5 where none has one."""
    measured = FindingMetrics([str(k) for k in range(scores.shape[1])], len(scores))
    measured.add(scores, findings)
    found = measured.report()
    area = found["macro"]["auroc"] or {"estimate": 0.5}
    return (found["exact_match"] or {"estimate": 0.0})["estimate"], area["estimate"]


INTERVAL = ("estimate", "low", "high")
QUANTILE = NormalDist().inv_cdf(0.975)  # theorem: a normal variable, intervals of 95 %
RATES = np.linspace(0, 1, 101)  # size: false positive rates at which a ROC curve is kept


def roc(scores: np.ndarray, has: np.ndarray) -> list[float]:
    """True positive rates at the false positive `RATES`, of (n,) scores and (n,) bool."""
    false, true, _ = roc_curve(has, scores, drop_intermediate=False)
    return np.interp(RATES, false, true).round(4).tolist()


def auroc(scores: np.ndarray, has: np.ndarray) -> dict[str, float]:
    """Area under the ROC curve with its interval, of (n,) scores and (n,) bool of both kinds."""
    mine, others = scores[has], scores[~has]
    ranks = rankdata(np.concatenate([mine, others]))
    m, n = len(mine), len(others)
    below = (ranks[:m] - rankdata(mine)) / n  # share of the others below each, ties by half
    above = 1 - (ranks[m:] - rankdata(others)) / m
    area = float(below.mean())
    spread = sum(side.var(ddof=1) / len(side) for side in (below, above) if len(side) > 1)
    return _logit_interval(area, math.sqrt(spread), 0.5 / (m * n))


def average_precision(scores: np.ndarray, has: np.ndarray) -> dict[str, float]:
    """Average precision with its interval, of (n,) scores and (n,) bool of both kinds."""
    found, positive = min(1.0, float(average_precision_score(has, scores))), int(has.sum())
    return _logit_interval(found, math.sqrt(found * (1 - found) / positive), 0.5 / positive)


def _logit_interval(value: float, deviation: float, least: float) -> dict[str, float]:
    """Interval of a share; `least` keeps one at an end of [0, 1] from an interval of no width."""
    inner = min(max(value, least), 1 - least)
    deviation = max(deviation, math.sqrt(least * inner * (1 - inner)))
    odds, width = math.log(inner / (1 - inner)), QUANTILE * deviation / (inner * (1 - inner))
    low, high = (1 / (1 + math.exp(-max(-700.0, odds + w))) for w in (-width, width))
    return {"estimate": value, "low": min(low, value), "high": max(high, value)}


def _share(count: int, of: int) -> dict[str, float] | None:
    """A share with Wilson's interval; None without rows."""
    if not of:
        return None
    found = binomtest(count, of).proportion_ci(method="wilson")
    return {"estimate": count / of, "low": found.low, "high": found.high}


def brief_findings(metrics: dict[str, Any]) -> list[tuple[str, str]]:
    """Names and values of the metrics to print."""
    macro = metrics["macro"]
    lines = [(f"macro {area}", _words(macro[area])) for area in AREAS]
    lines.append(("exact_match", _words(metrics["exact_match"])))
    lines.append(("calibration_error", f"{metrics['expected_calibration_error']:.4f}"))
    for name, of in metrics["per_finding"].items():
        words = ", ".join(f"{area} {_words(of[area])}" for area in AREAS)
        lines.append((name, f"{words}; {of['present']} of {of['rows']} rows"))
    return lines


def _words(share: dict[str, float] | None) -> str:
    if share is None:
        return "unknown"
    return f"{share['estimate']:.4f} ({share['low']:.4f} to {share['high']:.4f})"
