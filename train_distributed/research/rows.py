"""Training rows of learners of many rounds."""

from dataclasses import dataclass

import torch
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from embed.store import TRAIN
from train_distributed.partition import Partition
from train_distributed.privacy.promise import Privacy


@dataclass(frozen=True, eq=False)
class Rows:
    """All users' transformed rows.

    Raises:
        ValueError: shapes that differ, or a label outside [0, num_classes).
    """

    x: Tensor  # (N, d) float64, constant column first, ‖row‖ <= clip_norm
    y: Tensor  # (N,) int64
    users: Partition
    num_classes: int  # K
    clip_norm: float  # c

    def __post_init__(self) -> None:
        if not len(self.x) == len(self.y) == len(self.users.order):
            raise ValueError(
                f"x, y and users must have as many rows, got {len(self.x)}, {len(self.y)}, "
                f"{len(self.users.order)}"
            )
        outside = self.y[(self.y < 0) | (self.y >= self.num_classes)]
        if len(outside):
            raise ValueError(f"labels must lie in [0, {self.num_classes}), got {int(outside[0])}")

    @classmethod
    def of(
        cls,
        embeddings: EmbeddingSet,
        transform: PublicTransform,
        users: Partition,
        num_classes: int,
    ) -> "Rows":
        """The training rows of a set."""
        train = embeddings.split == TRAIN
        x = transform(embeddings.embeddings[train], dtype=torch.float64)
        labels = torch.from_numpy(embeddings.labels[train])
        return cls(x, labels, users, num_classes, transform.clip_norm)

    @property
    def problems(self) -> int:
        """One-vs-rest problems: K, or 1 for two classes."""
        return 1 if self.num_classes == 2 else self.num_classes


def as_columns(weights: Tensor) -> Tensor:
    """(problems, d) -> (d, K): the score of every class; one problem's for class 1, less for 0."""
    if len(weights) == 1:
        weights = torch.cat([-weights / 2, weights / 2])
    return weights.T


def require_records(method: str, privacy: Privacy) -> None:
    """Refuses promises that the learners of many rounds have no proof for."""
    if privacy.unit != "record" or privacy.group_size != 1:
        raise ValueError(
            f"unit must be 'record' and group_size 1 for method {method!r}, "
            f"got {privacy.unit!r} and {privacy.group_size}"
        )
    if privacy.noise_by != "users":
        raise ValueError(f"noise_by must be 'users' for method {method!r}, got 'servers'")
