"""How Charter's excess risk falls, and how many cuts Vaidya's method needs.

python -m train_distributed.charter.experiment --output results/charter
"""

import argparse
import csv
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from tqdm import tqdm

from pretrain.output import new_directory, refuse_existing
from train_distributed.charter import amplification, vaidya
from train_distributed.charter.method import run
from train_distributed.charter.objectives import Distance
from train_distributed.charter.plan import Task, make_plan
from train_distributed.charter.reference import private_gradient_descent
from train_distributed.provenance import provenance

# (x axis, theory's largest slope in it, the varied settings)
SWEEPS: dict[str, tuple[float, list[dict[str, Any]]]] = {
    "clients": (-0.5, [{"clients": m} for m in (2, 4, 8, 16, 32)]),
    "rows": (-1.0, [{"rows": n} for n in (750, 1500, 3000, 6000, 12_000)]),
    "epsilon": (-1.0, [{"epsilon": e} for e in (0.1, 0.2, 0.4, 0.8, 1.6, math.inf)]),
    "rounds": (0.0, [{"rounds": k} for k in (5, 10, 20, 40, 80)]),
}
SPREAD = 0.3  # of a record around the mean
CLIP = 1.5  # gradients w - x have about this length at the corners


@dataclass(frozen=True, kw_only=True)
class Slopes:
    """Excess risk of ½‖w - x‖² in R^5 with a known minimiser, and cuts on max-affine problems."""

    output: Path = Path("results/charter")
    dimension: int = 5
    clients: int = 8
    rows: int = 3000
    epsilon: float = 0.5
    delta: float = 1e-5
    rounds: int = 30
    seeds: int = 5
    overwrite: bool = False

    def run(self) -> None:
        """Measures everything, then writes risk.csv, cuts.csv, report.json and a PNG."""
        refuse_existing(self.output, overwrite=self.overwrite)
        settings = [(name, change) for name, (_, group) in SWEEPS.items() for change in group]
        risks = []
        for name, change in tqdm(settings, unit="setting", disable=None):
            risks += [self._measure(name, change, seed) for seed in range(self.seeds)]
        cuts = count_cuts()
        report = {
            "configuration": asdict(self) | {"output": self.output.name},
            **provenance(),
            "slopes": {name: slope(risks, name) for name in ("clients", "rows", "epsilon")},
            "theory": "largest slopes in M, N, ε: -1/2, -1, -1 (privacy term); -1/2 in MN else",
            "cuts": fit_cuts(cuts),
            "once_in_a_random_round": compare_accounts(),
        }
        with new_directory(self.output, overwrite=self.overwrite) as directory:
            _write(directory / "risk.csv", risks)
            _write(directory / "cuts.csv", cuts)
            (directory / "report.json").write_text(json.dumps(report, indent=1))
            draw(directory / "charter.png", risks, cuts)
        print(json.dumps({name: report[name] for name in ("slopes", "cuts")}, indent=1))

    def _measure(self, sweep: str, change: dict[str, Any], seed: int) -> dict[str, Any]:
        """One run of every method on the same data."""
        at = {n: getattr(self, n) for n in ("clients", "rows", "epsilon", "rounds")} | change
        generator = torch.Generator().manual_seed(seed)
        mean = torch.rand(self.dimension, generator=generator, dtype=torch.float64) - 0.5
        data = []
        for _ in range(at["clients"]):
            z = torch.randn(at["rows"], self.dimension, generator=generator, dtype=torch.float64)
            x = mean + SPREAD * z / z.norm(dim=1, keepdim=True)
            data.append((x, torch.zeros(at["rows"], dtype=torch.int64)))
        task = Task(
            clients=at["clients"],
            rows=at["rows"],
            dimension=self.dimension,
            epsilon=at["epsilon"],
            delta=self.delta,
            diameter=2 * math.sqrt(self.dimension),
        )
        row: dict[str, Any] = {"sweep": sweep, "seed": seed, **at}
        objective = Distance(self.dimension)
        for name, summed in (("charter", False), ("charter_secure_sum", True)):
            plan = make_plan(
                task, rounds=at["rounds"], gradient_clip=CLIP, loss_clip=CLIP, secure_sum=summed
            )
            result = run(data, objective, plan, half_width=1.0, generator=generator)
            row[name] = float((result.points[0] - mean).square().sum() / 2)
            row[f"{name}_bits"] = result.report["payload_bits_per_user"]
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


def slope(risks: list[dict[str, Any]], sweep: str) -> dict[str, float]:
    """Least-squares slopes of ln(mean excess risk) in ln(x)."""
    rows = [row for row in risks if row["sweep"] == sweep and math.isfinite(row[sweep])]
    x = sorted({row[sweep] for row in rows})
    found = {}
    for name in ("charter", "charter_secure_sum", "dp_sgd"):
        means = [np.mean([row[name] for row in rows if row[sweep] == at]) for at in x]
        found[name] = float(np.polyfit(np.log(x), np.log(means), 1)[0])
    return found


