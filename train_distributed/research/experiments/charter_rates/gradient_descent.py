"""Gradient descent with the same privacy, to compare Charter with."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from train_distributed import accounting
from train_distributed.privacy.float_noise import normal
from train_distributed.research.charter.objectives import Objective


def private_gradient_descent(
    data: Sequence[tuple[Tensor, Tensor]],
    objective: Objective,
    *,
    epsilon: float,
    delta: float,
    rounds: int,
    gradient_clip: float,
    step: float,
    half_width: float,
    generator: torch.Generator | None,
) -> Tensor:
    """DP-SGD with full batches: every client sends a noisy mean of clipped gradients each round.

    Steps fall as 1/√t; the result is the mean of the second half of the projected iterates. A
    replaced record moves each of a client's T messages by at most 2 G/N.

    Args:
        data: (x, y) of every client.
        objective: the loss of a record.
        epsilon: of each client's records against the server; inf: no noise.
        delta: δ.
        rounds: T.
        gradient_clip: G.
        step: first step size.
        half_width: half the side of the cube that is projected on.
        generator: of the noise.

    Returns:
        (problems, d) points.
    """
    points = torch.zeros(objective.problems, objective.dimension, dtype=torch.float64)
    private = math.isfinite(epsilon)
    multiplier = accounting.noise_multiplier(epsilon, delta, rounds) if private else 0.0
    late = torch.zeros_like(points)
    for t in range(1, rounds + 1):
        total = torch.zeros_like(points)
        for x, y in data:
            gradients = objective.gradients(points, x, y)
            norms = gradients.flatten(1).norm(dim=1)[:, None, None]
            over = norms > gradient_clip
            clipped = torch.where(over, gradients * (gradient_clip / norms), gradients)
            noise = normal(tuple(points.shape), generator)
            total += clipped.mean(0) + 2 * gradient_clip / len(x) * multiplier * noise
        points = points - step / math.sqrt(t) * total / len(data)
        points = points.clamp(-half_width, half_width)
        if t > rounds // 2:
            late += points
    return late / (rounds - rounds // 2)
