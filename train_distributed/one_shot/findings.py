"""Several findings a picture: one sum for all of them, and the estimator of their classifiers.

A record has features u and findings y in {0, 1}^K. It adds [a, u] bᵀ, b = [1, g w(y) y], so a
column holds the sum of all rows, and one each those of the rows that show a finding. w(y) = min(1,
√(m/|y|)) keeps ‖b‖² ≤ 1 + g² m, however many findings a record has. `heads.statistics` proves the
sensitivity, 2r √(1 + g² m); second moments and unweighted counts of the findings are free.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from embed import PublicTransform
from embed.clip import LEAST
from heads import finding_sums_sensitivity, second_moments, svec_scale
from heads.head import require_scale
from pretrain import check
from train_distributed.one_shot.class_gaussians import (
    LEAST_VARIANCE,
    TAILS,
    NoisyScatter,
    Posterior,
    conditioned,
)
from train_distributed.one_shot.class_posterior import (
    LEAST_TRUE,
    NoisyMeans,
    believed,
    true_share,
)
from train_distributed.one_shot.class_prior import (
    ClassPrior,
    checked_prior,
    log_odds_of,
    reported_prior,
)
from train_distributed.one_shot.discriminant import (
    EXPECTED,
    PUBLIC_SHRINKAGE,
    ClassMoments,
    class_counts,
    guesses_of,
)
from train_distributed.one_shot.method import Estimator, Fitted, Method
from train_distributed.one_shot.statistic import Chunk, NoisedSum

KNOWN = 0.5  # prior: h, weight of what is known, where unknown findings are told apart
MOST_FINDINGS = 3.0  # prior: m, findings of a record that count in full
LEVELS = 64  # size: w(y) is a whole number of such parts, so that sums of grid rows stay whole
OWN = 0.12  # prior: deviation of a finding's η about that of all
MISFIT = 0.05  # prior: of a finding's mean w about that of all, relatively


@dataclass(frozen=True, kw_only=True)
class FindingMoments(ClassMoments):
    """Counts of findings, sums Σ [a, u] bᵀ of all rows and of those with a finding, and Σ u uᵀ.

    w(y) is rounded down to a multiple of 1/`LEVELS`, so that sums of rows on a grid stay on one.
    The constant row has the counts of findings with these weights; K more numbers, `counts`, have
    them without. With `unknown`, b has K more entries: h for a finding that is known in the record,
    0 for one that is not, which then counts neither as present nor as absent. Without `unknown` it
    counts as absent.
    """

    most: float = MOST_FINDINGS  # m
    unknown: bool = False

    def validate(self) -> None:
        """Checks m, and all that `ClassMoments` checks."""
        check.within(f"[1, {2**16}]", most_findings=self.most)
        super().validate()

    @cached_property
    def levels(self) -> Tensor:
        """(K + 1,) float64 w of 0 to K findings, in whole `LEVELS`."""
        many = torch.arange(self.num_classes + 1, dtype=torch.float64).clamp(min=1)
        return (LEVELS * (self.most / many).sqrt().clamp(max=1)).floor()

    @property
    def length2(self) -> float:
        """A, the largest ‖b‖²: 1 + the largest g² w² |y|, and h² K."""
        many = torch.arange(self.num_classes + 1, dtype=torch.float64)
        longest = float(((self.levels / LEVELS).square() * many).max())
        return 1 + self.gain**2 * longest + (KNOWN**2 * self.num_classes if self.unknown else 0.0)

    @property
    def gain(self) -> float:
        """g = max(1, √(K/m^1.5)), which minimises the noise in d if m/K of the rows show a finding.

        The noise in d = μ_k⁺ − μ has a variance of (1/(g n_k)² + 1/n²) times the squared
        sensitivity, which grows like 1 + g² m. The product is least at g² = n/(n_k √m).
        """
        return max(1.0, math.sqrt(self.num_classes / self.most**1.5))

    @property
    def spread(self) -> float:
        """κ: two records' findings differ in at most κ ‖b − b'‖² places, as g w is least at K."""
        return (LEVELS / (self.gain * float(self.levels[-1]))) ** 2

    @property
    def count_weight(self) -> float:
        """c₁: κ c₁² = r² (A + 1)/(2A) − a², which costs no noise, or a²/4 where that is more."""
        a2 = self.transform.constant**2
        free = self.transform.reach**2 * (self.length2 + 1) / (2 * self.length2) - a2
        return math.sqrt(max(free, a2 / 4) / self.spread)

    @property
    def weight(self) -> float:
        """α as given, or √(A/2)/r, with which moments cost nothing."""
        free = math.sqrt(self.length2 / 2) / self.transform.reach
        return free if self.alpha is None else self.alpha

    @property
    def columns(self) -> int:
        """Length of b."""
        return 1 + self.num_classes * (2 if self.unknown else 1)

    @property
    def scale(self) -> Tensor:
        """(dimension,) factors of a submission: c₁/a, b's, and α·svec for the raw triangle."""
        k, counted = self.num_classes, self.count_weight / self.transform.constant
        b = [1.0] + [self.gain / LEVELS] * k + [KNOWN] * (self.columns - 1 - k)
        parts = [
            torch.full((k,), counted, dtype=torch.float64),
            torch.tensor(b, dtype=torch.float64).repeat(self.transform.dim),
        ]
        if self.moments:
            parts.append(svec_scale(self.features, self.weight))
        return torch.cat(parts)

    def entry_bound(self, n: int) -> float:
        """n rows, each entry at most c₁, c times an entry of b, or α√2 c² after scaling."""
        of_sums = self.transform.clip_norm * self.gain
        return max(super().entry_bound(n), n * of_sums, n * self.count_weight)

    def record_sensitivity(self, sizes: Tensor) -> float:
        """By the theorem of `heads.statistics` on findings, with A, α and κ c₁² as here."""
        c, a = self.transform.clip_norm, self.transform.constant
        alpha = self.weight if self.moments else 0.0
        return finding_sums_sensitivity(
            c, a, self.length2, alpha, self.spread * self.count_weight**2
        )

    def zero_out_sensitivity(self, sizes: Tensor) -> float:
        """√(A c² + α² r⁴ + c₁² K)."""
        squares = self.weight**2 * self.transform.reach**4 if self.moments else 0.0
        counts = self.count_weight**2 * self.num_classes
        return math.sqrt(self.length2 * self.transform.clip_norm**2 + squares + counts)

    def submit(self, chunk: Chunk) -> Tensor:
        """(u, dimension) float64 counts, sums and moments of every user, unscaled."""
        if chunk.y.shape != (*chunk.x.shape[:2], self.num_classes):
            raise ValueError(
                f"y must hold {self.num_classes} findings of every row, got "
                f"{tuple(chunk.y.shape)} for rows {tuple(chunk.x.shape)}"
            )
        own, present = chunk.own[..., None], (chunk.y == 1).double()
        x = chunk.x.double().where(own, 0)
        b = [
            torch.ones_like(present[..., :1]),
            self.levels[present.sum(2).long()][..., None] * present,
        ]
        if self.unknown:
            b.append((chunk.y >= 0).double())
        counts = (x[..., :1] * present).sum(1)
        parts = [counts, (x.mT @ torch.cat(b, 2)).flatten(1)]
        if not all(part.isfinite().all() for part in parts):
            raise ValueError("x must have finite rows, got NaN or infinity")
        if self.moments:
            parts.append(second_moments(chunk.x[..., 1:], counts=chunk.counts))
        return torch.cat(parts, 1)

    @property
    def expected_row(self) -> Tensor | None:
        """Mean submission of a public row with m/2 findings, all as likely, weighing `EXPECTED`."""
        if self.moments:
            return None
        rate = min(1.0, self.most / self.num_classes) / 2
        constant = self.transform.row_mean.new_tensor([EXPECTED * self.transform.constant])
        mean = torch.cat([constant, self.transform.public.mean]).double()
        b = mean.new_ones(self.columns)
        b[1 : 1 + self.num_classes] = LEVELS * rate
        counts = (rate * constant).double().expand(self.num_classes)
        return torch.cat([counts, torch.outer(mean, b).flatten()])

    def counted_rows(self, noised: NoisedSum) -> tuple[float, float]:
        """Number of rows that the constant of the first column counts, and its variance."""
        constant = self.transform.constant
        return float(self.sums(noised)[0, 0]) / constant, (noised.noise_std / constant) ** 2

    def sums(self, noised: NoisedSum) -> Tensor:
        """(d, 1 + K) sums of all rows and of those with a finding, and K of known ones if sent."""
        found = noised.total[self.num_classes : self._sums].unflatten(0, (self.transform.dim, -1))
        return found / torch.cat([torch.ones(1), self._units])

    def counts(self, noised: NoisedSum) -> Tensor:
        """(K,) counts of the findings, as `class_counts` has them.

        Where noise is more than `MISFIT` of them, those by w(y) say more: each is divided by the
        mean w, and both are averaged by their precisions.
        """
        row, weighted = noised.total[: self.num_classes], self._weighted_row(noised)
        ratio = float(weighted.sum() / row.sum().clamp(min=LEAST))
        ratio = min(max(ratio, float(self.levels[-1]) / LEVELS), 1.0)
        constant, std = self.transform.constant, max(noised.noise_std, LEAST)
        plain = (self.count_weight / (constant * std)) ** 2  # of row, a times the counts
        even = weighted.clamp(min=0) / ratio
        other = 1 / ((std / (self.gain * ratio)) ** 2 + (MISFIT * even).square())
        joint = (plain * row + other * weighted / ratio) / (plain + other)
        return self._counted(joint, noised, constant * float((plain + other).mean().sqrt()) * std)

    def weighted_counts(self, noised: NoisedSum) -> Tensor:
        """(K,) counts of the findings by w(y), as `class_counts` has them."""
        row = self._weighted_row(noised)
        return self._counted(row, noised, self.gain * self.transform.constant)

    def _weighted_row(self, noised: NoisedSum) -> Tensor:
        """(K,) sums over rows of the constant a times each finding's level w(y), noised."""
        return self.sums(noised)[0, 1 : 1 + self.num_classes]

    def known_counts(self, noised: NoisedSum) -> Tensor:
        """(K,) noised number of rows in which each finding is known; N where all are taken so."""
        constant, rows = self.transform.constant, noised.rows
        if not self.unknown:
            return torch.full((self.num_classes,), float(rows), dtype=torch.float64)
        known = self.sums(noised)[0, 1 + self.num_classes :] / constant
        return known.clamp(min=rows / 20, max=rows)

    def mean_noise(self, noised: NoisedSum) -> Tensor:
        """(K,) deviation of the noise in μ, the mean of the rows that know each finding."""
        weight = KNOWN if self.unknown else 1.0
        return noised.noise_std / (weight * self.known_counts(noised))

    def row_variance(self, noised: NoisedSum) -> float:
        """Mean variance of a feature among the rows; of public rows where no moments are sent."""
        if not self.moments:
            return float(self.transform.public.covariance.diagonal().mean())
        mean = self.sums(noised)[1:, 0] / noised.rows
        found = self.moment_matrix(noised).trace() / noised.rows - mean.square().sum()
        return max(float(found) / self.features, 0.0)

    def _counted(self, row: Tensor, noised: NoisedSum, weight: float) -> Tensor:
        """Positive counts from a·counts, whose noise has the deviation s/weight in a count."""
        constant, std = self.transform.constant, noised.noise_std / weight
        found = float(row.sum()) / constant
        total = min(max(found, std * math.sqrt(len(row)), 1.0), float(noised.rows * len(row)))
        return class_counts(row, constant, total, std * constant)

    @property
    def _units(self) -> Tensor:
        """Factors of b's entries but the first, as summed."""
        units = torch.ones(self.columns - 1, dtype=torch.float64)
        units[: self.num_classes] = LEVELS
        return units

    @property
    def _sums(self) -> int:
        """K counts and d numbers of every column."""
        return self.num_classes + self.transform.dim * self.columns


