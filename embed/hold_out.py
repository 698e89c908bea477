"""Rows held out of training before it begins, so that a model can be evaluated on them."""

from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Literal

import numpy as np

from embed.store import EVALUATION, TRAIN, EmbeddingSet
from pretrain.cli.output import default_directory, refuse_existing, refuse_inputs

By = Literal["record", "user"]


@dataclass(frozen=True, kw_only=True)
class HoldOut:
    """Hold rows out of training, for a private evaluation: some of every user, or whole users.

    blind-averaging embed hold-out --embeddings mine --share 0.2 --out held

    Which ones is drawn by numbers of rows alone, never by what is in them.
    """

    embeddings: Path
    """Embedding set whose training rows are divided; test rows stay."""
    share: float
    """Of every user's training rows, or of the users."""
    by: By = "record"
    """`record`: every user keeps one row to train on at least. `user`: all rows of some users."""
    seed: int = 0
    """Of the draw."""
    out: Path | None = None
    """Directory to write."""
    overwrite: bool = False
    """Replace an existing directory."""

    def run(self) -> None:
        """Writes the set with its new split; prints how many rows are for what."""
        out = self.out or default_directory("hold-out")
        refuse_inputs(out, (self.embeddings,))
        refuse_existing(out, overwrite=self.overwrite)
        source = EmbeddingSet.open(self.embeddings)
        held, dropped = hold_out(source, self.share, by=self.by, seed=self.seed)
        held.save(out, overwrite=self.overwrite)
        train, evaluation = (int((held.split == part).sum()) for part in (TRAIN, EVALUATION))
        print(f"{train} rows to train on, {evaluation} held out, {dropped} dropped, in {out}")


def hold_out(
    embeddings: EmbeddingSet, share: float, *, by: By = "record", seed: int = 0
) -> tuple[EmbeddingSet, int]:
    """The same rows, some training rows moved to split `evaluation`.

    The draw looks at numbers of rows only, so that replacing a record changes no other's place.
    A row that was drawn while an equal one was not is dropped, for what was trained on says nothing
    about new rows: that it is gone says that the set held it twice, and no ε covers it.

    Args:
        embeddings: with training rows.
        share: in (0, 1), of every user's training rows, rounded to the nearest number, or of the
            users.
        by: "record" or "user".
        seed: of the draw.

    Returns:
        The set, and how many rows it lacks.

    Raises:
        ValueError: a setting out of range, no training row, rows held out already, or a share by
            which nothing, or everything, would be held out.
    """
    if not 0 < share < 1:
        raise ValueError(f"share must be in (0, 1), got {share}")
    if by not in ("record", "user"):
        raise ValueError(f"by must be 'record' or 'user', got {by!r}")
    if seed < 0:
        raise ValueError(f"seed must be >= 0, got {seed}")
    if (embeddings.split == EVALUATION).any():
        raise ValueError("embeddings must hold no evaluation rows yet, got a set that does")
    train = np.flatnonzero(embeddings.split == TRAIN)
    if not len(train):
        raise ValueError("embeddings must hold training rows (split 0), got none")
    users = np.zeros(len(train), np.int64) if embeddings.users is None else embeddings.users[train]
    drawn = train[_drawn(users, Fraction(repr(float(share))), by, seed)]
    if not 0 < len(drawn) < len(train):
        raise ValueError(
            f"share must hold out some of {len(train)} training rows of {len(np.unique(users))} "
            f"users and leave some, got {share} by {by}, which is {len(drawn)}"
        )
    split = np.array(embeddings.split)
    split[drawn] = EVALUATION
    twins = _twins(embeddings, split)
    held = replace(embeddings, split=split)
    if not twins.any():
        return held, 0
    if twins.sum() == len(drawn):
        raise ValueError(f"rows must differ, got {len(drawn)} to hold out that all occur twice")
    return held.subset(~twins), int(twins.sum())


def _drawn(users: np.ndarray, share: Fraction, by: By, seed: int) -> np.ndarray:
    """Places among the training rows, ascending; a half is rounded up."""
    names, owner = np.unique(users, return_inverse=True)
    if by == "user":
        count = int(len(names) * share + Fraction(1, 2))
        chosen = np.random.default_rng(seed).permutation(len(names))[:count]
        return np.flatnonzero(np.isin(owner, chosen))
    order = np.argsort(owner, kind="stable")
    found = []
    for user, rows in enumerate(np.split(order, np.cumsum(np.bincount(owner))[:-1])):
        count = min(len(rows) - 1, int(len(rows) * share + Fraction(1, 2)))
        found.append(np.random.default_rng([seed, user]).permutation(rows)[:count])
    return np.sort(np.concatenate(found))


def _twins(embeddings: EmbeddingSet, split: np.ndarray) -> np.ndarray:
    """(N,) bool: rows to evaluate on that are among those to train on; see `embed.identity`."""
    from embed.identity import found, row_hashes

    finite, hashes = [], []
    for block in embeddings.blocks():
        finite.append(np.isfinite(block).all(1))
        hashes.append(row_hashes(np.where(finite[-1][:, None], block, 0)))
    sound, seen = np.concatenate(finite), np.concatenate(hashes)
    known = np.unique(seen[(split == TRAIN) & sound])
    return (split == EVALUATION) & sound & found(seen, known)
