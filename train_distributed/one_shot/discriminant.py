"""Class sums and second moments, and the Gaussian discriminant that an empirical Bayes makes."""

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from embed import PublicTransform
from pretrain import check
from train_distributed.one_shot.class_gaussians import (
    Gaussians,
    Posterior,
    Prior,
    conditioned,
    moved_covariance,
    within_class,
)
from train_distributed.one_shot.class_prior import ClassPrior, shares_of
from train_distributed.one_shot.class_sums import ClassSums, ClassSumsEstimator
from train_distributed.one_shot.estimator import Fitted
from train_distributed.one_shot.further_rounds import CLIP_SHARE, ClippedGradient, Descent
from train_distributed.one_shot.least_squares import ClassMoments
from train_distributed.one_shot.method import Method
from train_distributed.one_shot.statistic import NoisedSum

Moments = Literal["all", "none"]
PUBLIC_SHRINKAGE = 0.1  # of the public covariance towards the multiple of I of equal trace
DECISIVE = math.log(10)  # evidence that a prior must have beside that which is always there


@dataclass(frozen=True, kw_only=True)
class Discriminant(ClassSumsEstimator):
    """Gaussian discriminant of class sums, and of second moments where they are sent.

    The class means of the classifier are posterior means under a public prior, its covariance is
    the public within-class one, moved as far as the noised moments deserve; see `class_gaussians`.
    At √2 their usual weight, with which they cost nothing, the moments' own noise is a quarter
    less, and that of the sums 6 % more.
    """

    def check_transform(self, transform: PublicTransform) -> None:
        """Raises ValueError if public labels have shown the transforms other classes."""
        if not self.statistic.transform.same_scatter(transform):
            raise ValueError(
                "transform must be the method's own, got one of the same rows whose classes "
                "scatter otherwise"
            )

    def fit(self, noised: NoisedSum) -> Fitted:
        """(d, K) weights of Bayes' rule for the estimated classes."""
        return Fitted(self._weights(self.gaussians(noised)))

    def descent(self, noised: NoisedSum) -> Descent:
        """Start of further rounds, which know the classes' own shares."""
        found, constant = self.gaussians(noised), self.statistic.transform.constant
        start = found.weights(found.shares, constant)
        offset = self._weights(found) - start
        return Descent.of(start, offset, found, constant, self.statistic.transform.clip_norm)

    def _weights(self, found: Gaussians) -> Tensor:
        shares = shares_of(self.prior, found.shares)
        return found.weights(shares, self.statistic.transform.constant)

    def gaussians(self, noised: NoisedSum) -> Gaussians:
        """Estimated classes; Σ holds what is left open of their means.

        The features' clip leaves the constant alone, so its row counts the classes.
        """
        rows = noised.rows
        sums, counts = self.statistic.sums(noised), self.statistic.counts(noised)
        shares = counts / rows
        centre = sums[1:].sum(1) / rows
        deviations = sums[1:] / counts - centre[:, None]
        posterior = self._posterior(deviations, noised.noise_std / counts, shares)
        transform = self.statistic.transform
        known = transform.within_class  # of labelled public rows; without labels that of all
        known = transform.covariance[1:, 1:] if known is None else known
        covariance = conditioned(known.double(), PUBLIC_SHRINKAGE)
        if isinstance(self.statistic, ClassMoments):
            noise = self.statistic.moment_std(noised) / rows
            moments = self.statistic.moments(noised) / rows
            private = within_class(moments, centre, posterior, shares)
            covariance = conditioned(moved_covariance(covariance, private, noise))
        means = centre[:, None] + posterior.means
        return Gaussians(means, covariance + posterior.covariance, shares)

    def _posterior(self, deviations: Tensor, noise: Tensor, shares: Tensor) -> Posterior:
        """Posterior of the class means, by the prior C or the public classes' B_pub.

        B_pub is taken where the means make it ten times as likely as C: a wrong one hides what its
        classes did not show, with two classes above all.
        """
        prior = Prior.of(self.statistic.transform.covariance[1:, 1:])
        scale, evidence = prior.fitted(deviations, noise)
        if self.statistic.transform.between_class is not None:
            other = Prior.of(self.statistic.transform.between_class)
            fitted, found = other.fitted(deviations, noise)
            if found > evidence + DECISIVE:
                prior, scale = other, fitted
        return prior.posterior(deviations, noise, scale, shares)


def build(
    transform: PublicTransform,
    num_classes: int,
    *,
    moments: Moments = "all",
    alpha: float | None = None,
    class_code: float = 1.0,
    prior: ClassPrior = "empirical",
    rounds: int = 0,
) -> Method:
    """Method `discriminant`; `moments` "none" where bytes are dear, `rounds` further sums.

    The weight `alpha` of the moments in the joint noise is as in `ClassMoments`.
    """
    check.one_of(get_args(Moments), moments=moments)
    if moments == "none" and alpha is not None:
        raise ValueError(f"alpha must be left out without moments, got {alpha}")
    known: dict[str, Any] = {
        "num_classes": num_classes,
        "transform": transform,
        "shared": class_code,
    }
    statistic = ClassSums(**known) if moments == "none" else ClassMoments(**known, alpha=alpha)
    estimator = Discriminant(statistic=statistic, prior=prior)
    gradient = ClippedGradient(
        weights=torch.zeros(transform.dim, num_classes, dtype=torch.float64),
        clip_norm=CLIP_SHARE * transform.clip_norm,
    )
    return Method("discriminant", statistic, estimator, num_classes, rounds, gradient)
