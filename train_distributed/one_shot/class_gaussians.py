"""Gaussian classes from noised sums: their common covariance, and Bayes' rule.

Features u | class k ~ N(μ_k, W): a first guess of W comes from public data, how far it is moved
from the noised sums. All of it is post-processing of sums that are private already.
`class_posterior` has the means.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

LEAST_EIGENVALUE = 1e-3  # of a covariance, over their mean
LEAST_SIZE = 1e-3  # of private rows' scatter within classes, over that of public ones
SCORING_STEPS, CONVERGED = 50, 1e-12
SURE = 2.0  # standard deviations that a variance must be above 0
LEAST_MEAN = 1e-12  # of eigenvalues, for features of length about 1: rows that are all alike


@dataclass(frozen=True)
class Posterior:
    """Class means given noised ones: N(mean_k, V_k)."""

    means: Tensor  # (q, K)
    covariance: Tensor  # (q, q) Σ_k (n_k/N) V_k


@dataclass(frozen=True)
class Gaussians:
    """Classes as they are estimated: N(μ_k, Σ) with probability π_k."""

    means: Tensor  # (q, K) μ
    covariance: Tensor  # (q, q) Σ, of every class
    shares: Tensor  # (K,) π, one together

    def weights(self, shares: Tensor, constant: float) -> Tensor:
        """(d, K) of Bayes' rule for these class probabilities, constant row first."""
        directions, bias = linear_discriminant(self.means, self.covariance, shares)
        return torch.cat([bias[None] / constant, directions])

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


def moved_covariance(public: Tensor, noised: Tensor, noise: float) -> Tensor:
    """(q, q) posterior mean of W under a prior around the public one, and room for its noise.

    Private rows may scatter less or more than public ones by one factor, `fitted_size`, which is
    known long before single entries are: W_pub stands for its multiple from here on.

    In the eigenbasis of W_pub the entry (i, j) of W − W_pub is taken for N(0, v √(w_i w_j)), which
    lies between a difference that is alike everywhere and one in proportion to W_pub. It is kept by
    k_i k_j with k_i² = v w_i/(v w_i + s²), a product that leaves a covariance positive as far as
    noise does. v is of maximum likelihood less `SURE` of its standard
    deviations: what chance makes of it would hide W_pub. Eigenvalues below 0 become 0, then row i
    is raised by the edge of the spectrum of the noise that it keeps, 2 √(Σ_j (k_i k_j s)²), which
    is 2 k² s √q where all k are alike (Wigner): directions that noise made narrow would be weighed
    most.

    Args:
        public: (q, q) W_pub, positive definite.
        noised: (q, q) W with independent N(0, s²) in every entry, 2s² on the diagonal.
        noise: s.
    """
    values, vectors = torch.linalg.eigh(public)
    rotated = vectors.T @ noised @ vectors
    values = fitted_size(rotated.diagonal() / values, 2 * (noise / values).square()) * values
    scale = torch.outer(values, values) ** 0.25
    difference = (rotated - torch.diag(values)) / scale
    variance = (noise / scale).square()
    squares = difference.square()
    found = fitted_scale(squares - torch.diag(squares.diagonal() / 2), variance)
    tiny = torch.finfo(torch.float64).tiny
    unsure = 2 / float((found + variance).clamp(min=1e-150).pow(-2).sum().sqrt())
    found = max(0.0, found - SURE * unsure)
    kept = (found / (found + variance.diagonal()).clamp(min=tiny)).sqrt()
    kept = torch.outer(kept, kept)
    raised, basis = torch.linalg.eigh(torch.diag(values) + kept * difference * scale)
    moved = basis * raised.clamp(min=0) @ basis.T
    room = 2 * noise * torch.linalg.vector_norm(kept, dim=1)
    return vectors @ (moved + torch.diag(room)) @ vectors.T


def fitted_size(ratios: Tensor, noise: Tensor) -> float:
    """Posterior mean of c under N(1, 1), for variances that are c times public ones.

    Each of (q,) ratios is weighed as if of variance 2 about c beside its (q,) noise's. Where noise
    leaves c near 0 or below, its own posterior deviation stands for it.
    """
    weight = 1 / (2 + noise)
    weight = weight / weight.sum()
    uncertain = float((weight.square() * noise).sum())
    believed = 1 / (1 + uncertain)
    mean = 1 + believed * (float(weight @ ratios) - 1)
    return max(mean, believed * math.sqrt(uncertain), LEAST_SIZE)


def fitted_scale(squares: Tensor, noise: Tensor) -> float:
    """v >= 0 of maximum likelihood for entries N(0, v + noise) of any shape, given their squares.

    By Fisher scoring, where every entry weighs 1/(v + noise)².
    """
    found = float(squares.mean())
    for _ in range(SCORING_STEPS):
        weight = 1 / (found + noise).clamp(min=1e-150).square()
        before, found = found, max(float((weight * (squares - noise)).sum() / weight.sum()), 0.0)
        if abs(found - before) <= CONVERGED * before:
            break
    return found


def conditioned(covariance: Tensor, shrinkage: float = 0.0) -> Tensor:
    """(q, q) with eigenvalues of at least 10⁻³ of their mean, shrunk towards their mean."""
    values, vectors = torch.linalg.eigh(covariance)
    mean = values.mean().clamp(min=LEAST_MEAN)
    values = values.clamp(min=LEAST_EIGENVALUE * float(mean))
    mean = values.mean()
    values = (1 - shrinkage) * values + shrinkage * mean
    return vectors * values @ vectors.T


def linear_discriminant(means: Tensor, covariance: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """(q, K) Σ⁻¹μ_k and (K,) log π_k − ½ μ_kᵀ Σ⁻¹ μ_k: Bayes' rule for Gaussian classes.

    For (q, K) means μ, the (q, q) covariance Σ of every class, and (K,) shares π.
    """
    directions = torch.linalg.solve(covariance, means)
    return directions, shares.log() - 0.5 * (means * directions).sum(0)
