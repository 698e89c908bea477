"""Directions and lengths of features of which a noised sum shows most, and the rows' centre.

A user sends sums of rows z = Aᵀ(y − m), |z| <= 1, and noise is added to them. The A is taken that
preserves most information about the class means, which can be computed for additive noise and
bounded lengths. The centre m is estimated from a first noised sum, of raw coordinates y and |y|².
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from embed.clip import LARGEST
from embed.public_scatter import PublicScatter, signed
from pretrain import check

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
    # c, ascending, less the least: θ and c may be much larger than the powers
    bounded = min(max(noise, LEAST_NOISE), LARGEST)
    levels = bounded**2 * (1 / strengths - 1 / strengths[0])
    counts = torch.arange(1, len(levels) + 1, dtype=levels.dtype)
    waters = (1 + levels.cumsum(0)) / counts  # θ of the first k
    water = waters[int((waters > levels).sum()) - 1]
    return ((water - levels).clamp(min=0) / (1 + strengths)).sqrt()


SCALES = torch.logspace(-3, 0, 13, dtype=torch.float64)  # prior: g tr V, alike in logarithm
LEAST_SQUARE = 0.05  # prior: of a row's squared length; rows scatter so much about the centre


@dataclass(frozen=True)
class Centre:
    """Mean of private rows, and how far they lie apart."""

    place: Tensor  # (D,) float64 m, at most 1 long
    common: float = 0.0  # h_c in [0, 1], share of a row's squared length that all have in common
    spread: float = 1.0  # of rows about m, over that of public rows about their mean
    share: float = ONE_SUM_SHARE  # λ

    @classmethod
    def public(cls, scatter: PublicScatter, share: float = ONE_SUM_SHARE) -> "Centre":
        """That of public rows, where there is no first sum."""
        return cls(scatter.mean, share=share)

    @classmethod
    def of(cls, place: Tensor, square: float, scatter: PublicScatter) -> "Centre":
        """Centre at a (D,) place, of rows whose mean squared length is `square`.

        Raises ValueError for numbers that no rows of length 1 have.
        """
        check.within("[0, 1]", centre_norm=float(place.norm()))
        check.within(f"[{LEAST_SQUARE}, 1]", centre_squared_length=square)
        apart = max(square - float(place.square().sum()), LEAST_SQUARE)
        common = min(float((place - scatter.mean).square().sum()) / square, 1.0)
        spread = math.sqrt(apart / max(float(scatter.covariance.trace()), LEAST_NOISE**2))
        return cls(place, common, spread, max(LEAST_SHARE, common**2 / 2))


def noised_place(mean: Tensor, square: float, noise: float, scatter: PublicScatter) -> Tensor:
    """(D + 1,) place m of private rows, and their mean squared length, from noised numbers.

    In the eigenbasis U of the public covariance, of eigenvalues v_j, the shift c = Uᵀ(ȳ − m_p) is
    seen with noise of variance s² in each coordinate; c_j ~ N(0, g v_j). A mean of rows is no
    longer than they are, so that the mean square of its length, g Σ v_j, is 1 at most; up to there
    g is log-uniform (`SCALES`) and weighed by its evidence

        log p(c | g) = −½ Σ_j [log(g v_j + s²) + c_j²/(g v_j + s²)] + const.

    The posterior mean is k_j c_j with k_j = E[g v_j/(g v_j + s²)], m = m_p + U k c. The mean of
    |y|² is N(e, e²) before it is seen, e that of public rows. All of it is post-processing of a
    private sum, and where that is nothing but noise the place and the length are the public ones.

    Args:
        mean: (D,) ȳ.
        square: mean of |y|²; what is made of it is taken within [.05, 1].
        noise: s, standard deviation in each of these numbers.
        scatter: of public rows.
    """
    values, vectors = torch.linalg.eigh(scatter.covariance)
    values = values.clamp(min=torch.finfo(values.dtype).tiny)
    bounded = mean.double().clamp(-LARGEST, LARGEST)  # noise knows no bounds; squares are finite
    shift = vectors.T @ (bounded - scatter.mean)
    size = float(values.sum())
    prior = SCALES[:, None] / size * values  # (G, D) g v
    total = prior + max(noise, LEAST_NOISE) ** 2
    evidence = -0.5 * (total.log() + shift.square() / total).sum(1)
    kept = torch.softmax(evidence, 0) @ (prior / total)
    place = scatter.mean + vectors @ (kept * shift)
    # A mean of rows is no longer than they are, nor what rounding makes of its norm.
    norm, most = float(place.norm()), 1 - (len(place) + 8) * torch.finfo(place.dtype).eps
    if norm > most:
        place = place * (most / norm)
    usual = max(size + float(scatter.mean.square().sum()), LEAST_SQUARE)
    seen = usual + (square - usual) / (1 + (noise / usual) ** 2)
    return torch.cat([place, place.new_tensor([min(max(seen, LEAST_SQUARE), 1.0)])])
