"""The rows that a private evaluation looks at, and those that it refuses.

Refusals are visible, as those before a release are (`one_shot.validation`): they come before any
noise, for the set as a whole, and no ε covers them.
"""

from collections.abc import Iterable, Iterator, Sequence
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
from train_distributed.released.evaluation import Evaluation

Overlap = Literal["refuse", "add"]
HOW = "`embed hold-out --share 0.2` holds rows out before a model is trained"
GROUP = 1 << 22  # numbers that users' submissions hold at a time
BLOCK = 8192  # rows predicted at a time


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
    in a random order (`one_shot.users` says why), by the generator; None: by the operating system.
    """
    partition = partition.shuffled(apart(generator))
    counts, offsets = partition.counts, partition.offsets.tolist()
    each = max(1, GROUP // method.dimension)
    for first in range(0, len(counts), each):
        users = torch.arange(first, min(first + each, len(counts)))
        inside = partition.order[offsets[first] : offsets[first + len(users)]]
        places = rows[inside.numpy()]
        parts = [
            [each.predict_proba(block) for each in releases]
            for s in range(0, len(places), BLOCK)
            for block in [np.asarray(embeddings.embeddings[places[s : s + BLOCK]])]
        ]
        yield (
            users,
            method.submit(
                torch.arange(len(users)).repeat_interleave(counts[users]),
                torch.from_numpy(np.array(embeddings.labels[places])),
                [torch.cat(each) for each in zip(*parts, strict=True)],
                len(users),
                grid,
            ),
        )


def _check(embeddings: EmbeddingSet, rows: np.ndarray, release: Release) -> None:
    embeddings.need_labels()
    refuse_other(release.encoding, embeddings.encoding, ("model", "embeddings"))
    width, classes = len(release.transform.mean), release.weights.shape[1]
    if embeddings.dim != width:
        raise ValueError(f"embeddings must have the model's {width} columns, got {embeddings.dim}")
    declared = embeddings.declared_classes
    if declared not in ((), release.class_names):
        raise ValueError(f"class_names must be the model's {release.class_names}, got {declared}")
    labels = embeddings.labels[rows]
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
