"""Scatter of scores within classes, measured with noise that the scores have not seen.

A classifier that is solved with noised second moments leans where noise made classes narrow, and
room for that noise makes them wide elsewhere: the scatter of its scores is a half to five times
what its covariance says. So the noise is divided in two (data thinning; Neufeld, Dharamshi, Gao
and Witten, 2024): with a fresh E as random as the noise of M, M + aE and M − E/a are independent.
A classifier is solved with the first, and the second says without bias how its scores scatter.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from train_distributed.one_shot.class_gaussians import Gaussians, conditioned, moved_covariance
from train_distributed.one_shot.method import Fitted

SHARE = 0.5  # a: the classifier is solved with 1.25 times the variance, and measured with 5 times
PRIOR_VARIANCE = 0.25  # of the ratio about 1, before any evidence
LEAST_RATIO = 0.5  # below it the prior of the classes would count for too little
LEAST_SAID = 1e-60


@dataclass(frozen=True)
class NoisyScatter:
    """Covariance W within classes: as public rows have it, and as noised private ones do."""

    public: Tensor  # (q, q) W_pub, positive definite
    noised: Tensor  # (q, q) W with independent N(0, s²) in every entry, 2s² on the diagonal
    noise: float  # s
    unsure: Tensor  # (q, q) V, what is left open of the class means

    def estimate(self) -> Tensor:
        """(q, q) Σ = W + V, W at its posterior mean."""
        return conditioned(moved_covariance(self.public, self.noised, self.noise)) + self.unsure

    def ratio(self, found: Gaussians) -> float:
        """Scatter of the scores within classes over what Σ says, at its posterior mean.

        At least `LEAST_RATIO`, and 1 where noise hides it.
        """
        generator = torch.Generator().manual_seed(0)  # the same for all: numbers of no secrecy
        white = torch.randn(self.noised.shape, generator=generator, dtype=torch.float64)
        fresh = self.noise * (white + white.mT) / math.sqrt(2)
        means = found.means - (found.means @ found.shares)[:, None]
        squares = []
        for sign in (1, -1):  # E and −E: most of what is fresh cancels
            noised = self.noised + sign * SHARE * fresh
            noise = math.sqrt(1 + SHARE**2) * self.noise
            seen = replace(self, noised=noised, noise=noise).estimate()
            slopes = torch.linalg.solve(seen, means)
            square = slopes * found.shares @ slopes.mT
            said = float((square * seen).sum())
            if not said > LEAST_SAID:
                return 1.0  # scores that are all alike
            squares.append(square / said)
        both, apart = (squares[0] + squares[1]) / 2, (squares[0] - squares[1]) / (2 * SHARE)
        measured = float((both * (self.noised + self.unsure)).sum() - (apart * fresh).sum())
        variance = 2 * self.noise**2 * float(both.square().sum() + apart.square().sum())
        believed = PRIOR_VARIANCE / (PRIOR_VARIANCE + variance)
        return max(LEAST_RATIO, 1 + believed * (measured - 1))


@dataclass(frozen=True)
class Scattered(Fitted):
    """Weights whose scores scatter within classes so many times as their covariance says."""

    ratio: float

    @property
    def temperature(self) -> float:
        """T of Gaussian scores that scatter more: log-odds are proportional to 1/scatter."""
        return max(1.0, self.ratio)


def tempered(shares: Tensor, ratio: float) -> Tensor:
    """(K,) shares of the classes to the power of the ratio, where that is below 1; one together.

    Scores that scatter less than they say are too even beside the prior, which would drown them:
    with two classes all rows go to the larger.
    """
    if ratio >= 1:
        return shares
    powers = shares.pow(ratio)
    return powers / powers.sum()
