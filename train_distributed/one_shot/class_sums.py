"""Sums of rows by class, exact under any partition, and the nearest class mean made of them."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from embed import PublicTransform
from heads import class_sums, class_sums_sensitivity
from train_distributed.one_shot.class_prior import ClassPrior, checked_prior, shares_of
from train_distributed.one_shot.users import Chunk

UNEVEN = 0.5  # how far counts are from equal shares, in these, where they are not equal
GRID = 256  # such deviations, for an integral over them
EXACT = 1e-9  # noise in equal shares that is none


@dataclass(frozen=True, kw_only=True)
class ClassSums:
    """Every user submits Σ x e_yᵀ; the classifier is LDA with the public covariance.

    w_k = Σ⁻¹(μ_k − m), b_k = log π_k − ½ (μ_k − m)ᵀ Σ⁻¹ (μ_k − m): the nearest class mean where
    public data is white and classes are alike probable. Class counts are the noised ones from the
    constant row, shrunk towards equal shares as far as noise explains their spread.
    """

    num_classes: int
    transform: PublicTransform
    shrinkage: float = 0.1  # of the public covariance towards the multiple of I of equal trace
    prior: ClassPrior = "empirical"  # π of the classes; as the noised counts say

    def validate(self) -> None:
        """Checks what the transform and the data cannot know.

        Raises:
            ValueError: naming the field, its rule and its value.
        """
        check_num_classes(self.num_classes)
        check_share("shrinkage", self.shrinkage)
        checked_prior(self.prior, self.num_classes)
        class_sums_sensitivity(self.transform.clip_norm, self.transform.constant)

    @property
    def dimension(self) -> int:
        """d K, the length of a submission."""
        return self.transform.dim * self.num_classes

    @property
    def compositions(self) -> int:
        """1: all classes jointly."""
        return 1

    @property
    def scale(self) -> float:
        """All entries in one unit."""
        return 1.0

    @property
    def grid_powers(self) -> Tensor:
        """(d K,): sums of grid entries lie on the same grid."""
        return torch.ones(self.dimension, dtype=torch.int64)

    def entry_bound(self, n: int) -> float:
        """n rows of norm at most c add up to n c."""
        return n * self.transform.clip_norm

    def record_reach(self, sizes: Tensor) -> float:
        """Sensitivity of the sum; `heads.class_sums_sensitivity`."""
        return class_sums_sensitivity(self.transform.clip_norm, self.transform.constant)

    def user_reach(self, sizes: Tensor) -> Tensor:
        """(users,) how far all n_i records of a user move the sum: n_i times as far as one."""
        return sizes.double() * self.record_reach(sizes)

    def record_removal(self, sizes: Tensor) -> float:
        """c: a record adds one row of that norm."""
        return self.transform.clip_norm

    def user_removal(self, sizes: Tensor) -> Tensor:
        """(users,) n_i rows of norm c."""
        return sizes.double() * self.record_removal(sizes)

    def submit(self, chunk: Chunk) -> Tensor:
        """(u, d K) float64 sums of every user's rows by class."""
        return class_sums(chunk.x, chunk.y, self.num_classes, counts=chunk.counts).flatten(1)

    def classifier(self, total: Tensor, rows: int, noise_std: float) -> Tensor:
        """(d, K) weights from the noised sums of `rows` rows, noise of `noise_std` per entry."""
        sums = total.unflatten(0, (self.transform.dim, self.num_classes))
        counts = class_counts(sums[0], self.transform.constant, rows, noise_std)
        precision = torch.linalg.inv(_shrunk(self.transform.covariance[1:, 1:], self.shrinkage))
        centred = sums[1:] / counts - self.transform.row_mean[1:, None].double()
        directions = precision @ centred
        # E‖noisy mean‖² exceeds ‖mean‖² by the noise's own share
        excess = precision.trace() * (noise_std / counts) ** 2
        bias = -0.5 * ((centred * directions).sum(0) - excess)
        bias = bias - self.transform.row_mean[1:].double() @ directions
        bias = bias + shares_of(self.prior, counts / rows).log()
        return torch.cat([bias[None] / self.transform.constant, directions])


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


def _shrunk(covariance: Tensor, share: float) -> Tensor:
    covariance = covariance.double()
    average = covariance.diagonal().mean()
    identity = torch.eye(len(covariance), dtype=torch.float64)
    return (1 - share) * covariance + share * average * identity


def check_num_classes(num_classes: int) -> None:
    """Raises ValueError for fewer than two classes."""
    if num_classes < 2:
        raise ValueError(f"num_classes must be >= 2, got {num_classes}")


def check_share(name: str, value: float) -> None:
    """Raises ValueError, naming it, for a share outside [0, 1]."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be in [0, 1], got {value}")
