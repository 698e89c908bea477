"""Tasks made of labelled public rows: K of their classes are posed as the private ones.

Public rows are projected once, and their scatter is found without those that a task poses as
private; in float32 and for simulations only, as what is released goes through
`embed.PublicTransform.fit`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from embed.clip import add_constant_and_clip
from embed.public_scatter import PublicScatter, balanced, signed
from embed.transform import CLIP_QUANTILE, COMPONENTS, CONSTANT
from pretrain import check

LEFT = 2  # classes that a task must leave to the public set: their scatter shapes the rows
TESTED = 0.25  # share of a task's rows that test, at least
MOST_TESTED = 4000  # rows that test
KEPT = 0.5  # share of the rows of a class that stays public where public rows have the classes
BLOCK = 1 << 13  # rows


@dataclass(frozen=True)
class Task:
    """Which classes are posed as private ones, and which rows are whose."""

    number: int  # which seeds its draws
    classes: np.ndarray  # (K,) labels of the source, in the order of the task's own 0..K-1
    private: np.ndarray  # (m,) rows of the source that users hold or that test
    public: np.ndarray  # (n,) rows of the public set that its transform is fitted on

    def labels(self, source: np.ndarray) -> np.ndarray:
        """(m,) int64 class in [0, K) of each private row, of the (N,) labels of the source.

        Of (N, L) findings, the (m, K) of the task's.
        """
        if source.ndim == 2:
            return source[self.private][:, self.classes]
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


def tasks_of_findings(
    findings: np.ndarray, num_classes: int, tasks: int, public: int | None
) -> list[Task]:
    """Tasks of K of the findings of (N, L); all `public` rows stay so, or None: half of the N.

    Raises ValueError for fewer than K findings.
    """
    check.within(f"[2, {findings.shape[1]}]", num_classes=num_classes)
    found = []
    for number, hand in enumerate(dealt(np.arange(findings.shape[1]), num_classes, tasks)):
        order = np.random.default_rng([number, 1]).permutation(len(findings))
        kept = int(KEPT * len(order)) if public is None else 0
        left = np.arange(public) if public is not None else np.sort(order[:kept])
        found.append(Task(number, hand, np.sort(order[kept:]), left))
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


@dataclass(frozen=True)
class RawCoordinates:
    """x -> [a, y], y = clip(Pᵀ(x − m₀)/r), as a transform of all public rows has it."""

    mean: Tensor  # (p,) float32
    basis: Tensor  # (p, D) float32, divided by r

    @classmethod
    def fit(cls, public: EmbeddingSet) -> "RawCoordinates":
        """Raises ValueError for rows that are all alike."""
        total = torch.zeros(public.dim, dtype=torch.float64)
        outer = torch.zeros(public.dim, public.dim, dtype=torch.float64)
        start = torch.from_numpy(np.array(public.embeddings[:BLOCK])).float().mean(0)
        for block in _blocks(public):
            apart = block - start
            total += apart.sum(0)
            outer += apart.mT @ apart
        shift = total / len(public)
        covariance = outer / len(public) - torch.outer(shift, shift)
        units, scaled = balanced(covariance, public.parts)
        width = min(COMPONENTS, public.dim, len(public) - 1)
        vectors = torch.linalg.eigh(scaled)[1].flip(1)[:, :width]
        basis = (units[:, None] * signed(vectors)).float()
        mean = (start + shift).float()
        norms = torch.cat([((block - mean) @ basis).norm(dim=1) for block in _blocks(public)])
        scale = float(np.quantile(norms.numpy(), CLIP_QUANTILE))
        if not scale > 0:
            raise ValueError(f"public rows must differ, got norm {scale} at the clip quantile")
        return cls(mean, basis / scale)

    def of(self, source: EmbeddingSet) -> Tensor:
        """(N, D + 1) float32 rows [a, y]."""
        norm = (1 + CONSTANT**2) ** 0.5
        return torch.cat(
            [
                add_constant_and_clip((block - self.mean) @ self.basis, norm, CONSTANT)
                for block in _blocks(source)
            ]
        )

    def transform(self, scatter: PublicScatter) -> PublicTransform:
        """Transform of rows that are raw coordinates already, with the scatter of public ones."""
        width, norm = self.basis.shape[1], (1 + CONSTANT**2) ** 0.5
        return replace(
            PublicTransform.identity(width, norm, CONSTANT),
            row_mean=scatter.mean,
            within_class=scatter.within,
            between_class=scatter.between,
            fitted_on="a rehearsal's public rows",
        )


@dataclass(frozen=True)
class ClassTotals:
    """Sums by which the scatter of public rows is found without some of them."""

    outer: Tensor  # (D, D) float64 Σ y yᵀ
    sums: Tensor  # (L, D) float64 of each label
    counts: Tensor  # (L,) float64

    @classmethod
    def of(cls, rows: Tensor, labels: np.ndarray, classes: int) -> "ClassTotals":
        """Totals of (n, D) rows with (n,) labels in [0, L)."""
        outer = torch.zeros(rows.shape[1], rows.shape[1], dtype=torch.float64)
        sums = torch.zeros(classes, rows.shape[1], dtype=torch.float64)
        place = torch.from_numpy(labels.astype(np.int64))
        for start in range(0, len(rows), BLOCK):
            block = rows[start : start + BLOCK].double()
            outer += block.mT @ block
            sums.index_add_(0, place[start : start + BLOCK], block)
        return cls(outer, sums, torch.bincount(place, minlength=classes).double())

    def without(self, rows: Tensor, labels: np.ndarray) -> PublicScatter:
        """Scatter of the others of the rows that are summed."""
        taken = ClassTotals.of(rows, labels, len(self.counts))
        counts = self.counts - taken.counts
        kept = counts > 0
        return PublicScatter.of_totals(
            self.outer - taken.outer, (self.sums - taken.sums)[kept], counts[kept]
        )


def _blocks(source: EmbeddingSet):
    for start in range(0, len(source), BLOCK):
        yield torch.from_numpy(np.array(source.embeddings[start : start + BLOCK])).float()
