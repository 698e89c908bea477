r"""Rates at which Charter's excess risk falls, and the number of cuts of Vaidya's method.

python -m train_distributed.research.experiments.charter_rates.experiment \
    --output results/rivals/charter
"""

import json
import math
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import tyro
from torch import Tensor
from tqdm import tqdm

from pretrain.cli.command import run_command
from pretrain.cli.output import new_directory, refuse_existing
from pretrain.cli.provenance import provenance
from train_distributed.research.charter.algorithm import Distance, run
from train_distributed.research.charter.plan import CharterPlan, CharterTask, make_plan
from train_distributed.research.experiments.charter_rates.figures import by_seed, draw
from train_distributed.research.experiments.charter_rates.measures import (
    compare_accounts,
    compare_noise,
    count_cuts,
    fit_cuts,
    private_gradient_descent,
)

# The varied settings, with the exponents of the theorem's two terms, √d/(√M N ε) and 1/√(MN). It
# bounds every convex Lipschitz loss; near the minimiser of a quadratic, as here, the risk is the
# square of the gradient's error, so it may fall up to twice as steeply.
SWEEPS: dict[str, tuple[tuple[float, ...], list[dict[str, Any]]]] = {
    "clients": ((-0.5, -0.5), [{"clients": m} for m in (2, 4, 8, 16, 32)]),
    "rows": ((-1.0, -0.5), [{"rows": n} for n in (750, 1500, 3000, 6000, 12_000)]),
    "epsilon": ((-1.0, 0.0), [{"epsilon": e} for e in (0.1, 0.2, 0.4, 0.8, 1.6, math.inf)]),
    "rounds": ((), [{"rounds": k} for k in (5, 10, 20, 40, 80)]),
    "bits": ((), [{"bits": j} for j in (2, 3, 4, 6, 8, 12, 16)]),
}
TERMS = ("privacy term", "statistical term")
THEORY: dict[str, dict[str, float]] = {
    name: dict(zip(TERMS, exponents, strict=True)) if exponents else {}
    for name, (exponents, _) in SWEEPS.items()
}
CHARTERS = {"charter": False, "charter_secure_sum": True}
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
        """Measures everything, then writes risk.csv, cuts.csv, report.json and a PNG."""
        refuse_existing(self.output, overwrite=self.overwrite)
        settings = [(name, change) for name, (_, group) in SWEEPS.items() for change in group]
        rows = [
            self._measure(name, change, seed)
            for name, change in tqdm(settings, unit="setting", disable=None)
            for seed in range(self.seeds)
        ]
        risks, cuts = pd.DataFrame(rows).astype({"bits": "Int64"}), pd.DataFrame(count_cuts())
        report = {
            "configuration": asdict(self) | {"output": self.output.name},
            **provenance(),
            **summarise(risks),
            "cuts": fit_cuts(cuts),
            "noise_over_the_paper": compare_noise(),
            "once_in_a_random_round": compare_accounts(),
        }
        with new_directory(self.output, overwrite=self.overwrite) as directory:
            risks.to_csv(directory / "risk.csv", index=False)
            cuts.to_csv(directory / "cuts.csv", index=False)
            (directory / "report.json").write_text(json.dumps(report, indent=1))
            draw(directory / "charter.png", risks, cuts, THEORY)
        shown = ("slopes_and_their_errors", "payload", "noise_over_the_paper", "cuts")
        print(json.dumps({name: report[name] for name in shown}, indent=1))

    def _measure(self, sweep: str, change: dict[str, Any], seed: int) -> dict[str, Any]:
        """One run of every method on the same data."""
        varied = ("clients", "rows", "epsilon", "rounds", "bits")
        at = {name: getattr(self, name) for name in varied} | change
        generator = torch.Generator().manual_seed(seed)
        mean = torch.rand(self.dimension, generator=generator, dtype=torch.float64) - 0.5
        data = sphere(mean, at["clients"], at["rows"], generator)
        task = self.task(at)
        row: dict[str, Any] = {"sweep": sweep, "seed": seed, **at}
        objective = Distance(self.dimension)
        for name, summed in CHARTERS.items():
            plan = make_plan(
                task,
                rounds=at["rounds"],
                gradient_clip=CLIP,
                loss_clip=CLIP,
                secure_sum=summed,
                bits=at["bits"],
            )
            points, report = run(data, objective, plan, half_width=1.0, generator=generator)
            row[name] = float((points[0] - mean).square().sum() / 2)
            row |= _traffic(name, plan, report)
        descended = private_gradient_descent(
            data,
            objective,
            epsilon=at["epsilon"],
            delta=self.delta,
            rounds=at["rounds"],
            gradient_clip=CLIP,
            step=0.5,
            half_width=1.0,
            generator=generator,
        )
        row["dp_sgd"] = float((descended[0] - mean).square().sum() / 2)
        row["dp_sgd_bits"] = 32 * self.dimension * at["rounds"]
        everything = torch.cat([x for x, _ in data])
        row["not_private"] = float((everything.mean(0) - mean).square().sum() / 2)
        return row

    def task(self, at: dict[str, Any]) -> CharterTask:
        """The problem at the varied values."""
        return CharterTask(
            clients=at["clients"],
            rows=at["rows"],
            dimension=self.dimension,
            epsilon=at["epsilon"],
            delta=self.delta,
            diameter=2 * math.sqrt(self.dimension),
        )


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


