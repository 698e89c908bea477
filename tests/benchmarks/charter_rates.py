"""Rates at which Charter's excess risk falls with clients, rows and ε.

python -m tests.benchmarks.charter_rates --output results/rivals/charter
"""

import json
import math
import sys
from collections.abc import Sequence
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
from train_distributed.research.rivals.charter.plan import CharterTask, make_plan

# What is varied. The theorem's two terms are √d/(√M N ε) and 1/√(MN). It bounds every convex
# Lipschitz loss; near the minimiser of a quadratic, as here, the risk is the square of the
# gradient's error, so it may fall up to twice as steeply.
SWEEPS: dict[str, tuple[float, ...]] = {
    "clients": (2, 4, 8, 16, 32),
    "rows": (750, 1500, 3000, 6000, 12_000),
    "epsilon": (0.1, 0.2, 0.4, 0.8, 1.6, math.inf),
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
    """Excess risk of ½‖w - x‖² in R^5 with a known minimiser."""

    output: Path = Path("results/rivals/charter")
    dimension: int = 5
    clients: int = 8
    rows: int = 3000
    epsilon: float = 0.5
    delta: float = 1e-5
    rounds: int = 30
    seeds: int = 10
    overwrite: bool = False

    def run(self) -> None:
        """Writes risk.csv and report.json."""
        refuse_existing(self.output, overwrite=self.overwrite)
        settings = [(name, value) for name, values in SWEEPS.items() for value in values]
        runs = list(product(settings, range(self.seeds)))
        rows = [self.measure(*at, seed) for at, seed in tqdm(runs, unit="run", disable=None)]
        risks = pd.DataFrame(rows)
        found = {
            "slopes_and_their_errors": {name: slope(risks, name) for name in THEORY},
            "slopes_of_the_theorem": THEORY,
            "note": "a quadratic may fall up to twice as steeply as the theorem's terms",
        }
        used = {"configuration": asdict(self) | {"output": self.output.name}}
        with new_directory(self.output, overwrite=self.overwrite) as directory:
            risks.to_csv(directory / "risk.csv", index=False)
            write_json(directory / "report.json", used | provenance() | found)
        print(json.dumps(found, indent=1))

    def measure(self, sweep: str, value: float, seed: int) -> dict[str, Any]:
        """One run of every method on the same data, with one setting at this value."""
        at: dict[str, Any] = {name: getattr(self, name) for name in SWEEPS} | {sweep: value}
        generator = torch.Generator().manual_seed(seed)
        mean = torch.rand(self.dimension, generator=generator, dtype=torch.float64) - 0.5
        data = sphere(mean, at["clients"], at["rows"], generator)
        row: dict[str, Any] = {"sweep": sweep, "seed": seed, **at}
        objective, reach = Distance(self.dimension), 2 * math.sqrt(self.dimension)
        task = CharterTask(dimension=self.dimension, delta=self.delta, diameter=reach, **at)
        bounds = {"rounds": self.rounds, "gradient_clip": CLIP, "loss_clip": CLIP}
        for name, summed in CHARTERS.items():
            plan = make_plan(task, secure_sum=summed, **bounds)
            points, report = run(data, objective, plan, half_width=1.0, generator=generator)
            row[name] = float((points[0] - mean).square().sum() / 2)
            row[f"{name}_bits"] = report["payload_bits_per_user"]
            row[f"{name}_framing_bits"] = report["framing_bits_per_user"]
        descended = private_gradient_descent(
            data, objective, at["epsilon"], self.delta, self.rounds, generator
        )
        row["dp_sgd"] = float((descended[0] - mean).square().sum() / 2)
        row["dp_sgd_bits"] = 32 * self.dimension * self.rounds
        everything = torch.cat([x for x, _ in data])
        row["not_private"] = float((everything.mean(0) - mean).square().sum() / 2)
        return row


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
