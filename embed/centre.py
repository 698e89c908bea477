"""Where private rows lie, as a first noised sum of raw coordinates y and |y|² shows it."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from embed.clip import LARGEST
from embed.public_scatter import PublicScatter
from embed.water_filling import LEAST_NOISE, LEAST_SHARE, ONE_SUM_SHARE
from pretrain import check

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
