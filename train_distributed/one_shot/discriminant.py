"""Class sums and second moments, and the Gaussian discriminant that an empirical Bayes makes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from embed import PublicTransform
from embed.clip import LEAST
from train_distributed.one_shot.class_gaussians import (
    Gaussians,
    Posterior,
    conditioned,
    within_class,
)
from train_distributed.one_shot.class_moments import ClassMoments
from train_distributed.one_shot.class_posterior import (
    SHIFTS,
    Guess,
    NoisyMeans,
    believed,
    scales_about_one,
    scales_at_all,
    true_share,
)
from train_distributed.one_shot.class_prior import (
    ClassPrior,
    checked_prior,
    reported_prior,
    shares_of,
    tempered,
)
from train_distributed.one_shot.further_rounds import Descent
from train_distributed.one_shot.method import Estimator, Fitted, Method
from train_distributed.one_shot.noisy_scatter import NoisyScatter
from train_distributed.one_shot.statistic import NoisedSum

PUBLIC_SHRINKAGE = 0.1  # prior: of the public covariance towards the multiple of I of equal trace
DECISIVE = math.log(10)  # prior: odds of C, which hides less where it is wrong, against B_pub
TRUSTED = math.log(20)  # prior: odds of a guess from names against none


@dataclass(frozen=True, kw_only=True)
class Discriminant(Estimator):
    """Gaussian discriminant of class sums, and of second moments where they are sent.

    The class means of the classifier are posterior means under a public prior, its covariance is
    the public within-class one, moved as far as the noised moments deserve; see `class_gaussians`.
    At √2 their usual weight, with which they cost nothing, the moments' own noise is a quarter
    less, and that of the sums 6 % more.
    """

    statistic: ClassMoments
    prior: ClassPrior = "equal"  # π of the classes

    def validate(self) -> None:
        """Checks the prior."""
        checked_prior(self.prior, self.statistic.num_classes)

    def prior_report(self, noised: NoisedSum, class_names: Sequence[str]) -> dict[str, Any]:
        """Class prior, and where something was known of the classes, what, and how believable.

        The shares of users' rows are those that the noised sum shows; probabilities of the guesses
        are computed of it too, so they cost nothing.
        """
        counted, known = self.statistic.counts(noised), self.statistic.transform.known
        report = reported_prior(self.prior, counted / counted.sum(), class_names)
        if known is None:
            return report
        return report | {"known_before": known.words, "believed": self.posterior(noised)[1]}

    def fit(self, noised: NoisedSum) -> Fitted:
        """(d, K) weights of Bayes' rule for the estimated classes, and their temperature."""
        (posterior, _), noisy = self.posterior(noised), self._noisy(noised)
        found, scatter = self._estimated(noised, posterior)
        true = true_share(noisy, posterior, found.covariance)
        ratio = 1.0 if scatter is None else scatter.ratio(found, true)
        temperature = found.temperature(ratio, true)
        return Fitted(
            self._weights(found, temperature),
            temperature=temperature,
            class_shares=found.shares,
            prior=self.prior,
        )

    def descent(self, noised: NoisedSum, rounds: int) -> Descent:
        """Start of further rounds, which know the classes' own shares."""
        transform = self.statistic.transform
        found, scatter = self._estimated(noised, self.posterior(noised)[0])
        if scatter is not None:  # scores of the ridge are under-confident; descent starts without
            temperature = math.sqrt(scatter.ratio(found))
            found = replace(found, covariance=temperature * found.covariance)
        start = found.weights(found.shares, transform.constant)
        offset = self._weights(found) - start
        bounds = transform.constant, transform.clip_norm
        return Descent.of(start, offset, found, *bounds, rounds)

    def _weights(self, found: Gaussians, temperature: float = 1.0) -> Tensor:
        shares = tempered(shares_of(self.prior, found.shares), temperature)
        return found.weights(shares, self.statistic.transform.constant)

    def _estimated(
        self, noised: NoisedSum, posterior: Posterior
    ) -> tuple[Gaussians, NoisyScatter | None]:
        """Gaussian classes, and the noised covariance behind them; None without second moments.

        The features' clip leaves the constant alone, so its row counts the classes.
        """
        rows, transform = noised.rows, self.statistic.transform
        shares = self.statistic.counts(noised) / rows
        public = conditioned(transform.public.within, PUBLIC_SHRINKAGE)
        if not self.statistic.moments:
            return Gaussians(posterior.means, public + posterior.doubt, shares), None
        noise = self.statistic.moment_std(noised) / rows
        private = within_class(self.statistic.moment_matrix(noised) / rows, posterior, shares)
        knowing = transform.known is not None
        scatter = NoisyScatter(public, private, noise, posterior.covariance, knowing)
        covariance = scatter.covariance() + posterior.doubt
        return Gaussians(posterior.means, covariance, shares), scatter

    def posterior(self, noised: NoisedSum) -> tuple[Posterior, dict[str, float]]:
        """Posterior of the class means, and the probability of each guess by its source.

        With nothing known of the classes they scatter about the public mean as the public rows do,
        C, or as labelled public classes do, B_pub, where the means make that ten times as likely: a
        wrong one hides what its classes did not show, with two classes above all. Under C the
        centre of the classes is the noised sum's alone: for private pictures of another kind than
        the public ones, no estimate of how far they are shifted served the smaller class as well.

        A public source errs in the directions that it says, V, or in all that vary, C with the
        trace of V: its errors on public classes cannot show where private ones differ otherwise.
        """
        transform, seen = self.statistic.transform, self.statistic.transform.public
        covariance, means = seen.covariance, seen.mean[:, None]
        guesses = [Guess("nothing", means, covariance, scales_at_all(), shifts=SHIFTS[-1:])]
        one = scales_about_one()
        if seen.between is not None:
            guesses.append(Guess("public classes", means, seen.between, one, -DECISIVE))
        for each in transform.guesses:
            wide = covariance * (each.covariance.trace() / covariance.trace().clamp(min=LEAST))
            odds = TRUSTED * each.trust - math.log(2)
            shapes = (each.covariance.double(), wide)
            guesses += [Guess(each.source, each.means, v, one, odds) for v in shapes]
        within = conditioned(seen.within, PUBLIC_SHRINKAGE)
        return believed(self._noisy(noised), guesses, covariance, within)

    def _noisy(self, noised: NoisedSum) -> NoisyMeans:
        sums, counts = self.statistic.sums(noised), self.statistic.counts(noised)
        return NoisyMeans(sums[1:] / counts, noised.noise_std / counts, counts / noised.rows)


def build(
    transform: PublicTransform,
    num_classes: int,
    *,
    moments: bool = True,
    alpha: float | None = None,
    prior: ClassPrior = "equal",
    rounds: int = 0,
) -> Method:
    """Method `discriminant`, of class sums alone without `moments`; `rounds` further sums.

    The weight `alpha` of the moments in the joint noise is as in `ClassMoments`.
    """
    if transform.known is not None:
        transform.known.check_classes((), num_classes)
    statistic = ClassMoments(
        num_classes=num_classes, transform=transform, moments=moments, alpha=alpha
    )
    estimator = Discriminant(statistic=statistic, prior=prior)
    return Method("discriminant", statistic, estimator, num_classes, rounds)
