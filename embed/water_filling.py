"""Directions and lengths of the features of a noised sum, by water-filling.

A user sends sums of rows z = Aᵀ(y − m), |z| <= 1, and noise is added to them. Which A shows most of
the class means? A linear code under a bound of length and additive noise has an optimal spectrum.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from embed.clip import LARGEST
from embed.public_scatter import PublicScatter, signed

FLOOR_RANK = 64  # prior: f is that eigenvalue of W, from the largest
LEAST_SHARE = 0.03  # prior: λ, how far private classes may differ otherwise than public ones do
# prior: λ about the public mean, where no first sum says how far private rows lie
ONE_SUM_SHARE = 0.05
PLANNED_SHARE = 0.25  # prior: λ for the number of directions, fixed before the first sum
FAINT = 0.15  # prior: of the largest length, where something is known of the classes
MOST = 256  # size: directions; second moments of more are noise, and many bytes
LEAST_NOISE = 1e-6  # guard: deviation of rows of length 1, or of noise in them, that is none


@dataclass(frozen=True)
class Channel:
    """Directions in which classes lie apart, the widest apart first.

    The columns v of V diagonalise B′ = B + λT and W′ = W + fI together: vᵀW′v = 1 and vᵀB′v = β,
    the scatter between classes in units of that within. f leaves directions of little variance
    short, which the clip would otherwise fill with noise; λ is for classes that differ otherwise
    than the public ones.
    """

    directions: Tensor  # (D, n) V
    strengths: Tensor  # (n,) β > 0, descending

    @classmethod
    def of(cls, scatter: PublicScatter, share: float) -> "Channel":
        """Channel of public rows; `share` is λ. Without labels B is 0 and W the covariance."""
        root = scatter.whitening(FLOOR_RANK)
        sought = share * scatter.covariance
        if scatter.between is not None:
            sought = sought + scatter.between
        strengths, turned = torch.linalg.eigh(root @ sought @ root)
        seen = int((strengths > torch.finfo(strengths.dtype).eps * len(root)).sum())
        directions = root @ turned.flip(1)[:, : max(seen, 1)]
        strengths = strengths.flip(0)[: max(seen, 1)].clamp(min=torch.finfo().tiny)
        return cls(signed(directions), strengths)

    def lengths(self, noise: float, count: int | None = None) -> Tensor:
        """(count,) lengths a >= 0 of the first directions; see `water_filling`."""
        return water_filling(self.strengths[:count], noise)

    def count(self, noise: float, information: float = 1.0, most: int = MOST) -> int:
        """The fewest directions that hold this share of Σ log(1 + β a²/t²), `most` at most."""
        bounded = min(max(noise, LEAST_NOISE), LARGEST)
        heard = self.strengths * self.lengths(noise).square() / bounded**2
        held = heard.log1p().cumsum(0)
        enough = int((held < information * held[-1] * (1 - 1e-12)).sum()) + 1
        return min(enough, most)


def water_filling(strengths: Tensor, noise: float) -> Tensor:
    """Lengths a_j of directions that show most of noised class means, of rows of length 1.

    In direction j rows scatter by 1 within classes and by β_j between them; a class mean, times
    a_j, is seen with noise of variance t². What the noised mean says of the true one is
    ½ log(1 + β_j a_j²/t²) (a Gaussian mean in Gaussian noise), so

        maximise Σ_j log(1 + β_j a_j²/t²)   subject to   Σ_j a_j² (1 + β_j) = 1,  a_j² >= 0,

    the constraint being the mean squared length of a row. With the powers p_j = a_j² (1 + β_j) and
    c_j = t² (1 + β_j)/β_j this is Σ log(1 + p_j/c_j) under Σ p_j = 1, a concave function on a
    simplex, with the KKT conditions

        1/(c_j + p_j) = 1/θ where p_j > 0,   1/c_j <= 1/θ where p_j = 0,

    hence p_j = (θ − c_j)₊, that is a_j² = (θ/(1 + β_j) − t²/β_j)₊, and θ = (1 + Σ c_j)/k over the
    k directions of least c_j, as many as leave θ above each of theirs (Shannon 1949; Cover and
    Thomas 2006, Sec. 9.4).

    Args:
        strengths: (n,) β > 0, descending.
        noise: t >= 0.

    Examples:
        >>> water_filling(torch.tensor([3.0, 1.0, 0.01], dtype=torch.float64), 0.5)
        tensor([0.3819, 0.4564, 0.0000], dtype=torch.float64)
    """
    # c, ascending, less the least: θ and c may be large beside the powers
    bounded = min(max(noise, LEAST_NOISE), LARGEST)
    levels = bounded**2 * (1 / strengths - 1 / strengths[0])
    counts = torch.arange(1, len(levels) + 1, dtype=levels.dtype)
    waters = (1 + levels.cumsum(0)) / counts  # θ of the first k
    water = waters[int((waters > levels).sum()) - 1]
    return ((water - levels).clamp(min=0) / (1 + strengths)).sqrt()
