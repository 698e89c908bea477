"""Tasks made of public classes: which classes are one, and how many rows of each take part."""

from collections.abc import Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment

from embed import EmbeddingSet

GROUP = 10  # public classes in one class of a task, at most
SHARE = 4  # a task uses one in so many public classes, at most
ROUNDS = 20  # of balanced k-means
UNEVEN = 2.0  # of every other task: odd classes have so many times the rows of even ones


def pose_task(public: EmbeddingSet, num_classes: int, rng: np.random.Generator) -> np.ndarray:
    """(classes,) the task's class of each public label: groups of similar ones; −1: none.

    At most a quarter of the public classes are used, if there are 4K, so that transforms are fitted
    on nearly as many classes as the real one: directions that labels shape are worse, and were
    passed over, where half of the classes were left.

    Raises:
        ValueError: fewer than K public classes.
    """
    classes = _enough_classes("public", public, num_classes)
    each = max(1, min(GROUP, len(classes) // (SHARE * num_classes)))
    means = np.stack([public.embeddings[public.labels == c].mean(0) for c in classes])
    group = np.full(classes.max() + 1, -1)
    group[classes] = balanced_groups(means, num_classes, each, rng)
    return group


def drawn(like: EmbeddingSet, num_classes: int, rng: np.random.Generator) -> np.ndarray:
    """(classes,) the task's class of each label of a set of the private kind: K of them, or −1.

    Raises:
        ValueError: fewer than K classes.
    """
    classes = _enough_classes("like", like, num_classes)
    group = np.full(classes.max() + 1, -1)
    group[np.sort(rng.permutation(classes)[:num_classes])] = np.arange(num_classes)
    return group


def _enough_classes(name: str, source: EmbeddingSet, num_classes: int) -> np.ndarray:
    """(L,) labels that a set holds; ValueError for fewer than K."""
    classes = np.unique(source.labels)
    if len(classes) < num_classes:
        raise ValueError(
            f"{name} must hold at least num_classes = {num_classes} classes, got {len(classes)}"
        )
    return classes


def balanced_groups(
    means: np.ndarray, groups: int, each: int, rng: np.random.Generator
) -> np.ndarray:
    """(L,) group of each class, so many `each`, and −1 for those that fit no group well.

    k-means of (L, p) means with equal sizes: classes are assigned to centres at least total
    distance.

    Examples:
        >>> means = np.array([[0.0], [10.0], [0.2], [10.1]])
        >>> groups = balanced_groups(means, 2, 2, np.random.default_rng(0))
        >>> bool(groups[0] == groups[2] != groups[1] == groups[3])
        True
    """
    centres = means[rng.choice(len(means), groups, replace=False)]
    assigned = np.full(len(means), -1)
    for _ in range(ROUNDS):
        distances = ((means[:, None] - centres[None]) ** 2).sum(2)
        rows, seats = linear_sum_assignment(np.repeat(distances, each, axis=1))
        found = np.full(len(means), -1)
        found[rows] = seats // each
        if (found == assigned).all():
            break
        assigned = found
        centres = np.stack([means[assigned == group].mean(0) for group in range(groups)])
    return assigned


def task_shares(num_classes: int, task: int, given: Sequence[float] | None) -> np.ndarray:
    """(K,) shares of one together: those given, or by turns equal and 1:2 ones.

    A candidate is chosen by its balanced accuracy, so that none is for leaving a small class out.

    Examples:
        >>> task_shares(2, 0, None).tolist(), task_shares(2, 1, None).round(2).tolist()
        ([0.5, 0.5], [0.33, 0.67])
    """
    shares = np.ones(num_classes) if given is None else np.asarray(given, float)
    if given is None and task % 2:
        shares[1::2] = UNEVEN
    return shares / shares.sum()


def rebalanced(labels: np.ndarray, shares: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(n,) bool mask of the most rows in which classes have these (K,) shares; `rng` draws which.

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
