"""Tasks made of labelled public rows: K of their classes are posed as the private ones."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEFT = 2  # classes that a task must leave to the public set: their scatter shapes the rows
TESTED = 0.25  # share of a task's rows that test, at least
MOST_TESTED = 4000  # rows that test
KEPT = 0.5  # share of the rows of a class that stays public where public rows have the classes


@dataclass(frozen=True)
class Task:
    """Which classes are posed as private ones, and which rows are whose."""

    number: int  # which seeds its draws
    classes: np.ndarray  # (K,) labels of the source, in the order of the task's own 0..K-1
    private: np.ndarray  # (m,) rows of the source that users hold or that test
    public: np.ndarray  # (n,) rows of the public set that its transform is fitted on

    def labels(self, source: np.ndarray) -> np.ndarray:
        """(m,) int64 class in [0, K) of each private row, of the (N,) labels of the source."""
        place = np.full(int(source.max()) + 1, -1)
        place[self.classes] = np.arange(len(self.classes))
        return place[source[self.private]]

    def split(self, seed: int, wanted: int) -> tuple[np.ndarray, np.ndarray]:
        """Positions in `private` of rows that users hold, `wanted` or fewer, and of test rows."""
        order = np.random.default_rng([self.number, seed]).permutation(len(self.private))
        held = min(wanted, int((1 - TESTED) * len(order)))
        return order[:held], order[held : held + MOST_TESTED]


def held_out_tasks(labels: np.ndarray, num_classes: int, tasks: int) -> list[Task]:
    """Tasks of K classes each, whose transform is fitted on the rows of all other classes.

    Raises ValueError for fewer than K + `LEFT` classes among the (N,) labels.
    """
    known = np.unique(labels)
    if len(known) < num_classes + LEFT:
        raise ValueError(
            f"public must hold at least num_classes + {LEFT} = {num_classes + LEFT} classes, or "
            "its class names the private ones' (--names), or --like must be given, "
            f"got {len(known)} classes"
        )
    found = []
    for number, classes in enumerate(dealt(known, num_classes, tasks)):
        asked = np.isin(labels, classes)
        found.append(Task(number, classes, np.flatnonzero(asked), np.flatnonzero(~asked)))
    return found


def tasks_like(labels: np.ndarray, num_classes: int, tasks: int, public: int) -> list[Task]:
    """Tasks of K classes of a set of the private kind; all `public` rows stay public.

    Raises ValueError for fewer than K classes among the (N,) labels of that set.
    """
    known, everything = np.unique(labels), np.arange(public)
    if len(known) < num_classes:
        raise ValueError(
            f"like must hold at least num_classes = {num_classes} classes, got {len(known)}"
        )
    return [
        Task(number, classes, np.flatnonzero(np.isin(labels, classes)), everything)
        for number, classes in enumerate(dealt(known, num_classes, tasks))
    ]


def tasks_of_known(labels: np.ndarray, classes: Sequence[int], tasks: int) -> list[Task]:
    """Tasks of classes that public rows have: half of their rows, drawn anew, stays public."""
    of_classes = np.isin(labels, classes)
    found = []
    for number in range(tasks):
        order = np.random.default_rng([number, 1]).permutation(len(labels))
        own = order[of_classes[order]]
        private = np.sort(own[int(KEPT * len(own)) :])
        left = np.ones(len(labels), bool)
        left[private] = False
        found.append(Task(number, np.asarray(classes), private, np.flatnonzero(left)))
    return found


def dealt(classes: np.ndarray, num_classes: int, tasks: int) -> list[np.ndarray]:
    """Classes of each task: K cards of a shuffled pack, which is shuffled anew when it is empty.

    Tasks of one pack have no class in common, and all classes are dealt about equally often.

    Examples:
        >>> hands = dealt(np.arange(6), 2, 4)
        >>> sorted(label for hand in hands[:3] for label in hand.tolist())
        [0, 1, 2, 3, 4, 5]
    """
    hands, pack = [], np.empty(0, classes.dtype)
    for number in range(tasks):
        rng = np.random.default_rng([number, len(classes)])
        hand, pack = pack[:num_classes], pack[num_classes:]
        if missing := num_classes - len(hand):
            shuffled = rng.permutation(classes)
            others = shuffled[~np.isin(shuffled, hand)]
            pack = np.concatenate([others[missing:], rng.permutation(hand)])
            hand = np.concatenate([hand, others[:missing]])
        hands.append(np.sort(hand))
    return hands


def overlap(tasks: Sequence[Task]) -> np.ndarray:
    """(J, J) share of the classes that each two tasks have in common; 1 on the diagonal."""
    return np.array(
        [[np.isin(one.classes, other.classes).mean() for other in tasks] for one in tasks]
    )
