"""A method: the statistic that every user sends, and the estimator of its noised sum.

What an estimator does is post-processing and costs no privacy.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from embed import PublicTransform
from embed.recentred import first
from pretrain import check
from train_distributed.one_shot.centring import FeatureSum
from train_distributed.one_shot.class_prior import ClassPrior
from train_distributed.one_shot.further_rounds import MOST_ROUNDS, ClippedGradient, Descent
from train_distributed.one_shot.statistic import NoisedSum, Statistic


@dataclass(frozen=True)
class Fitted:
    """Weights of a linear classifier."""

    weights: Tensor  # (d, K) float64
    # (K,) float64 of the private rows, noised, where scores can be moved from prior to prior
    class_shares: Tensor | None = field(default=None, kw_only=True)
    prior: ClassPrior | None = field(default=None, kw_only=True)  # of the weights; None: unknown

    @property
    def temperature(self) -> float:
        """T by which scores are divided before their softmax is read as probabilities."""
        return 1.0


class Estimator(ABC):
    """Makes weights of a noised sum."""

    @abstractmethod
    def fit(self, noised: NoisedSum) -> Fitted:
        """Weights, and the temperature of their probabilities as far as the sum shows it."""

    def validate(self) -> None:  # noqa: B027  nothing to check is the default
        """Raises ValueError for a setting that the transform and the data cannot know."""

    def check_transform(self, transform: PublicTransform) -> None:  # noqa: B027
        """Raises ValueError if the public knowledge it uses is of another transform."""

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
    rounds: int = 0  # T further sums of gradients, with the first under one promise
    gradient: ClippedGradient | None = None  # that they sum, at weights not yet known
    centring: FeatureSum | None = None  # a sum before, of the centre of the rows; None: none
    on: Callable[[PublicTransform], "Method"] | None = None  # itself on rows about that centre

    @property
    def may_descend(self) -> bool:
        """Whether gradients may be summed in place of its own statistic."""
        return self.centring is not None and self.centring.descent_above is not None

    @property
    def own_transform(self) -> PublicTransform | None:
        """Transform for whose rows the first sum's sensitivity is stated; None: for any."""
        return (self.centring or self.statistic).own_transform

    def validate(self) -> None:
        """Raises ValueError for a setting out of range, whatever the transform and the data."""
        if not (isinstance(self.rounds, int) and 0 <= self.rounds <= MOST_ROUNDS):
            raise ValueError(f"rounds must be in [0, {MOST_ROUNDS}] and whole, got {self.rounds}")
        clipped = self.statistic.unclipped is not self.statistic
        if self.rounds and clipped:
            raise ValueError("user_clip must be left out with rounds, which clip every record")
        if self.centring is not None and clipped:
            raise ValueError("centre must be 'public' with user_clip, got 'private'")
        if self.centring is not None:
            self.centring.validate()
        self.statistic.validate()
        self.estimator.validate()

    def check(self, transform: PublicTransform, num_classes: int) -> None:
        """Refuses a method whose sensitivity is not that of the rows it is given.

        `transform` makes the rows and alone clips them. Raises ValueError for a setting out
        of range, another transform, clip norm, dimension or K.
        """
        self.validate()
        (self.centring or self.statistic).check_rows(transform)
        kept = self.statistic.own_transform
        if kept is not None and kept.dim < transform.dim:
            transform = first(transform, kept.dim - 1)
        self.estimator.check_transform(transform)
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
