"""Private rows of a release: a set of raw ones, or users that stream in."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from embed import EmbeddingSet, PublicTransform
from pretrain.datasets import TRAIN
from train_distributed.one_shot.users import Chunk, EmbeddingUsers, Users, own_partition
from train_distributed.one_shot.validation import (
    CheckedInputs,
    check_partition,
    known_classes,
    spread_users,
    validate,
    validate_stream,
)
from train_distributed.partition import Partition, apart
from train_distributed.privacy.promise import Privacy


@dataclass(frozen=True)
class PrivateRows:
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
    ) -> "PrivateRows":
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
        """Refuses what no release may rest on; see `validation` and `Privacy.large_delta`."""
        rows = int(self.users.sizes.sum())
        if discrete:
            privacy.refuse_large_delta(rows, allowed=allow_delta)
        checked = self._checked(privacy, discrete=discrete, vouched=vouched)
        return replace(checked, report=privacy.large_delta(rows) | checked.report)

    def _checked(self, privacy: Privacy, *, discrete: bool, vouched: bool) -> CheckedInputs:
        if self.embeddings is None or not isinstance(self.users, EmbeddingUsers):
            return validate_stream(self.transform, discrete=discrete, vouched=vouched)
        checked = validate(
            self.embeddings, self.transform, self.given, discrete=discrete, vouched=vouched
        )
        spread = spread_users(self.embeddings, self.users.partition, privacy)
        return replace(checked, unsuitable=checked.unsuitable + spread)

    def chunks(self) -> Iterator[Chunk]:
        """Every user once, its rows in a random order.

        Raises ValueError for a user that breaks its word, or rows that are not finite.
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
                _check_rows(chunk, self.num_classes)
                chunk = chunk.shuffled(self.generator)
            yield chunk
        if not seen.all():
            missing = int((~seen).nonzero()[0])
            raise ValueError(f"users must stream in as their sizes say, got none for {missing}")


def _check_rows(chunk: Chunk, num_classes: int) -> None:
    """Refuses a user's rows that no `EmbeddingSet` would hold, before any of its noise is drawn."""
    labels = chunk.y[chunk.own]
    if (labels < 0).any() or (labels >= num_classes).any():
        raise ValueError(f"labels must lie in [0, {num_classes}), got {int(labels.max())}")
    broken = chunk.own & ~torch.isfinite(chunk.x).all(2)
    if broken.any():
        user = int(chunk.users[broken.any(1)][0])
        raise ValueError(
            f"rows must be finite, got {int(broken.sum())} that are not, the first of user {user}; "
            "nothing is released"
        )
