"""Rows held out of training before it begins, so that a model can be evaluated on them."""

from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Literal

import numpy as np

from embed.draws import greatest, random_keys
from embed.store import EVALUATION, TRAIN, EmbeddingSet
from pretrain.cli.output import default_directory, refuse_existing, refuse_inputs

By = Literal["record", "user"]


@dataclass(frozen=True, kw_only=True)
class HoldOut:
    """Hold rows out of training, for a private evaluation: some of every user, or whole users.

    blind-averaging embed hold-out --embeddings mine --share 0.2 --out held

    The operating system draws which ones; what is in the rows, and in which order they are, has no
    influence.
    """

    embeddings: Path
    """Embedding set whose training rows are divided; test rows stay."""
    share: float
    """Share of every user's training rows to hold out, or with `--by user` of the users."""
    by: By = "record"
    """`record`: every user keeps one row to train on at least. `user`: all rows of some users."""
    seed: int | None = None
    """Makes the draw reproducible, for simulations; no model of the set is suitable for release."""
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
        held = hold_out(source, self.share, by=self.by, seed=self.seed)
        held.save(out, overwrite=self.overwrite)
        train, evaluation = (int((held.split == part).sum()) for part in (TRAIN, EVALUATION))
        print(f"{train} rows to train on, {evaluation} held out, in {out}")


def hold_out(
    embeddings: EmbeddingSet,
    share: float,
    *,
    by: By = "record",
    seed: int | None = None,
    keys: np.ndarray | None = None,
) -> EmbeddingSet:
    """The same rows, some training rows moved to split `evaluation`.

    Which ones is independent of all rows and of their order. So whatever record is replaced, both
    parts stay as they are but for that record in one of them, and promises for the two parts do not
    add up for one record. Equal rows are counted as the records that they are.

    Args:
        embeddings: with training rows.
        share: in (0, 1), of every user's training rows, rounded to the nearest number, or of the
            users.
        by: "record" or "user".
        seed: of the draw, for simulations; None: the operating system draws.
        keys: (N,) uint64 random numbers of the set's rows, or of its users in ascending order, the
            greatest of which are held out, instead of a draw: for tests that replace a record.

    Raises:
        ValueError: a setting out of range, no training row, rows held out already, or a share by
            which nothing, or everything, would be held out.
    """
    if not 0 < share < 1:
        raise ValueError(f"share must be in (0, 1), got {share}")
    if by not in ("record", "user"):
        raise ValueError(f"by must be 'record' or 'user', got {by!r}")
    if seed is not None and seed < 0:
        raise ValueError(f"seed must be >= 0, got {seed}")
    if (embeddings.split == EVALUATION).any():
        raise ValueError("embeddings must hold no evaluation rows yet, got a set that does")
    train = np.flatnonzero(embeddings.split == TRAIN)
    if not len(train):
        raise ValueError("embeddings must hold training rows (split 0), got none")
    users = np.zeros(len(train), np.int64) if embeddings.users is None else embeddings.users[train]
    names, owner = np.unique(users, return_inverse=True)
    exact = Fraction(repr(float(share)))
    if by == "user":
        keys = random_keys(len(names), seed) if keys is None else keys
        chosen = greatest(keys, np.zeros(len(names), np.int64), _share(len(names), exact))
        drawn = train[chosen[owner]]
    else:
        keys = random_keys(len(embeddings), seed) if keys is None else keys
        rows = np.bincount(owner)
        drawn = train[greatest(keys[train], owner, np.minimum(rows - 1, _share(rows, exact)))]
    if not 0 < len(drawn) < len(train):
        raise ValueError(
            f"share must hold out some of {len(train)} training rows of {len(names)} "
            f"users and leave some, got {share} by {by}, which is {len(drawn)}"
        )
    split = np.array(embeddings.split)
    split[drawn] = EVALUATION
    told = {"share": share, "by": by, "seed": seed}
    return replace(embeddings, split=split, meta=embeddings.meta | {"held_out": told})


def _share(counts: "np.ndarray | int", share: Fraction) -> np.ndarray:
    """That share of each number, a half rounded up."""
    return np.array([int(count * share + Fraction(1, 2)) for count in np.atleast_1d(counts)])
