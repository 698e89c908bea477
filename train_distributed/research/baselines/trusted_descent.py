"""Noisy gradient descent by one trusted server, many settings at once.

All rows lie in one place. T rounds sum the gradients of the softmax loss over all rows, each
clipped to the norm c, and add Gaussian noise (Abadi et al. 2016, without sampling):

    W ← W − η (Σ clip_c(x (p − e_y)ᵀ) + noise).

The mean of the later half is released. A record moves a round by 2c, as in `ClippedGradient`; T
rounds are together one Gaussian mechanism. The learning rate η is given by the standard deviation
that the noise of all rounds has in an entry of the weights: a search over it serves every ε. With a
private `centre` a first sum finds where the rows lie, as in `centring`, and rows are taken about it
without being clipped again: their gradients are.

A simulation: noise is float, and sums are of the rows' type.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from embed import PublicTransform
from train_distributed.one_shot.centring import CENTRE_SHARE, FeatureSum
from train_distributed.one_shot.further_rounds import ClippedGradient
from train_distributed.one_shot.registry import Centre
from train_distributed.one_shot.statistic import NoisedSum
from train_distributed.privacy.guarantee import Guarantee
from train_distributed.privacy.promise import Privacy
from train_distributed.simulation.shared_training import RowsInMemory

NAME = "trusted-descent"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Settings of a descent."""

    rounds: int  # T
    centre: Centre
    clip: float  # c, over the rows' clip norm
    noise: float  # in an entry of the weights, of all rounds


def train(
    held: RowsInMemory,
    transform: PublicTransform,
    num_classes: int,
    settings: Sequence[Setting],
    privacy: Privacy,
    generator: torch.Generator,
) -> Tensor:
    """(J, d, K) float64 weights of J descents with equal rounds and centre, under equal noise.

    Args:
        held: all rows, of this transform.
        transform: of the rows; its clip norm bounds them.
        num_classes: K.
        settings: of the J descents.
        privacy: the promise, which the server alone keeps.
        generator: of the noise.
    """
    x, y, dim, first = held.x, held.y, held.x.shape[1], settings[0]
    sizes, alone = torch.tensor([len(y)]), Privacy(privacy.epsilon, privacy.delta)
    left, scale = 1.0, 1.0
    centre = torch.zeros(dim - 1, dtype=torch.float64)
    if first.centre == "private":
        statistic, left = FeatureSum(transform=transform), 1 - CENTRE_SHARE
        std = Guarantee.of(sizes, statistic, alone, share=CENTRE_SHARE).float_sum_std
        noise = std * torch.randn(dim, generator=generator, dtype=torch.float64)
        total = statistic.scale * statistic.submit(held.together())[0] + noise
        found = statistic.centre(NoisedSum(total, len(y), std))
        centre, scale = found[:-1], statistic.about(found).length
        x = torch.cat([x[:, :1], (x[:, 1:] - centre.to(x.dtype)) / scale], 1)
    clips = torch.tensor([each.clip * transform.clip_norm for each in settings], dtype=x.dtype)
    wanted = torch.tensor([each.noise for each in settings], dtype=x.dtype)
    unit = ClippedGradient(weights=torch.zeros(dim, num_classes), clip_norm=1.0)
    std = Guarantee.of(sizes, unit, alone, share=left / first.rounds).float_sum_std
    lengths = wanted / (std * math.sqrt(first.rounds))  # η c
    weights = torch.zeros(dim, len(settings), num_classes, dtype=x.dtype)
    mean, kept = torch.zeros_like(weights), math.ceil(first.rounds / 2)
    for number in range(first.rounds):
        noise = torch.randn(dim, 1, num_classes, generator=generator, dtype=torch.float64)
        total = clipped_sums(x, y, weights, clips) / clips[:, None] + (std * noise).to(x.dtype)
        weights = weights - lengths[:, None] * total
        if number >= first.rounds - kept:
            mean += weights / kept
    return _of_given_rows(mean.double(), centre, scale, transform.constant).movedim(1, 0)


def clipped_sums(x: Tensor, y: Tensor, weights: Tensor, clips: Tensor) -> Tensor:
    """(d, J, K) sums Σ clip_c(x (p − e_y)ᵀ) at J weights.

    For (n, d) rows, (n,) labels, (d, J, K) weights and (J,) clip norms c.
    """
    models = weights.shape[1:]
    residual = torch.softmax((x @ weights.flatten(1)).unflatten(1, models), 2)
    residual[torch.arange(len(y)), :, y] -= 1
    norms = torch.linalg.vector_norm(x, dim=1)[:, None] * torch.linalg.vector_norm(residual, dim=2)
    residual *= torch.where(norms > clips, clips / norms, 1.0)[..., None]
    return (x.mT @ residual.flatten(1)).unflatten(1, models)


def _of_given_rows(weights: Tensor, centre: Tensor, scale: float, constant: float) -> Tensor:
    """(d, J, K) weights of rows [a, u] that score as `weights` do on [a, (u − m)/s]."""
    features = weights[1:] / scale
    bias = weights[:1] - torch.tensordot(centre, features, 1)[None] / constant
    return torch.cat([bias, features])
