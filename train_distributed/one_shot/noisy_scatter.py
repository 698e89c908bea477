"""Within-class covariance of a discriminant, regularised, and what that does to its scores.

A classifier would weigh those directions most that noise made narrow, so a ridge is added to the
estimated covariance. That makes its scores under-confident: their variance within classes is a
fraction of the one that the regularised covariance claims, and the noised second moments, which
have no ridge, say which fraction.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from embed.clip import LEAST
from train_distributed.one_shot.class_gaussians import (
    LEAST_VARIANCE,
    Gaussians,
    noise_edge,
    spiked_covariance,
)

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
    knowing: bool = False  # whether names or examples say where the classes lie

    @property
    def ridge(self) -> float:
        """Variance that is added in every direction.

        Where names or examples say where the classes lie, and noise hides W, it goes to 0: W is
        then estimated by the public one, which has no noisy directions, and a large ridge would
        make a nearest-mean classifier of what is known.
        """
        ridge = RIDGE * noise_edge(self.noise, len(self.noised))
        most = FADING * float(self.public.diagonal().mean())
        return ridge / (1 + (ridge / most) ** 2) if self.knowing else ridge

    def covariance(self) -> Tensor:
        """(q, q) W + ridge, W by `spiked_covariance`."""
        ridge = self.ridge * torch.eye(len(self.noised), dtype=torch.float64)
        return spiked_covariance(self.public, self.noised, self.noise) + ridge

    def ratio(self, found: Gaussians, true: float = 1.0) -> float:
        """Variance of the scores within classes over the one that Σ claims; a posterior mean, > 0.

        Its prior is N(r, `DEVIATION`²), r the ratio without the ridge. Its observation are the
        noised moments along the scores, less those between classes: estimated means contain noise
        along the scores that were solved with them, and what they scatter there is η² true.

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
        squares = squares / said
        expected = 1 - self.ridge * float(squares.trace())
        between = (1 - true**2) * (means * found.shares @ means.mT)
        measured = float((squares * (self.noised + self.unsure + between)).sum())
        variance = 2 * self.noise**2 * float(squares.square().sum())
        believed = DEVIATION**2 / (DEVIATION**2 + variance)
        return max(LEAST_VARIANCE, expected / 2, expected + believed * (measured - expected))
