"""Estimators: weights from a noised sum. All of it is post-processing and costs no privacy."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from embed import PublicTransform
from train_distributed.one_shot.further_rounds import Descent
from train_distributed.one_shot.statistic import NoisedSum


@dataclass(frozen=True)
class Fitted:
    """Weights of a linear classifier."""

    weights: Tensor  # (d, K) float64

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

    def descent(self, noised: NoisedSum) -> Descent:
        """Start of further rounds of gradients; only some estimators have any."""
        raise NotImplementedError
