"""Class sums and second moments, exact under any partition, and the ridge regression of them."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from embed import PublicTransform
from heads import (
    class_sums,
    least_squares_norm,
    least_squares_sensitivity,
    second_moments,
    svec_scale,
    symmetric,
)
from train_distributed.one_shot.class_prior import ClassPrior, checked_prior, shares_of
from train_distributed.one_shot.class_sums import check_num_classes, check_share, class_counts
from train_distributed.one_shot.users import Chunk

LEAST_RIDGE = 1e-12  # per row, for features of length about 1: rows that are all alike


@dataclass(frozen=True, kw_only=True)
class LeastSquares:
    """Every user submits class sums and second moments; the classifier is ridge regression.

    The moments are those of the features alone: what they share with the constant is Σ_k of the
    class sums, and N is public. The pair's sensitivity is `heads.least_squares_sensitivity` with
    the constant, which for a² + α²r⁴ ≤ r² and αr ≤ 1/√2 is that of the class sums alone.
    """

    num_classes: int
    transform: PublicTransform
    alpha: float | None = None  # weight of the moments in the joint noise; None: 1/(√2 r)
    ridge: float | None = None  # added to Σ u uᵀ; None: the size of the moments' noise
    public_share: float = 0.0  # of the moments, taken from the public covariance instead
    prior: ClassPrior = "empirical"  # of the classes: their rows weigh as much as it says

    def validate(self) -> None:
        """Checks what the transform and the data cannot know.

        Raises:
            ValueError: naming the field, its rule and its value.
        """
        check_num_classes(self.num_classes)
        check_share("public_share", self.public_share)
        checked_prior(self.prior, self.num_classes)
        if self.ridge is not None and not 0 <= self.ridge < math.inf:
            raise ValueError(f"ridge must be finite and >= 0, got {self.ridge}")
        self.record_reach(torch.ones(1))

    @property
    def features(self) -> int:
        """q = d − 1, the columns beside the constant."""
        return self.transform.dim - 1

    @property
    def weight(self) -> float:
        """α as given, or 1/(√2 r), with which the moments cost nothing."""
        if self.alpha is not None:
            return self.alpha
        reach2 = self.transform.clip_norm**2 - self.transform.constant**2
        return math.sqrt(0.5 / reach2)

    @property
    def dimension(self) -> int:
        """d K + q(q + 1)/2: the class sums, and the triangle of the moments."""
        return self.transform.dim * self.num_classes + self.features * (self.features + 1) // 2

    @property
    def compositions(self) -> int:
        """1: sums and moments jointly."""
        return 1

    @property
    def scale(self) -> Tensor:
        """(dimension,) factors of a submission: 1 for the sums, α·svec for the raw triangle."""
        sums = torch.ones(self.transform.dim * self.num_classes, dtype=torch.float64)
        return torch.cat([sums, svec_scale(self.features, self.weight)])

    @property
    def grid_powers(self) -> Tensor:
        """(dimension,): products of two grid entries are multiples of the grid squared."""
        powers = torch.full((self.dimension,), 2)
        powers[: self.transform.dim * self.num_classes] = 1
        return powers

    def entry_bound(self, n: int) -> float:
        """n rows, each entry at most c, or α√2 c² after scaling."""
        c = self.transform.clip_norm
        return n * max(c, math.sqrt(2) * self.weight * c**2)

    def record_reach(self, sizes: Tensor) -> float:
        """Joint sensitivity of the scaled submission."""
        transform = self.transform
        return least_squares_sensitivity(transform.clip_norm, self.weight, transform.constant)

    def user_reach(self, sizes: Tensor) -> Tensor:
        """(users,) how far all n_i records of a user move the sum: n_i times as far as one."""
        return sizes.double() * self.record_reach(sizes)

    def record_removal(self, sizes: Tensor) -> float:
        """Joint norm of what a record adds to the scaled submission."""
        return least_squares_norm(self.transform.clip_norm, self.weight, self.transform.constant)

    def user_removal(self, sizes: Tensor) -> Tensor:
        """(users,) n_i times what one record adds."""
        return sizes.double() * self.record_removal(sizes)

    def submit(self, chunk: Chunk) -> Tensor:
        """(u, dimension) float64 class sums and moments of every user, unscaled."""
        sums = class_sums(chunk.x, chunk.y, self.num_classes, counts=chunk.counts)
        moments = second_moments(chunk.x[..., 1:], counts=chunk.counts)
        return torch.cat([sums.flatten(1), moments], 1)

    def classifier(self, total: Tensor, rows: int, noise_std: float) -> Tensor:
        """(d, K) ridge solution from noised sums of `rows` rows; `noise_std` per scaled entry.

        Centred: (C + λI) V = Σ (u − m)(e_y − π)ᵀ, C the noised scatter matrix with its eigenvalues
        clipped at 0, partly replaced by the public one; the intercept makes means meet. Rows of a
        class weigh as much as makes its share π_k: of C only the scatter of the class means
        changes, as that within is taken to be of all classes alike. λ defaults to the largest
        eigenvalue that the noise alone would have, σ_M √(2q), and at least to 10⁻³ of C's mean
        eigenvalue.

        Noise of τ_k in the mean of class k is in m and in V: π − mᵀV is too small, by what the
        noise alone expects of it, tr((C + λI)⁻¹) π_k (π_k τ_k² − Σ π_j² τ_j²) N, most where shares
        or counts differ. Without that a small class would never be predicted.
        """
        return self.solve(total, rows, noise_std).weights

    def solve(self, total: Tensor, rows: int, noise_std: float) -> "Solved":
        """The same with what it was made of."""
        split = self.transform.dim * self.num_classes
        sums = total[:split].unflatten(0, (self.transform.dim, self.num_classes))
        counts = class_counts(sums[0], self.transform.constant, rows, noise_std)
        shares = shares_of(self.prior, counts / rows)
        weighted = sums[1:] * (rows * shares / counts)
        mean = weighted.sum(1) / rows
        scatter = symmetric(total[split:], self.features) - rows * torch.outer(mean, mean)
        scatter = scatter + ((weighted - sums[1:]) / counts) @ sums[1:].T
        values, vectors = torch.linalg.eigh(scatter)
        clipped = vectors * values.clamp(min=0) @ vectors.T
        public = self.public_share * rows * self.transform.covariance[1:, 1:].double()
        scatter, clipped = (public + (1 - self.public_share) * own for own in (scatter, clipped))
        noise = (1 - self.public_share) * noise_std / (self.weight * math.sqrt(2))
        floor = 1e-3 * clipped.trace() / self.features
        ridge = max(2 * noise * math.sqrt(self.features), floor.item(), LEAST_RIDGE * rows)
        ridge = ridge if self.ridge is None else self.ridge
        regularised = clipped + ridge * torch.eye(self.features, dtype=torch.float64)
        directions = torch.linalg.solve(regularised, weighted - rows * mean[:, None] * shares)
        spread = (shares * noise_std / counts).square()  # π² τ²
        excess = rows * torch.linalg.inv(regularised).trace() * (spread - shares * spread.sum())
        bias = shares - mean @ directions + excess
        return Solved(
            weights=torch.cat([bias[None] / self.transform.constant, directions]),
            means=sums[1:] / counts,
            counts=counts,
            shares=shares,
            scatter=scatter,
            regularised=regularised,
            moment_std=noise,
        )


@dataclass(frozen=True, kw_only=True)
class Solved:
    """A ridge regression, and the statistics that it was solved for."""

    weights: Tensor  # (d, K)
    means: Tensor  # (q, K) noised means of the features of every class
    counts: Tensor  # (K,) noised counts of their rows, positive
    shares: Tensor  # (K,) of the classes as their rows weigh, positive, one together
    scatter: Tensor  # (q, q) C of weighted rows about their mean, noised, its eigenvalues as it is
    regularised: Tensor  # (q, q) A: the same with none below 0, and λI
    moment_std: float  # of the noise in an entry of the scatter matrix
