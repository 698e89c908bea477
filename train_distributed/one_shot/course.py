"""Course of a release from sum to sum: what is asked next, and what all of them come to."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from embed import PublicTransform
from train_distributed.one_shot.centring import RowsAbout
from train_distributed.one_shot.further_rounds import ALONE, PUBLISHED, ClippedGradient, Descent
from train_distributed.one_shot.method import Fitted, Method
from train_distributed.one_shot.statistic import NoisedSum, Statistic
from train_distributed.one_shot.users import Chunk


@dataclass(frozen=True)
class Course:
    """State of a release between its sums: the next statistic, and results of the sums so far."""

    method: Method
    transform: PublicTransform | None = None  # with the first sum's centre; None: as given
    opened: NoisedSum | None = None  # of the method's own statistic
    descent: Descent | None = None  # of gradients
    asked: ClippedGradient | None = None  # of a user, who does not know the descent
    planned: Method | None = None  # before the first sum, for all directions
    centre: Tensor | None = None  # (q + 1,) that this sum found
    about: RowsAbout | None = None  # whose gradients are summed in place of the method's own sum

    @property
    def statistic(self) -> Statistic:
        """Statistic of the next sum; `rows` makes the rows that it is computed from.

        After a first sum, too, it has the dimension that was planned: directions that are not kept
        are zero in all rows, and what is summed of them is noise that `after` leaves out.
        """
        planned = self.planned or self.method
        if self.descent is not None:
            assert planned.gradient is not None
            weights = torch.zeros_like(planned.gradient.weights)
            weights[: len(self.descent.weights)] = self.descent.weights
            return replace(self.descent.gradient, weights=weights)
        return self.asked or self.method.centring or planned.statistic

    @property
    def published(self) -> Tensor:
        """Vector that the operator publishes before the next sum: the centre, or weights."""
        if self.descent is not None:
            return self.descent.weights.flatten()
        assert self.centre is not None
        return self.centre

    def rows(self, chunk: Chunk) -> Chunk:
        """The chunk with its rows about the centre, zero in directions that are not kept."""
        return replace(chunk, x=self.sent(chunk.x.flatten(0, 1)).unflatten(0, chunk.x.shape[:2]))

    def sent(self, x: Tensor) -> Tensor:
        """Rows of `moved`, with zeros for the directions that were planned and are not kept.

        Where gradients alone are summed they are not clipped.
        """
        if self.about is not None:
            return self.about.rows(x)
        moved, most = self.moved(x), x.shape[1]
        if self.planned is not None and (kept := self.planned.statistic.own_transform) is not None:
            most = kept.dim
        return torch.nn.functional.pad(moved, (0, most - moved.shape[1]))

    def moved(self, x: Tensor) -> Tensor:
        """(n, k + 1) rows that the weights are of, from (n, q + 1) of the transform that began."""
        return x if self.transform is None else self.transform.about_centre(x)

    def after(self, total: Tensor, rows: int, noise_std: float) -> "Course":
        """With one more sum: a (D,) scaled, noised one over n rows."""
        method = self.method
        if method.centring is not None:
            return self._about(method.centring.centre(NoisedSum(total, rows, noise_std)))
        if self.descent is not None:
            kept = total[: self.descent.start.numel()]
            return replace(self, descent=self.descent.after(kept, rows, noise_std))
        if self.planned is not None:
            total = total[method.statistic.positions(self.planned.statistic)]
        noised = method.opened(total, rows, noise_std)
        descent = method.estimator.descent(noised, method.rounds) if method.rounds else None
        return replace(self, opened=noised, descent=descent)

    def told(self, published: Tensor) -> "Course":
        """Next step of a user's course, from the vector that the operator published.

        Raises:
            ValueError: a centre longer than a row, weights out of range, or another length.
        """
        if self.method.centring is not None:
            return self._about(published)
        assert self.method.gradient is not None
        weights = published.view_as(self.method.gradient.weights)
        if not (weights.abs() <= PUBLISHED).all():  # also true for NaN
            raise ValueError(
                f"published weights must be finite and at most {PUBLISHED:g}, "
                f"got {float(weights.abs().max()):g}"
            )
        return replace(self, asked=replace(self.method.gradient, weights=weights))

    def _about(self, centre: Tensor) -> "Course":
        method = self.method
        assert method.centring is not None
        assert method.on is not None
        if method.centring.descends(centre):
            whole = replace(method.centring.transform, discriminants=None)
            around = replace(method.centring, transform=whole, keep=None).about(centre)
            rows = RowsAbout(centre[:-1], around.length, around.constant)
            descent = Descent.from_zero(around, method.num_classes)
            alone = replace(method, centring=None, on=None)
            return Course(alone, descent=descent, planned=method, centre=centre, about=rows)
        transform = method.centring.about(centre)
        return Course(method.on(transform), transform, planned=method, centre=centre)

    def report(self) -> dict[str, float]:
        """Share of a row's squared length that all rows were found to have in common.

        And the directions kept for that, where they are some of the transform's, or the number of
        gradients that were summed in place of the method's own statistic.
        """
        if self.centre is None or self.planned is None or self.planned.centring is None:
            return {}
        found = {"common_share": self.planned.centring.common(self.centre)}
        if self.transform is None or self.transform.centre is None:
            return found | {"descent_rounds": ALONE}
        kept = len(self.transform.centre)
        return found | ({"directions_kept": kept} if kept < len(self.centre) - 1 else {})

    def prior_report(self, class_names: Sequence[str]) -> dict[str, Any]:
        """Class prior of the weights; gradients alone count no classes."""
        if self.about is not None:
            return {"prior": "private"}
        return self.method.prior_report(self.noised, class_names)

    def fitted(self) -> Fitted:
        """Weights of all sums."""
        if self.descent is not None:
            released = self.descent.released
            if self.about is not None:
                return Fitted(self.about.weights_as_given(released), prior="private")
            first = self.method.fit(self.noised)
            return Fitted(released, class_shares=first.class_shares, prior=first.prior)
        return self.method.fit(self.noised)

    @property
    def noised(self) -> NoisedSum:
        """The method's own sum; raises ValueError before it was opened."""
        if self.opened is None:
            raise ValueError("the sum of the method must be opened first: no model without it")
        return self.opened
