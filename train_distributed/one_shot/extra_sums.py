"""Sums beside the method's own: one before it, of where the rows lie, and gradients after it.

**Before.** Where private pictures are of another kind than the public ones, what all of their rows
have in common takes most of the length that the clip leaves a row, and the noise, which is measured
by that length, covers the rest. So a first sum finds their mean and how far they lie from it
(`embed.water_filling`), and that says along which directions the second one sees their classes best
(`embed.water_filling`).

**Privacy.** Whatever the first sum shows, a row of the second is a function of its record and of
that alone, and as long as was planned; so the second sum's sensitivity, its dimension and its noise
are those that were fixed before the first. Both are Gaussian mechanisms, the second chosen after
the first was seen, and their μ² add up (Dong, Roth and Su 2022, Cor. 3.3, which holds for adaptive
compositions). Directions that turn out to be of length 0 are zero in all rows of the second sum;
leaving out what noise makes of them is post-processing.

**After.** Round t sums G_t = Σ clip_c(x_i (p_i − y_i)ᵀ), the gradient of the softmax loss at the
weights W_t. Along a direction of curvature h the next weights are W_t − min(1/h, η) G_t/N: Newton's
step, unless noise is larger than that is worth. η is such that the noise of all T rounds comes to
`NOISE` in an entry of the weights, about the length at which a row's scores begin to be noise. What
is released is the mean of the later half of the weights.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from embed import PublicTransform
from embed.clip import product
from embed.public_scatter import NEGLIGIBLE
from embed.water_filling import Centre, noised_place
from heads import class_sums
from pretrain import check
from train_distributed.one_shot.class_gaussians import Gaussians
from train_distributed.one_shot.class_prior import LARGEST_WEIGHT
from train_distributed.one_shot.statistic import Chunk, NoisedSum, Statistic
from train_distributed.privacy.guarantee import ROUND_UP

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
        features = chunk.x[..., 1:]
        total = class_sums(features, chunk.one_class, 1, counts=chunk.counts)[..., 0]
        squares = features.double().square().sum(2).where(chunk.own, 0.0)
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


OWN_SHARE = 0.5  # prior: of μ², for the sum before; these two were chosen on public classes
CLIP_SHARE = 0.125  # prior: c of a gradient, of the rows' clip norm
NOISE = 1.4  # prior: standard deviation in an entry of the weights, at the end
SMOOTHING = 0.02  # prior: of probabilities in H; classes overlap more than Gaussians do
DRAWN = 4000  # size: rows from the Gaussian model, to average the Hessian over


@dataclass(frozen=True, kw_only=True)
class ClippedGradient(Statistic):
    """Every user submits Σ clip_c(x (p − e_y)ᵀ), p = softmax(Wᵀx): one round at public weights W.

    Raises:
        ValueError: weights that are not finite, or so large that scores may not be.
    """

    weights: Tensor  # (d, K) float64 W
    clip_norm: float  # c

    def __post_init__(self) -> None:
        if not (self.weights.double().abs() <= LARGEST_WEIGHT).all():  # also true for NaN
            raise ValueError(f"weights must be finite and at most {LARGEST_WEIGHT:g}, got others")

    @property
    def dimension(self) -> int:
        """Length of a submission: d K."""
        return self.weights.numel()

    def entry_bound(self, n: int) -> float:
        """n gradients of norm at most c, and what their float64 sum may be off by."""
        return n * self.clip_norm * (ROUND_UP + n * 2.0**-52)

    def record_sensitivity(self, sizes: Tensor) -> float:
        """2c: two gradients of norm at most c, whatever W is, and what float64 may be off by.

        A sum of n gradients of norm c is exact to n 2⁻⁵³ of n c, whatever the order, on either of
        two neighbours.
        """
        n = int(sizes.max())
        return 2 * self.clip_norm * (ROUND_UP + n**2 * 2.0**-52)

    def zero_out_sensitivity(self, sizes: Tensor) -> float:
        """c less: one gradient instead of two."""
        return self.record_sensitivity(sizes) - self.clip_norm

    def submit(self, chunk: Chunk) -> Tensor:
        """(u, d K) float64; rows beyond a user's count add nothing."""
        x = chunk.x.double().where(chunk.own[..., None], 0)
        scores = product(x.flatten(0, 1), self.weights.double()).unflatten(0, x.shape[:2])
        residual = torch.softmax(scores, 2)
        residual.scatter_add_(2, chunk.y[..., None], -torch.ones_like(residual[..., :1]))
        norms = torch.linalg.vector_norm(x, dim=2) * torch.linalg.vector_norm(residual, dim=2)
        factor = torch.where(norms > self.clip_norm, self.clip_norm / norms, 1.0)
        return (x.mT @ (residual * factor[..., None])).flatten(1)


