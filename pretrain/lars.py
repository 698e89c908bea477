"""Optimisers of contrastive pretraining and their learning rate."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn


class Lars(torch.optim.Optimizer):
    """SGD with momentum whose step for each weight is a fixed share of its norm (You et al. 2017).

    Vectors (biases, normalisation) are neither decayed nor rescaled.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float,
        *,
        momentum: float = 0.9,
        weight_decay: float = 1e-6,
        trust: float = 1e-3,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One update of every parameter that has a gradient."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                update = weight.grad
                if weight.ndim > 1:
                    update = update + group["weight_decay"] * weight
                    update = update * self._ratio(weight, update, group["trust"])
                state = self.state[weight]
                velocity = state.setdefault("momentum_buffer", torch.zeros_like(weight))
                velocity.mul_(group["momentum"]).add_(update)
                weight.sub_(group["lr"] * velocity)

    @staticmethod
    def _ratio(weight: Tensor, update: Tensor, trust: float) -> Tensor:
        """Trust · ‖w‖/‖update‖, or 1 where either vanishes."""
        ratio = trust * weight.norm() / update.norm()
        return torch.where(torch.isfinite(ratio) & (ratio > 0), ratio, torch.ones_like(ratio))


def build_optimizer(
    name: str, params: Iterable[nn.Parameter], lr: float, weight_decay: float
) -> torch.optim.Optimizer:
    """`adamw`, `sgd` (Nesterov momentum 0.9) or `lars`; vectors are not decayed."""
    listed = list(params)
    matrices, vectors = [p for p in listed if p.ndim > 1], [p for p in listed if p.ndim <= 1]
    if name == "lars":
        return Lars(listed, lr, weight_decay=weight_decay)
    groups = [{"params": matrices, "weight_decay": weight_decay}]
    groups.append({"params": vectors, "weight_decay": 0.0})
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
