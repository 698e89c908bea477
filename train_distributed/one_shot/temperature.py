"""How sure a ridge regression is, by what its noised sum shows: no row is looked at again.

Ridge scores estimate shares, so that their softmax is far too even. The sum that was opened holds
the means of the classes and the scatter of all rows: were the classes Gaussian with one covariance,
scores of new rows would be Gaussian with known means, and the temperature that is best for those
follows. It is a function of what was released, and costs no privacy.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from train_distributed.one_shot.method import Fitted
from train_distributed.one_shot.statistic import NoisedSum

DRAWS = 1 << 15  # numbers drawn for the expectation
LEAST, LARGEST = 1e-6, 10.0  # T; at the upper end probabilities are as good as equal


@dataclass(frozen=True)
class Solved(Fitted):
    """A ridge regression, and the statistics that it was solved for."""

    means: Tensor  # (q, K) noised means of the features of every class
    counts: Tensor  # (K,) noised counts of their rows, positive
    shares: Tensor  # (K,) of the classes as their rows weigh, positive, one together
    scatter: Tensor  # (q, q) C of weighted rows about their mean, noised, its eigenvalues as it is
    regularised: Tensor  # (q, q) A: the same with none below 0, and λI
    moment_std: float  # of the noise in an entry of the scatter matrix
    noised: NoisedSum  # that it was made of
    constant: float  # a of the rows

    @property
    def temperature(self) -> float:
        """T of the regression's scores.

        What the sum shows flatters the regression, which has seen its noise, and how far the rows
        of a class deviate from its own mean. Three corrections, each the expectation of the first
        order: with A = C + λI and W the covariance within classes, score j at the mean of class k
        is too large by (δ_kj − π_j) tr A⁻¹(σ²I + n_k W) N π_k/n_k²; squares of noisy means take
        Σ σ²/n_k too much from C; and noise of σ_M in its entries makes VᵀCV too small by
        2σ_M² tr(A⁻¹) VᵀV.
        """
        rows, noise_std = self.noised.rows, self.noised.noise_std  # N, and σ of the class sums
        counts, means, shares = self.counts, self.means, self.shares
        weighted = rows * shares
        deviations = means - (means @ shares)[:, None]
        between = (deviations * weighted) @ deviations.T
        noise = noise_std**2 * (1 / counts).sum()  # that the squares of noisy means hold too much
        identity = torch.eye(len(means), dtype=torch.float64)
        inverse = torch.linalg.inv(self.regularised)
        noise = noise + 2 * self.moment_std**2 * inverse.trace()
        within = (self.scatter - between + noise * identity) / rows
        excess = noise_std**2 * inverse.trace() / counts + (inverse @ within).trace()
        excess = excess * weighted / counts
        slopes = self.weights[1:]
        scores = self.constant * self.weights[0] + means.T @ slopes  # (K, K): row k at its mean
        scores = scores - excess[:, None] * (torch.eye(len(counts)).double() - shares)
        return gaussian_temperature(scores, slopes.T @ within @ slopes, shares)


def gaussian_temperature(means: Tensor, covariance: Tensor, shares: Tensor) -> float:
    """T > 0 for which softmax(scores / T) has the least expected cross-entropy.

    Args:
        means: (K, K) of the scores of class k, in row k.
        covariance: (K, K) of the scores within every class.
        shares: (K,) of the classes.
    """
    classes = len(shares)
    values, vectors = torch.linalg.eigh((covariance + covariance.T) / 2)
    root = vectors * values.clamp(min=0).sqrt()
    draws = max(64, DRAWS // classes**2)
    generator = torch.Generator().manual_seed(0)  # the same for all: numbers of no secrecy
    normal = torch.randn(draws, classes, generator=generator, dtype=torch.float64)
    scores = means[:, None] + normal @ root.T  # (K, draws, K)
    right = scores.diagonal(dim1=0, dim2=2).T  # (K, draws)

    def loss(log_temperature: float) -> float:
        sharpness = math.exp(-log_temperature)
        wrong = torch.logsumexp(sharpness * scores, 2) - sharpness * right
        return float(shares @ wrong.mean(1))

    from scipy.optimize import minimize_scalar  # half a second that no user needs

    bounds = (math.log(LEAST), math.log(LARGEST))
    found: Any = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-3})
    return math.exp(found.x)
