"""Private rows of a release, and the checks that come before anything is computed of them.

Refusals are visible: that a run was refused, and why, shows one bit that may rest on one record (a
row that is not finite, a label out of range, a row that is public as well). They come before noise
is drawn, for the set as a whole, and no ε covers them; whoever repairs a set and runs again tells
nobody else.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from embed.encoding import refuse_other
from embed.identity import BITS, false_positives, found, row_hashes
from embed.store import BLOCK, INFERRED
from heads.rows import SLACK, check_rows, row_norms
from pretrain import check
from pretrain.datasets import TRAIN
from train_distributed.one_shot.statistic import CHUNK, Chunk, Users
from train_distributed.partition import Partition, apart, split
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


@dataclass(frozen=True)
class EmbeddingUsers:
    """The training rows of an `EmbeddingSet`, shuffled and transformed while they are read."""

    embeddings: EmbeddingSet
    transform: PublicTransform
    partition: Partition  # of the training rows, in their order
    generator: torch.Generator | None = None  # of the shuffles; None: the operating system

    @property
    def sizes(self) -> Tensor:
        """(users,) int64 n_i."""
        return self.partition.counts

    @property
    def dim(self) -> int:
        """q + 1: the constant and the transform's q features."""
        return self.transform.dim

    def chunks(self) -> Iterator[Chunk]:
        """Every user once, those of similar size together, with (u, n, q + 1) rows."""
        train = np.flatnonzero(self.embeddings.split == TRAIN)
        width = max(self.embeddings.dim, self.dim)
        for bucket in self.partition.shuffled(self.generator).buckets(max(1, CHUNK // width)):
            flat = train[bucket.rows.flatten().numpy()]
            rows = self.transform(self.embeddings.embeddings[flat])
            targets = torch.from_numpy(self.embeddings.targets[flat])
            yield Chunk(
                bucket.users,
                rows.unflatten(0, tuple(bucket.rows.shape)),
                targets.unflatten(0, tuple(bucket.rows.shape)),
                bucket.counts,
            )


def own_partition(
    embeddings: EmbeddingSet, part: int = TRAIN, *, single: bool = False
) -> Partition:
    """The users that a set names for the rows of a split; where it names none, a `single` one.

    Raises ValueError for no such row, no labels, or no users where nobody declared a single one.
    """
    embeddings.need_labels()
    rows = embeddings.split == part
    if not rows.any():
        what = "training" if part == TRAIN else "evaluation"
        raise ValueError(f"embeddings must hold {what} rows (split {part}), got none")
    labels = torch.from_numpy(embeddings.labels[rows]).clamp(min=0)
    if embeddings.users is None:
        if not single:
            raise ValueError(
                "users must be named by the embedding set (zeros: all rows are one user's own) or "
                "given by a partition, got None"
            )
        return split(labels, 1)
    return split(labels, None, "by-writer", writers=torch.from_numpy(embeddings.users[rows]))


@dataclass(frozen=True)
class Source:
    """Private rows, and the one transform that clips them."""

    embeddings: EmbeddingSet | None  # None: rows stream in that somebody else has transformed
    users: Users
    transform: PublicTransform
    given: int | None  # K as the caller declares it
    num_classes: int
    generator: torch.Generator | None = None  # of the rows' order; None: the operating system

    @classmethod
    def of(
        cls,
        rows: EmbeddingSet | Users,
        transform: PublicTransform | None,
        partition: Partition | None,
        given: int | None,
        generator: torch.Generator | None = None,
    ) -> "Source":
        """The arguments of `release`, filled in.

        A generator fixes the rows' order, from its state; the noise that is drawn from it later
        depends on no number of rows.

        Raises ValueError for two transforms or two partitions, a partition that leaves out a row or
        gives it to two users, or classes that nobody states.
        """
        generator = apart(generator)
        if type(rows) is EmbeddingUsers:
            another = transform is not None and not transform.same_rows(rows.transform)
            if another or partition is not None:
                raise ValueError("transform and partition must be None for users that have theirs")
            rows, transform, partition = rows.embeddings, rows.transform, rows.partition
        if not isinstance(rows, EmbeddingSet):
            if partition is not None:
                raise ValueError("partition must be None for a stream of users, which has its own")
            if given is None:
                raise ValueError("num_classes must be given for a stream of users, got None")
            transform = PublicTransform.identity(rows.dim - 1) if transform is None else transform
            return cls(None, rows, transform, given, given, generator)
        classes = known_classes(rows, given)
        transform = PublicTransform.identity(rows.dim) if transform is None else transform
        partition = own_partition(rows) if partition is None else partition
        check_partition(partition, int((rows.split == TRAIN).sum()))
        users = EmbeddingUsers(rows, transform, partition, generator)
        return cls(rows, users, transform, given, classes, generator)

    def validate(
        self, privacy: Privacy, *, discrete: bool, vouched: bool, allow_delta: bool
    ) -> CheckedInputs:
        """Refuses what no release may rest on; see `validate` and `Privacy.large_delta`."""
        rows = int(self.users.sizes.sum())
        if discrete:
            privacy.refuse_large_delta(rows, allowed=allow_delta)
        report = privacy.large_delta(rows)
        if self.embeddings is None or not isinstance(self.users, EmbeddingUsers):
            checked = validate_stream(self.transform, discrete=discrete, vouched=vouched)
            return CheckedInputs(report | checked.report, checked.unsuitable)
        checked = validate(
            self.embeddings, self.transform, self.given, discrete=discrete, vouched=vouched
        )
        spread = spread_users(self.embeddings, self.users.partition, privacy)
        return CheckedInputs(report | checked.report, checked.unsuitable + spread)

    def chunks(self, kept: Tensor | None = None) -> Iterator[Chunk]:
        """Every user once, its rows in a random order; of (users,) bool those that are `kept`.

        Raises ValueError for a user that breaks its word, or as `check_stream`.
        """
        sizes = self.users.sizes
        seen = torch.zeros(len(sizes), dtype=torch.bool)
        for chunk in self.users.chunks():
            if seen[chunk.users].any() or len(chunk.users.unique()) < len(chunk.users):
                raise ValueError("users must stream in once each, got one twice")
            if not torch.equal(chunk.counts, sizes[chunk.users]):
                raise ValueError("users must hold as many rows as their sizes say, got others")
            seen[chunk.users] = True
            if self.embeddings is None:
                clip_norm, constant = self.transform.clip_norm, self.transform.constant
                check_stream(chunk, self.num_classes, clip_norm, constant)
                chunk = chunk.shuffled(self.generator)
            stay = None if kept is None else kept[chunk.users]
            if stay is None or stay.all():
                yield chunk
            elif stay.any():
                yield chunk.select(stay)
        if not seen.all():
            missing = int((~seen).nonzero()[0])
            raise ValueError(f"users must stream in as their sizes say, got none for {missing}")


def check_stream(chunk: Chunk, num_classes: int, clip_norm: float, constant: float) -> None:
    """Refuses rows of users that stream in by themselves, on which no sensitivity would hold.

    The true rows of the chunk are looked at, not the padding, and compared in float64 with the clip
    norm c and the constant a, whatever the rows' type: a constant that float32 cannot hold is not
    the one that a float32 row begins with, and the difference may leave the features longer than
    √(c² − a²), so these have a bound of their own.

    Raises:
        ValueError: a label that is not in [0, K), a row that is not finite, longer than c, begins
            with another number than a, or whose features are longer than √(c² − a²).
    """
    own = chunk.own
    labels = chunk.y[own]
    if chunk.y.ndim != 2:
        raise ValueError("rows that stream in must have one class each; findings need a set")
    if (labels < 0).any() or (labels >= num_classes).any():
        raise ValueError(f"labels must lie in [0, {num_classes}), got {int(labels.max())}")
    broken = own & ~torch.isfinite(chunk.x).all(2)
    if broken.any():
        user = int(chunk.users[broken.any(1)][0])
        raise ValueError(
            f"rows must be finite, got {int(broken.sum())} that are not, the first of user {user}; "
            "nothing is released"
        )
    reach = math.sqrt(clip_norm**2 - constant**2)
    step = max(1, BLOCK // chunk.x[0].numel())
    for start in range(0, len(own), step):
        part = slice(start, start + step)
        rows = chunk.x[part][own[part]]
        check_rows(rows, chunk.y[part][own[part]], num_classes, clip_norm)
        first = rows[:, 0].double()
        wrong = first[first != constant]
        if len(wrong):
            raise ValueError(f"rows must begin with the constant {constant}, got {float(wrong[0])}")
        norms = row_norms(rows[:, 1:])
        if (norms > reach * (1 + SLACK)).any():
            raise ValueError(
                f"rows must have features of norm <= sqrt(clip_norm^2 - constant^2) = {reach}, "
                f"got {float(norms.max())}"
            )


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
    if class_names:
        embeddings.check_classes(tuple(class_names), "as agreed")
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
    """Reason why unit "user" does not protect the set's own users; empty where it does."""
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
    if embeddings.findings is not None:
        columns = embeddings.findings.shape[1]
        check.equal(columns, **check.drop_none(num_classes=num_classes))
        return columns
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
    """Compares private rows with the transform's public ones; facts for the report."""
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
