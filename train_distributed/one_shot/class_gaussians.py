"""Gaussian classes from noised sums: their common covariance, Bayes' rule and its temperature.

Features u | class k ~ N(μ_k, W): a first guess of W comes from public data, how far it is moved
from the noised sums. All of it is post-processing of sums that are private already.
`class_posterior` has the means.

A classifier would weigh those directions most that noise made narrow, so a ridge is added to the
estimated covariance. That makes its scores under-confident: their variance within classes is a
fraction of the one that the regularised covariance claims, and the noised second moments, which
have no ridge, say which fraction.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from embed.clip import LEAST
from embed.water_filling import LEAST_NOISE

LEAST_VARIANCE = 1e-3  # guard: over the one expected; noise without bounds leaves 0, or less
TAILS = 0.03  # prior: v/4; at .045 letters are under-confident by up to .17
SIZES = 3  # size: times that the size is found, with the spikes as they then are


@dataclass(frozen=True)
class Posterior:
    """Class means given noised ones: N(mean_k, V_k)."""

    means: Tensor  # (q, K)
    covariance: Tensor  # (q, q) Σ_k (n_k/N) V_k
    noise: Tensor  # (q, q) half of Cov(noise of a difference of two classes, it), of mean pairs
    doubt: Tensor  # (q, q) of unknown means, which Bayes' rule adds to the covariance of a class


@dataclass(frozen=True)
class Gaussians:
    """Estimated classes: N(μ_k, Σ) with probability π_k."""

    means: Tensor  # (q, K) μ
    covariance: Tensor  # (q, q) Σ, of every class
    shares: Tensor  # (K,) π, one together

    def weights(self, shares: Tensor, constant: float) -> Tensor:
        """(d, K) of Bayes' rule for these class probabilities, constant row first."""
        directions, bias = linear_discriminant(self.means, self.covariance, shares)
        return torch.cat([bias[None] / constant, directions])

    def temperature(self, ratio: float, true: float = 1.0) -> float:
        """T with which Bayes' scores are log-probabilities, (ρ + `TAILS` Δ²)/η.

        Δ² is the mean over pairs of classes of (μ_k − μ_j)ᵀ Σ⁻¹ (μ_k − μ_j). The score of a row's
        own class less that of another has the mean Δ²/2 and the variance ρ Δ², ρ the scores'
        variance over the one that Σ claims, as far as classes are Gaussian. Rows of real pictures
        have a scale of their own, g of mean 1 and variance v: classes have heavy tails, and
        covariances that differ. And where the means are estimates that contain noise, true ones lie
        η times as far apart along their difference. So the mean is η Δ²/2, the variance ρ Δ² +
        v Δ⁴/4, and of normal log-odds the temperature is half the variance over the mean.

        Args:
            ratio: ρ.
            true: η, as `class_posterior.true_share`.
        """
        inner = self.means.mT @ torch.linalg.solve(self.covariance, self.means)
        classes, own = len(inner), inner.diagonal().sum()
        apart = 2 * (classes * own - inner.sum()) / (classes * (classes - 1))
        return (ratio + TAILS * max(0.0, float(apart))) / true

    def draw(self, rows: int, generator: torch.Generator) -> Tensor:
        """(rows, q) draws from the mixture."""
        classes = torch.multinomial(self.shares, rows, replacement=True, generator=generator)
        white = torch.randn(rows, len(self.means), generator=generator, dtype=torch.float64)
        return self.means.mT[classes] + white @ torch.linalg.cholesky(self.covariance).mT


def within_class(moments: Tensor, posterior: Posterior, shares: Tensor) -> Tensor:
    """(q, q) W_priv = M/N − Σ (n_k/N) μ_k μ_kᵀ − Σ (n_k/N) V_k.

    M/N are the noised (q, q) `moments`, n_k/N the (K,) `shares`.
    """
    return moments - posterior.means * shares @ posterior.means.mT - posterior.covariance


def spiked_covariance(public: Tensor, noised: Tensor, noise: float) -> Tensor:
    """(q, q) estimate of W: W_pub times its size, and few directions more.

    Private rows of another kind scatter along a few directions that public rows do not show. One of
    variance θ beyond s √q is seen as an eigenvalue λ = θ + s² q/θ of the noised W − c W_pub, past
    the edge 2 s √q of the noise's own spectrum, and its eigenvector has the squared cosine
    1 − s² q/θ² with the true one (Benaych-Georges and Nadakuditi 2011). So the truth has θ times
    that along it, √(λ² − 4 s² q), which replaces λ; what is not past the edge by the q^−2/3 that
    noise alone exceeds once in a hundred times (Tracy and Widom 1996) becomes 0. c, by how much
    private rows scatter more or less, is `fitted_size` of the trace that is left.

    Args:
        public: (q, q) W_pub, positive definite.
        noised: (q, q) W with independent N(0, s²) in every entry, 2s² on the diagonal.
        noise: s.
    """
    edge, trace = noise_edge(noise, len(noised)), float(public.trace())
    beyond = edge * (1 + len(noised) ** (-2 / 3))
    variance = 2 * len(noised) * (noise / trace) ** 2
    spikes, size = torch.zeros_like(noised), 1.0
    for _ in range(SIZES):
        size = fitted_size(float((noised - spikes).trace()) / trace, variance)
        values, vectors = torch.linalg.eigh(noised - size * public)
        lengths = values.sign() * (values.square() - edge**2).clamp(min=0).sqrt()
        spikes = vectors * lengths.where(values.abs() > beyond, 0) @ vectors.mT
    return conditioned(size * public + spikes)


def noise_edge(noise: float, features: int) -> float:
    """2 s √q, where the spectrum of symmetric (q, q) noise ends for large q (Wigner)."""
    return 2 * noise * math.sqrt(features)


