"""Prediction of a rehearsal: a mean with an interval, over tasks like the one asked for."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from train_distributed.simulation.rehearsal import Kind, Played

COVERED = 0.8  # probability of the interval
WORTH = 0.02  # gain of private rows from which they are worth it


@dataclass(frozen=True)
class PredictedInterval:
    """Mean, and bounds between which the mean over many runs of one new task lies."""

    mean: float
    low: float
    high: float
    single: float = 0.0  # standard deviation of a single run about the mean of its task

    def __str__(self) -> str:
        """In per cent."""
        return f"{100 * self.mean:.1f} ({100 * self.low:.1f} to {100 * self.high:.1f})"

    def as_dict(self) -> dict[str, float]:
        """The fields as JSON takes them."""
        return asdict(self)


def predictive_interval(
    values: np.ndarray | Sequence[Sequence[float]],
    shared: np.ndarray,
    *,
    sampled: float = 0.0,
    bounds: tuple[float, float] = (0.0, 1.0),
) -> PredictedInterval:
    """`COVERED` interval for the mean of one new task, given those of J rehearsed ones.

    Let classes be drawn independently, a task's expected result be a mean over its classes, of
    variance σ², and results of S seeds scatter about it with variance w. Means of tasks with shares
    R of their classes in common have the covariance σ² R + w/S I, so that

        E s² = σ² (1 − ρ) + w/S,    Var(their mean) = σ²/J' + w/(SJ),

    s² their sample variance, 1 − ρ = tr(HRH)/(J − 1), H = I − 11ᵀ/J, 1/J' = 1ᵀR1/J². A new task of
    other classes lies about their mean with variance σ² (1 + 1/J') + w/(SJ). t has as many degrees
    of freedom as a multiple of χ² with the mean and variance of s² (Satterthwaite 1946), which are
    tr²(HRH)/tr((HRH)²). s² − w/S is taken as s²/J at least.

    Tasks that all have the same classes (ρ = 1) are those that are asked for. What they differ by
    is rows, partition and noise: the J means and those of as many rows again differ by 2 s²/J. But
    all of them draw from the same rows, which are a sample themselves: `sampled` is added.

    Args:
        values: (J, S) results of J > 1 tasks with S seeds each.
        shared: (J, J) R.
        sampled: variance that the choice of the public rows has.
        bounds: that the interval is clipped to.

    Examples:
        >>> found = predictive_interval([[0.5, 0.6], [0.6, 0.7], [0.4, 0.5]], np.eye(3))
        >>> print(found)
        55.0 (35.4 to 74.6)
    """
    values = np.asarray(values, float)
    tasks, seeds = values.shape
    if tasks < 2:
        raise ValueError(f"tasks must be >= 2 for an interval, got {tasks}")
    means = values.mean(1)
    variance = float(means.var(ddof=1))
    within = float(values.var(1, ddof=1).mean()) if seeds > 1 else 0.0
    if (shared == 1).all():
        spread, degrees = variance * 2 / tasks + sampled, tasks - 1.0
    else:
        centring = np.eye(tasks) - 1 / tasks
        apart = centring @ shared @ centring
        between = max(variance - within / seeds, variance / tasks) * (tasks - 1) / np.trace(apart)
        spread = between * (1 + shared.mean()) + within / (seeds * tasks)
        degrees = float(np.trace(apart) ** 2 / np.square(apart).sum())
    reach = float(stats.t.ppf((1 + COVERED) / 2, degrees)) * math.sqrt(spread)
    mean = float(means.mean())
    low, high = bounds
    return PredictedInterval(
        mean, max(low, mean - reach), min(high, mean + reach), math.sqrt(within)
    )


@dataclass(frozen=True)
class Predictions:
    """Results of a rehearsal, by kind of model and ε."""

    cells: Sequence[Played]
    shared: np.ndarray  # (J, J) of their tasks, see `predictive_interval`
    rows: float = math.inf  # that tasks of the same classes draw from
    measures: tuple[str, str] = ("accuracy", "balanced accuracy")

    def of(
        self, kind: Kind, epsilon: float | None = None, *, balanced: bool = False
    ) -> PredictedInterval:
        """Interval of accuracy, or of balanced accuracy."""
        values = self._values(kind, epsilon, balanced=balanced)
        return predictive_interval(values, self.shared, sampled=self._sampled(values))

    def gain(self, epsilon: float | None) -> PredictedInterval:
        """Interval of what private rows add to the balanced accuracy of public knowledge alone."""
        ours = self._values("private", epsilon, balanced=True)
        theirs = self._values(self.beside, None, balanced=True)
        sampled = self._sampled(ours)
        return predictive_interval(ours - theirs, self.shared, sampled=sampled, bounds=(-1.0, 1.0))

    @property
    def beside(self) -> Kind:
        """Kind of baseline that private rows are compared with."""
        known = any(cell.kind == "public alone" for cell in self.cells)
        return "public alone" if known else "largest class"

    def verdict(self, epsilon: float) -> str:
        """Whether private rows are worth it, in words."""
        gain = self.gain(epsilon)
        points = f"{100 * gain.mean:+.1f} points ({100 * gain.low:+.1f} to {100 * gain.high:+.1f})"
        sure = "" if gain.low >= WORTH or gain.high < WORTH else "probably "
        worth = f"{sure}worth it" if gain.mean >= WORTH else f"{sure}not worth it"
        if self.beside == "public alone":
            alone = f"{100 * self.of('public alone', balanced=True).mean:.1f} %"
            beside = f"what is public alone reaches, {alone}"
        else:
            beside = "always answering with one class"
        return f"private rows are {worth}: {points} beside {beside}"

    def _sampled(self, values: np.ndarray) -> float:
        """Variance of a share of hits in so many rows."""
        return float(values.mean() * (1 - values.mean())) / self.rows

    def _values(self, kind: Kind, epsilon: float | None, *, balanced: bool) -> np.ndarray:
        """(J, S) results."""
        found: dict[int, list[float]] = {}
        for cell in self.cells:
            if cell.kind == kind and cell.epsilon == epsilon:
                value = cell.balanced if balanced else cell.accuracy
                found.setdefault(cell.task, []).append(value)
        return np.array(list(found.values()))


BASELINES: tuple[tuple[Kind, str], ...] = (
    ("no privacy", "C2"),
    ("public alone", "C1"),
    ("largest class", "grey"),
)


def draw_rehearsal(predictions: Predictions, epsilons: Sequence[float], path: Path) -> None:
    """Draws accuracy and balanced accuracy, each in a panel, as a PNG."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    for panel, balanced in zip(figure.subplots(1, 2, sharey=True), (False, True), strict=True):
        found = [predictions.of("private", each, balanced=balanced) for each in epsilons]
        middle, reach = _drawn(found)
        panel.errorbar(epsilons, middle, reach, fmt="o-", capsize=4, color="C0", label="private")
        for kind, colour in BASELINES:
            if not any(cell.kind == kind for cell in predictions.cells):
                continue
            level = predictions.of(kind, balanced=balanced)
            panel.axhline(100 * level.mean, color=colour, linewidth=1, label=kind)
            panel.axhspan(100 * level.low, 100 * level.high, color=colour, alpha=0.1)
        panel.set(xscale="log", xlabel="ε", ylim=(0, 100))
        panel.set_xticks(epsilons, [f"{each:g}" for each in epsilons])
        panel.minorticks_off()
        panel.set_title(predictions.measures[balanced])
        panel.grid(alpha=0.3)
    figure.axes[0].set_ylabel("predicted / %, with 80 % intervals")
    figure.axes[1].legend(loc="lower right", fontsize=8)
    figure.savefig(path, dpi=150)


def _drawn(found: Sequence[PredictedInterval]) -> tuple[np.ndarray, np.ndarray]:
    """(n,) means and (2, n) reaches below and above, in per cent."""
    means, low, high = (np.array([getattr(f, n) for f in found]) for n in ("mean", "low", "high"))
    return 100 * means, 100 * np.stack([means - low, high - means])
