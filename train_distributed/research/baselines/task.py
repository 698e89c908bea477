"""What every learner is given, and how it ends: rows and a promise in, a release out."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from train_distributed.ledger.fields import Reserve
from train_distributed.one_shot.defaults import Circumstances
from train_distributed.one_shot.intake import Admission, known_classes
from train_distributed.one_shot.model import Release
from train_distributed.one_shot.release import Rehearsal, release
from train_distributed.one_shot.report import Noise, class_names, reported, suitability
from train_distributed.one_shot.source import Source
from train_distributed.one_shot.statistic import Method
from train_distributed.one_shot.users import EmbeddingUsers
from train_distributed.partition import Partition
from train_distributed.privacy.float_noise import system_generator
from train_distributed.privacy.promise import Privacy


@dataclass(frozen=True, kw_only=True)
class Task:
    """The arguments of `train_distributed.release`, with what was left out filled in."""

    method: str  # name of the learner, for errors and reports
    embeddings: EmbeddingSet
    transform: PublicTransform
    declared: int | None  # K as the caller states it
    partition: Partition
    privacy: Privacy
    noise: Noise
    generator: torch.Generator | None
    min_survivors: int | None = None
    vouch_for_transform: bool = False
    rehearsal: Rehearsal | None = None
    reserve: Reserve | None = None  # as in `release`

    @cached_property
    def num_classes(self) -> int:
        """Number of classes K: declared, or of the class names."""
        return known_classes(self.embeddings, self.declared)

    @property
    def circumstances(self) -> Circumstances:
        """What settings that are left out depend on."""
        return Circumstances(
            sizes=self.partition.counts,
            num_classes=self.num_classes,
            privacy=self.privacy,
            min_survivors=self.min_survivors,
        )

    @property
    def users(self) -> EmbeddingUsers:
        """All users' rows, transformed while they are read."""
        return EmbeddingUsers(self.embeddings, self.transform, self.partition)

    @property
    def draws(self) -> torch.Generator:
        """The generator given, or one from the operating system."""
        return system_generator() if self.generator is None else self.generator

    def pooled(self) -> tuple[Tensor, Tensor]:
        """((N, d) float32 rows, (N,) labels) of all users in one place."""
        parts = [
            (x[:count], y[:count])
            for chunk in self.users.chunks()
            for x, y, count in zip(chunk.x, chunk.y, chunk.counts.tolist(), strict=True)
        ]
        return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])

    def admit(self) -> Admission:
        """Refuses what no release may rest on; see `intake`."""
        source = Source.of(self.embeddings, self.transform, self.partition, self.declared)
        discrete = self.noise == "discrete" and self.privacy.private
        return source.admit(self.privacy, discrete=discrete, vouched=self.vouch_for_transform)

    def as_one_user(self) -> "Task":
        """The same rows, all of them held by a single user, which trusts itself."""
        order = self.partition.order
        offsets = torch.tensor([0, len(order)])
        promise = replace(self.privacy, honest_fraction=None)
        return replace(self, partition=Partition(order, offsets), privacy=promise)

    def spend(self, **noise: Any) -> None:
        """To be called before any noise is drawn: see `release`, `reserve`.

        Args:
            **noise: what is known of it, where it is Gaussian; else the promise is all there is.
        """
        if self.reserve is not None:
            self.reserve({"noise": self.noise if self.privacy.private else "none"} | noise)

    def refuse_federation(self) -> None:
        """Checks that nothing is asked for that only a secure sum has.

        Raises:
            ValueError: dropouts, dishonest users or discrete noise.
        """
        self.refuse_users()
        self.refuse_discrete()

    def refuse_users(self) -> None:
        """Checks that nothing is asked of single users.

        Raises:
            ValueError: dropouts or dishonest users.
        """
        played = self.rehearsal or Rehearsal()
        if self.min_survivors is not None or played.dropped:
            raise ValueError(
                f"min_survivors and dropped must be left out for method {self.method!r}, where all "
                "users stay"
            )
        if played.known_noise:
            raise ValueError(
                f"known_noise must be empty for {self.method!r}, got {list(played.known_noise)}"
            )

    def refuse_discrete(self) -> None:
        """Checks that the noise is simulated.

        Raises:
            ValueError: discrete noise.
        """
        if self.noise != "float":
            raise ValueError(f"noise must be 'float' for {self.method!r}, got {self.noise!r}")

    def release(self, method: Method, **report: Any) -> Release:
        """By one secure sum, as our own methods, with additions to the report."""
        released = release(
            self.embeddings,
            method,
            self.privacy,
            transform=self.transform,
            num_classes=self.declared,
            partition=self.partition,
            noise=self.noise,
            generator=self.generator,
            min_survivors=self.min_survivors,
            vouch_for_transform=self.vouch_for_transform,
            rehearsal=self.rehearsal,
            reserve=self.reserve,
        )
        return released.with_report(**report)

    def finish(
        self, weights: Tensor, report: dict[str, Any], opened: Tensor | None = None
    ) -> Release:
        """A release made without `release`: the same report, accuracy where there is a test split.

        Args:
            weights: (d, K) of transformed rows.
            report: rounds, bytes_per_user, noise and what the promise is made of.
            opened: (D,) what was shown besides the weights.
        """
        names = class_names(self.embeddings.declared_classes, self.num_classes)
        released = Release(weights.double(), self.transform, names, opened=opened)
        sizes = self.partition.counts
        facts = {"users": len(sizes), "rows": int(sizes.sum())} | report
        verdict = suitability(
            self.privacy,
            self.noise,
            seeded=self.generator is not None,
            rehearsed=None if self.rehearsal is None else self.rehearsal.reason,
        )
        return reported(released, facts, verdict, self.embeddings)
