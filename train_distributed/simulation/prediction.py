"""What a rehearsal predicts: a mean with an interval, over tasks that are like the asked one."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from scipy import stats

COVERED = 0.8  # probability of the interval
WORTH = 0.02  # gain of private rows from which they are worth it


@dataclass(frozen=True)
class Interval:
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
    shared: float,
    *,
    bounds: tuple[float, float] = (0.0, 1.0),
) -> Interval:
    """`COVERED` interval for the mean of one new task, given those of J rehearsed ones.

    Let means of tasks scatter with variance σ², where their classes are drawn independently. Two
    tasks that share a part ρ of their classes are correlated by ρ, so that with the average ρ over
    pairs the J means have

        E s² = σ² (1 − ρ),    Var(their mean) = σ² (1/J + (1 − 1/J) ρ) = σ²/J',

    s² the sample variance. A new task of other classes lies about their mean with variance
    σ² (1 + 1/J'), and t has J' − 1 degrees of freedom.

    Tasks that all have the same classes (ρ = 1) are those that are asked for. What they differ by
    is rows, partition and noise: the J means and those of as many rows again differ by σ² 2/J.

    Args:
        values: (J, S) results of J > 1 tasks with S seeds each.
        shared: ρ in [0, 1].
        bounds: that the result is clipped to.

    Examples:
        >>> found = predictive_interval([[0.5, 0.6], [0.6, 0.7], [0.4, 0.5]], shared=0.0)
        >>> print(found)
        55.0 (33.2 to 76.8)
    """
    values = np.asarray(values, float)
    tasks = len(values)
    if tasks < 2:
        raise ValueError(f"tasks must be >= 2 for an interval, got {tasks}")
    means = values.mean(1)
    variance = float(means.var(ddof=1))
    single = float(values.var(1, ddof=1).mean()) if values.shape[1] > 1 else 0.0
    if shared >= 1:
        spread, degrees = variance * 2 / tasks, tasks - 1.0
    else:
        independent = 1 / (1 / tasks + (1 - 1 / tasks) * shared)  # J'
        spread = variance / (1 - shared) * (1 + 1 / independent)
        degrees = max(1.0, independent - 1)
    reach = float(stats.t.ppf((1 + COVERED) / 2, degrees)) * math.sqrt(spread)
    mean = float(means.mean())
    low, high = bounds
    return Interval(mean, max(low, mean - reach), min(high, mean + reach), math.sqrt(single))


def verdict(gain: Interval, beside: str) -> str:
    """Whether private rows are worth it, by what they add to what is public."""
    points = f"{100 * gain.mean:+.1f} points ({100 * gain.low:+.1f} to {100 * gain.high:+.1f})"
    if gain.low >= WORTH:
        return f"private rows are worth it: {points} beside {beside}"
    if gain.high < WORTH:
        return f"private rows are not worth it: {points} beside {beside}"
    if gain.mean >= WORTH:
        return f"private rows are probably worth it: {points} beside {beside}"
    return f"private rows are probably not worth it: {points} beside {beside}"
