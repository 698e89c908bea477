"""What rivals have in common: all users' rows, the promises that they can keep, their report."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from heads import Head
from pretrain.datasets import TRAIN
from train_distributed.one_shot.class_prior import class_names
from train_distributed.one_shot.method import Method
from train_distributed.one_shot.model import Release
from train_distributed.one_shot.release import release_of, reported, suitability
from train_distributed.one_shot.request import FaultInjection, ReleaseRequest
from train_distributed.one_shot.source import EmbeddingUsers
from train_distributed.partition import Partition, apart
from train_distributed.privacy.promise import Privacy

H = TypeVar("H", bound=Head)


# Of a request whose transform, options and kind of noise are settled (`learn.run_rival`).


def users_of(request: ReleaseRequest) -> EmbeddingUsers:
    """All users' rows, transformed while they are read."""
    return cast(EmbeddingUsers, request.source.users)


def pooled(request: ReleaseRequest) -> tuple[Tensor, Tensor]:
    """((N, d) float32 rows, (N,) labels) of all users in one place."""
    parts = [
        (x[:count], y[:count])
        for chunk in users_of(request).chunks()
        for x, y, count in zip(chunk.x, chunk.y, chunk.counts.tolist(), strict=True)
    ]
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def head_of(request: ReleaseRequest, kind: type[H], l2_reg: float) -> H:
    """A head of this kind for the classes and rows."""
    source = request.source
    clip_norm = source.transform.clip_norm
    return kind(num_classes=source.num_classes, l2_reg=l2_reg, clip_norm=clip_norm)


def spend(request: ReleaseRequest, **noise: Any) -> None:
    """To be called before any noise is drawn: see `release`, `reserve`.

    Args:
        request: rows and promise.
        **noise: what is known of it, where it is Gaussian; else the promise is all there is.
    """
    if request.reserve is not None:
        request.reserve({"noise": request.noise if request.privacy.private else "none"} | noise)


def refuse_users(request: ReleaseRequest) -> None:
    """Checks that nothing is asked of single users, or of servers.

    Raises:
        ValueError: dropouts, dishonest users, or noise of servers.
    """
    name = request.method
    if request.privacy.noise_by != "users":
        raise ValueError(f"noise_by must be 'users' for method {name!r}, got 'servers'")
    faults = request.faults or FaultInjection()
    if request.min_survivors is not None or faults.dropped:
        raise ValueError(
            f"min_survivors and dropped must be left out for method {name!r}, where all users stay"
        )
    if faults.known_noise:
        raise ValueError(f"known_noise must be empty for {name!r}, got {list(faults.known_noise)}")


def refuse_sum(request: ReleaseRequest) -> None:
    """Checks that nothing is asked for that only a secure sum has.

    Raises:
        ValueError: dropouts, dishonest users or discrete noise.
    """
    refuse_users(request)
    if request.noise != "float":
        raise ValueError(f"noise must be 'float' for {request.method!r}, got {request.noise!r}")


def require_records(method: object, privacy: Privacy) -> None:
    """Refuses promises that a learner of many rounds has no proof for."""
    if privacy.unit != "record" or privacy.group_size != 1:
        raise ValueError(
            f"unit must be 'record' and group_size 1 for method {method!r}, "
            f"got {privacy.unit!r} and {privacy.group_size}"
        )
    if privacy.noise_by != "users":
        raise ValueError(f"noise_by must be 'users' for method {method!r}, got 'servers'")


def summed(request: ReleaseRequest, method: Method, **report: Any) -> Release:
    """Release by one secure sum, as our own methods, with additions to the report."""
    released = release_of(replace(request, method=method, options={}))
    return released.with_report(**report)


def finish(
    request: ReleaseRequest,
    weights: Tensor,
    report: dict[str, Any],
    opened: Tensor | None = None,
) -> Release:
    """A release made without `release`: the same report, accuracy where there is a test split.

    Args:
        request: rows and promise.
        weights: (d, K) of transformed rows.
        report: rounds, bytes_per_user, noise and what the promise is made of.
        opened: (D,) what was shown besides the weights.
    """
    users, source = users_of(request), request.source
    names = class_names(users.embeddings.declared_classes, source.num_classes)
    released = Release(weights.double(), source.transform, names, opened=opened)
    facts = {"users": len(users.sizes), "rows": int(users.sizes.sum())} | report
    verdict = suitability(
        request.privacy,
        request.noise or "discrete",
        seeded=request.generator is not None,
        rehearsed=None if request.faults is None else request.faults.reason,
    )
    return reported(released, facts, verdict, users.embeddings)


# Of learners of many rounds.


@dataclass(frozen=True, eq=False)
class UserRows:
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
    ) -> "UserRows":
        """The training rows of a set, every user's in a random order (`one_shot.statistic`).

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
