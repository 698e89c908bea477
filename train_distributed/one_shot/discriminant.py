"""Class sums and second moments, and the empirical-Bayes Gaussian discriminant.

The sums are exact under any partition of the rows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from embed import PublicTransform
from embed.clip import LEAST
from embed.public_scatter import NEGLIGIBLE
from heads import (
    class_sums,
    class_sums_sensitivity,
    least_squares_norm,
    least_squares_sensitivity,
    second_moments,
    svec_scale,
    symmetric,
)
from heads.head import require_scale
from pretrain import check
from train_distributed.one_shot.class_gaussians import (
    Gaussians,
    NoisyScatter,
    Posterior,
    conditioned,
    within_class,
)
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
from train_distributed.one_shot.extra_sums import Descent
from train_distributed.one_shot.method import Estimator, Fitted, Method
from train_distributed.one_shot.statistic import Chunk, NoisedSum, Statistic

UNEVEN = 0.5  # prior: how far counts are from equal shares, in these, where they are not equal
GRID = 256  # size: such deviations, for an integral over them
EXPECTED = 0.5  # prior: of a row's count; the other half shows what a users' clip leaves


@dataclass(frozen=True, kw_only=True)
class ClassMoments(Statistic):
    """Class sums Σ x e_yᵀ of every user's rows, and second moments Σ u uᵀ of the features u alone.

    The constant row of the class sums counts the rows by class. What the moments share with the
    constant is the sum of the class sums over the classes, and N is public. `heads.statistics`
    proves the sensitivity of the pair, by default that of the class sums alone.
    """

    num_classes: int
    transform: PublicTransform
    moments: bool = True  # False: class sums alone
    alpha: float | None = None  # weight of the moments in the joint noise; None: 1/(√2 r)

    def validate(self) -> None:
        """Checks K, α, and that the transform's clip norm and constant fit each other."""
        check.at_least(2, num_classes=self.num_classes)
        clip_norm, constant = self.transform.clip_norm, self.transform.constant
        require_scale("clip_norm", clip_norm)
        if not 0 < constant < clip_norm:
            raise ValueError(f"constant must lie in (0, clip_norm = {clip_norm}), got {constant}")
        if self.moments:
            require_scale("alpha", self.weight)
        elif self.alpha is not None:
            raise ValueError(f"alpha must be left out without moments, got {self.alpha}")

    def check_rows(self, transform: PublicTransform) -> None:
        """Raises ValueError for rows of another transform than the statistic's own."""
        if not self.transform.same_rows(transform):
            raise ValueError(
                "transform must be the method's own, got another one: rows of norm "
                f"{transform.clip_norm} for a sensitivity stated for {self.transform.clip_norm}"
            )

    @property
    def features(self) -> int:
        """q = d − 1, the columns after the constant."""
        return self.transform.dim - 1

    @property
    def weight(self) -> float:
        """α as given, or 1/(√2 r), with which moments cost nothing."""
        if self.alpha is not None:
            return self.alpha
        reach2 = self.transform.clip_norm**2 - self.transform.constant**2
        return math.sqrt(0.5 / reach2)

    @property
    def dimension(self) -> int:
        """d K + q(q + 1)/2: the class sums, and the triangle of the moments."""
        triangle = self.features * (self.features + 1) // 2
        return self._sums + (triangle if self.moments else 0)

    @property
    def scale(self) -> float | Tensor:
        """(dimension,) factors of a submission: 1 for the sums, α·svec for the raw triangle."""
        if not self.moments:
            return 1.0
        ones = torch.ones(self._sums, dtype=torch.float64)
        return torch.cat([ones, svec_scale(self.features, self.weight)])

    @property
    def grid_powers(self) -> Tensor:
        """(dimension,): products of two grid entries are multiples of the grid squared."""
        powers = torch.full((self.dimension,), 2)
        powers[: self._sums] = 1
        return powers

    def positions(self, wide: Statistic) -> Tensor:
        """(dimension,) places in the submission of rows with more features."""
        assert isinstance(wide, ClassMoments)
        sums = torch.arange(self._sums)
        if not self.moments:
            return sums
        row, column = torch.triu_indices(wide.features, wide.features)
        kept = torch.nonzero((row < self.features) & (column < self.features)).flatten()
        return torch.cat([sums, wide._sums + kept])

    def entry_bound(self, n: int) -> float:
        """n rows, each entry at most c, or α√2 c² after scaling."""
        c = self.transform.clip_norm
        return n * (max(c, math.sqrt(2) * self.weight * c**2) if self.moments else c)

    def record_sensitivity(self, sizes: Tensor) -> float:
        """`heads.least_squares_sensitivity`, or `class_sums_sensitivity`."""
        c, a = self.transform.clip_norm, self.transform.constant
        if not self.moments:
            return class_sums_sensitivity(c, a)
        return least_squares_sensitivity(c, self.weight, a)

    def zero_out_sensitivity(self, sizes: Tensor) -> float:
        """`heads.least_squares_norm`, or c."""
        c = self.transform.clip_norm
        if not self.moments:
            return c
        return least_squares_norm(c, self.weight, self.transform.constant)

    def submit(self, chunk: Chunk) -> Tensor:
        """(u, dimension) float64 class sums and moments of every user, unscaled."""
        sums = class_sums(chunk.x, chunk.y, self.num_classes, counts=chunk.counts).flatten(1)
        if not self.moments:
            return sums
        return torch.cat([sums, second_moments(chunk.x[..., 1:], counts=chunk.counts)], 1)

    @property
    def expected_row(self) -> Tensor | None:
        """(d K,) of a public row, of each class as likely as of others; of its count `EXPECTED`.

        None with second moments, which have no users' clip.
        """
        if self.moments:
            return None
        constant = self.transform.row_mean.new_tensor([EXPECTED * self.transform.constant])
        mean = torch.cat([constant, self.transform.public.mean])
        return (mean / self.num_classes)[:, None].expand(-1, self.num_classes).flatten()

    def counted_rows(self, noised: NoisedSum) -> tuple[float, float]:
        """Number of rows that the constant row counts, and its variance K (s/a)²."""
        constant = self.transform.constant
        found = float(self.sums(noised)[0].sum()) / constant
        return found, self.num_classes * (noised.noise_std / constant) ** 2

    def sums(self, noised: NoisedSum) -> Tensor:
        """(d, K) class sums in a noised sum."""
        return noised.total[: self._sums].unflatten(0, (self.transform.dim, self.num_classes))

    def counts(self, noised: NoisedSum) -> Tensor:
        """(K,) positive counts of the classes' rows; see `class_counts`."""
        constant = self.transform.constant
        return class_counts(self.sums(noised)[0], constant, noised.rows, noised.noise_std)

    def moment_matrix(self, noised: NoisedSum) -> Tensor:
        """(q, q) second moments of the features in a noised sum."""
        return symmetric(noised.total[self._sums :], self.features)

    def moment_std(self, noised: NoisedSum) -> float:
        """Standard deviation of the noise in an entry of `moment_matrix`."""
        return noised.noise_std / (self.weight * math.sqrt(2))

    @property
    def _sums(self) -> int:
        """d K, numbers of the class sums."""
        return self.transform.dim * self.num_classes


def class_counts(row: Tensor, constant: float, rows: float, noise_std: float) -> Tensor:
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
    variance = own + max(noise_std / (constant * equal), NEGLIGIBLE) ** 2
    fit = (len(row) - 1) * variance.log() + spread.square().sum() / variance
    keep = torch.softmax(odds - fit / 2, 0) @ (own / variance)
    counts = (equal * (1 + keep * spread)).clamp(min=equal / 20)
    return counts * (rows / counts.sum())


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
        seen = self.statistic.transform.public
        guesses = guesses_of(self.statistic.transform)
        within = conditioned(seen.within, PUBLIC_SHRINKAGE)
        return believed(self._noisy(noised), guesses, seen.covariance, within)

    def _noisy(self, noised: NoisedSum) -> NoisyMeans:
        sums, counts = self.statistic.sums(noised), self.statistic.counts(noised)
        return NoisyMeans(sums[1:] / counts, noised.noise_std / counts, counts / noised.rows)


def guesses_of(transform: PublicTransform) -> list[Guess]:
    """Guesses of where class means lie, before any sum: anywhere, as public classes, as named."""
    seen = transform.public
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
    return guesses


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
