"""Course of a release from sum to sum: what is asked next, and what all of them come to."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from embed import PublicTransform
from train_distributed.one_shot.first_sum import FeatureSum
from train_distributed.one_shot.further_rounds import Descent
from train_distributed.one_shot.method import Fitted, Method
from train_distributed.one_shot.statistic import NoisedSum, Statistic
from train_distributed.one_shot.users import Chunk


@dataclass(frozen=True)
class Course:
    """State of a release between its sums: the next statistic, and results of the sums so far."""

    planned: Method  # before any sum
    found: Method | None = None  # about the centre that the first of two sums has found
    centre: Tensor | None = None  # (D + 1,) what that sum has found
    opened: NoisedSum | None = None  # of the method's own statistic
    descent: Descent | None = None  # of gradients

    @property
    def method(self) -> Method:
        """The method on the rows that are summed last."""
        return self.found or self.planned

    @property
    def at_first(self) -> bool:
        """Whether the sum that finds the centre is the next one."""
        return self.planned.first is not None and self.found is None

    @property
    def statistic(self) -> Statistic:
        """Statistic of the next sum; `rows` makes the rows that it is computed from.

        After a first sum, too, it has the dimension that was planned: directions of length 0 are
        zero in all rows, and what is summed of them is noise that `after` leaves out.
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
        """Transform of the rows that are summed last; None: they come as they are."""
        return self.method.transform

    def rows(self, chunk: Chunk) -> Chunk:
        """The chunk with the rows of `sent`."""
        return replace(chunk, x=self.sent(chunk.x.flatten(0, 1)).unflatten(0, chunk.x.shape[:2]))

    def sent(self, x: Tensor) -> Tensor:
        """Rows of the next sum, from (n, D + 1) raw ones; as many columns as were planned."""
        if self.at_first or self.transform is None:
            return x
        moved = self.moved(x)
        return torch.nn.functional.pad(moved, (0, self.planned.dim - moved.shape[1]))

    def moved(self, x: Tensor) -> Tensor:
        """(n, q + 1) rows that the weights are of, from (n, D + 1) raw ones."""
        return x if self.transform is None else self.transform.map_rows(x)

    def after(self, total: Tensor, rows: int, noise_std: float) -> "Course":
        """With one more sum: a (D,) scaled, noised one over n rows."""
        if self.at_first:
            first = self.planned.first
            assert first is not None
            noised = first.restored(NoisedSum(total / first.scale, rows, noise_std))
            assert isinstance(first.unclipped, FeatureSum)
            return self.told(first.unclipped.found(noised))
        method = self.method
        if self.descent is not None:
            kept = total[: self.descent.start.numel()]
            return replace(self, descent=self.descent.after(kept, rows, noise_std))
        if self.found is not None:
            total = total[method.statistic.positions(self.planned.statistic)]
        noised = method.opened(total, rows, noise_std)
        descent = method.estimator.descent(noised, method.rounds) if method.rounds else None
        return replace(self, opened=noised, descent=descent)

    def told(self, published: Tensor) -> "Course":
        """About the centre in the vector that the first sum has found.

        Raises:
            ValueError: numbers that no rows have, or another length, as a stranger may publish.
        """
        assert self.planned.first is not None
        assert isinstance(self.planned.first.unclipped, FeatureSum)
        return replace(
            self,
            found=self.planned.about(self.planned.first.unclipped.centre(published)),
            centre=published,
        )

    def report(self) -> dict[str, Any]:
        """Share of a row's squared length that all rows were found to have in common, q."""
        kept = {} if self.transform is None else {"directions": self.transform.dim - 1}
        if self.centre is None or self.planned.first is None:
            return kept
        assert isinstance(self.planned.first.unclipped, FeatureSum)
        return {"common_share": self.planned.first.unclipped.centre(self.centre).common} | kept

    def prior_report(self, class_names: Sequence[str]) -> dict[str, Any]:
        """Class prior of the weights: its word, and its shares as far as they are known."""
        return self.method.prior_report(self.noised, class_names)

    def fitted(self) -> Fitted:
        """Weights of all sums."""
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
