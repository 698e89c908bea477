"""Covariance of a discriminant, and how far its scores scatter beside what it says.

Directions that noise made narrow would be weighed most, so a classifier is solved with room for the
noise in every direction. That makes its scores too even: they scatter less than their covariance
says, and by what factor, the noised second moments tell.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from train_distributed.one_shot.class_gaussians import Gaussians, noise_edge, spiked_covariance
from train_distributed.one_shot.method import Fitted

ROOM = 0.7  # of the noise's edge, in every direction
FADING = 4.0  # mean variances of room from which on it fades, where something is known
DEVIATION = 0.15  # of the ratio about what the estimate without room says, before any evidence
SHADED = 1.25  # power of the ratio: a prior that counts for too much costs the small classes all
LEAST_RATIO = 1e-3  # noise without bounds rounds the ratio to 0, or below
LEAST_SAID = 1e-60


@dataclass(frozen=True)
class NoisyScatter:
    """Covariance W within classes: as public rows have it, and as noised private ones do."""

    public: Tensor  # (q, q) W_pub, positive definite
    noised: Tensor  # (q, q) W with independent N(0, s²) in every entry, 2s² on the diagonal
    noise: float  # s
    unsure: Tensor  # (q, q) V, what is left open of the class means
    knowing: bool = False  # whether public knowledge says where the classes lie

    @property
    def room(self) -> float:
        """Variance that is added in every direction.

        Of known classes it fades where noise hides W: there is no noisy direction to lean on, and
        room would put the few that the noised sum says something of before what is known.
        """
        room, mean = ROOM * noise_edge(self.noise, len(self.noised)), self.public.diagonal().mean()
        return room / (1 + (room / float(FADING * mean)) ** 2) if self.knowing else room

    def covariance(self) -> Tensor:
        """(q, q) Σ = W + V and room, W as it is estimated."""
        room = self.room * torch.eye(len(self.noised), dtype=torch.float64)
        return spiked_covariance(self.public, self.noised, self.noise) + self.unsure + room

    def ratio(self, found: Gaussians) -> float:
        """Scatter of the scores of Σ within classes over what it says, at its posterior mean, > 0.

        With this much room the scores lean little on the noise of W: as they have seen it, it makes
        the ratio too small by a fifth or less, which is on the side of the small classes.
        """
        means = found.means - (found.means @ found.shares)[:, None]
        slopes = torch.linalg.solve(found.covariance, means)
        squares = slopes * found.shares @ slopes.mT
        said = float((squares * found.covariance).sum())
        if not said > LEAST_SAID:
            return 1.0  # scores that are all alike
        squares = squares / said
        expected = 1 - self.room * float(squares.trace())
        measured = float((squares * (self.noised + self.unsure)).sum())
        variance = 2 * self.noise**2 * float(squares.square().sum())
        believed = DEVIATION**2 / (DEVIATION**2 + variance)
        return max(LEAST_RATIO, expected / 2, expected + believed * (measured - expected))


@dataclass(frozen=True)
class Scattered(Fitted):
    """Weights whose scores scatter within classes so many times as their covariance says."""

    ratio: float

    @property
    def temperature(self) -> float:
        """T: the square root of the ratio.

        Log-odds of Gaussian classes of one covariance would be divided by the ratio; those of
        pictures, whose classes have tails and shapes of their own, by about its square root.
        """
        return math.sqrt(self.ratio)


def tempered(shares: Tensor, ratio: float) -> Tensor:
    """(K,) shares of the classes to a power of the ratio, where that is below 1; one together.

    Scores that scatter less than they say are too even beside the prior, which would drown them:
    with two classes all rows would go to the larger.
    """
    if ratio >= 1:
        return shares
    powers = shares.pow(ratio**SHADED)
    return powers / powers.sum()
