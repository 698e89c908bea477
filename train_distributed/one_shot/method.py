"""A method: the statistic that every user sends, and the estimator of its noised sum.

What an estimator does is post-processing and costs no privacy.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from embed import PublicTransform
from embed.water_filling import Centre
from pretrain import check
from train_distributed.one_shot.class_prior import ClassPrior
from train_distributed.one_shot.further_rounds import (
    CLIP_SHARE,
    ClippedGradient,
    Descent,
)
from train_distributed.one_shot.statistic import NoisedSum, Statistic


@dataclass(frozen=True)
class Fitted:
    """Weights of a linear classifier."""

    weights: Tensor  # (d, K) float64
    temperature: float = field(default=1.0, kw_only=True)  # T, scores / T are log-probabilities
    # (K,) float64 of the private rows, noised, where scores can be moved from prior to prior
    class_shares: Tensor | None = field(default=None, kw_only=True)
    prior: ClassPrior | None = field(default=None, kw_only=True)  # of the weights; None: unknown


class Estimator(ABC):
    """Makes weights of a noised sum."""

    @abstractmethod
    def fit(self, noised: NoisedSum) -> Fitted:
        """Weights, and the temperature of their probabilities as far as the sum shows it."""

    def validate(self) -> None:  # noqa: B027  nothing to check is the default
        """Raises ValueError for a setting that the transform and the data cannot know."""

    def prior_report(self, noised: NoisedSum, class_names: Sequence[str]) -> dict[str, Any]:
        """Class prior of the weights: its word, and its shares as far as they are known."""
        return {}

    def descent(self, noised: NoisedSum, rounds: int) -> Descent:
        """Start of so many further rounds of gradients; only some estimators have any."""
        raise NotImplementedError


@dataclass(frozen=True)
class Method:
    """Statistic and estimator under one name."""

    name: str
    statistic: Statistic
    estimator: Estimator
    num_classes: int  # K, public
    rounds: int = 0  # T further sums of gradients, with the others under one promise
    transform: PublicTransform | None = None  # that makes the statistic's rows; None: any
    first: Statistic | None = None  # a sum before, of the centre of the rows; None: none
    on: Callable[[Centre], "Method"] | None = None  # itself on rows about that centre

    @property
    def dim(self) -> int:
        """Columns of the rows of its own statistic."""
        assert self.transform is not None
        return self.transform.dim

    @property
    def gradient(self) -> ClippedGradient:
        """Statistic of a further round, at weights not yet known."""
        assert self.transform is not None
        return ClippedGradient(
            weights=torch.zeros(self.dim, self.num_classes, dtype=torch.float64),
            clip_norm=CLIP_SHARE * self.transform.clip_norm,
        )

    def about(self, centre: Centre) -> "Method":
        """Itself on rows about the centre that its first sum has found."""
        assert self.on is not None
        return self.on(centre)

    def validate(self) -> None:
        """Raises ValueError for a setting out of range, whatever the transform and the data."""
        if not (isinstance(self.rounds, int) and self.rounds >= 0):
            raise ValueError(f"rounds must be >= 0 and whole, got {self.rounds}")
        if self.rounds and self.statistic.unclipped is not self.statistic:
            raise ValueError("user_clip must be left out with rounds, which clip every record")
        if self.first is not None:
            self.first.validate()
        self.statistic.validate()
        self.estimator.validate()

    def check(self, transform: PublicTransform, num_classes: int) -> None:
        """Refuses a method whose sensitivity is not that of the rows it is given.

        `transform` makes the rows that are mapped, and clips them first. Raises ValueError for a
        setting out of range, another transform, clip norm, dimension or K.
        """
        self.validate()
        if self.transform is None:
            self.statistic.check_rows(transform)
        elif not (
            self.transform.raw.same_rows(transform.raw)
            and self.transform.raw.same_knowledge(transform.raw)
        ):
            raise ValueError(
                "transform must be the method's own, got another one: rows of norm "
                f"{transform.clip_norm} for a sensitivity stated for {self.transform.clip_norm}, "
                "or of other public rows"
            )
        check.equal(self.num_classes, num_classes=num_classes)

    def opened(self, total: Tensor, rows: int, noise_std: float) -> NoisedSum:
        """(D,) scaled, noised sum of n rows, as estimators read it."""
        return NoisedSum(total / self.statistic.scale, rows, noise_std)

    def fit(self, noised: NoisedSum) -> Fitted:
        """(d, K) weights, and the temperature of their probabilities."""
        return self.estimator.fit(self.statistic.restored(noised))

    def report(self) -> dict[str, Any]:
        """Name and settings that the report states."""
        return {"method": self.name} | self.statistic.report()

    def prior_report(self, noised: NoisedSum, class_names: Sequence[str]) -> dict[str, Any]:
        """Class prior of the weights: its word, and its shares as far as they are known."""
        return self.estimator.prior_report(self.statistic.restored(noised), class_names)
