"""Optimisers of contrastive pretraining and their learning rate."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn


def build_optimizer(
    name: str, params: Iterable[nn.Parameter], lr: float, weight_decay: float
) -> torch.optim.Optimizer:
    """`adamw`, `sgd` (Nesterov momentum 0.9) or `lars` (momentum 0.9).

    Vectors (biases, normalisation) are not decayed, and LARS (You et al. 2017) does not rescale
    them: of the others each step is a thousandth of the weight's norm, times the rate.
    """
    listed = list(params)
    matrices, vectors = [p for p in listed if p.ndim > 1], [p for p in listed if p.ndim <= 1]
    groups: list[dict[str, Any]] = [{"params": matrices, "weight_decay": weight_decay}]
    groups.append({"params": vectors, "weight_decay": 0.0})
    if name == "lars":
        from timm.optim.lars import Lars

        groups[0]["always_adapt"] = True
        return Lars(groups, lr, momentum=0.9)  # pyright: ignore[reportArgumentType]
    if name == "adamw":
        return torch.optim.AdamW(groups, lr, fused=True)
    if name == "sgd":
        return torch.optim.SGD(groups, lr, momentum=0.9, nesterov=True)
    raise ValueError(f"optimizer must be adamw, sgd or lars, got {name}")


def cosine_rate(step: int, *, total: int, warmup: int) -> float:
    """Share of the peak learning rate at `step`: linear warm-up, then half a cosine to 0."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))
