"""Checks of the private rows and the public transform before anything is computed.

Refusals are visible: that a run was refused, and why, shows one bit that may rest on one record (a
row that is not finite, a label out of range, a row that is public as well). They come before noise
is drawn, for the set as a whole, and no ε covers them; whoever repairs a set and runs again tells
nobody else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from embed import EmbeddingSet, PublicTransform
from embed.encoding import refuse_other
from embed.identity import BITS, false_positives, found, row_hashes
from embed.store import INFERRED
from pretrain.datasets import TRAIN
from train_distributed.partition import Partition
from train_distributed.privacy.promise import Privacy

NO_ROWS, COMPARED = "none: it is the identity", "hashes of the public rows, compared"
VOUCHED, UNKNOWN = "unknown, vouched for", "unknown"
SEEDED = "a seed says which rows are held out"
SPLIT = "users that the set names are spread over several users: none is protected as a whole"
STREAMED = "not compared: users stream in with rows that somebody else has transformed"


@dataclass(frozen=True)
class CheckedInputs:
    """Findings of the checks, with reasons that make a model unsuitable for release."""

    report: dict[str, Any]
    unsuitable: tuple[str, ...] = ()


def validate(
    embeddings: EmbeddingSet,
    transform: PublicTransform,
    num_classes: int | None,
    *,
    discrete: bool,
    vouched: bool = False,
    class_names: Sequence[str] = (),
) -> CheckedInputs:
    """Checks a set with its transform, before any work on its rows.

    All rows of the set are compared with those that the transform has seen, test rows too: a set is
    private as a whole, and an accuracy on rows that the transform knows would flatter it. What is
    unsuitable in a simulation is refused under `discrete` noise; somebody may have `vouched` for a
    transform that does not say which rows it has seen. All users of a federation agreed on class
    names.

    Raises:
        ValueError: rows of another encoder than those the transform was fitted on, rows that are
            not finite or that it has seen, labels out of range, and under discrete noise classes
            that nobody declared, a split drawn by a seed, a transform of unknown origin, or one
            whose public rows were chosen by looking at private ones.
    """
    refuse_other(transform.encoding, embeddings.encoding, ("transform", "embeddings"))
    declared = embeddings.declared_classes
    if class_names and declared not in ((), tuple(class_names)):
        raise ValueError(f"class_names must be {tuple(class_names)} as agreed, got {declared}")
    classes = known_classes(embeddings, num_classes)
    if transform.known is not None:
        transform.known.check_classes(declared or class_names, classes)
    inferred = num_classes is None and not declared
    if inferred and discrete:
        raise ValueError(
            "num_classes must be given for discrete noise where the set's classes were counted "
            f"from the labels that occur, got None and {classes} such classes"
        )
    if discrete:
        if transform.dropped:
            raise ValueError(
                "transform must be fitted on a whole public set for discrete noise, got one out of "
                f"which {transform.dropped} private rows were taken, so that it depends on them"
            )
        refuse_seeded_split(embeddings)
    origin = _origin(embeddings, transform, discrete=discrete, vouched=vouched)
    reasons = {
        "its classes were counted from the private labels that occur": inferred,
        "nobody knows which rows the public transform has seen": origin == UNKNOWN,
        "private rows were taken out of the public set": transform.dropped > 0,
        SEEDED: embeddings.held_out_seed is not None,
    }
    report = provenance(transform) | {"public_transform": origin}
    report |= _compare_rows(embeddings, transform)
    report |= {"classes": INFERRED if inferred else "declared"}
    return CheckedInputs(report, tuple(reason for reason, holds in reasons.items() if holds))


def refuse_seeded_split(embeddings: EmbeddingSet) -> None:
    """Raises ValueError if a seed says which rows are held out.

    A record that takes another place in the set, as one of another class folder does, then moves
    other records between the parts.
    """
    if (seed := embeddings.held_out_seed) is not None:
        raise ValueError(
            "rows must be held out by the operating system's draw for discrete noise "
            f"(`embed hold-out` without --seed), got those of seed {seed}"
        )


def validate_stream(
    transform: PublicTransform, *, discrete: bool, vouched: bool = False
) -> CheckedInputs:
    """Checks a stream of users, whose rows are compared with nothing.

    Raises ValueError under discrete noise for a transform but the identity, unless vouched for.
    """
    if transform.is_identity:
        return CheckedInputs({"public_transform": STREAMED})
    if discrete and not vouched:
        raise ValueError(
            "vouch_for_transform must be set for users that stream in already transformed, whose "
            "rows cannot be compared with the public ones, got False"
        )
    unsuitable = () if vouched else ("nobody compared private rows with the public ones",)
    origin = f"{STREAMED}; vouched for" if vouched else STREAMED
    return CheckedInputs(provenance(transform) | {"public_transform": origin}, unsuitable)


def check_partition(partition: Partition, rows: int) -> None:
    """Raises ValueError unless every one of the rows belongs to exactly one user."""
    if len(partition.order) != rows:
        raise ValueError(
            f"partition must cover the {rows} training rows, got {len(partition.order)}"
        )
    if not torch.equal(partition.order.sort().values, torch.arange(rows)):
        raise ValueError("partition must give every training row to one user, got a row twice")


def spread_users(
    embeddings: EmbeddingSet, partition: Partition, privacy: Privacy, part: int = TRAIN
) -> tuple[str, ...]:
    """Why a promise for users is none for those that the set names; nothing where it is one."""
    if embeddings.users is None or privacy.unit != "user":
        return ()
    named = embeddings.users[embeddings.split == part]
    holder = np.empty(len(named), np.int64)
    holder[partition.order.numpy()] = np.repeat(np.arange(partition.users), partition.counts)
    pairs = np.unique(np.stack([named, holder]), axis=1)
    return (SPLIT,) if pairs.shape[1] > len(np.unique(named)) else ()


def known_classes(embeddings: EmbeddingSet, num_classes: int | None) -> int:
    """The number of classes, declared or of the class names; counted only where a set says so.

    Raises ValueError for a set without labels, neither number nor names, both and unequal, or a
    label that is not in [0, K).
    """
    embeddings.need_labels()
    declared = len(embeddings.declared_classes)
    if num_classes is None:
        counted = len(embeddings.meta.get("class_names", ()))
        if not counted:
            raise ValueError("num_classes must be given where the set names no classes, got None")
        return counted
    if declared and declared != num_classes:
        raise ValueError(
            f"num_classes must be {declared}, the set's class names, got {num_classes}"
        )
    outside = embeddings.labels >= num_classes
    if outside.any():
        worst = int(embeddings.labels.max())
        raise ValueError(
            f"labels must lie in [0, {num_classes}), got {worst} and {int(outside.sum())} outside"
        )
    return num_classes


def provenance(transform: PublicTransform) -> dict[str, Any]:
    """Number of public rows that a transform has seen."""
    return {} if transform.seen is None else {"public_rows": len(transform.seen)}


def _origin(
    embeddings: EmbeddingSet, transform: PublicTransform, *, discrete: bool, vouched: bool
) -> str:
    if embeddings.is_compared and transform.is_identity:
        return NO_ROWS
    if embeddings.is_compared and transform.seen is not None and len(transform.seen):
        return COMPARED
    if vouched:
        return VOUCHED
    if discrete:
        raise ValueError(
            "transform must say which rows it has seen for discrete noise, and the rows must be "
            "raw or compared with those (fit it again, or set vouch_for_transform), got neither"
        )
    return UNKNOWN


def _compare_rows(embeddings: EmbeddingSet, transform: PublicTransform) -> dict[str, Any]:
    """Report on the rows that the transform has seen."""
    if embeddings.dim != len(transform.mean):
        raise ValueError(
            f"transform must be of {embeddings.dim} columns, got one of {len(transform.mean)}"
        )
    seen = transform.seen if transform.seen is not None and len(transform.seen) else None
    broken, first, value, shared, start = 0, 0, 0.0, 0, 0  # all by one pass over the rows
    for block in embeddings.blocks():
        finite = np.isfinite(block).all(1)
        if not finite.all():
            if not broken:
                row = int(finite.argmin())
                first, value = start + row, block[row][~np.isfinite(block[row])][0]
            broken += int((~finite).sum())
        elif seen is not None and not broken:
            shared += int(found(row_hashes(block), seen).sum())
        start += len(block)
    if broken:
        raise ValueError(
            f"embeddings must be finite, got {value} in {embeddings.place(first)}, "
            f"the first of {broken} such rows among {len(embeddings)}; nothing is released"
        )
    if seen is None:
        if transform.fitted_on and transform.fitted_on == embeddings.content_hash():
            raise ValueError("transform must not be fitted on the private rows, got their very set")
        return {}
    if shared:
        raise ValueError(
            f"transform must not have seen private rows, got {shared} of {len(embeddings)} "
            f"among its {len(seen)} public ones (`embed exclude` writes the private set without "
            "them); nothing is released"
        )
    return {
        "private_rows_compared": len(embeddings),
        "shared_rows": 0,
        "row_hash_bits": BITS,
        "shared_rows_by_chance": false_positives(len(embeddings), len(seen)),
    }
