"""Class sums and second moments, exact under any partition, and the ridge regression of them."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from embed import PublicTransform
from heads import second_moments, svec_scale, symmetric
from heads.head import require_scale
from pretrain import check
from train_distributed.one_shot.class_prior import ClassPrior, shares_of
from train_distributed.one_shot.class_sums import ClassSums, ClassSumsEstimator
from train_distributed.one_shot.method import Method
from train_distributed.one_shot.statistic import NoisedSum, Statistic
from train_distributed.one_shot.temperature import Solved
from train_distributed.one_shot.users import Chunk

LEAST_RIDGE = 1e-12  # per row, for features of length about 1: rows that are all alike


@dataclass(frozen=True, kw_only=True)
class ClassMoments(ClassSums):
    """Class sums, and second moments of the features alone.

    What the moments share with the constant is Σ_k of the class sums, and N is public.
    `heads.ClassCode` proves the pair's sensitivity, by default that of the class sums alone.
    """

    alpha: float | None = None  # weight of the moments in the joint noise; None: 1/(√2 r)

    def validate(self) -> None:
        """Checks α as well."""
        super().validate()
        require_scale("alpha", self.weight)

    @property
    def features(self) -> int:
        """q = d − 1, the columns after the constant."""
        return self.transform.dim - 1

    @property
    def weight(self) -> float:
        """α as given, or 1/(√2 r), with which moments of plain sums cost nothing.

        With a code, the noise of both then falls by the factor (1 + A)/2.
        """
        if self.alpha is not None:
            return self.alpha
        reach2 = self.transform.clip_norm**2 - self.transform.constant**2
        return math.sqrt(0.5 / reach2)

    @property
    def dimension(self) -> int:
        """d K + q(q + 1)/2: the class sums, and the triangle of the moments."""
        return super().dimension + self.features * (self.features + 1) // 2

    @property
    def scale(self) -> Tensor:
        """(dimension,) factors of a submission: those of the sums, α·svec for the raw triangle."""
        size = self.transform.dim * self.num_classes
        sums = super().scale * torch.ones(size, dtype=torch.float64)
        return torch.cat([sums, svec_scale(self.features, self.weight)])

    @property
    def grid_powers(self) -> Tensor:
        """(dimension,): products of two grid entries are multiples of the grid squared."""
        powers = torch.full((self.dimension,), 2)
        powers[: self.transform.dim * self.num_classes] = 1
        return powers

    def positions(self, wide: Statistic) -> Tensor:
        """(dimension,) places in the submission of rows with more features."""
        assert isinstance(wide, ClassMoments)
        sums = self.transform.dim * self.num_classes
        row, column = torch.triu_indices(wide.features, wide.features)
        kept = torch.nonzero((row < self.features) & (column < self.features)).flatten()
        first = wide.transform.dim * self.num_classes
        return torch.cat([torch.arange(sums), first + kept])

    def entry_bound(self, n: int) -> float:
        """n rows, each entry at most c, or α√2 c² after scaling."""
        c = self.transform.clip_norm
        return n * max(c, math.sqrt(2) * self.weight * c**2)

    def submit(self, chunk: Chunk) -> Tensor:
        """(u, dimension) float64 class sums and moments of every user, unscaled."""
        moments = second_moments(chunk.x[..., 1:], counts=chunk.counts)
        return torch.cat([super().submit(chunk), moments], 1)

    @property
    def expected_row(self) -> Tensor:
        """(dimension,) a public row's class sums, and second moments that are no longer than r²."""
        moments = self.transform.second_moment[1:, 1:].double()
        moments = moments * (self.reach**2 / moments.trace()).clamp(max=1.0)
        row, column = torch.triu_indices(self.features, self.features)
        return torch.cat([super().expected_row, moments[row, column]])

    def moments(self, noised: NoisedSum) -> Tensor:
        """(q, q) second moments of the features in a noised sum."""
        return symmetric(noised.total[self.transform.dim * self.num_classes :], self.features)

    def moment_std(self, noised: NoisedSum) -> float:
        """Standard deviation of the noise in an entry of `moments`."""
        return noised.noise_std / (self.weight * math.sqrt(2))