@dataclass(frozen=True)
class Step:
    """One round, in the basis of H."""

    position: Tensor  # (d, K - 1) W_t − W_0
    gradient: Tensor  # (d, K - 1) G_t/N, noised
    variance: float  # of the noise in an entry of it


@dataclass(frozen=True, kw_only=True)
class Descent:
    """Estimate of the weights after all sums so far; the next sum turns it into the next.

    The Hessian is taken as A ⊗ M (Martens and Grosse 2015), A the mean of diag(p) − p pᵀ and M that
    of x xᵀ, weighted by 1 − ‖p‖², over rows drawn from the Gaussian model: no private row is read.
    A's null direction, along which all classes gain alike, is left out.
    """

    start: Tensor  # (d, K) W_0
    offset: Tensor  # (d, K): to be added in the end, for other class probabilities than the rows'
    rows_basis: Tensor  # (d, d) eigenvectors of M
    class_basis: Tensor  # (K, K - 1) eigenvectors of A
    curvature: Tensor  # (d, K - 1) h, eigenvalues of A ⊗ M; 0: none
    clip_norm: float  # c of the gradients
    rounds: int  # T, of all of which the noise adds up
    steps: tuple[Step, ...] = ()  # rounds so far

    @classmethod
    def of(
        cls,
        start: Tensor,
        offset: Tensor,
        gaussians: Gaussians,
        constant: float,
        clip_norm: float,
        rounds: int,
    ) -> "Descent":
        """Before the first of so many further rounds.

        From (d, K) weights that the first sum gave, their (d, K) offset, and what that sum showed
        of the classes of rows with this clip norm, whose first entry is `constant`.
        """
        generator = torch.Generator().manual_seed(0)  # the same public draws for everybody
        features = gaussians.draw(DRAWN, generator)
        reach = math.sqrt(clip_norm**2 - constant**2)
        norms = torch.linalg.vector_norm(features, dim=1, keepdim=True)
        features = torch.where(norms > reach, features * (reach / norms), features)
        x = torch.cat([torch.full((len(features), 1), constant).double(), features], 1)
        p = (1 - SMOOTHING) * torch.softmax(x @ start, 1) + SMOOTHING / start.shape[1]
        spread = 1 - p.square().sum(1)
        values, class_basis = torch.linalg.eigh(torch.diag(p.mean(0)) - p.mT @ p / len(p))
        moments = (
            (x * spread[:, None]).mT @ x / spread.sum().clamp(min=torch.finfo(spread.dtype).tiny)
        )
        moment_values, rows_basis = torch.linalg.eigh(moments)
        curvature = torch.outer(moment_values, values[1:])
        least = NEGLIGIBLE * curvature.max()
        return cls(
            start=start,
            offset=offset,
            rows_basis=rows_basis,
            class_basis=class_basis[:, 1:],
            curvature=torch.where(curvature > least, curvature, 0.0),
            clip_norm=CLIP_SHARE * clip_norm,
            rounds=rounds,
        )

    @property
    def gradient(self) -> ClippedGradient:
        """Statistic that the next round sums."""
        return ClippedGradient(weights=self.weights, clip_norm=self.clip_norm)

    @property
    def released(self) -> Tensor:
        """(d, K) mean of the later half, for the class probabilities that were asked for."""
        return self._mean_of_last(math.ceil(len(self.steps) / 2)) + self.offset

    @cached_property
    def weights(self) -> Tensor:
        """(d, K) at which the next gradient is summed."""
        return self._mean_of_last(1)

    def _mean_of_last(self, count: int) -> Tensor:
        """(d, K) mean of the weights after each of so many of the last rounds."""
        if not self.steps:
            return self.start
        moved = torch.stack([self._moved(step) for step in self.steps[-count:]]).mean(0)
        return self.start + self.rows_basis @ moved @ self.class_basis.mT

    def _moved(self, step: Step) -> Tensor:
        """(d, K - 1) W − W_0 after a round."""
        return step.position - self._lengths(step) * step.gradient

    def _lengths(self, step: Step) -> Tensor:
        """(d, K - 1) min(1/h, η), 0 where there is no curvature."""
        noise = math.sqrt(step.variance * self.rounds)
        newton = torch.where(self.curvature > 0, 1 / self.curvature, 0.0)
        return newton.clamp(max=NOISE / noise if noise > 0 else math.inf)

    def advance(self, total: Tensor, rows: int, noise_std: float) -> "Descent":
        """Estimate after one more round.

        `total` is the (d K,) noised sum of gradients over n `rows`; `noise_std` is that of an
        entry.
        """
        position, gradient = (
            self.rows_basis.mT @ each @ self.class_basis
            for each in (self.weights - self.start, total.view(self.start.shape) / rows)
        )
        step = Step(position, gradient, (noise_std / rows) ** 2)
        return replace(self, steps=(*self.steps, step))
