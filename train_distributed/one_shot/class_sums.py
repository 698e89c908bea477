"""Sums of rows by class, exact under any partition, and the nearest class mean made of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from embed import PublicTransform
from heads import ClassCode, class_sums
from heads.head import require_scale
from pretrain import check
from train_distributed.one_shot.class_prior import (
    ClassPrior,
    checked_prior,
    reported_prior,
    shares_of,
)
from train_distributed.one_shot.method import Estimator, Fitted, Method
from train_distributed.one_shot.statistic import NoisedSum, Statistic
from train_distributed.one_shot.users import Chunk

UNEVEN = 0.5  # how far counts are from equal shares, in these, where they are not equal
GRID = 256  # such deviations, for an integral over them
EXACT = 1e-9  # noise in equal shares that is none
EXPECTED = 0.5  # of a row's count; the other half shows how many rows a users' clip leaves
LEAST_SHARED = 0.1  # β of a class code: with less, counts of two classes are lost in noise


@dataclass(frozen=True, kw_only=True)
class ClassSums(Statistic):
    """Σ x e_yᵀ of every user's rows, in the coordinates of a class code.

    Features move as `heads.ClassCode` proves. The constant row counts the rows by class.
    """

    num_classes: int
    transform: PublicTransform
    shared: float = 1.0  # β of the class code; 1: plain

    def validate(self) -> None:
        """Checks K, β, and that the transform's clip norm and constant fit each other."""
        check.at_least(2, num_classes=self.num_classes)
        check.within(f"[{LEAST_SHARED}, 1]", class_code=self.shared)
        clip_norm, constant = self.transform.clip_norm, self.transform.constant
        require_scale("clip_norm", clip_norm)
        if not 0 < constant < clip_norm:
            raise ValueError(f"constant must lie in (0, clip_norm = {clip_norm}), got {constant}")

    def check_rows(self, transform: PublicTransform) -> None:
        """Raises ValueError for rows of another transform than the statistic's own."""
        if not self.transform.same_rows(transform):
            raise ValueError(
                "transform must be the method's own, got another one: rows of norm "
                f"{transform.clip_norm} for a sensitivity stated for {self.transform.clip_norm}"
            )

    @property
    def own_transform(self) -> PublicTransform:
        """Transform that makes the rows."""
        return self.transform

    @property
    def code(self) -> ClassCode:
        """Coordinates of the sums."""
        return ClassCode(self.num_classes, self.shared)

    @property
    def reach(self) -> float:
        """r, the largest length of a row's features."""
        return math.sqrt(self.transform.clip_norm**2 - self.transform.constant**2)

    @property
    def weight(self) -> float:
        """α of second moments that are sent as well; 0: none."""
        return 0.0

    @property
    def constant(self) -> float:
        """c₀ of the scaled counts: a, or with a code no more than costs nothing."""
        own = self.transform.constant
        if self.shared == 1:
            return own
        return min(own, self.code.free_constant(self.reach, self.weight))

    @property
    def dimension(self) -> int:
        """d K, the length of a submission."""
        return self.transform.dim * self.num_classes

    @property
    def scale(self) -> float | Tensor:
        """(d K,) factors of the code's coordinates, counts to c₀; 1 for plain sums."""
        if self.shared == 1:
            return 1.0
        factors = self.code.scale().repeat(self.transform.dim, 1)
        factors[1:, 0] *= self.shared
        factors[0] *= self.constant / self.transform.constant
        return factors.flatten()

    @property
    def grid_powers(self) -> Tensor:
        """(d K,): sums of grid entries lie on the same grid."""
        return torch.ones(self.dimension, dtype=torch.int64)

    def entry_bound(self, n: int) -> float:
        """n rows of norm at most c add up to n c, in scaled coordinates as well."""
        return n * self.transform.clip_norm

    def record_sensitivity(self, sizes: Tensor) -> float:
        """Sensitivity of the scaled submission; `heads.ClassCode.sensitivity`."""
        return self.code.sensitivity(self.reach, self.constant, self.weight)

    def zero_out_sensitivity(self, sizes: Tensor) -> float:
        """Norm of what a record adds to the scaled submission."""
        return self.code.norm(self.reach, self.constant, self.weight)

    def submit(self, chunk: Chunk) -> Tensor:
        """(u, d K) float64 sums of every user's rows by class, in the code's coordinates."""
        sums = class_sums(chunk.x, chunk.y, self.num_classes, counts=chunk.counts)
        return self.code.encode(sums).flatten(1)

    @property
    def expected_row(self) -> Tensor:
        """(d K,) of a public row, of each class as likely as of others; of its count `EXPECTED`."""
        mean = self.transform.row_mean.double().clone()
        mean[0] = EXPECTED * self.transform.constant
        each = (mean / self.num_classes)[:, None].expand(-1, self.num_classes)
        return self.code.encode(each).flatten()

    def counted_rows(self, noised: NoisedSum) -> tuple[float, float]:
        """Number of rows that the constant row counts, and its variance K (s/c₀)²."""
        found = float(self.sums(noised)[0].sum()) / self.transform.constant
        return found, self.num_classes * (noised.noise_std / self.constant) ** 2

    def sums(self, noised: NoisedSum) -> Tensor:
        """(d, K) class sums in a noised sum; what classes share of its noise is `common_noise`."""
        size = self.transform.dim * self.num_classes
        coordinates = noised.total[:size].unflatten(0, (self.transform.dim, self.num_classes))
        return self.code.decode(coordinates)

    @property
    def common_noise(self) -> float:
        """c = (1/β² − 1)/K: noise of the (K,) sums of a feature has covariance s² (I + c 1 1ᵀ)."""
        return self.code.apart / self.shared**2

    def report(self) -> dict[str, Any]:
        """β of a class code."""
        return {} if self.shared == 1 else {"class_code": self.shared}

    def counts(self, noised: NoisedSum) -> Tensor:
        """(K,) positive counts of the classes' rows; see `class_counts`."""
        own = self.transform.constant
        noise = noised.noise_std * (own / self.constant)
        return class_counts(self.sums(noised)[0], own, noised.rows, noise)


