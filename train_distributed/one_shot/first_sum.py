"""The first of two sums: where the rows lie, about which those of the second one are taken.

Where private pictures are of another kind than the public ones, what all of their rows have in
common takes most of the length that the clip leaves a row, and the noise, which is measured by that
length, covers the rest. So a first sum finds their mean and how far they lie from it
and that says along which directions the second one sees their classes best (both in
`embed.water_filling`).

**Privacy.** Whatever the first sum shows, a row of the second is a function of its record and of
that alone, and as long as was planned; so the second sum's sensitivity, its dimension and its noise
are those that were fixed before the first. Both are Gaussian mechanisms, the second chosen after
the first was seen, and their μ² add up (Dong, Roth and Su 2022, Cor. 3.3, which holds for adaptive
compositions). Directions that turn out to be of length 0 are zero in all rows of the second sum;
leaving out what noise makes of them is post-processing.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from embed import PublicTransform
from embed.water_filling import Centre, noised_place
from heads import class_sums
from pretrain import check
from train_distributed.one_shot.statistic import NoisedSum, Statistic
from train_distributed.one_shot.users import Chunk

FIRST_SHARE = 0.1  # prior: h of μ², spent by the first sum


@dataclass(frozen=True, kw_only=True)
class FeatureSum(Statistic):
    """Every user submits Σ y of its rows' features, and Σ |y|²: D + 1 numbers.

    Scaled by 1/r, the squared length costs nothing. Two features of norms a r and b r, d = |a − b|,
    move the sum by at most r √((a + b)² + (a² − b²)²) = r (a + b) √(1 + d²), and a + b <= 2 − d;
    (2 − d)(1 + d²)^½ falls with d from 2, which two opposite features of norm r reach. One that is
    taken out moves it by at most r √(a² + a⁴) <= √2 r.
    """

    transform: PublicTransform

    @property
    def dimension(self) -> int:
        """D + 1, the length of a submission."""
        return self.transform.dim

    @property
    def own_transform(self) -> PublicTransform:
        """Transform that makes the rows."""
        return self.transform

    @property
    def grid_powers(self) -> Tensor:
        """(D + 1,): sums of grid entries lie on the same grid, those of squares on its square."""
        powers = torch.ones(self.dimension, dtype=torch.int64)
        powers[-1] = 2
        return powers

    @property
    def scale(self) -> Tensor:
        """(D + 1,): 1, and 1/r for the squared lengths."""
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

    @property
    def expected_row(self) -> Tensor:
        """(D + 1,) of a public row, which is no longer than r; the identity has seen none."""
        public = self.transform.public
        square = public.covariance.trace() + public.mean.square().sum()
        return torch.cat([public.mean, square.clamp(max=self.transform.reach**2)[None]])

    def check_rows(self, transform: PublicTransform) -> None:
        """Raises ValueError for rows of another transform than the statistic's own."""
        if not self.transform.same_rows(transform):
            raise ValueError("transform must be the method's own, got another one")

    def submit(self, chunk: Chunk) -> Tensor:
        """(u, D + 1) float64; rows beyond a user's count add nothing."""
        every, features = torch.zeros_like(chunk.y), chunk.x[..., 1:]
        total = class_sums(features, every, 1, counts=chunk.counts)[..., 0]
        squares = features.double().square().sum(2) * chunk.own
        return torch.cat([total, squares.sum(1, keepdim=True)], 1)

    def found(self, noised: NoisedSum) -> Tensor:
        """(D + 1,) place of the rows and their mean squared length.

        What an operator publishes, and `centre` reads.
        """
        mean, noise = noised.total / noised.rows, noised.noise_std / noised.rows
        return noised_place(mean[:-1], float(mean[-1]), noise, self.transform.public)

    def centre(self, published: Tensor) -> Centre:
        """The centre that (D + 1,) numbers of `found` say.

        Raises ValueError for a vector that is no such thing, as a stranger may publish.
        """
        check.shape((self.dimension,), centre=published)
        return Centre.of(published[:-1], float(published[-1]), self.transform.public)