def fitted_size(ratio: float, variance: float) -> float:
    """Posterior mean of c under N(1, 1), for a ratio N(c, variance) of variances.

    Where noise leaves c near 0 or below, its own posterior deviation stands for it.
    """
    believed = 1 / (1 + variance)
    mean = 1 + believed * (ratio - 1)
    return max(mean, believed * math.sqrt(variance), LEAST_VARIANCE)


def conditioned(covariance: Tensor, shrinkage: float = 0.0) -> Tensor:
    """(q, q) with eigenvalues of at least 10⁻³ of their mean, shrunk towards their mean."""
    values, vectors = torch.linalg.eigh(covariance)
    mean = values.mean().clamp(min=LEAST_NOISE**2)  # rows that are all alike
    values = values.clamp(min=LEAST_VARIANCE * float(mean))
    mean = values.mean()
    values = (1 - shrinkage) * values + shrinkage * mean
    return vectors * values @ vectors.T


def linear_discriminant(means: Tensor, covariance: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """(q, K) Σ⁻¹μ_k and (K,) log π_k − ½ μ_kᵀ Σ⁻¹ μ_k: Bayes' rule for Gaussian classes.

    For (q, K) means μ, the (q, q) covariance Σ of every class, and (K,) shares π.
    """
    directions = torch.linalg.solve(covariance, means)
    return directions, shares.log() - 0.5 * (means * directions).sum(0)


RIDGE = 0.7  # prior: of the edge of the noise's spectrum
FADING = 4.0  # prior: mean variances; where classes are known, a larger ridge shrinks again
DEVIATION = 0.15  # prior: standard deviation of the ratio about that without a ridge


@dataclass(frozen=True)
class NoisyScatter:
    """Covariance W within classes: of public rows, and noised of private ones."""

    public: Tensor  # (q, q) W_pub, positive definite
    noised: Tensor  # (q, q) W with independent N(0, s²) in every entry, 2s² on the diagonal
    noise: float  # s
    unsure: Tensor  # (q, q) V, posterior covariance of the class means
    knowing: bool = False  # whether there are guesses of the class means, by names or examples

    @property
    def ridge(self) -> float:
        """Variance that is added in every direction.

        With guesses of the class means, by names or examples, it goes to 0 as the noise grows: W is
        then estimated by the public one, which has no noisy directions, and a large ridge would
        reduce the model to a nearest-mean classifier.
        """
        ridge = RIDGE * noise_edge(self.noise, len(self.noised))
        most = FADING * float(self.public.diagonal().mean())
        return ridge / (1 + (ridge / most) ** 2) if self.knowing else ridge

    def covariance(self) -> Tensor:
        """(q, q) W + ridge, W by `spiked_covariance`."""
        ridge = self.ridge * torch.eye(len(self.noised), dtype=torch.float64)
        return spiked_covariance(self.public, self.noised, self.noise) + ridge

    def optimism(self, means: Tensor, doubt: Tensor, draws: int = 4) -> float:
        """Variance along Σ⁻¹ means, over what `ratio_along` finds by the moments that gave Σ.

        Directions that are solved by noised moments lie where noise made these small. A parametric
        bootstrap (Efron 1979) says by how much: W as estimated, some times noised like ours, and
        each time Σ estimated anew.

        Args:
            means: (q, K), as estimated.
            doubt: (q, q) that Σ has besides.
            draws: of noise.
        """
        w, draw = spiked_covariance(self.public, self.noised, self.noise), torch.Generator()
        true, found = 0.0, 0.0
        for seed in range(draws):
            z = torch.randn(w.shape, generator=draw.manual_seed(seed), dtype=torch.float64)
            again = replace(self, noised=w + self.noise * (z + z.mT) / math.sqrt(2))
            slopes = torch.linalg.solve(again.covariance() + doubt, means)
            for slope, said in zip(slopes.mT, (slopes * means).sum(0).tolist(), strict=True):
                if said > LEAST:
                    squares = torch.outer(slope, slope) / said
                    true += float((squares * w).sum())
                    found += again.ratio_along(squares, again.noised)
        return max(1.0, true / found) if found else 1.0

    def ratio(self, found: Gaussians, true: float = 1.0) -> float:
        """Variance of the scores within classes over the one that Σ claims; a posterior mean, > 0.

        Its prior is N(r, `DEVIATION`²), r the ratio without the ridge. It is observed in the noised
        moments along the scores, less those between classes: the scores were solved with estimated
        means, which contain noise along them, so only η² of the means' scatter there is true.

        Args:
            found: classes whose covariance is Σ.
            true: η, as `class_posterior.true_share`.
        """
        means = found.means - (found.means @ found.shares)[:, None]
        slopes = torch.linalg.solve(found.covariance, means)
        squares = slopes * found.shares @ slopes.mT
        said = float((squares * found.covariance).sum())
        if not said > LEAST:
            return 1.0  # scores that are all alike
        between = (1 - true**2) * (means * found.shares @ means.mT)
        return self.ratio_along(squares / said, self.noised + self.unsure + between)

    def ratio_along(self, squares: Tensor, seen: Tensor) -> float:
        """Variance of the private rows over Σ in directions of squares (q, q), whose Σ sums to one.

        Args:
            squares: weights of the directions' products.
            seen: (q, q) second moments of the private rows about their means, noised.
        """
        expected = 1 - self.ridge * float(squares.trace())
        measured = float((squares * seen).sum())
        variance = 2 * self.noise**2 * float(squares.square().sum())
        believed = DEVIATION**2 / (DEVIATION**2 + variance)
        return max(LEAST_VARIANCE, expected / 2, expected + believed * (measured - expected))
