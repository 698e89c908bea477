"""The first of two sums: the mean of all rows, about which the rows of the second one are taken.

Where private pictures are of another kind than the public ones, what all of their rows have in
common takes most of the length that the clip leaves a row (three quarters of the squared length of
digits among photographs), and the noise, which is measured by that length, covers the rest. The
second sum is of rows about the noised mean of the first, clipped once more (`embed.centre`).

How much the rows have in common also says how many public directions serve them: all those that
the noise allows where pictures are like the public ones, half of these for photographs that the
encoder sees shifted, and more for drawings and writing, of which public classes say little.
`FeatureSum.keep` are these numbers; results/kinds has the kinds that they were fitted to.

Public classes say so little of drawings and writing that one trusted server, who may sum as often
as it likes, does better without them: from `FeatureSum.descent_above` on it sums gradients in place
of the method's own statistic, see `further_rounds`.

**Privacy.** Whatever the centre is, a row is a function of its record and of the centre alone, and
no longer than before; so the second sum's sensitivity is what it is without a centre. Both are
Gaussian mechanisms, the second chosen after the first was seen, and their μ² add up (Dong, Roth and
Su 2022, Cor. 3.3, which holds for adaptive compositions). Directions that are not kept are zero in
all rows of a sum as long as was planned; leaving out what noise makes of them is post-processing.
Gradients that take the place of the second sum have its μ² together.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from embed import PublicTransform
from heads import class_sums
from pretrain import check
from train_distributed.one_shot.statistic import NoisedSum, Statistic
from train_distributed.one_shot.users import Chunk

CENTRE_SHARE = 0.05  # of μ², spent by the first sum
ALIKE, OTHER = 0.08, 0.3  # of a squared length: at most so much do rows have in common

Keep = tuple[int, int, int]  # directions where rows have up to `ALIKE`, `OTHER`, all in common


@dataclass(frozen=True)
class RowsAbout:
    """Rows [a, (x − m)/s] about a centre, of any length: what is summed of them is clipped."""

    centre: Tensor  # (q,) m
    length: float  # s
    constant: float  # a

    def rows(self, x: Tensor) -> Tensor:
        """(n, q + 1) of their type, from those of the transform."""
        return torch.cat([x[:, :1], (x[:, 1:] - self.centre.to(x.dtype)) / self.length], 1)

    def weights_as_given(self, weights: Tensor) -> Tensor:
        """(q + 1, K) that score the transform's rows as the given ones score those about it."""
        features = weights[1:] / self.length
        bias = weights[:1] - (self.centre @ features)[None] / self.constant
        return torch.cat([bias, features])


@dataclass(frozen=True, kw_only=True)
class FeatureSum(Statistic):
    """Every user submits Σ x of its rows' features: (q,) numbers.

    Two features of norm at most r differ by at most 2r, which two opposite ones reach.
    """

    transform: PublicTransform
    keep: Keep | None = None  # directions of the second sum; None: all
    descent_above: float | None = None  # share in common from which gradients follow; None: never

    @property
    def dimension(self) -> int:
        """q, the length of a submission."""
        return self.transform.dim - 1

    @property
    def own_transform(self) -> PublicTransform:
        """Transform that makes the rows."""
        return self.transform

    @property
    def grid_powers(self) -> Tensor:
        """(q,): sums of grid entries lie on the same grid."""
        return torch.ones(self.dimension, dtype=torch.int64)

    def entry_bound(self, n: int) -> float:
        """n features of norm at most r."""
        return n * self.transform.reach

    def record_sensitivity(self, sizes: Tensor) -> float:
        """Movement when one record is replaced, 2r."""
        return 2 * self.transform.reach

    def zero_out_sensitivity(self, sizes: Tensor) -> float:
        """Norm of one record's features, r."""
        return self.transform.reach

    def validate(self) -> None:
        """Refuses a transform that takes no centre, before anything is spent on finding one.

        And numbers of directions that it has not.
        """
        if self.descent_above is not None:
            check.within("[0, 1]", descent_above=self.descent_above)
        if self.keep is not None:
            check.equal(3, keep_numbers=len(self.keep))
            for kept in self.keep:
                check.within(f"[1, {self.dimension}]", keep=kept)
        if self.transform.placed:
            raise ValueError(
                "centre must be 'public' with a transform that has one or guesses of classes, "
                "got 'private'"
            )

    def submit(self, chunk: Chunk) -> Tensor:
        """(u, q) float64; rows beyond a user's count add nothing."""
        every = torch.zeros_like(chunk.y)
        return class_sums(chunk.x[..., 1:], every, 1, counts=chunk.counts)[..., 0]

    def centre(self, noised: NoisedSum) -> Tensor:
        """(q,) mean of all features, shrunk towards zero, the public mean, and at most r long.

        It is shrunk by max(0, 1 − q s²/‖m‖²), the share of its squared length that noise of
        standard deviation s does not explain (James and Stein 1961).
        """
        mean, std = noised.total / noised.rows, noised.noise_std / noised.rows
        squared = float(mean.square().sum())
        if not squared > 0:
            return torch.zeros_like(mean)
        keep = max(0.0, 1 - self.dimension * std**2 / squared)
        return keep * mean * min(1.0, self.transform.reach * (1 - 2.0**-40) / squared**0.5)

    def about(self, centre: Tensor) -> PublicTransform:
        """The transform about the (q,) centre, in the directions that its length says."""
        if self.keep is None:
            return self.transform.recentred(centre)
        common = self.common(centre)
        return self.transform.recentred(centre, self.keep[(common > ALIKE) + (common > OTHER)])

    def common(self, centre: Tensor) -> float:
        """Share of a row's squared length that all have in common."""
        return float(centre.square().sum()) / self.transform.reach**2

    def descends(self, centre: Tensor) -> bool:
        """Whether sums of gradients take the place of the method's own sum."""
        return self.descent_above is not None and self.common(centre) >= self.descent_above
