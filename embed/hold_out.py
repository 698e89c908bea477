"""Rows held out of training, for the evaluation of models, and the draws that choose rows.

The operating system draws; a draw never depends on a row.
"""

import os
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from embed.store import EmbeddingSet
from pretrain import check
from pretrain.cli.output import output_directory
from pretrain.datasets import EVALUATION, TRAIN
from pretrain.public import function

By = Literal["record", "user"]


@dataclass(frozen=True, kw_only=True)
class HoldOut:
    """Hold rows out of training, for a private evaluation: some of every user, or whole users.

    blind-averaging embed hold-out --embeddings mine --share 0.2 --out held

    The operating system draws the rows; neither their content nor their order matters.
    """

    embeddings: Path
    """Embedding set whose training rows are divided; test rows stay."""
    share: float
    """Share of every user's training rows to hold out, or with `--by user` of the users."""
    by: By = "record"
    """Unit of the draw. `record`: every user keeps at least one training row. `user`: all rows of
    some users."""
    seed: int | None = None
    """Seed of the draw, for simulations; no model of such a set is suitable for release (default:
    the operating system draws)."""
    out: Path | None = None
    """Directory to write (default: a new one under runs/)."""
    overwrite: bool = False
    """Replace an existing directory."""

    def run(self) -> Path:
        """Writes the set with its new split; prints the number of rows of each kind."""
        out = output_directory(self.out, "hold-out", self.embeddings, overwrite=self.overwrite)
        source = EmbeddingSet.open(self.embeddings)
        held = with_held_out(source, self.share, by=self.by, seed=self.seed)
        held.save(out, overwrite=self.overwrite)
        train, evaluation = (int((held.split == part).sum()) for part in (TRAIN, EVALUATION))
        print(f"{train} rows to train on, {evaluation} held out, in {out}")
        if lines := without_held_out(held):
            print(lines)
        return out


hold_out = function("hold_out", HoldOut)


def without_held_out(held: EmbeddingSet) -> str:
    """Words on users of whom no row was held out; "" if there are none."""
    if held.users is None:
        return ""
    train, apart = (np.unique(held.users[held.split == part]) for part in (TRAIN, EVALUATION))
    none = len(np.setdiff1d(train, apart))
    whole = len(np.setdiff1d(apart, train))
    if held.meta["held_out"]["by"] == "user":
        return f"{whole} users are held out with all of their rows, and train nothing"
    if not none:
        return ""
    return (
        f"{none} of {len(train)} users hold out no row: the share of their rows rounds to none, or "
        "they have a single one"
    )


def with_held_out(
    embeddings: EmbeddingSet,
    share: float,
    *,
    by: By = "record",
    seed: int | None = None,
    keys: np.ndarray | None = None,
) -> EmbeddingSet:
    """Moves some training rows to split `evaluation`.

    The choice is independent of all rows and of their order. So a replaced record changes only one
    of the two parts, in that record, and promises for the two parts do not add up for one record.
    Equal rows count as separate records.

    Args:
        embeddings: with training rows.
        share: in (0, 1), of every user's training rows, rounded to the nearest number, or of the
            users.
        by: "record" or "user".
        seed: of the draw, for simulations; None: the operating system draws.
        keys: (N,) uint64 random numbers of the rows, or of the users in ascending order, instead of
            a draw; the greatest are held out. For tests that replace a record.

    Raises:
        ValueError: a value out of range, no training row, rows held out already, or a share that
            holds out nothing or everything.
    """
    check.within("(0, 1)", share=share)
    check.one_of(get_args(By), by=by)
    check.at_least(0, **check.drop_none(seed=seed))
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
    held_out = {"share": share, "by": by, "seed": seed}
    return replace(embeddings, split=split, meta=embeddings.meta | {"held_out": held_out})


def _share(counts: "np.ndarray | int", share: Fraction) -> np.ndarray:
    """Share of each number, a half rounded up."""
    return np.array([int(count * share + Fraction(1, 2)) for count in np.atleast_1d(counts)])


def random_keys(count: int, seed: int | None = None) -> np.ndarray:
    """(count,) uint64, independent and uniform: keys for sorting at random.

    Args:
        count: number of keys.
        seed: makes them reproducible, for simulations; None: the operating system draws, and they
            cannot be drawn again.
    """
    if seed is not None:
        return np.random.default_rng(seed).integers(2**64, size=count, dtype=np.uint64)
    return np.frombuffer(bytearray(os.urandom(8 * count)), np.uint64)


def greatest(keys: np.ndarray, group: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """(n,) bool: rows with the `counts[g]` greatest keys of every group g.

    Args:
        keys: (n,) of `random_keys`.
        group: (n,) int64 in [0, len(counts)).
        counts: (groups,) number of rows of each group.
    """
    order = np.lexsort((keys, group))
    ends = np.cumsum(np.bincount(group, minlength=len(counts)))
    place = np.empty(len(keys), np.int64)  # counted from the end of a row's group
    place[order] = ends[group[order]] - np.arange(len(keys))
    return place <= counts[group]
