"""Words of caution about a model, from numbers of rows by label and by predicted class."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

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
    """Least number of classes that hold MOST of the rows; None: all together hold fewer."""
    enough = np.flatnonzero(np.sort(counts)[::-1].cumsum() >= MOST * rows)
    return int(enough[0]) + 1 if len(enough) and rows > 0 else None
