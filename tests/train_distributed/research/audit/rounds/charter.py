"""Audit of Charter: privacy loss of one client's learning messages."""

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from train_distributed.research.rivals.charter.algorithm import Client, Distance
from train_distributed.research.rivals.charter.plan import CharterPlan


def learning_losses(
    plan: CharterPlan,
    *,
    truth: int,
    replicas: int,
    generator: torch.Generator,
    noise_scale: float = 1.0,
) -> Tensor:
    """(R,) ln p(messages | +G0) / p(messages | -G0) of whole learning stages of a real client.

    All records but one have gradient zero. That one is in round k with chance t_k/n, and the noise
    is Gaussian, so the ratio is known but for the quantisation, which can only lose information.

    Args:
        plan: of one client with one number in a message.
        truth: 0 for +G0, 1 for -G0.
        replicas: R, independent runs.
        generator: of sampling, noise and rounding.
        noise_scale: below 1 adds less noise than the accounting believes (the mutation).

    Raises:
        ValueError: a plan for longer messages.
    """
    if plan.task.dimension != 1:
        raise ValueError(f"dimension must be 1 to be watched, got {plan.task.dimension}")
    std = noise_scale * plan.gradient_std
    watched = replace(plan, gradient_std=std)
    x = torch.zeros(plan.task.rows, 1, dtype=torch.float64)  # gradients of ½(w - x)² at 0 are -x
    x[0] = (2 if truth else -2) * plan.gradient_clip
    drawn = np.stack([_messages(watched, x, generator) for _ in range(replicas)])
    height = plan.gradient_clip / plan.batch
    shares = np.array(plan.fresh) / plan.learning_rows
    never = 1 - shares.sum()
    lift = drawn * height / std**2
    shrink = math.exp(-((height / std) ** 2) / 2)
    above = never + shrink * (np.exp(lift) @ shares)
    below = never + shrink * (np.exp(-lift) @ shares)
    return torch.from_numpy(np.log(above / below))


def _messages(plan: CharterPlan, x: Tensor, generator: torch.Generator) -> np.ndarray:
    """(K,) what the server decodes in a run of one client, per nominal batch."""
    labels = torch.zeros(len(x), dtype=torch.int64)
    client = Client(x, labels, plan, Distance(1), generator)
    origin = torch.zeros(1, 1, dtype=torch.float64)
    decoded = [
        float(plan.gradient_encoding.mean([client.gradient(origin)], 1)[0])
        for _ in range(plan.rounds)
    ]
    return np.array(decoded) * np.array(plan.fresh) / plan.batch
