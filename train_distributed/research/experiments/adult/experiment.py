r"""The figures of Zhang and Zhu's paper on UCI Adult.

    python -m train_distributed.research.experiments.adult.experiment \
        --data adult.data.gz --output results/rivals/admm

Number of nodes, graph and η are not published; ρ and C are (Sec. V).
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

from pretrain import check
from pretrain.cli.command import run_command
from pretrain.cli.output import new_directory, refuse_existing
from pretrain.cli.provenance import provenance
from train_distributed import partition
from train_distributed.research.admm.algorithm import AdmmSettings, Network, State
from train_distributed.research.admm.calibration import charged, compose
from train_distributed.research.admm.graph import ring
from train_distributed.research.admm.nodes import Nodes, gather
from train_distributed.research.admm.solver import loss
from train_distributed.research.experiments.adult import figures, tradeoff
from train_distributed.research.experiments.adult.data import read_adult

PUBLISHED = {"none": (10**-10, 1750.0), "dvp": (10**-2.5, 1750.0), "pvp": (0.1, 146.0)}  # ρ, C
CURVES = (0.01, 0.1, 0.5, 1.0)  # α of Fig. 3
ALPHAS = (0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
MOMENTS = (2, 100)  # t of Fig. 4
TOLERANCE = 1e-6  # of a step's gradient norm, in units of C/B
PAPER = {
    "intermediate": "DVP is slightly more robust to noise than PVP",
    "final": "PVP is slightly better than DVP in empirical loss",
}
WHEN = {"intermediate, mean of t = 2 … 99": slice(1, -1), "final": slice(-1, None)}


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Convergence, privacy-accuracy curves and the fitted trade-off of DVP and PVP on UCI Adult."""

    data: Path  # adult.data.gz
    output: Path = Path("results/rivals/admm")
    nodes: int = 6  # P, on a ring
    # η is chosen as the paper chooses ρ: lowest empirical loss at α = .3, powers of ten from .01.
    eta_dual: float = 10.0  # without noise and under dual perturbation
    eta_primal: float = 1.0  # under primal perturbation
    iterations: int = 100
    seeds: int = 5  # of the noise, on one split
    seed: int = 0  # of the split, and the first of the noise
    overwrite: bool = False

    def run(self) -> None:
        """Trains everything, then writes curves.csv, report.json, comparison.txt and three PNGs."""
        refuse_existing(self.output, overwrite=self.overwrite)
        check.at_least(max(MOMENTS), iterations=self.iterations)
        nodes, test = self._split(*read_adult(self.data))
        curves: dict[tuple[str, float], dict[str, np.ndarray]] = {}
        for method, alphas in (("none", (math.inf,)), ("dvp", ALPHAS), ("pvp", ALPHAS)):
            found = self._curves(nodes, test, method, alphas)
            curves |= {(method, alpha): measured for alpha, measured in found.items()}
        report = self._report(curves)
        text = state_comparison(report["comparison"])
        with new_directory(self.output, overwrite=self.overwrite) as directory:
            write_curves(directory / "curves.csv", curves)
            (directory / "report.json").write_text(json.dumps(report, indent=1, default=str))
            (directory / "comparison.txt").write_text(text)
            figures.draw_convergence(directory / "convergence.png", curves, CURVES)
            figures.draw_tradeoff(directory / "tradeoff.png", curves, ALPHAS, MOMENTS, report)
            figures.draw_final(directory / "final.png", curves, ALPHAS)
        print(text, end="")

    def _split(self, x: Tensor, labels: Tensor) -> tuple[Nodes, tuple[Tensor, Tensor]]:
        """Four fifths for the nodes, one fifth to test."""
        generator = torch.Generator().manual_seed(self.seed)
        order = torch.randperm(len(labels), generator=generator)
        train, held_out = order[len(order) // 5 :], order[: len(order) // 5]
        users = partition.split(labels[train], self.nodes, generator=generator)
        return gather(x[train], labels[train], users, 2), (x[held_out], labels[held_out])

    def _curves(
        self, nodes: Nodes, test: tuple[Tensor, Tensor], method: str, alphas: tuple[float, ...]
    ) -> dict[float, dict[str, np.ndarray]]:
        """By α {loss, error, own_loss, own_error: (T, seeds)}, means over nodes.

        Every α and seed is an independent copy of the one binary problem; all run together.
        """
        shares = torch.tensor(alphas, dtype=torch.float64).repeat_interleave(self.seeds)
        copies = Nodes(nodes.x, nodes.y.expand(-1, -1, len(shares)), nodes.counts)
        rho, weight = PUBLISHED[method]
        private = method != "none"
        settings = AdmmSettings(
            method=method,
            iterations=self.iterations,
            rho=rho,
            eta=self.eta_primal if method == "pvp" else self.eta_dual,
            loss_weight=weight,
            alpha=1.0 if private else math.inf,
            tolerance=TOLERANCE,
        )
        generator = torch.Generator().manual_seed(self.seed + 1)
        network = Network(copies, ring(self.nodes), settings)
        states = network.iterations(generator, shares=shares if private else None)
        progress = tqdm(states, desc=method, total=self.iterations, unit="step", disable=None)
        rows = [_measure(copies, test, state) for state in progress]
        stacked = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        return {
            alpha: {n: v[:, i * self.seeds : (i + 1) * self.seeds] for n, v in stacked.items()}
            for i, alpha in enumerate(alphas)
        }

    def _report(self, curves: dict[tuple[str, float], dict[str, np.ndarray]]) -> dict[str, Any]:
        composed = {
            str(alpha): asdict(compose(charged(alpha, TOLERANCE), self.iterations, 1e-5))
            for alpha in CURVES
        }
        return {
            "configuration": asdict(self)
            | {"data": self.data.name, "output": self.output.name}
            | {"graph": "ring", "rho_and_C": PUBLISHED},
            **provenance(),
            "seeds": f"{self.seeds} noise seeds on one split; mean, sample standard deviation",
            "composed_over_all_iterations": composed,
            "tradeoff": {method: fit_tradeoff(curves, method) for method in ("dvp", "pvp")},
            "comparison": compare(curves),
            "paper": PAPER,
        }


def _measure(nodes: Nodes, test: tuple[Tensor, Tensor], state: State) -> dict[str, np.ndarray]:
    measured = {}
    for prefix, weights in (("", state.sent), ("own_", state.own)):
        right = (torch.einsum("pkd,nd->pkn", weights, test[0]) > 0) == (test[1] == 1)
        measured[f"{prefix}loss"] = loss(nodes, weights).mean(0).numpy()
        measured[f"{prefix}error"] = 1 - right.double().mean((0, 2)).numpy()
    return measured


def fit_tradeoff(
    curves: dict[tuple[str, float], dict[str, np.ndarray]], method: str
) -> dict[str, object]:
    """Fits L_acc at t = 100, and the best α by the fit and by the published curve."""
    losses = np.array([curves[method, alpha]["loss"].mean(1) for alpha in ALPHAS])  # (α, T)
    settled = losses[-1]
    floor = float(settled.min() if method == "dvp" else settled[19:100].mean())
    final = losses[:, max(MOMENTS) - 1]
    fitted = tradeoff.fit_loss_curve(np.array(ALPHAS), final, floor)
    published = tradeoff.LossCurve(*tradeoff.PUBLISHED[method], floor)
    return {
        "fitted": asdict(fitted),
        "best_alpha_of_fit": tradeoff.best_alpha(fitted, ALPHAS[0], ALPHAS[-1]),
        "published": asdict(published),
        "best_alpha_of_published": tradeoff.best_alpha(published, ALPHAS[0], ALPHAS[-1]),
    }


def compare(curves: dict[tuple[str, float], dict[str, np.ndarray]]) -> list[dict[str, Any]]:
    """Mean and deviation over seeds of both methods, in the middle and at the end.

    One is better where the mean difference of a seed's two runs exceeds twice its standard error.
    """
    found = []
    for alpha in CURVES:
        for label, when in WHEN.items():
            for measure in ("loss", "error"):
                row: dict[str, Any] = {"alpha": alpha, "when": label, "measure": measure}
                values = {m: curves[m, alpha][measure][when].mean(0) for m in ("dvp", "pvp")}
                for method, of_seeds in values.items():
                    row[method] = [float(of_seeds.mean()), float(of_seeds.std(ddof=1))]
                gap = values["pvp"] - values["dvp"]
                error = float(gap.std(ddof=1)) / math.sqrt(len(gap))
                row["better"] = "neither"
                if abs(gap.mean()) > 2 * error:
                    row["better"] = "dvp" if gap.mean() > 0 else "pvp"
                found.append(row)
    return found


def state_comparison(rows: list[dict[str, Any]]) -> str:
    """The comparison in words, after each of the paper's two statements."""
    lines = []
    for label in WHEN:
        lines.append(f"{label} (paper: {PAPER[label.split(',')[0]]})")
        for row in (row for row in rows if row["when"] == label):
            dvp, pvp = ("{:.4f} ± {:.4f}".format(*row[method]) for method in ("dvp", "pvp"))
            verdict = {"dvp": "DVP is better", "pvp": "PVP is better", "neither": "no difference"}
            lines.append(
                f"  {row['measure']:5} at alpha {row['alpha']:4g}: "
                f"DVP {dvp}, PVP {pvp}: {verdict[row['better']]}"
            )
    return "\n".join(lines) + "\n"


def write_curves(path: Path, curves: dict[tuple[str, float], dict[str, np.ndarray]]) -> None:
    """One line per method, α and iteration: mean and deviation over seeds of each measure."""
    tables = []
    for (method, alpha), measured in curves.items():
        steps = np.arange(1, len(measured["loss"]) + 1)
        columns: dict[str, Any] = {"method": method, "alpha": str(alpha), "iteration": steps}
        for name, values in measured.items():
            columns[f"{name}_mean"] = values.mean(1)
            columns[f"{name}_std"] = values.std(1, ddof=1)
        tables.append(pd.DataFrame(columns))
    pd.concat(tables).to_csv(path, index=False, float_format="%.6g")


if __name__ == "__main__":
    sys.exit(run_command(lambda: tyro.cli(Figures)))
