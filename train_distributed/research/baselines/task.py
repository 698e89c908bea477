"""Task of a learner to compare with: a request in, a release out."""

from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from heads import Head
from train_distributed.one_shot.class_prior import class_names
from train_distributed.one_shot.method import Method
from train_distributed.one_shot.model import Release
from train_distributed.one_shot.release import release_of, reported, suitability
from train_distributed.one_shot.request import FaultInjection, Noise, ReleaseRequest
from train_distributed.one_shot.source import CheckedInputs, EmbeddingUsers
from train_distributed.partition import Partition

H = TypeVar("H", bound=Head)


@dataclass(frozen=True, kw_only=True)
class Task(ReleaseRequest):
    """Request whose learner may need more than one sum, or none."""

    noise: Noise = "discrete"

    @property
    def name(self) -> str:
        """Name of the learner, for errors and reports."""
        return str(self.method)

    @property
    def users(self) -> EmbeddingUsers:
        """All users' rows, transformed while they are read."""
        return cast(EmbeddingUsers, self.source.users)

    def head(self, kind: type[H], l2_reg: float) -> H:
        """A head of this kind for the task's classes and rows."""
        clip_norm = self.source.transform.clip_norm
        return kind(num_classes=self.source.num_classes, l2_reg=l2_reg, clip_norm=clip_norm)

    def pooled(self) -> tuple[Tensor, Tensor]:
        """((N, d) float32 rows, (N,) labels) of all users in one place."""
        parts = [
            (x[:count], y[:count])
            for chunk in self.users.chunks()
            for x, y, count in zip(chunk.x, chunk.y, chunk.counts.tolist(), strict=True)
        ]
        return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])

    def validate(self) -> CheckedInputs:
        """Refuses what no release may rest on; see `one_shot.source`."""
        discrete = self.noise == "discrete" and self.privacy.private
        return self.source.validate(
            self.privacy,
            discrete=discrete,
            vouched=self.vouch_for_transform,
            allow_delta=self.allow_delta,
        )

    def as_one_user(self) -> "Task":
        """Task with all rows held by a single user, which trusts itself."""
        order = self.users.partition.order
        offsets = torch.tensor([0, len(order)])
        promise = replace(self.privacy, honest_fraction=None, noise_by="users")
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
        if self.noise != "float":
            raise ValueError(f"noise must be 'float' for {self.name!r}, got {self.noise!r}")

    def refuse_users(self) -> None:
        """Checks that nothing is asked of single users, or of servers.

        Raises:
            ValueError: dropouts, dishonest users, or noise of servers.
        """
        if self.privacy.noise_by != "users":
            raise ValueError(f"noise_by must be 'users' for method {self.name!r}, got 'servers'")
        faults = self.faults or FaultInjection()
        if self.min_survivors is not None or faults.dropped:
            raise ValueError(
                f"min_survivors and dropped must be left out for method {self.name!r}, where all "
                "users stay"
            )
        if faults.known_noise:
            raise ValueError(
                f"known_noise must be empty for {self.name!r}, got {list(faults.known_noise)}"
            )

    def summed(self, method: Method, **report: Any) -> Release:
        """Release by one secure sum, as our own methods, with additions to the report."""
        released = release_of(replace(self, method=method, options={}))
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
        rows, classes = self.users.embeddings, self.source.num_classes
        names = class_names(rows.declared_classes, classes)
        released = Release(weights.double(), self.source.transform, names, opened=opened)
        sizes = self.users.sizes
        facts = {"users": len(sizes), "rows": int(sizes.sum())} | report
        verdict = suitability(
            self.privacy,
            self.noise,
            seeded=self.generator is not None,
            rehearsed=None if self.faults is None else self.faults.reason,
        )
        return reported(released, facts, verdict, rows)
