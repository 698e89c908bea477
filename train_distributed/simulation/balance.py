"""Class frequencies of a rehearsed task: as given, or balanced and 1:2 in turn.

A candidate is chosen by its balanced accuracy, so that none is for leaving a small class out.
"""

from collections.abc import Sequence

import numpy as np

UNEVEN = 2.0  # of every other task: odd classes have so many times the rows of even ones


def task_shares(num_classes: int, task: int, given: Sequence[float] | None) -> np.ndarray:
    """(K,) shares of one together: those given, or by turns equal and 1:2 ones.

    Examples:
        >>> task_shares(2, 0, None).tolist(), task_shares(2, 1, None).round(2).tolist()
        ([0.5, 0.5], [0.33, 0.67])
    """
    shares = np.ones(num_classes) if given is None else np.asarray(given, float)
    if given is None and task % 2:
        shares[1::2] = UNEVEN
    return shares / shares.sum()


def rebalanced(labels: np.ndarray, shares: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(n,) bool mask of the most rows in which classes have these shares.

    Args:
        labels: (n,) in [0, K), every class at least once.
        shares: (K,) of one together.
        rng: draws which rows.

    Examples:
        >>> labels = np.array([0] * 6 + [1] * 4)
        >>> kept = rebalanced(labels, np.array([1 / 3, 2 / 3]), np.random.default_rng(0))
        >>> int(kept[:6].sum()), int(kept[6:].sum())
        (2, 4)
    """
    counts = np.bincount(labels, minlength=len(shares))
    total = (counts / shares).min()
    order = rng.permutation(len(labels))
    place = np.empty(len(labels), int)
    for label in range(len(shares)):
        own = order[labels[order] == label]
        place[own] = np.arange(len(own))
    return place < np.maximum(1, np.floor(total * shares + 1e-9))[labels]
