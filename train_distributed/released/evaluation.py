"""Statistic of a released model's mistakes: a confusion matrix and calibration bins.

A record (x, y), of which the model says class ŷ with confidence q, adds

    1        to M[y, ŷ]     of K × K,
    1        to G[y, y = ŷ] of K × 2: wrong and right answers of a class,
    1        to H[b, y = ŷ] of B × 2: wrong and right answers in bin b of q,
    s(q − m) to R[b]        of B: m is the middle of the bin, s = `weight`.

G follows from M, but there wrong answers are a sum of K − 1 noisy cells: sent by itself it has the
noise of one, and shares of right answers by class become twice as certain. Count, right answers
and sum of confidences of a bin are H[b].sum(), H[b, 1] and m H[b].sum() + R[b]/s. Sent like this
they need less noise: of every part a record moves a single entry, and R, of which only the
deviation from the middle remains, costs next to nothing.

**Sensitivity** of replacing one record. M loses a one in one cell and gains one in another: √2 at
most. So do G and H. In R, with bins of width w = 1/B, both confidences in one bin move one entry by
s w at most. Those of two bins move two entries, each by s (w/2 + g) at most, g the grid of
confidences; that is less, 2 (w/2 + g)² ≤ w², as g ≤ w/5. Jointly

    Δ² = 2 + 2 + 2 + (s w)² = 6 + (s/B)²,

attained by a right and a wrong answer, of two classes, at either end of one bin. Without bins
Δ = 2. A user's n_i records move the sum by n_i Δ at most, attained where all are such.

**Several predictions.** Where a model is evaluated under J priors at once, a record adds the parts
above J times, once for every prediction of it. They are one vector, noised jointly: each of the J
pieces moves by Δ at most, so all of it by √(Σ_j Δ²) = √J Δ. That is attained as well, by the pair
above where all J predictions of a record are alike, so no less noise would do. A record that is
taken out moves every piece by as much as it moves the one, likewise alike: √J times again.

Confidences are rounded to a multiple of g = 2⁻ᵉ, and s is a power of two: every entry is a whole
number of steps g, exactly, and nothing is charged for rounding.

Entries of one record depend on that record and on public things alone: predictions of a row are a
function of the row (`embed.clip`), and rows come in an order that nobody chose
(`one_shot.statistic`). This holds of any model: one whose scores overflow is not sure of anything
(confidence 1/K), that is all.

Refusals of rows are visible, as those before a release are (`one_shot.source`): they come
before any noise, for the set as a whole, and no ε covers them.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from embed import EmbeddingSet
from embed.encoding import refuse_other
from embed.identity import found, known_rows, row_hashes
from pretrain import check
from pretrain.datasets import EVALUATION, TRAIN
from train_distributed.one_shot.model import Release
from train_distributed.partition import Partition, apart
from train_distributed.privacy.guarantee import Submission
from train_distributed.released import COARSEST_GRID, MOST_BINS

Overlap = Literal["refuse", "add"]
HOW = "`embed hold-out --share 0.2` holds rows out before a model is trained"
GROUP = 1 << 22  # numbers that users' submissions hold at a time
BLOCK = 8192  # rows predicted at a time


@dataclass(frozen=True, kw_only=True)
class Evaluation(Submission):
    """Statistic that each user sends for an evaluation, and its sensitivity to a record."""

    num_classes: int  # K
    bins: int = 10  # B of confidence, of equal width on [0, 1]; 0: no H and no R
    predictions: int = 1  # J of every record

    @classmethod
    def of(cls, release: Release, bins: int, priors: int = 1) -> "Evaluation":
        """The statistic that evaluates a model under so many priors; a finding is two classes."""
        classes, problems = len(release.class_names), 1
        if release.findings:
            classes, problems = 2, classes
        made = cls(num_classes=classes, bins=bins, predictions=priors * problems)
        made.validate()
        return made

    def validate(self) -> None:
        """Raises ValueError for a number out of range."""
        check.at_least(2, num_classes=self.num_classes)
        check.within(f"[0, {MOST_BINS}]", bins=self.bins)
        check.at_least(1, predictions=self.predictions)

    @property
    def first_bin(self) -> int:
        """Bins below hold nothing: the largest of K probabilities is at least 1/K."""
        return self.bins // self.num_classes

    @property
    def sent_bins(self) -> int:
        """B', the number of bins that may hold something."""
        return self.bins - self.first_bin

    @property
    def weight(self) -> float:
        """s: the largest power of two with s² ≤ 2B, near which calibration is seen best."""
        return 2.0 ** ((math.frexp(2 * self.bins)[1] - 1) // 2) if self.bins else 1.0

    @property
    def dimension(self) -> int:
        """J (K² + 2 K + 3 B')."""
        return self.predictions * self._piece

    @property
    def _piece(self) -> int:
        """Length of what one prediction adds to."""
        return self.num_classes * (self.num_classes + 2) + 3 * self.sent_bins

    @property
    def grid_powers(self) -> Tensor:
        """(dimension,): every entry is a multiple of the confidences' grid."""
        return torch.ones(self.dimension, dtype=torch.int64)

    def entry_bound(self, n: int) -> float:
        """n records add up to n in a cell, and in R to less, as s (w/2 + g) < 1."""
        return float(n)

    def record_sensitivity(self, sizes: Tensor) -> float:
        """√J Δ; see above."""
        one = 6 + (self.weight / self.bins) ** 2 if self.bins else 4
        return math.sqrt(self.predictions * one)

    def zero_out_sensitivity(self, sizes: Tensor) -> float:
        """Movement by one record that is taken out: a one of each part, and its rest."""
        rest = self.weight * (0.5 / self.bins + COARSEST_GRID) if self.bins else 0.0
        return math.sqrt(self.predictions * ((3 if self.bins else 2) + rest**2))

    def middles(self, grid: float) -> Tensor:
        """(B',) float64: the middle of every bin that is sent, rounded down to the grid."""
        places = torch.arange(self.first_bin, self.bins, dtype=torch.float64)
        return ((places + 0.5) / max(1, self.bins) / grid).floor() * grid

    def submit(
        self,
        users: Tensor,
        labels: Tensor,
        probabilities: Sequence[Tensor],
        count: int,
        grid: float,
    ) -> Tensor:
        """Vectors that users send, before their noise.

        Args:
            users: (n,) int64 in [0, count): whose row it is.
            labels: (n,) int64 in [0, K), or (n, J) where every prediction has its own: of several
                findings a picture each is a problem of two classes, for which Δ holds by itself.
            probabilities: J of (n, K), of every row; the first largest is the prediction.
            count: u, the number of users.
            grid: g, a power of two from 2⁻²⁰ to 2⁻⁸, to whose multiples confidences are rounded.

        Returns:
            (u, D) float64: M, G, H and R row after row, those of one prediction after another's.
        """
        own = labels.unbind(1) if labels.ndim == 2 else [labels] * len(probabilities)
        pairs = zip(own, probabilities, strict=True)
        return torch.cat([self._counts(users, y, shares, count, grid) for y, shares in pairs], 1)

    def _counts(
        self, users: Tensor, labels: Tensor, probabilities: Tensor, count: int, grid: float
    ) -> Tensor:
        """(u, D/J) what one prediction of every row adds."""
        confidence, predicted = torch.nan_to_num(probabilities.double(), nan=0.0).max(1)
        sent = torch.zeros(count * self._piece, dtype=torch.float64)
        start, one = users * self._piece, torch.ones(len(users), dtype=torch.float64)
        right = (labels == predicted).long()
        sent.index_add_(0, start + labels * self.num_classes + predicted, one)
        start = start + self.num_classes**2
        sent.index_add_(0, start + 2 * labels + right, one)
        if self.bins:
            whole = round(1 / grid)
            least = -(-self.first_bin * whole // self.bins)  # 1/K may round to less
            rounded = (confidence / grid).round().clamp(least, whole).long()
            place = (rounded * self.bins // whole).clamp(max=self.bins - 1) - self.first_bin
            start = start + 2 * self.num_classes
            sent.index_add_(0, start + 2 * place + right, one)
            rest = self.weight * (rounded * grid - self.middles(grid)[place])
            sent.index_add_(0, start + 2 * self.sent_bins + place, rest)
        return sent.unflatten(0, (count, self._piece))

    def apart(self, total: Tensor) -> list[tuple["Evaluation", Tensor]]:
        """For each prediction, its own statistic and its part of the (D,) sum of all."""
        return [(replace(self, predictions=1), piece) for piece in total.split(self._piece)]

    def parts(self, total: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(K, K) M, (K, 2) G, (B', 2) H and (B',) R/s of a (D,) sum, of one prediction."""
        classes, bins = self.num_classes, self.sent_bins
        matrix, by_class, by_bin, rest = total.split([classes**2, 2 * classes, 2 * bins, bins])
        square = matrix.unflatten(0, (classes, classes))
        return square, by_class.reshape(-1, 2), by_bin.reshape(-1, 2), rest / self.weight


def held_out(
    embeddings: EmbeddingSet,
    release: Release,
    *,
    training: Iterable[EmbeddingSet] = (),
    overlap: Overlap = "refuse",
) -> np.ndarray:
    """Places of the rows of split `evaluation`, (N,), checked and compared with training rows.

    A set's own training rows are looked at unless `embed hold-out` has divided it: then no record
    is in both parts, and equal rows are two records.

    Args:
        embeddings: raw rows, of the encoder that the model was trained on.
        release: what is to be evaluated.
        training: further sets, whose training rows the model has seen.
        overlap: "refuse" refuses rows that were trained on; "add" compares nothing, and says
            nothing of how many there are.

    Raises:
        ValueError: no such rows, rows of another width, not finite or unlabelled, labels or class
            names that are not the model's, training rows among them, or a training set of
            another encoding.
    """
    check.one_of(get_args(Overlap), overlap=overlap)
    rows = np.flatnonzero(embeddings.split == EVALUATION)
    if not len(rows):
        raise ValueError(f"embeddings must hold evaluation rows (split 2), got none; {HOW}")
    _check(embeddings, rows, release)
    training = list(training)
    for each in training:  # rows of another encoding equal none
        refuse_other(release.encoding, each.encoding, ("model", "training"))
    sets = [*([] if "held_out" in embeddings.meta else [embeddings]), *training]
    sets = [each for each in sets if (each.split == TRAIN).any()]
    if overlap == "refuse" and sets:
        trained = (block for each in sets for block in _blocks(each, each.split == TRAIN))
        known = known_rows(block[np.isfinite(block).all(1)] for block in trained)
        chosen = _blocks(embeddings, embeddings.split == EVALUATION)
        shared = np.concatenate([found(row_hashes(block), known) for block in chosen])
        if shared.any():
            raise ValueError(
                "evaluation rows must not be training rows, got "
                f"{embeddings.place(int(rows[shared.argmax()]))} and {int(shared.sum()) - 1} more "
                "(overlap='add' lets them in, and their two promises add up); nothing is sent"
            )
    return rows


def submissions(
    method: Evaluation,
    releases: Sequence[Release],
    embeddings: EmbeddingSet,
    rows: np.ndarray,
    partition: Partition,
    grid: float,
    generator: torch.Generator | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Vectors that users send, before their noise: (u,) which users, (u, D) float64.

    Of (N,) places of rows, of which a partition says who holds them; `releases` are the model under
    every prior that it is evaluated for, and `grid` is that of confidences. Each user's rows come
    in a random order (`one_shot.source` says why), by the generator; None: by the operating
    system.
    """
    partition = partition.shuffled(apart(generator))
    targets = embeddings.targets
    if targets.ndim == 2:
        targets = np.tile(targets, len(releases))
    counts, offsets = partition.counts, partition.offsets.tolist()
    each = max(1, GROUP // method.dimension)
    for first in range(0, len(counts), each):
        users = torch.arange(first, min(first + each, len(counts)))
        inside = partition.order[offsets[first] : offsets[first + len(users)]]
        places = rows[inside.numpy()]
        parts = [
            [shares for each in releases for shares in shares_of(each, block)]
            for s in range(0, len(places), BLOCK)
            for block in [np.asarray(embeddings.embeddings[places[s : s + BLOCK]])]
        ]
        yield (
            users,
            method.submit(
                torch.arange(len(users)).repeat_interleave(counts[users]),
                torch.from_numpy(np.array(targets[places], np.int64)),
                [torch.cat(each) for each in zip(*parts, strict=True)],
                len(users),
                grid,
            ),
        )


def shares_of(release: Release, block: np.ndarray) -> list[Tensor]:
    """(n, K) probabilities of classes, or for every finding (n, 2) without it and with it."""
    shares = release.predict_proba(block)
    if not release.findings:
        return [shares]
    return list(torch.stack([1 - shares, shares], 2).unbind(1))


def _check(embeddings: EmbeddingSet, rows: np.ndarray, release: Release) -> None:
    embeddings.need_labels()
    refuse_other(release.encoding, embeddings.encoding, ("model", "embeddings"))
    width, classes = len(release.transform.mean), release.weights.shape[1]
    if embeddings.dim != width:
        raise ValueError(f"embeddings must have the model's {width} columns, got {embeddings.dim}")
    embeddings.check_classes(release.class_names, "as the model's")
    if release.findings != (embeddings.findings is not None):
        kinds = ("findings", "one class a row")
        wanted, got = kinds if release.findings else kinds[::-1]
        raise ValueError(f"embeddings must have {wanted}, as the model, got {got}")
    labels = embeddings.targets[rows]
    if release.findings:
        check.equal(classes, findings=labels.shape[1])
        if (labels < 0).any():
            row = embeddings.place(int(rows[(labels < 0).any(1).argmax()]))
            raise ValueError(
                "findings of evaluation rows must be known (or pass --unknown negative to "
                f"`embed run`), got unknown ones in {row}"
            )
        classes = 2
    if (labels < 0).any() or (labels >= classes).any():
        odd = labels[(labels < 0) | (labels >= classes)]
        raise ValueError(
            f"labels of evaluation rows must lie in [0, {classes}), got {odd[0]} and "
            f"{len(odd)} outside"
        )
    start = 0
    for block in _blocks(embeddings, embeddings.split == EVALUATION):
        finite = np.isfinite(block).all(1)
        if not finite.all():
            bad = int(finite.argmin())
            value = block[bad][~np.isfinite(block[bad])][0]
            place = embeddings.place(int(rows[start + bad]))
            raise ValueError(f"embeddings must be finite, got {value} in {place}")
        start += len(block)


def _blocks(embeddings: EmbeddingSet, chosen: np.ndarray) -> Iterator[np.ndarray]:
    """The chosen rows in order, in blocks of bounded size."""
    start = 0
    for block in embeddings.blocks():
        picked = block[chosen[start : start + len(block)]]
        start += len(block)
        if len(picked):
            yield picked
