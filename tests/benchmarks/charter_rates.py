"""Rates at which Charter's excess risk falls, its payloads and noise, cuts of Vaidya's method.

python -m tests.benchmarks.charter_rates --output results/rivals/charter
"""

import contextlib
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import tyro
from torch import Tensor
from tqdm import tqdm

from pretrain.cli.command import run_command
from pretrain.cli.output import new_directory, refuse_existing, write_json
from pretrain.cli.provenance import provenance
from train_distributed import accounting
from train_distributed.privacy.float_noise import normal
from train_distributed.research.rivals.charter.algorithm import Distance, Objective, run
from train_distributed.research.rivals.charter.plan import CharterPlan, CharterTask, make_plan
from train_distributed.research.rivals.charter.vaidya import Vector, cutting_planes

# What is varied. The theorem's two terms are √d/(√M N ε) and 1/√(MN). It bounds every convex
# Lipschitz loss; near the minimiser of a quadratic, as here, the risk is the square of the
# gradient's error, so it may fall up to twice as steeply.
SWEEPS: dict[str, tuple[float, ...]] = {
    "clients": (2, 4, 8, 16, 32),
    "rows": (750, 1500, 3000, 6000, 12_000),
    "epsilon": (0.1, 0.2, 0.4, 0.8, 1.6, math.inf),
    "rounds": (5, 10, 20, 40, 80),
    "bits": (2, 3, 4, 6, 8, 12, 16),
}
THEORY = {
    "clients": {"privacy term": -0.5, "statistical term": -0.5},
    "rows": {"privacy term": -1.0, "statistical term": -0.5},
    "epsilon": {"privacy term": -1.0, "statistical term": 0.0},
}
CHARTERS = {"charter": False, "charter_secure_sum": True}
NOISY = (*CHARTERS, "dp_sgd")
SPREAD = 0.3  # of a record around the mean
CLIP = 1.5  # gradients w - x have about this length at the corners


@dataclass(frozen=True, kw_only=True)
class Slopes:
    """Excess risk of ½‖w - x‖² in R^5 with a known minimiser, and cuts on max-affine problems."""

    output: Path = Path("results/rivals/charter")
    dimension: int = 5
    clients: int = 8
    rows: int = 3000
    epsilon: float = 0.5
    delta: float = 1e-5
    rounds: int = 30
    bits: int | None = None
    seeds: int = 10
    overwrite: bool = False

    def run(self) -> None:
        """Writes risk.csv, cuts.csv and report.json."""
        refuse_existing(self.output, overwrite=self.overwrite)
        settings = [(name, value) for name, values in SWEEPS.items() for value in values]
        runs = list(product(settings, range(self.seeds)))
        rows = [self.measure(*at, seed) for at, seed in tqdm(runs, unit="run", disable=None)]
        risks, cuts = pd.DataFrame(rows).astype({"bits": "Int64"}), pd.DataFrame(count_cuts())
        found = summarise(risks) | {"cuts": fit_cuts(cuts), "noise_over_the_paper": compare_noise()}
        used = {"configuration": asdict(self) | {"output": self.output.name}}
        with new_directory(self.output, overwrite=self.overwrite) as directory:
            risks.to_csv(directory / "risk.csv", index=False)
            cuts.to_csv(directory / "cuts.csv", index=False)
            write_json(directory / "report.json", used | provenance() | found)
        print(json.dumps(found, indent=1))

    def at(self, sweep: str, value: float) -> dict[str, Any]:
        """The varied settings, one of them at this value."""
        return {name: getattr(self, name) for name in SWEEPS} | {sweep: value}

    def measure(self, sweep: str, value: float, seed: int) -> dict[str, Any]:
        """One run of every method on the same data."""
        at = self.at(sweep, value)
        generator = torch.Generator().manual_seed(seed)
        mean = torch.rand(self.dimension, generator=generator, dtype=torch.float64) - 0.5
        data = sphere(mean, at["clients"], at["rows"], generator)
        row: dict[str, Any] = {"sweep": sweep, "seed": seed, **at}
        objective = Distance(self.dimension)
        for name, summed in CHARTERS.items():
            plan = self.plan(at, secure_sum=summed, bits=at["bits"])
            points, report = run(data, objective, plan, half_width=1.0, generator=generator)
            row[name] = float((points[0] - mean).square().sum() / 2)
            row[f"{name}_bits"] = report["payload_bits_per_user"]
            row[f"{name}_bits_by_formula"] = payload(plan)
            row[f"{name}_framing_bits"] = report["framing_bits_per_user"]
        descended = private_gradient_descent(
            data, objective, at["epsilon"], self.delta, at["rounds"], generator
        )
        row["dp_sgd"] = float((descended[0] - mean).square().sum() / 2)
        row["dp_sgd_bits"] = 32 * self.dimension * at["rounds"]
        everything = torch.cat([x for x, _ in data])
        row["not_private"] = float((everything.mean(0) - mean).square().sum() / 2)
        return row

    def plan(self, at: Mapping[str, Any], **options: Any) -> CharterPlan:
        """Charter's plan at the varied values."""
        task = CharterTask(
            clients=at["clients"],
            rows=at["rows"],
            dimension=self.dimension,
            epsilon=at["epsilon"],
            delta=self.delta,
            diameter=2 * math.sqrt(self.dimension),
        )
        return make_plan(task, rounds=at["rounds"], gradient_clip=CLIP, loss_clip=CLIP, **options)


