"""Parts of Charter's experiment: gradient descent, cuts without noise, noise of other accounts."""

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from train_distributed import accounting
from train_distributed.privacy.float_noise import normal
from train_distributed.research.charter import amplification
from train_distributed.research.charter.algorithm import Objective
from train_distributed.research.charter.plan import CharterTask, make_plan
from train_distributed.research.charter.vaidya import Vector, cutting_planes


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


def count_cuts() -> list[dict[str, Any]]:
    """Cuts until max_i a_i·(x - x*) is below 10^-n, for d = 2 … 50 and n = 1 … 6."""
    found = []
    for dimension in (2, 5, 10, 20, 30, 50):
        value, gradient, _ = max_affine(dimension, seed=dimension)
        history = lowest_values(value, gradient, dimension, 1.0, 60 * dimension + 60, 1e-6)
        for digits in range(1, 7):
            below = np.flatnonzero(np.array(history) <= 10.0**-digits)
            if len(below):
                cuts = int(below[0]) + 1
                found.append({"dimension": dimension, "digits": digits, "cuts": cuts})
    return found


def lowest_values(
    value: Callable[[Vector], float],
    gradient: Callable[[Vector], Vector],
    dimension: int,
    half_width: float,
    cuts: int,
    target: float,
) -> list[float]:
    """Least value of a convex function so far, after each cut without noise.

    Args:
        value: the function.
        gradient: a subgradient at a point.
        dimension: d.
        half_width: half the side of the cube that is searched.
        cuts: largest number of gradients to ask for.
        target: the search stops at a value this low.
    """
    planes, history = cutting_planes(dimension, half_width), []
    with contextlib.suppress(StopIteration):
        x = next(planes)
        while len(history) < cuts:
            history.append(min([value(x), *history[-1:]]))
            if history[-1] <= target:
                break
            x = planes.send(gradient(x))
    return history


def max_affine(
    dimension: int, seed: int
) -> tuple[Callable[[Vector], float], Callable[[Vector], Vector], Vector]:
    """max_i a_i·(x - x*), whose least value is 0 as the a_i have mean 0; a subgradient; x*."""
    draw = np.random.default_rng(seed)
    slopes = draw.normal(size=(3 * dimension, dimension))
    slopes -= slopes.mean(0)
    centre = draw.uniform(-0.5, 0.5, size=dimension)
    return (
        lambda x: float((slopes @ (x - centre)).max()),
        lambda x: slopes[np.argmax(slopes @ (x - centre))],
        centre,
    )


def fit_cuts(cuts: pd.DataFrame) -> dict[str, Any]:
    """Cuts per decade of error for every d, and the growth of that with d."""
    per_decade: dict[Any, float] = {
        dimension: float(np.polyfit(rows["digits"], rows["cuts"], 1)[0])
        for dimension, rows in cuts.groupby("dimension")
    }
    line = np.polyfit(list(per_decade), list(per_decade.values()), 1)
    return {"per_decade": per_decade, "per_decade_and_dimension": float(line[0])}


def compare_noise() -> list[dict[str, float]]:
    """Noise of the tight account over that of the paper's constants, where those are proven."""
    found = []
    for rounds, epsilon in ((10, 0.4), (30, 0.25), (100, 0.1), (300, 0.08)):
        task = CharterTask(
            clients=10, rows=3000, dimension=30, epsilon=epsilon, delta=1e-5, diameter=1.0
        )
        tight, paper = (
            make_plan(task, rounds=rounds, gradient_clip=1.0, loss_clip=1.0, constants=constants)
            for constants in ("tight", "paper")
        )
        found.append(
            {
                "rounds": rounds,
                "epsilon": epsilon,
                "learning": tight.gradient_std / paper.gradient_std,
                "verification": tight.loss_std / paper.loss_std,
            }
        )
    return found


def compare_accounts(draws: int = 100_000) -> list[dict[str, float]]:
    """ε that the composition account promises, and what the same noise may really be worth.

    At the same δ: the second number is an estimate for one pair of data sets, and no promise.
    """
    found = []
    for rounds, multiplier, delta in ((20, 1.0, 1e-3), (100, 1.0, 1e-3), (100, 0.7, 1e-3)):
        task = CharterTask(
            clients=1, rows=30 * rounds, dimension=1, epsilon=1.0, delta=delta, diameter=1.0
        )
        plan = make_plan(task, rounds=rounds, gradient_clip=1.0, loss_clip=1.0)
        ratios = amplification.random_round_ratios(
            multiplier,
            np.array(plan.fresh) / plan.learning_rows,
            draws=draws,
            generator=np.random.default_rng(0),
        )
        estimate, error = amplification.estimate_epsilon(ratios, delta)
        found.append(
            {
                "rounds": rounds,
                "noise_multiplier": multiplier,
                "delta": delta,
                "epsilon_by_composition": amplification.composed_epsilon(
                    multiplier, delta, plan.rates
                ),
                "epsilon_estimated_once": estimate,
                "standard_error": error,
            }
        )
    return found
