"""The first of two sums: the mean of all rows, about which the rows of the second one are taken.

Where private pictures are of another kind than the public ones, what all of their rows have in
common takes most of the length that the clip leaves a row (three quarters of the squared length of
digits among photographs), and the noise, which is measured by that length, covers the rest. The
second sum is of rows about the noised mean of the first, clipped once more (`embed.centre`). Their
mean squared length, which says how far from it they lie, is in the first sum, too.

How much the rows have in common also says how many public directions serve them: all those that
the noise allows where pictures are like the public ones, half of these for photographs that the
encoder sees shifted, and more for drawings and writing, of which public classes say little.
`FeatureSum.keep` are these numbers; results/kinds has the kinds that they were fitted to. For
drawings and writing a transform may hold `discriminants` D. The features x of the first sum are
then projected, and the second is of Dᵀ(x − m)/s, clipped.

Public classes say so little of drawings and writing that one trusted server, who may sum as often
as it likes, does better without them: from `FeatureSum.descent_above` on it sums gradients in place
of the method's own statistic, see `further_rounds`.

**Privacy.** Whatever the centre is, a row is a function of its record and of the centre alone, and
no longer than before; so the second sum's sensitivity is what it is without a centre. Both are
Gaussian mechanisms, the second chosen after the first was seen, and their μ² add up (Dong, Roth and
Su 2022, Cor. 3.3, which holds for adaptive compositions). The second sum is planned for as many
directions as may be kept. Those that are not are zero in all of its rows; leaving out what noise
makes of them is post-processing. Gradients that take the place of the second sum have its μ²
together.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from embed import PublicTransform
from embed.recentred import recentred, share_of
from heads import class_sums
from pretrain import check
from train_distributed.one_shot.statistic import NoisedSum, Statistic
from train_distributed.one_shot.users import Chunk

CENTRE_SHARE = 0.05  # of μ², spent by the first sum
ALIKE, OTHER = 0.08, 0.3  # of a squared length: at most so much do rows have in common
AMONG_MANY = 0.07, 0.26  # the same where the noise of many directions hides some of it

TINY = 1e-300

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
    """Every user submits Σ x of its rows' features, and Σ ‖x‖²: q + 1 numbers.

    Scaled by 1/r, the squared length costs nothing. Two features of norms a r and b r, d = |a − b|,
    move the sum by at most r √((a + b)² + (a² − b²)²) = r (a + b) √(1 + d²), and a + b <= 2 − d;
    (2 − d)(1 + d²)^½ falls with d from 2, which two opposite features of norm r reach.
    """

    transform: PublicTransform
    keep: Keep | None = None  # directions of the second sum; None: all
    descent_above: float | None = None  # share in common from which gradients follow; None: never

    @property
    def dimension(self) -> int:
        """q + 1, the length of a submission."""
        return self.transform.dim

    @property
    def own_transform(self) -> PublicTransform:
        """Transform that makes the rows."""
        return self.transform

    @property
    def grid_powers(self) -> Tensor:
        """(q + 1,): sums of grid entries lie on the same grid, those of squares on its square."""
        powers = torch.ones(self.dimension, dtype=torch.int64)
        powers[-1] = 2
        return powers

    @property
    def scale(self) -> Tensor:
        """(q + 1,): 1, and 1/r for the squared lengths."""
        factors = torch.ones(self.dimension, dtype=torch.float64)
        factors[-1] = 1 / self.transform.reach
        return factors

    def entry_bound(self, n: int) -> float:
        """n features of norm at most r, and squares of at most r² over r."""
        return n * self.transform.reach

    def record_sensitivity(self, sizes: Tensor) -> float:
        """Movement when one record is replaced, 2r."""
        return 2 * self.transform.reach

    def zero_out_sensitivity(self, sizes: Tensor) -> float:
        """Norm of one record's features, r, and its square over r."""
        return math.sqrt(2) * self.transform.reach

    def validate(self) -> None:
        """Refuses a transform that takes no centre, before anything is spent on finding one.

        And numbers of directions that it has not, or along which public rows hardly lie.
        """
        if self.transform.discriminants is not None:
            share_of(self.transform, self.transform.discriminants)
        if self.descent_above is not None:
            check.within("[0, 1]", descent_above=self.descent_above)
        if self.keep is not None:
            check.equal(3, keep_numbers=len(self.keep))
            for kept in self.keep:
                check.within(f"[1, {self.dimension - 1}]", keep=kept)
                share_of(self.transform, kept)
            if self.transform.discriminants is not None:
                check.equal(self.transform.discriminants.shape[1], keep_of_other_rows=self.keep[2])
        if self.transform.placed:
            raise ValueError(
                "centre must be 'public' with a transform that has one or guesses of classes, "
                "got 'private'"
            )

    def check_rows(self, transform: PublicTransform) -> None:
        """Raises ValueError for rows of another transform than the statistic's own."""
        if not self.transform.same_rows(transform):
            raise ValueError("transform must be the method's own, got another one")

    def submit(self, chunk: Chunk) -> Tensor:
        """(u, q + 1) float64; rows beyond a user's count add nothing."""
        every, features = torch.zeros_like(chunk.y), chunk.x[..., 1:]
        total = class_sums(features, every, 1, counts=chunk.counts)[..., 0]
        squares = features.double().square().sum(2) * chunk.own
        return torch.cat([total, squares.sum(1, keepdim=True)], 1)

    def centre(self, noised: NoisedSum) -> Tensor:
        """(q + 1,) mean m of all features, and their mean squared length e over r².

        m is shrunk towards zero, the public mean, and at most r long. It is shrunk by max(0, 1 − q
        s²/‖m‖²), the share of its squared length that noise of standard deviation s does not
        explain (James and Stein 1961). e lies between ‖m‖²/r² and 1.
        """
        found, std = noised.total / noised.rows, noised.noise_std / noised.rows
        mean, reach = found[:-1], self.transform.reach
        squared = float(mean.square().sum())
        keep = max(0.0, 1 - len(mean) * std**2 / squared) if squared > 0 else 0.0
        mean = keep * mean * min(1.0, reach * (1 - 2.0**-40) / max(squared, TINY) ** 0.5)
        own = mean.square().sum() / reach**2
        return torch.cat([mean, (found[-1:] / reach).clamp(max=1.0).maximum(own)])

    def about(self, found: Tensor) -> PublicTransform:
        """The transform about the mean in a (q + 1,) `centre`, in the directions that it asks for.

        Raises ValueError for a vector that is no such thing, as a stranger may publish.
        """
        check.shape((self.dimension,), centre=found)
        check.within("[0, 1]", centre_squared_length=float(found[-1]))
        common, offered = self.common(found), self.transform.discriminants is not None
        alike, other = AMONG_MANY if offered else (ALIKE, OTHER)
        keep = None
        if self.keep is not None:
            keep = self.keep[(common > alike) + (common > other)]
        given = self.transform, found[:-1], keep, float(found[-1])
        return recentred(*given, discriminants=offered and common > other)

    def common(self, found: Tensor) -> float:
        """Share of the rows' squared length that they have in common, ‖m‖²/e r².

        A transform with `discriminants` has many directions, whose noise hides the share. There it
        is ‖m_k‖²/v e r², m_k the k numbers of m along as many directions as may be kept, v the part
        of the public rows' squared length along these.
        """
        kept, part = len(found) - 1, 1.0
        if self.keep is not None and self.transform.discriminants is not None:
            kept = max(self.keep)
            squares = self.transform.second_moment.diagonal()[1:]
            part = float(squares[:kept].sum() / squares.sum())
        own = float(found[:kept].square().sum()) / self.transform.reach**2
        return own / max(own, part * float(found[-1])) if own > 0 else 0.0

    def descends(self, found: Tensor) -> bool:
        """Whether sums of gradients take the place of the method's own sum."""
        return self.descent_above is not None and self.common(found) >= self.descent_above
