"""Cuts that Vaidya's method needs without noise: linear in digits and in the dimension."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from train_distributed.research.charter import vaidya


def count_cuts() -> list[dict[str, Any]]:
    """Cuts until max_i a_i·(x - x*) is below 10^-n, for d = 2 … 50 and n = 1 … 6."""
    found = []
    for dimension in (2, 5, 10, 20, 30, 50):
        value, gradient, _ = max_affine(dimension, seed=dimension)
        _, history = vaidya.minimise(
            gradient,
            value,
            dimension=dimension,
            half_width=1.0,
            cuts=60 * dimension + 60,
            cutting=vaidya.Cutting(),
            target=1e-6,
        )
        for digits in range(1, 7):
            below = np.flatnonzero(np.array(history) <= 10.0**-digits)
            if len(below):
                cuts = int(below[0]) + 1
                found.append({"dimension": dimension, "digits": digits, "cuts": cuts})
    return found


def max_affine(
    dimension: int, seed: int
) -> tuple[
    Callable[[vaidya.Vector], float], Callable[[vaidya.Vector], vaidya.Vector], vaidya.Vector
]:
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