def sphere(
    mean: Tensor, clients: int, rows: int, generator: torch.Generator
) -> list[tuple[Tensor, Tensor]]:
    """Every client's rows (rows, d), uniform on a sphere around the mean; nobody uses labels."""
    data = []
    for _ in range(clients):
        z = torch.randn(rows, len(mean), generator=generator, dtype=torch.float64)
        x = mean + SPREAD * z / z.norm(dim=1, keepdim=True)
        data.append((x, torch.zeros(rows, dtype=torch.int64)))
    return data


def payload(plan: CharterPlan) -> int:
    """Bits of the formula: K d J0 + K J1, or 64-bit words in a sum."""
    numbers = plan.rounds * plan.task.dimension
    if plan.honest is not None:
        return 64 * (numbers + plan.rounds)
    return numbers * plan.gradient_bits + plan.rounds * plan.loss_bits


def private_gradient_descent(
    data: Sequence[tuple[Tensor, Tensor]],
    objective: Objective,
    epsilon: float,
    delta: float,
    rounds: int,
    generator: torch.Generator | None,
) -> Tensor:
    """(problems, d) by DP-SGD with full batches: clients send noisy means of clipped gradients.

    Steps fall as 1/(2 √t), and points are projected on [-1, 1]^d; the result is the mean of the
    second half of the iterates. A replaced record moves each of a client's T messages by at most
    2 G/N. An infinite epsilon is no noise.
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
            clipped = torch.where(norms > CLIP, gradients * (CLIP / norms), gradients)
            noise = normal(tuple(points.shape), generator)
            total += clipped.mean(0) + 2 * CLIP / len(x) * multiplier * noise
        points = (points - 0.5 / math.sqrt(t) * total / len(data)).clamp(-1.0, 1.0)
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
    """Least value so far of a convex function in [-half_width, half_width]^d, after each cut.

    Without noise, until a value as low as the target or so many cuts.
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
        clips = {"rounds": rounds, "gradient_clip": 1.0, "loss_clip": 1.0}
        tight, paper = (make_plan(task, constants=each, **clips) for each in ("tight", "paper"))
        row = {"learning": tight.gradient_std / paper.gradient_std}
        row["verification"] = tight.loss_std / paper.loss_std
        found.append({"rounds": rounds, "epsilon": epsilon} | row)
    return found


def summarise(risks: pd.DataFrame) -> dict[str, Any]:
    """Measured slopes, the theorem's, and in how many runs the payload is the formula's."""
    equal = {name: risks[f"{name}_bits"] == risks[f"{name}_bits_by_formula"] for name in CHARTERS}
    return {
        "slopes_and_their_errors": {name: slope(risks, name) for name in THEORY},
        "slopes_of_the_theorem": THEORY,
        "note": "a quadratic may fall up to twice as steeply as the theorem's terms",
        "payload": {
            name: {"runs": len(risks), "exactly_as_the_formula": int(each.sum())}
            for name, each in equal.items()
        },
    }


def slope(risks: pd.DataFrame, sweep: str) -> dict[str, list[float]]:
    """Least-squares slopes of ln(mean excess risk) in ln(x), each with its standard error.

    The error is the deviation of the slope over 200 redrawn sets of seeds (bootstrap).
    """
    draw, found = np.random.default_rng(0), {}
    for name in NOISY:
        x, table = by_seed(risks, sweep, name)
        picks = draw.integers(table.shape[1], size=(200, table.shape[1]))
        means = np.column_stack([table.mean(1), *(table[:, pick].mean(1) for pick in picks)])
        slopes = np.polyfit(np.log(x), np.log(means), 1)[0]
        found[name] = [float(slopes[0]), float(slopes[1:].std(ddof=1))]
    return found


def by_seed(risks: pd.DataFrame, sweep: str, method: str) -> tuple[np.ndarray, np.ndarray]:
    """(n,) finite values that a sweep varies, and (n, seeds) risks of a method at them."""
    rows = risks[(risks["sweep"] == sweep) & np.isfinite(risks[sweep].astype(float))]
    table: pd.DataFrame = rows.pivot(index=sweep, columns="seed", values=method)
    return table.index.to_numpy(), np.ascontiguousarray(table.to_numpy())


if __name__ == "__main__":
    sys.exit(run_command(lambda: tyro.cli(Slopes)))
