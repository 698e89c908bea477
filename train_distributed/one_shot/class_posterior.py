"""Class means from noised sums and from what is public about the classes.

In each of q features, class k of n_k rows has a noised mean d_k, and a public guess m_k:

    d_k ~ N(μ_k, τ_k²),           τ_k = σ/n_k
    μ_k = m_k + g + e_k,          e_k ~ N(0, t V),   g ~ N(0, γ C)

V says how wrong the guess is, t is its scale; g is a shift that all classes share, as private
pictures are darker or blurrier than public ones, C the public covariance. Guesses, t and γ are
weighed by their evidence: a guess that the sum contradicts is dropped. Where the sum says little, a
wrong guess stays and does harm. All of it is post-processing of a private sum.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from embed.clip import LEAST
from embed.public_scatter import REGULAR
from train_distributed.one_shot.class_gaussians import Posterior

# prior: γ, each as likely as exp(−log10 γ); the last leaves the common shift to the noised sum
SHIFTS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0, 1e4)
UNSHIFTED = 1e-4  # prior: γ of findings, which are compared with all rows
LEAST_TRUE = 0.4  # prior: η, alike from there to 1


@dataclass(frozen=True)
class Scales:
    """Candidate scales t, and the (T,) logarithms of their prior probabilities."""

    values: Tensor
    log_prior: Tensor


def scales_about_one() -> Scales:
    """Eleven between .1 and 10, log-normal about 1 with a standard deviation of a factor of 3."""
    values = torch.logspace(-1, 1, 11, dtype=torch.float64)
    return Scales(values, torch.log_softmax(-0.5 * (values.log() / math.log(3)).square(), 0))


def scales_at_all() -> Scales:
    """Thirty between .02 and 10⁴, alike in logarithm.

    With few classes the evidence of the scatter can vanish by chance: smaller ones would win.
    """
    values = torch.logspace(math.log10(0.02), 4, 30, dtype=torch.float64)
    return Scales(values, torch.full_like(values, -math.log(30)))


def scales_of_findings() -> Scales:
    """Twenty between 10^−3 and 10, alike in logarithm: a finding moves a row less than a class."""
    values = torch.logspace(-3, 1, 20, dtype=torch.float64)
    return Scales(values, torch.full_like(values, -math.log(20)))


@dataclass(frozen=True)
class Guess:
    """Public guess of the class means: N(m_k + g, t V)."""

    source: str
    means: Tensor  # (q, K) m, or (q, 1) for all classes
    covariance: Tensor  # (q, q) V
    scales: Scales
    log_prior: float = 0.0  # log odds among the guesses
    shifts: tuple[float, ...] = SHIFTS

    @property
    def of_findings(self) -> "Guess":
        """Guess of how far rows with a finding lie from all: all of them less their common place.

        What the noised sum has of a shift, which all findings share, is mostly its noise.
        """
        means = self.means - self.means.mean(1, keepdim=True)
        return replace(self, means=means, scales=scales_of_findings(), shifts=(UNSHIFTED,))


@dataclass(frozen=True)
class NoisyMeans:
    """Class means of a noised sum."""

    means: Tensor  # (q, K) d
    noise: Tensor  # (K,) τ
    shares: Tensor  # (K,) n_k/N


@dataclass(frozen=True)
class Weighed:
    """Posterior of the class means under one guess, t and γ weighed."""

    evidence: float  # log marginal likelihood, prior of t and γ included
    means: Tensor  # (q, K)
    covariance: Tensor  # (q, q) Σ_k (n_k/N) V_k
    noise: Tensor  # (q, q) as of `Posterior`
    slope: Tensor  # (q, K) of the evidence, by d


def believed(
    noisy: NoisyMeans, guesses: Sequence[Guess], covariance: Tensor, within: Tensor
) -> tuple[Posterior, dict[str, float]]:
    """Posterior over all guesses, and the probability of each.

    Bayes' rule under a mixture is not that of one Gaussian with the mixture's covariance V: a guess
    of little probability and great variance would leave no class any score. Scores are precisions
    times means, so their `doubt` is that of the mean precision, E[(W + V)⁻¹]⁻¹ − W.

    Args:
        noisy: class means.
        guesses: at least one.
        covariance: (q, q) C, public.
        within: (q, q) W, public, positive definite.

    Returns:
        Means (q, K) and covariance of a mixture; probabilities by source, added up.
    """
    found = [weighed(noisy, guess, covariance) for guess in guesses]
    logs = torch.tensor(
        [each.evidence + guess.log_prior for each, guess in zip(found, guesses, strict=True)],
        dtype=torch.float64,
    )
    weights = torch.softmax(logs, 0)
    means = torch.einsum("g,gqk->qk", weights, torch.stack([each.means for each in found]))
    spread, precision = torch.zeros_like(covariance), torch.zeros_like(covariance)
    for weight, each in zip(weights, found, strict=True):
        apart = each.means - means
        own = each.covariance + apart * noisy.shares @ apart.mT
        spread += weight * own
        precision += weight * torch.linalg.inv(within + own)
    doubt = torch.linalg.inv((precision + precision.mT) / 2) - within
    noise = torch.zeros_like(covariance)
    for weight, each in zip(weights, found, strict=True):
        noise += weight * (each.noise + noise_of_weights(noisy, each.slope, each.means - means))
    odds = dict.fromkeys((guess.source for guess in guesses), 0.0)
    for guess, weight in zip(guesses, weights.tolist(), strict=True):
        odds[guess.source] += weight
    return Posterior(means, spread, noise, doubt), odds


def noise_of_weights(noisy: NoisyMeans, slope: Tensor, apart: Tensor) -> Tensor:
    """(…, q, q) noise in a mean of means, as of `Posterior`, by what noise makes of its weights.

    They are proportional to exp(evidence), of (…, q, K) `slope` by d; `apart` are the weighed means
    less the mean, (…, q, K).
    """
    between = apart - apart.mean(-1, keepdim=True)
    return slope * noisy.noise.square() @ between.mT / max(apart.shape[-1] - 1, 1)


def true_share(noisy: NoisyMeans, posterior: Posterior, covariance: Tensor) -> float:
    """η, how far true class means lie apart along their estimated difference, over that itself.

    Of the mean of (μ°_k − μ°_j)ᵀ Σ⁻¹ (μ_k − μ_j) over pairs, μ° the true means, the noised means d
    have an unbiased estimate: that of d in place of μ°, less the covariance that d's noise has with
    the estimates μ that were made of it (Stein 1981). Its own noise is known, too, so what is
    returned is a posterior mean: under the normal prior with the mean and the variance of a uniform
    one from `LEAST_TRUE` to 1, and within these.
    """
    apart = posterior.means - posterior.means.mean(1, keepdim=True)
    solved = torch.linalg.solve(covariance, apart)
    slopes = 2 / (apart.shape[1] - 1) * solved
    size = float((slopes * apart).sum())
    if not size > LEAST:
        return 1.0
    taken = 2 * float(torch.linalg.solve(covariance, posterior.noise).trace())
    found = (float((slopes * noisy.means).sum()) - taken) / size
    variance = float(noisy.noise.square() @ slopes.square().sum(0)) / size**2
    usual, doubt = (1 + LEAST_TRUE) / 2, (1 - LEAST_TRUE) ** 2 / 12
    kept = usual + doubt / (doubt + variance) * (found - usual)
    return min(max(kept, LEAST_TRUE), 1.0)


def weighed(noisy: NoisyMeans, guess: Guess, covariance: Tensor) -> Weighed:
    """Posterior under one guess, over its scales t and the shifts' γ.

    In an eigendirection of V with eigenvalue v, r_k = d_k − m_k and s_k = t v + τ_k²; g^ is the
    weighted mean of r that estimates g under a flat prior, a its variance:

        r_k ~ N(g, s_k),    g^ ~ N(g, a),    g ~ N(0, G),  G = γ times C's variance
        μ_k = m_k + g° + κ(g^ − g°) + keep_k (r_k − g^),  keep_k = t v/s_k,  g° = G/(G + a) g^

    t is weighed by the density of contrasts between classes, in which g does not occur, and γ by
    that of g^ given t. With κ = Σ (n_k/N) keep_k this is the joint posterior where all τ_k are
    equal. Elsewhere the joint posterior would have keep_k g^ − keep_k g° in place of κ(g^ − g°):
    where γ is wrong, the classes would differ along the shift, and the largest take all rows.
    """
    values, vectors = torch.linalg.eigh(guess.covariance.double())
    floor = REGULAR * covariance.diagonal().mean().clamp(min=LEAST)
    values = values.clamp(min=float(floor))
    shift = ((vectors.mT @ covariance) * vectors.mT).sum(1).clamp(min=float(floor))  # (q,)
    prior = vectors.mT @ guess.means.double()
    residual = vectors.mT @ noisy.means - prior  # (q, K)
    tau = noisy.noise
    s = guess.scales.values[:, None, None] * values[:, None] + tau.square()  # (T, q, K)
    inverse = 1 / s
    keep = 1 - tau.square() * inverse
    total = inverse.sum(2)  # (T, q)
    classes, own = len(tau), inverse / total[..., None]  # own: of r_k in g^
    centre, unsure = (inverse * residual).sum(2) / total, 1 / total  # g^, a
    rest = residual - centre[..., None]
    fit = (rest.square() * inverse).sum(2)
    contrasts = guess.scales.log_prior - 0.5 * (s.log().sum(2) + fit + total.log()).sum(1)  # (T,)
    gamma = torch.tensor(guess.shifts, dtype=torch.float64)
    wide = gamma[:, None, None] * shift  # (Γ, 1, q) G
    of_shift = -0.5 * ((wide + unsure).log() + centre.square() / (wide + unsure)).sum(2)
    odds = torch.softmax(of_shift - gamma.log10()[:, None], 0)[..., None]  # (Γ, T, 1)
    kept = wide / (wide + unsure)
    shared = (odds * kept).sum(0) * centre  # g°
    open_shift = (odds * (kept * unsure + (kept * centre).square())).sum(0) - shared.square()
    pulled = shared + (keep @ noisy.shares) * (centre - shared)
    means = pulled[..., None] + keep * rest  # (T, q, K)
    left = keep * tau.square() + (1 - keep).square() * open_shift[..., None]
    weights = torch.softmax(contrasts, 0)[:, None, None]
    mean = (weights * means).sum(0)
    left = (weights * (left + (means - mean).square())).sum(0) @ noisy.shares
    # of μ_k less the mean of all, by d_k
    direct = keep * (1 - own) - (keep - own * keep.sum(2, keepdim=True)) / classes
    noise = ((weights * direct).sum(0) @ tau.square() / max(classes - 1, 1)).diag()
    slope = -rest * inverse
    noise += (weights * noise_of_weights(noisy, slope, means - mean)).sum(0)
    evidence = torch.logsumexp(contrasts, 0)
    return Weighed(
        float(evidence),
        vectors @ (prior + mean),
        vectors * left @ vectors.mT,
        vectors @ noise @ vectors.mT,
        vectors @ (weights * slope).sum(0),
    )