def _traffic(name: str, plan: CharterPlan, report: dict[str, Any]) -> dict[str, int]:
    """Measured bits, and the bits of the formula: K d J0 + K J1, or 64-bit words in a sum."""
    numbers = plan.rounds * plan.task.dimension
    formula = numbers * plan.gradient_bits + plan.rounds * plan.loss_bits
    if plan.honest is not None:
        formula = 64 * (numbers + plan.rounds)
    return {
        f"{name}_bits": report["payload_bits_per_user"],
        f"{name}_bits_by_formula": formula,
        f"{name}_framing_bits": report["framing_bits_per_user"],
    }


def summarise(risks: pd.DataFrame) -> dict[str, Any]:
    """Measured slopes, the theorem's, and whether the payload is the formula's."""
    return {
        "slopes_and_their_errors": {name: slope(risks, name) for name in THEORY if THEORY[name]},
        "slopes_of_the_theorem": {name: terms for name, terms in THEORY.items() if terms},
        "note": "a quadratic may fall up to twice as steeply as the theorem's terms",
        "payload": check_payload(risks),
    }


def check_payload(risks: pd.DataFrame) -> dict[str, Any]:
    """Number of runs in which the measured payload is exactly the formula's."""
    found = {}
    for name in CHARTERS:
        equal = int(np.count_nonzero(risks[f"{name}_bits"] == risks[f"{name}_bits_by_formula"]))
        found[name] = {"runs": len(risks), "exactly_as_the_formula": equal}
    return found


def slope(risks: pd.DataFrame, sweep: str) -> dict[str, list[float]]:
    """Least-squares slopes of ln(mean excess risk) in ln(x), each with its standard error.

    The error is the deviation of the slope over 200 redrawn sets of seeds (bootstrap).
    """
    draw, found = np.random.default_rng(0), {}
    for name in ("charter", "charter_secure_sum", "dp_sgd"):
        x, table = by_seed(risks, sweep, name)
        picks = draw.integers(table.shape[1], size=(200, table.shape[1]))
        means = np.column_stack([table.mean(1), *(table[:, pick].mean(1) for pick in picks)])
        slopes = np.polyfit(np.log(x), np.log(means), 1)[0]
        found[name] = [float(slopes[0]), float(slopes[1:].std(ddof=1))]
    return found


if __name__ == "__main__":
    sys.exit(run_command(lambda: tyro.cli(Slopes)))