@dataclass(frozen=True, kw_only=True)
class FindingDiscriminant(Estimator):
    """For every finding, the Gaussian discriminant of the rows with it against those without.

    d_k = μ_k⁺ − μ, the mean of rows with a finding less that of all, has a posterior as class means
    have. Of two groups, Σ⁻¹ d of their *total* covariance is Fisher's direction. Along w = Σ⁻¹ d
    rows with the finding lie at m₁ = wᵀd about μ, those without at m₀ = −p/(1 − p) m₁: exactly so
    where no record has more than m findings, and nearly else, as such records weigh less.
    """

    statistic: FindingMoments
    prior: ClassPrior = "private"  # prevalences that the scores assume

    def validate(self) -> None:
        """Checks the prior."""
        checked_prior(self.prior, self.statistic.num_classes, findings=True)

    def rates(self, noised: NoisedSum) -> Tensor:
        """(K,) prevalences of the findings among the rows that know them; neither 0 nor 1."""
        rates = self.statistic.counts(noised) / self.statistic.known_counts(noised)
        return rates.clamp(min=LEAST_VARIANCE, max=1 - LEAST_VARIANCE)

    def prior_report(self, noised: NoisedSum, class_names: Sequence[str]) -> dict[str, Any]:
        """Prevalences that scores assume, and where something was known of the findings, what."""
        report = reported_prior(self.prior, self.rates(noised), class_names, findings=True)
        report |= {"prevalences": dict(zip(class_names, self.rates(noised).tolist(), strict=True))}
        known = self.statistic.transform.known
        if known is None:
            return report
        return report | {"known_before": known.words, "believed": self.posterior(noised)[1]}

    def noisy(self, noised: NoisedSum) -> NoisyMeans:
        """d, and the deviation of its noise."""
        own, k = self.statistic, self.statistic.num_classes
        sums, counts = own.sums(noised)[1:], own.weighted_counts(noised)
        known = own.known_counts(noised)
        of_known = sums[:, 1 + k :] if own.unknown else sums[:, :1]
        apart = sums[:, 1 : 1 + k] / counts - of_known / known
        noise = (noised.noise_std / (own.gain * counts)).square() + own.mean_noise(noised).square()
        chance = own.row_variance(noised) * (1 / counts - 1 / known).clamp(min=0)
        return NoisyMeans(apart, (noise + chance).sqrt(), counts / counts.sum())

    def posterior(self, noised: NoisedSum) -> tuple[Posterior, dict[str, float]]:
        """Posterior of d, and the probability of each guess by its source."""
        seen = self.statistic.transform.public
        within = conditioned(seen.covariance, PUBLIC_SHRINKAGE)
        about = [each.of_findings for each in guesses_of(self.statistic.transform)]
        return believed(self.noisy(noised), about, seen.covariance, within)

    def fit(self, noised: NoisedSum) -> Fitted:
        """(d, K) weights whose scores are log odds of the findings."""
        own, transform, rows = self.statistic, self.statistic.transform, noised.rows
        noisy, (posterior, _) = self.noisy(noised), self.posterior(noised)
        mean, apart = own.sums(noised)[1:, 0] / rows, posterior.means
        total = conditioned(transform.public.covariance, PUBLIC_SHRINKAGE)
        covariance, scatter = total + posterior.doubt, None
        if own.moments:
            seen = own.moment_matrix(noised) / rows - torch.outer(mean, mean)
            seen += torch.eye(len(mean)) * (noised.noise_std / rows) ** 2  # in the mean's square
            knowing = transform.known is not None
            scatter = NoisyScatter(
                total, seen, own.moment_std(noised) / rows, torch.zeros_like(seen), knowing
            )
            covariance = scatter.covariance() + posterior.doubt
        slopes = torch.linalg.solve(covariance, apart)
        said = (slopes * apart).sum(0).clamp(min=1e-12)  # wᵀΣw = wᵀd
        ratios = torch.ones_like(said)
        if scatter is not None:
            for k, slope in enumerate(slopes.mT):
                squares = torch.outer(slope, slope) / said[k]
                ratios[k] = scatter.ratio_along(squares, scatter.noised)
            ratios *= scatter.optimism(apart, posterior.doubt)
        true = true_share(noisy, posterior, covariance)
        rates = self.rates(noised)
        # η of each finding about that of all, found as `true_share` finds it
        taken = torch.linalg.solve(covariance, posterior.noise).trace()
        taken = taken * noisy.noise / noisy.noise.mean()
        found = ((slopes * noisy.means).sum(0) - taken) / said
        doubt = noisy.noise.square() * slopes.square().sum(0) / said.square()
        true = (true + OWN**2 / (OWN**2 + doubt) * (found - true)).clamp(min=LEAST_TRUE, max=1)
        present, odds = true * said, rates / (1 - rates)
        absent = -odds * present
        distance = present - absent
        within = (ratios * said - odds * present.square()).clamp(min=0.1 * ratios * said)
        steep = distance / (within + TAILS * distance.square())
        # noise in μ of all rows is in d with the other sign, so rows lie higher along w
        shared = 0.0 if own.unknown else own.mean_noise(noised)
        higher = taken * (shared / noisy.noise).square()
        slopes = slopes * steep
        middle = higher + (present + absent) / 2
        bias = log_odds_of(self.prior, rates) - steep * middle - mean @ slopes
        weights = torch.cat([bias[None] / transform.constant, slopes])
        return Fitted(weights, class_shares=rates, prior=self.prior)


def build(
    transform: PublicTransform,
    num_classes: int,
    *,
    moments: bool = True,
    alpha: float | None = None,
    prior: ClassPrior = "private",
    most_findings: float = MOST_FINDINGS,
    unknown: Literal["ask"] | None = None,
) -> Method:
    """Method `findings`: several yes-or-no findings a picture.

    Args:
        transform: with the public mean and covariance.
        num_classes: K findings.
        moments: sum second moments of the rows, too.
        alpha: weight of these beside the sums; None lets the public rule choose.
        prior: rates of the findings that probabilities assume.
        most_findings: weight that one row's findings are clipped to.
        unknown: "ask" counts for each finding the rows that know it.
    """
    if transform.known is not None:
        transform.known.check_classes((), num_classes)
    check.one_of((None, "ask"), unknown=unknown)
    require_scale("most_findings", most_findings)
    statistic = FindingMoments(
        num_classes=num_classes,
        transform=transform,
        moments=moments,
        alpha=alpha,
        most=most_findings,
        unknown=unknown == "ask",
    )
    return Method(
        "findings", statistic, FindingDiscriminant(statistic=statistic, prior=prior), num_classes
    )