@dataclass(frozen=True, kw_only=True)
class RidgeRegression(ClassSumsEstimator):
    """Ridge regression of the classes' indicators on the features."""

    statistic: ClassMoments
    ridge: float | None = None  # added to Σ u uᵀ; None: the size of the moments' noise
    public_share: float = 0.0  # of the moments, taken from the public covariance instead
    # prior: rows of a class weigh as much as makes its share π_k

    def validate(self) -> None:
        """Checks the ranges."""
        check.within("[0, 1]", public_share=self.public_share)
        super().validate()
        if self.ridge is not None and not 0 <= self.ridge < math.inf:
            raise ValueError(f"ridge must be finite and >= 0, got {self.ridge}")

    def fit(self, noised: NoisedSum) -> Solved:
        """(d, K) ridge solution from noised sums of N rows.

        Centred: (C + λI) V = Σ (u − m)(e_y − π)ᵀ, C the noised scatter matrix with its eigenvalues
        clipped at 0, partly replaced by the public one; the intercept makes means meet. Rows of a
        class weigh as much as makes its share π_k: of C only the scatter of the class means
        changes, as that within is taken to be of all classes alike. λ defaults to the largest
        eigenvalue that the noise alone would have, σ_M √(2q), and at least to 10⁻³ of C's mean
        eigenvalue.

        Noise of τ_k in the mean of class k is in m and in V: π − mᵀV is too small, by what the
        noise alone expects of it, tr((C + λI)⁻¹) (b_k − π_k Σ b_j) N, most where shares or counts
        differ; b = (πτ)² + c πτ Σ π_j τ_j, c the `common_noise`. Without that a small class would
        never be predicted.
        """
        statistic, rows, std = self.statistic, noised.rows, noised.noise_std
        sums, counts = statistic.sums(noised), statistic.counts(noised)
        features = statistic.features
        shares = shares_of(self.prior, counts / rows)
        weighted = sums[1:] * (rows * shares / counts)
        mean = weighted.sum(1) / rows
        scatter = statistic.moments(noised) - rows * torch.outer(mean, mean)
        scatter = scatter + ((weighted - sums[1:]) / counts) @ sums[1:].T
        values, vectors = torch.linalg.eigh(scatter)
        clipped = vectors * values.clamp(min=0) @ vectors.T
        public = self.public_share * rows * statistic.transform.covariance[1:, 1:].double()
        scatter, clipped = (public + (1 - self.public_share) * own for own in (scatter, clipped))
        noise = (1 - self.public_share) * std / (statistic.weight * math.sqrt(2))
        floor = 1e-3 * clipped.trace() / features
        ridge = max(2 * noise * math.sqrt(features), floor.item(), LEAST_RIDGE * rows)
        ridge = ridge if self.ridge is None else self.ridge
        regularised = clipped + ridge * torch.eye(features, dtype=torch.float64)
        directions = torch.linalg.solve(regularised, weighted - rows * mean[:, None] * shares)
        each = shares * std / counts  # π τ
        both = each.square() + statistic.common_noise * each.sum() * each
        excess = rows * torch.linalg.inv(regularised).trace() * (both - shares * both.sum())
        bias = shares - mean @ directions + excess
        return Solved(
            torch.cat([bias[None] / statistic.transform.constant, directions]),
            means=sums[1:] / counts,
            counts=counts,
            shares=shares,
            scatter=scatter,
            regularised=regularised,
            moment_std=noise,
            noised=noised,
            constant=statistic.transform.constant,
        )


def build(
    transform: PublicTransform,
    num_classes: int,
    *,
    alpha: float | None = None,
    class_code: float = 1.0,
    ridge: float | None = None,
    public_share: float = 0.0,
    prior: ClassPrior = "equal",
) -> Method:
    """Method `least-squares`."""
    statistic = ClassMoments(
        num_classes=num_classes, transform=transform, shared=class_code, alpha=alpha
    )
    estimator = RidgeRegression(
        statistic=statistic, ridge=ridge, public_share=public_share, prior=prior
    )
    return Method("least-squares", statistic, estimator, num_classes)
