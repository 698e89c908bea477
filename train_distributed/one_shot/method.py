"""A method (the statistic of every user, the estimator of its noised sum), and a release's state.

What an estimator does is post-processing and costs no privacy.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from embed import PublicTransform
from embed.water_filling import Centre
from pretrain import check
from train_distributed.one_shot.class_prior import ClassPrior
from train_distributed.one_shot.extra_sums import CLIP_SHARE, ClippedGradient, Descent, FeatureSum
from train_distributed.one_shot.statistic import Chunk, NoisedSum, Statistic

OpenedSum = tuple[Tensor, int, float]  # (D,) scaled, noised; rows in it; its noise's deviation


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
        """Weights, and the temperature that calibrates their probabilities."""

    def validate(self) -> None:  # noqa: B027  nothing to check is the default
        """Raises ValueError for a setting out of range."""

    def prior_report(self, noised: NoisedSum, class_names: Sequence[str]) -> dict[str, Any]:
        """Class prior of the weights: its kind, and the class shares if known."""
        return {}

    def descent(self, noised: NoisedSum, rounds: int) -> Descent:
        """Start of so many further rounds of gradients, for estimators that support them."""
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
        """The method on rows relative to the centre that its first sum has found."""
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

    def fit(self, noised: NoisedSum) -> Fitted:
        """(d, K) weights, and the temperature of their probabilities."""
        return self.estimator.fit(self.statistic.restored(noised))

    def report(self) -> dict[str, Any]:
        """Name and settings that the report states."""
        return {"method": self.name} | self.statistic.report()

    def prior_report(self, noised: NoisedSum, class_names: Sequence[str]) -> dict[str, Any]:
        """Class prior of the weights: its kind, and the class shares if known."""
        return self.estimator.prior_report(self.statistic.restored(noised), class_names)


@dataclass(frozen=True)
class ReleaseState:
    """State of a release between its sums: the next statistic, and results of the sums so far."""

    planned: Method  # before any sum
    found: Method | None = None  # about the centre that the first of two sums has found
    centre: Tensor | None = None  # (D + 1,) what that sum has found
    opened: NoisedSum | None = None  # of the method's own statistic
    descent: Descent | None = None  # of gradients

    @property
    def method(self) -> Method:
        """The method on the rows of its own sum."""
        return self.found or self.planned

    @property
    def at_first(self) -> bool:
        """Whether the sum that finds the centre is the next one."""
        return self.planned.first is not None and self.found is None

    @property
    def features(self) -> FeatureSum:
        """Statistic of the sum that finds the centre, without a users' clip."""
        assert self.planned.first is not None
        assert isinstance(self.planned.first.unclipped, FeatureSum)
        return self.planned.first.unclipped

    @property
    def statistic(self) -> Statistic:
        """Statistic of the next sum; `rows` makes the rows that it is computed from.

        After a first sum, too, it has the dimension that was planned: directions of length 0 are
        zero in all rows, and `advance` leaves out the noise that is summed of them.
        """
        if self.descent is not None:
            gradient = self.descent.gradient
            weights = torch.zeros(self.planned.dim, self.planned.num_classes, dtype=torch.float64)
            weights[: len(gradient.weights)] = gradient.weights
            return replace(gradient, weights=weights)
        if self.at_first:
            assert self.planned.first is not None
            return self.planned.first
        return self.planned.statistic

    @property
    def transform(self) -> PublicTransform | None:
        """Transform of the rows of the method's own sum; None: rows stay raw."""
        return self.method.transform

    def rows(self, chunk: Chunk) -> Chunk:
        """The chunk with the rows of `mapped`."""
        x = self.mapped(chunk.x.flatten(0, 1))
        return replace(chunk, x=x.unflatten(0, chunk.x.shape[:2]))

    def mapped(self, x: Tensor) -> Tensor:
        """Rows of the next sum, from (n, D + 1) raw ones; as many columns as were planned."""
        if self.at_first or self.transform is None:
            return x
        moved = self.transform.map_rows(x)
        return torch.nn.functional.pad(moved, (0, self.planned.dim - moved.shape[1]))

    def final_rows(self, x: Tensor) -> Tensor:
        """(n, q + 1) rows that the weights apply to, from (n, D + 1) raw ones."""
        return x if self.transform is None else self.transform.map_rows(x)

    def advance(self, total: Tensor, rows: int, noise_std: float) -> "ReleaseState":
        """State after one more sum: a (D,) scaled, noised one over n rows."""
        if self.at_first:
            first = self.planned.first
            assert first is not None
            noised = first.restored(NoisedSum(total / first.scale, rows, noise_std))
            return self.receive(self.features.found(noised))
        method = self.method
        if self.descent is not None:
            kept = total[: self.descent.start.numel()]
            return replace(self, descent=self.descent.advance(kept, rows, noise_std))
        if self.found is not None:
            total = total[method.statistic.positions(self.planned.statistic)]
        noised = NoisedSum(total / method.statistic.scale, rows, noise_std)
        descent = method.estimator.descent(noised, method.rounds) if method.rounds else None
        return replace(self, opened=noised, descent=descent)

    def receive(self, published: Tensor) -> "ReleaseState":
        """State about the centre in the vector that the first sum has found.

        Raises:
            ValueError: numbers that no rows have, or another length, as a stranger may publish.
        """
        found = self.planned.about(self.features.centre(published))
        return replace(self, found=found, centre=published)

    def report(self) -> dict[str, Any]:
        """Number of directions, and the share of a row's squared length common to all rows."""
        kept = {} if self.transform is None else {"directions": self.transform.dim - 1}
        if self.centre is None:
            return kept
        return {"common_share": self.features.centre(self.centre).common} | kept

    def prior_report(self, class_names: Sequence[str]) -> dict[str, Any]:
        """Class prior of the weights: its kind, and the class shares if known."""
        return self.method.prior_report(self.noised, class_names)

    def fitted(self) -> Fitted:
        """Weights after all sums."""
        fitted = self.method.fit(self.noised)
        if self.descent is None:
            return fitted
        return Fitted(self.descent.released, class_shares=fitted.class_shares, prior=fitted.prior)

    @property
    def noised(self) -> NoisedSum:
        """The method's own sum; raises ValueError before it was opened."""
        if self.opened is None:
            raise ValueError("the sum of the method must be opened first: no model without it")
        return self.opened


def after_sums(
    state: ReleaseState, numbers: Iterable[int], opened: Callable[[int, ReleaseState], OpenedSum]
) -> ReleaseState:
    """State after the sums of these numbers: the one loop of every release.

    `opened(number, state)` sums the state's statistic over the users' rows, with the noise, however
    they are held: in this process, simulated, or by the parties of a federation.
    """
    for number in numbers:
        state = state.advance(*opened(number, state))
    return state
