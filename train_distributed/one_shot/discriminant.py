"""Class sums and second moments, and the Gaussian discriminant that an empirical Bayes makes."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import torch
from torch import Tensor

from embed import PublicTransform
from heads import symmetric
from train_distributed.one_shot.class_gaussians import (
    Gaussians,
    Posterior,
    Prior,
    conditioned,
    moved_covariance,
    within_class,
)
from train_distributed.one_shot.class_prior import ClassPrior, checked_prior, shares_of
from train_distributed.one_shot.class_sums import ClassSums, class_counts
from train_distributed.one_shot.further_rounds import (
    CLIP_SHARE,
    MOST_ROUNDS,
    ClippedGradient,
    Descent,
)
from train_distributed.one_shot.least_squares import LeastSquares
from train_distributed.one_shot.users import Chunk

Moments = Literal["all", "none"]
PUBLIC_SHRINKAGE = 0.1  # of the public covariance towards the multiple of I of equal trace
DECISIVE = math.log(10)  # evidence that a prior must have beside that which is always there


@dataclass(frozen=True, kw_only=True)
class Discriminant:
    """Every user submits class sums, and second moments where bytes allow; the rest is public.

    The class means of the classifier are posterior means under a public prior, its covariance is
    the public within-class one, moved as far as the noised moments deserve; see `class_gaussians`.
    """

    num_classes: int
    transform: PublicTransform
    moments: Moments = "all"
    alpha: float | None = None  # weight of the moments in the joint noise, as in `LeastSquares`
    prior: ClassPrior = "empirical"  # of the classes; as the noised counts say
    rounds: int = 0  # T further sums of gradients, with the first under one promise

    def validate(self) -> None:
        """Checks what the transform and the data cannot know.

        Raises:
            ValueError: naming the field, its rule and its value.
        """
        if self.moments not in get_args(Moments):
            raise ValueError(f"moments must be one of {get_args(Moments)}, got {self.moments!r}")
        if self.moments == "none" and self.alpha is not None:
            raise ValueError(f"alpha must be left out without moments, got {self.alpha}")
        if not (isinstance(self.rounds, int) and 0 <= self.rounds <= MOST_ROUNDS):
            raise ValueError(f"rounds must be in [0, {MOST_ROUNDS}] and whole, got {self.rounds}")
        self.statistics.validate()
        checked_prior(self.prior, self.num_classes)

    @cached_property
    def statistics(self) -> ClassSums | LeastSquares:
        """What is submitted, and how far a record moves it."""
        known = {"num_classes": self.num_classes, "transform": self.transform}
        return (
            ClassSums(**known)
            if self.moments == "none"
            else LeastSquares(**known, alpha=self.alpha)
        )

    @property
    def dimension(self) -> int:
        """Length of a submission: d K, and q(q + 1)/2 more for the moments."""
        return self.statistics.dimension

    @property
    def compositions(self) -> int:
        """1: all parts jointly."""
        return self.statistics.compositions

    @property
    def scale(self) -> float | Tensor:
        """As of the statistics."""
        return self.statistics.scale

    @property
    def grid_powers(self) -> Tensor:
        """(dimension,) as of the statistics."""
        return self.statistics.grid_powers

    def entry_bound(self, n: int) -> float:
        """As of the statistics."""
        return self.statistics.entry_bound(n)

    def record_reach(self, sizes: Tensor) -> float:
        """Sensitivity of the statistics: the moments cost nothing at their usual weight.

        At √2 that weight their own noise is a quarter less, and that of the sums 6 % more.
        """
        return self.statistics.record_reach(sizes)

    def user_reach(self, sizes: Tensor) -> Tensor:
        """(users,) how far all records of a user move them."""
        return self.statistics.user_reach(sizes)

    def record_removal(self, sizes: Tensor) -> float:
        """As of the statistics."""
        return self.statistics.record_removal(sizes)

    def user_removal(self, sizes: Tensor) -> Tensor:
        """(users,) as of the statistics."""
        return self.statistics.user_removal(sizes)

    def submit(self, chunk: Chunk) -> Tensor:
        """(u, dimension) float64 statistics of every user, unscaled."""
        return self.statistics.submit(chunk)

    def classifier(self, total: Tensor, rows: int, noise_std: float) -> Tensor:
        """(d, K) weights from noised statistics of `rows` rows, noise of `noise_std` per entry."""
        return self._weights(self.gaussians(total, rows, noise_std))

    @property
    def gradient(self) -> ClippedGradient:
        """What a further round sums, at weights that are not known yet."""
        weights = torch.zeros(self.transform.dim, self.num_classes, dtype=torch.float64)
        return ClippedGradient(weights=weights, clip_norm=CLIP_SHARE * self.transform.clip_norm)

    def descent(self, total: Tensor, rows: int, noise_std: float) -> Descent:
        """What the first sum gives to further rounds, which know the classes' own shares."""
        found, constant = self.gaussians(total, rows, noise_std), self.transform.constant
        start = found.weights(found.shares, constant)
        offset = self._weights(found) - start
        return Descent.of(start, offset, found, constant, self.transform.clip_norm)

    def _weights(self, found: Gaussians) -> Tensor:
        return found.weights(shares_of(self.prior, found.shares), self.transform.constant)

    def gaussians(self, total: Tensor, rows: int, noise_std: float) -> Gaussians:
        """The classes, from the same; Σ holds what is left open of their means.

        The features' clip leaves the constant alone, so its row counts the classes.
        """
        transform = self.transform
        split = transform.dim * self.num_classes
        sums = total[:split].unflatten(0, (transform.dim, self.num_classes))
        counts = class_counts(sums[0], transform.constant, rows, noise_std)
        shares = counts / rows
        centre = sums[1:].sum(1) / rows
        deviations = sums[1:] / counts - centre[:, None]
        posterior = self._posterior(deviations, noise_std / counts, shares)
        covariance = conditioned(self._public_within().double(), PUBLIC_SHRINKAGE)
        if isinstance(self.statistics, LeastSquares):
            noise = noise_std / (self.statistics.weight * math.sqrt(2)) / rows
            moments = symmetric(total[split:], self.transform.dim - 1) / rows
            private = within_class(moments, centre, posterior, shares)
            covariance = conditioned(moved_covariance(covariance, private, noise))
        means = centre[:, None] + posterior.means
        return Gaussians(means, covariance + posterior.covariance, shares)

    def _public_within(self) -> Tensor:
        """(q, q) of labelled public rows; without labels that of all."""
        known = self.transform.within_class
        return self.transform.covariance[1:, 1:] if known is None else known

    def _posterior(self, deviations: Tensor, noise: Tensor, shares: Tensor) -> Posterior:
        """Of the class means: B_pub where these make it ten times as likely as C, else C.

        A wrong B_pub hides what its classes did not show, with two classes above all.
        """
        prior = Prior.of(self.transform.covariance[1:, 1:])
        scale, evidence = prior.fitted(deviations, noise)
        if self.transform.between_class is not None:
            other = Prior.of(self.transform.between_class)
            fitted, found = other.fitted(deviations, noise)
            if found > evidence + DECISIVE:
                prior, scale = other, fitted
        return prior.posterior(deviations, noise, scale, shares)