@dataclass(frozen=True, kw_only=True)
class ClassSumsEstimator(Estimator):
    """Estimator whose sum holds class sums."""

    statistic: ClassSums
    prior: ClassPrior = "equal"  # π of the classes

    def validate(self) -> None:
        """Checks the prior."""
        checked_prior(self.prior, self.statistic.num_classes)

    def prior_report(self, noised: NoisedSum, class_names: Sequence[str]) -> dict[str, Any]:
        """Class prior of the weights; the shares of users' rows are those that the sum shows."""
        counted = self.statistic.counts(noised)
        return reported_prior(self.prior, counted / counted.sum(), class_names)


@dataclass(frozen=True, kw_only=True)
class NearestMean(ClassSumsEstimator):
    """LDA with the public covariance, which is the nearest class mean where public data is white.

    w_k = Σ⁻¹(μ_k − m), b_k = log π_k − ½ (μ_k − m)ᵀ Σ⁻¹ (μ_k − m). Class counts are the noised ones
    from the constant row, shrunk towards equal shares as far as noise explains their spread.
    """

    shrinkage: float = 0.1  # of the public covariance towards the multiple of I of equal trace

    def validate(self) -> None:
        """Checks the ranges."""
        check.within("[0, 1]", shrinkage=self.shrinkage)
        super().validate()

    def fit(self, noised: NoisedSum) -> Fitted:
        """(d, K) weights from the noised sums."""
        transform, std = self.statistic.transform, noised.noise_std
        sums, counts = self.statistic.sums(noised), self.statistic.counts(noised)
        covariance = transform.covariance[1:, 1:].double()
        average = covariance.diagonal().mean()
        identity = torch.eye(len(covariance), dtype=torch.float64)
        shrunk = (1 - self.shrinkage) * covariance + self.shrinkage * average * identity
        precision = torch.linalg.inv(shrunk)
        centred = sums[1:] / counts - transform.row_mean[1:, None].double()
        directions = precision @ centred
        # E‖noisy mean‖² exceeds ‖mean‖² by the noise's own share
        common = 1 + self.statistic.common_noise
        excess = precision.trace() * common * (std / counts) ** 2
        bias = -0.5 * ((centred * directions).sum(0) - excess)
        bias = bias - transform.row_mean[1:].double() @ directions
        bias = bias + shares_of(self.prior, counts / noised.rows).log()
        return Fitted(torch.cat([bias[None] / transform.constant, directions]))


def build(
    transform: PublicTransform,
    num_classes: int,
    *,
    shrinkage: float = 0.1,
    class_code: float = 1.0,
    prior: ClassPrior = "equal",
) -> Method:
    """Method `class-sums`."""
    statistic = ClassSums(num_classes=num_classes, transform=transform, shared=class_code)
    estimator = NearestMean(statistic=statistic, shrinkage=shrinkage, prior=prior)
    return Method("class-sums", statistic, estimator, num_classes)


def class_counts(row: Tensor, constant: float, rows: int, noise_std: float) -> Tensor:
    """(K,) positive counts with sum N, from the noised constant row of class sums.

    Their spread is kept as far as it is likely to be the classes' own. In equal shares, counts are
    1, or N(1, c²) with c half-normal: at even odds, and c integrated out. So at small ε all classes
    count alike; no class is given less than a twentieth of an equal share.
    """
    equal = rows / len(row)
    spread = (row - row.mean()) / (constant * equal)
    largest = min(math.sqrt(len(row) - 1), 4 * UNEVEN)
    own = (largest * (torch.arange(GRID, dtype=torch.float64) + 0.5) / GRID).square()
    odds = torch.log_softmax(-own / (2 * UNEVEN**2), 0)
    own, odds = (torch.cat([values.new_zeros(1), values]) for values in (own, odds))
    variance = own + max(noise_std / (constant * equal), EXACT) ** 2
    fit = (len(row) - 1) * variance.log() + spread.square().sum() / variance
    keep = torch.softmax(odds - fit / 2, 0) @ (own / variance)
    counts = (equal * (1 + keep * spread)).clamp(min=equal / 20)
    return counts * (rows / counts.sum())