def count_cuts() -> list[dict[str, Any]]:
    """Cuts until max_i a_i·(x - x*) is below 10^-n, for d = 2 … 30 and n = 1 … 6."""
    found = []
    for dimension in (2, 5, 10, 20, 30):
        value, gradient = max_affine(dimension, seed=dimension)
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
) -> tuple[Callable[[vaidya.Vector], float], Callable[[vaidya.Vector], vaidya.Vector]]:
    """A piecewise linear function with least value 0, and a subgradient of it."""
    draw = np.random.default_rng(seed)
    slopes = draw.normal(size=(3 * dimension, dimension))
    slopes -= slopes.mean(0)
    centre = draw.uniform(-0.5, 0.5, size=dimension)
    return (
        lambda x: float((slopes @ (x - centre)).max()),
        lambda x: slopes[np.argmax(slopes @ (x - centre))],
    )


def fit_cuts(cuts: list[dict[str, Any]]) -> dict[str, Any]:
    """Cuts per decade of error for every d, and how that grows with d."""
    per_decade = {}
    for dimension in sorted({row["dimension"] for row in cuts}):
        rows = [row for row in cuts if row["dimension"] == dimension]
        line = np.polyfit([row["digits"] for row in rows], [row["cuts"] for row in rows], 1)
        per_decade[dimension] = float(line[0])
    line = np.polyfit(list(per_decade), list(per_decade.values()), 1)
    return {"per_decade": per_decade, "per_decade_and_dimension": float(line[0])}


def compare_accounts() -> list[dict[str, float]]:
    """δ that the composition account promises, and an estimate of what one random round needs."""
    found = []
    for rounds, multiplier, delta in ((20, 1.0, 1e-2), (100, 1.0, 1e-3), (100, 0.7, 1e-2)):
        task = Task(
            clients=1, rows=30 * rounds, dimension=1, epsilon=1.0, delta=delta, diameter=1.0
        )
        plan = make_plan(task, rounds=rounds, gradient_clip=1.0, loss_clip=1.0)
        epsilon = amplification.composed_epsilon(multiplier, delta, plan.rates)
        estimate, error = amplification.estimate_random_round_delta(
            epsilon,
            multiplier,
            np.array(plan.fresh) / plan.learning_rows,
            draws=100_000,
            generator=np.random.default_rng(0),
        )
        found.append(
            {
                "rounds": rounds,
                "noise_multiplier": multiplier,
                "epsilon": epsilon,
                "delta_by_composition": delta,
                "delta_estimated_once": estimate,
                "standard_error": error,
            }
        )
    return found


def draw(path: Path, risks: list[dict[str, Any]], cuts: list[dict[str, Any]]) -> None:
    """Excess risk along every sweep with theory's slope, and cuts against digits."""
    figure = Figure(figsize=(15, 7), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 3).flat
    names = ("charter", "charter_secure_sum", "dp_sgd", "not_private")
    for axis, (sweep, (theory, _)) in zip(axes, SWEEPS.items(), strict=False):
        rows = [row for row in risks if row["sweep"] == sweep and math.isfinite(row[sweep])]
        x = np.array(sorted({row[sweep] for row in rows}))
        for name in names:
            y = np.array([[row[name] for row in rows if row[sweep] == at] for at in x])
            axis.errorbar(x, y.mean(1), y.std(1, ddof=1), fmt="o-", label=name.replace("_", " "))
        if theory:
            top = np.mean([row["charter"] for row in rows if row[sweep] == x[0]])
            axis.plot(x, top * (x / x[0]) ** theory, "k:", label=f"theory: slope {theory}")
        axis.set(xlabel=sweep, ylabel="excess risk", xscale="log", yscale="log")
        axis.legend(fontsize=7)
    axis = next(axes)
    for name in names[:3]:
        bits = [row[f"{name}_bits"] for row in risks if row["sweep"] == "rounds"]
        y = [row[name] for row in risks if row["sweep"] == "rounds"]
        axis.plot(bits, y, ".", label=name.replace("_", " "))
    axis.set(xlabel="payload bits per client", ylabel="excess risk", xscale="log", yscale="log")
    axis.legend(fontsize=7)
    axis = next(axes)
    for dimension in sorted({row["dimension"] for row in cuts}):
        rows = [row for row in cuts if row["dimension"] == dimension]
        digits = [row["digits"] for row in rows]
        axis.plot(digits, [row["cuts"] for row in rows], "o-", label=f"d = {dimension}")
    axis.set(xlabel="-log10 error", ylabel="cuts", title="max-affine problems, no noise")
    axis.legend(fontsize=7)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    """Reads the options and runs."""
    parser = argparse.ArgumentParser(description=Slopes.__doc__)
    parser.add_argument("--output", type=Path, default=Slopes.output)
    parser.add_argument("--seeds", type=int, default=Slopes.seeds)
    parser.add_argument("--overwrite", action="store_true")
    Slopes(**vars(parser.parse_args())).run()


if __name__ == "__main__":
    main()
