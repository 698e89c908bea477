"""Training rows of learners of many rounds, and how far from the best model they end."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from pretrain.datasets import TRAIN
from train_distributed.partition import Partition, apart
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
        generator: torch.Generator | None,
    ) -> "Rows":
        """The training rows of a set, every user's in a random order (`one_shot.users`).

        On it depends, too, which rows a learner takes for learning and which for verification. A
        generator makes it reproducible; None: the operating system draws it.
        """
        order = users.shuffled(apart(generator)).order
        train = np.flatnonzero(embeddings.split == TRAIN)[order.numpy()]
        x = transform(embeddings.embeddings[train], dtype=torch.float64)
        labels = torch.from_numpy(embeddings.labels[train])
        held = Partition(torch.arange(len(order)), users.offsets)
        return cls(x, labels, held, num_classes, transform.clip_norm)

    @property
    def problems(self) -> int:
        """One-vs-rest problems: K, or 1 for two classes."""
        return 1 if self.num_classes == 2 else self.num_classes


def as_columns(weights: Tensor) -> Tensor:
    """(problems, d) -> (d, K): the score of every class; one problem's for class 1, less for 0."""
    if len(weights) == 1:
        weights = torch.cat([-weights / 2, weights / 2])
    return weights.T


def one_vs_rest(labels: Tensor, num_classes: int) -> Tensor:
    """(N,) int64 -> (N, K) float64, ±1; K = 1 for two classes.

    Raises:
        ValueError: labels outside [0, num_classes).
    """
    if num_classes < 2 or labels.min() < 0 or labels.max() >= num_classes:
        raise ValueError(f"labels must be in [0, {num_classes}), got {labels.unique().tolist()}")
    if num_classes == 2:
        return 2.0 * labels.double()[:, None] - 1
    return 2.0 * torch.nn.functional.one_hot(labels, num_classes).double() - 1


def excess(
    risk: Callable[[Tensor], Tensor], at: Tensor, half_width: float = np.inf, **options: float
) -> float:
    """A convex risk at a point, over its least value in a cube around 0.

    `options` are those of SciPy's L-BFGS-B.
    """

    def value(flat: np.ndarray) -> tuple[float, np.ndarray]:
        point = torch.from_numpy(flat).view(at.shape).requires_grad_()
        found = risk(point)
        (slope,) = torch.autograd.grad(found, point)
        return found.item(), slope.numpy().ravel()

    start = at.clone().numpy().ravel()
    bounds = [(-half_width, half_width)] * len(start)
    found = minimize(value, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return value(start)[0] - float(found.fun)


def require_records(method: str, privacy: Privacy) -> None:
    """Refuses promises that the learners of many rounds have no proof for."""
    if privacy.unit != "record" or privacy.group_size != 1:
        raise ValueError(
            f"unit must be 'record' and group_size 1 for method {method!r}, "
            f"got {privacy.unit!r} and {privacy.group_size}"
        )
    if privacy.noise_by != "users":
        raise ValueError(f"noise_by must be 'users' for method {method!r}, got 'servers'")
