"""Zhang and Zhu's comparison on UCI Adult: decentralised ADMM with two perturbations.

    python -m tests.benchmarks.adult --data adult.data.gz --output results/rivals/admm

Number of nodes, graph and η are not published; ρ and C are (Sec. V).
"""

import math
import sys
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

from pretrain import check
from pretrain.cli.command import run_command
from pretrain.cli.output import new_directory, refuse_existing, write_json
from pretrain.cli.provenance import provenance
from train_distributed import partition
from train_distributed.research.rivals.admm.algorithm import AdmmSettings, Network
from train_distributed.research.rivals.admm.calibration import charged, compose
from train_distributed.research.rivals.admm.graph import Nodes, gather, ring
from train_distributed.research.rivals.admm.solver import loss

# Ranges are public knowledge, not taken from the rows; values outside them are clipped.
RANGES = {
    "age": (0, 100),
    "fnlwgt": (0, 1_500_000),
    "education-num": (1, 16),
    "capital-gain": (0, 100_000),
    "capital-loss": (0, 5_000),
    "hours-per-week": (0, 100),
}
TARGET = "Salary"
PUBLISHED = {"none": (10**-10, 1750.0), "dvp": (10**-2.5, 1750.0), "pvp": (0.1, 146.0)}  # ρ, C
NAMES = {"dvp": "DVP", "pvp": "PVP"}
CURVES = (0.01, 0.1, 0.5, 1.0)  # α of Fig. 3
ALPHAS = (0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
TOLERANCE = 1e-6  # of a step's gradient norm, in units of C/B
PAPER = {
    "intermediate": "DVP is slightly more robust to noise than PVP",
    "final": "PVP is slightly better than DVP in empirical loss",
}
MEASURES = ("loss", "error")  # mean logistic loss, test error
WHEN = {"intermediate, mean of t = 2 … 99": slice(1, -1), "final": slice(-1, None)}
Measured = dict[str, np.ndarray]  # loss and error: (T, seeds), means over nodes
Runs = dict[tuple[str, float], Measured]  # by method and α


def read_adult(path: Path) -> tuple[Tensor, Tensor]:
    """Numeric columns scaled to [0, 1], the others one-hot, a constant, rows scaled to norm 1.

    An unknown value "?" is a category of its own. The categories, in alphabetical order, are taken
    from the file and count as public.

    Args:
        path: gzip-compressed comma-separated file with a header line.

    Returns:
        (N, d) float64 rows and (N,) int64 labels, 1 for more than 50K.

    Raises:
        ValueError: columns that are missing, or a label that is neither <=50K nor >50K.
    """
    table = pd.read_csv(path, skipinitialspace=True, dtype=str, keep_default_na=False)
    for name in (TARGET, *RANGES):
        check.one_of(table.columns, column=name)
    table = table.loc[table[TARGET] != ""]
    for label in set(table[TARGET]):
        check.one_of(("<=50K", ">50K"), **{TARGET: label})
    columns = [np.ones((len(table), 1))]
    for name in table.columns.drop(TARGET):
        if name in RANGES:
            low, high = RANGES[name]
            scaled = (table[name].astype(float).to_numpy() - low) / (high - low)
            columns.append(scaled.clip(0, 1)[:, None])
        else:
            columns.append(pd.get_dummies(table[name], dtype=float).to_numpy())
    x = torch.from_numpy(np.ascontiguousarray(np.concatenate(columns, 1)))
    labels = torch.from_numpy((table[TARGET] == ">50K").to_numpy(np.int64))
    return x / x.norm(dim=1, keepdim=True), labels


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Convergence and accuracy of DVP and PVP on UCI Adult, by the privacy of an iteration."""

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
        """Trains everything, then writes curves.csv, report.json and comparison.txt."""
        refuse_existing(self.output, overwrite=self.overwrite)
        nodes, test = self._split(*read_adult(self.data))
        runs: Runs = {}
        for method, alphas in (("none", (math.inf,)), ("dvp", ALPHAS), ("pvp", ALPHAS)):
            runs |= self._runs(nodes, test, method, alphas)
        found = compare(runs)
        composed = {
            str(alpha): asdict(compose(charged(alpha, TOLERANCE), self.iterations, 1e-5))
            for alpha in CURVES
        }
        used = asdict(self) | {"data": self.data.name, "output": self.output.name}
        report = {
            "configuration": used | {"graph": "ring", "rho_and_C": PUBLISHED},
            **provenance(),
            "seeds": f"{self.seeds} noise seeds on one split; mean, sample standard deviation",
            "composed_over_all_iterations": composed,
            "comparison": found,
            "paper": PAPER,
        }
        text = state_comparison(found)
        with new_directory(self.output, overwrite=self.overwrite) as directory:
            as_table(runs).to_csv(directory / "curves.csv", index=False, float_format="%.6g")
            write_json(directory / "report.json", report)
            (directory / "comparison.txt").write_text(text)
        print(text, end="")

    def _split(self, x: Tensor, labels: Tensor) -> tuple[Nodes, tuple[Tensor, Tensor]]:
        """Four fifths for the nodes, one fifth to test."""
        generator = torch.Generator().manual_seed(self.seed)
        order = torch.randperm(len(labels), generator=generator)
        train, held_out = order[len(order) // 5 :], order[: len(order) // 5]
        users = partition.split(labels[train], self.nodes, generator=generator)
        return gather(x[train], labels[train], users, 2), (x[held_out], labels[held_out])

    def _runs(
        self, nodes: Nodes, test: tuple[Tensor, Tensor], method: str, alphas: tuple[float, ...]
    ) -> Runs:
        """Every α and seed is an independent copy of the one binary problem; all run together."""
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
        rows = [_measure(copies, test, state.sent) for state in progress]
        stacked = {name: np.stack([row[name] for row in rows]) for name in MEASURES}
        parts = {a: slice(i * self.seeds, (i + 1) * self.seeds) for i, a in enumerate(alphas)}
        return {
            (method, alpha): {name: values[:, part] for name, values in stacked.items()}
            for alpha, part in parts.items()
        }


def _measure(nodes: Nodes, test: tuple[Tensor, Tensor], weights: Tensor) -> Measured:
    right = (torch.einsum("pkd,nd->pkn", weights, test[0]) > 0) == (test[1] == 1)
    error = 1 - right.double().mean((0, 2))
    return {"loss": loss(nodes, weights).mean(0).numpy(), "error": error.numpy()}


def compare(runs: Runs) -> list[dict[str, Any]]:
    """Mean and deviation over seeds of both methods, in the middle and at the end.

    One is better where the mean difference of a seed's two runs exceeds twice its standard error.
    """
    found = []
    for alpha, (label, when), measure in product(CURVES, WHEN.items(), MEASURES):
        row: dict[str, Any] = {"alpha": alpha, "when": label, "measure": measure}
        values = {method: runs[method, alpha][measure][when].mean(0) for method in NAMES}
        for method, of_seeds in values.items():
            row[method] = [float(of_seeds.mean()), float(of_seeds.std(ddof=1))]
        gap = values["pvp"] - values["dvp"]
        sure = abs(gap.mean()) > 2 * float(gap.std(ddof=1)) / math.sqrt(len(gap))
        row["better"] = ("dvp" if gap.mean() > 0 else "pvp") if sure else "neither"
        found.append(row)
    return found


def state_comparison(rows: list[dict[str, Any]]) -> str:
    """The comparison in words, after each of the paper's two statements."""
    lines = []
    verdict = {"dvp": "DVP is better", "pvp": "PVP is better", "neither": "no difference"}
    for label in WHEN:
        lines.append(f"{label} (paper: {PAPER[label.split(',')[0]]})")
        for row in (row for row in rows if row["when"] == label):
            dvp, pvp = ("{:.4f} ± {:.4f}".format(*row[method]) for method in NAMES)
            lines.append(
                f"  {row['measure']:5} at alpha {row['alpha']:4g}: "
                f"DVP {dvp}, PVP {pvp}: {verdict[row['better']]}"
            )
    return "\n".join(lines) + "\n"


def as_table(runs: Runs) -> pd.DataFrame:
    """A row per method, α and iteration: mean and deviation over seeds of each measure."""
    tables = []
    for (method, alpha), measured in runs.items():
        steps = np.arange(1, len(measured["loss"]) + 1)
        columns: dict[str, Any] = {"method": method, "alpha": str(alpha), "iteration": steps}
        for name, values in measured.items():
            columns[f"{name}_mean"], columns[f"{name}_std"] = _spread(values)
        tables.append(pd.DataFrame(columns))
    return pd.concat(tables)


def _spread(values: Any) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sample deviation over the seeds, the last dimension."""
    return np.mean(values, -1), np.std(values, -1, ddof=1)


if __name__ == "__main__":
    sys.exit(run_command(lambda: tyro.cli(Figures)))
