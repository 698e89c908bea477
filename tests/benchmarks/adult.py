"""The figures of Zhang and Zhu's paper on UCI Adult: decentralised ADMM with two perturbations.

    python -m tests.benchmarks.adult --data adult.data.gz --output results/rivals/admm

Number of nodes, graph and η are not published; ρ and C are (Sec. V).
"""

import math
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import tyro
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.optimize import curve_fit
from torch import Tensor
from tqdm import tqdm

from pretrain import check
from pretrain.cli.command import run_command
from pretrain.cli.output import new_directory, refuse_existing, write_json
from pretrain.cli.provenance import provenance
from train_distributed import partition
from train_distributed.research.rivals.admm.algorithm import AdmmSettings, AdmmState, Network
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
PUBLISHED_CURVES = {"dvp": (0.2, 25.0), "pvp": (20.0, 20.0)}  # c4, c5
PRIVACY_WEIGHTS = (0.02, 6.0, 9.0, 1.0)  # ω1 … ω4
NAMES = {"dvp": "DVP", "pvp": "PVP"}
CURVES = (0.01, 0.1, 0.5, 1.0)  # α of Fig. 3
ALPHAS = (0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
MOMENTS = (2, 100)  # t of Fig. 4
TOLERANCE = 1e-6  # of a step's gradient norm, in units of C/B
PAPER = {
    "intermediate": "DVP is slightly more robust to noise than PVP",
    "final": "PVP is slightly better than DVP in empirical loss",
}
WHEN = {"intermediate, mean of t = 2 … 99": slice(1, -1), "final": slice(-1, None)}
Measured = dict[str, np.ndarray]  # loss, error, own_loss, own_error: (T, seeds), means over nodes
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
        runs: Runs = {}
        for method, alphas in (("none", (math.inf,)), ("dvp", ALPHAS), ("pvp", ALPHAS)):
            runs |= self._runs(nodes, test, method, alphas)
        report = self._report(runs)
        text = state_comparison(report["comparison"])
        with new_directory(self.output, overwrite=self.overwrite) as directory:
            as_table(runs).to_csv(directory / "curves.csv", index=False, float_format="%.6g")
            write_json(directory / "report.json", report)
            (directory / "comparison.txt").write_text(text)
            draw_convergence(directory / "convergence.png", runs)
            draw_tradeoff(directory / "tradeoff.png", runs, report["tradeoff"])
            draw_final(directory / "final.png", runs)
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
        rows = [_measure(copies, test, state) for state in progress]
        stacked = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        return {
            (method, alpha): {
                name: values[:, i * self.seeds : (i + 1) * self.seeds]
                for name, values in stacked.items()
            }
            for i, alpha in enumerate(alphas)
        }

    def _report(self, runs: Runs) -> dict[str, Any]:
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
            "tradeoff": {method: fit_tradeoff(runs, method) for method in NAMES},
            "comparison": compare(runs),
            "paper": PAPER,
        }


def _measure(nodes: Nodes, test: tuple[Tensor, Tensor], state: AdmmState) -> Measured:
    measured = {}
    for prefix, weights in (("", state.sent), ("own_", state.own)):
        right = (torch.einsum("pkd,nd->pkn", weights, test[0]) > 0) == (test[1] == 1)
        measured[f"{prefix}loss"] = loss(nodes, weights).mean(0).numpy()
        measured[f"{prefix}error"] = 1 - right.double().mean((0, 2)).numpy()
    return measured


@dataclass(frozen=True)
class LossCurve:
    """L_acc(α) = c4 exp(-c5 α) + c6 (Sec. V of the paper)."""

    amplitude: float  # c4
    rate: float  # c5
    floor: float  # c6

    def __call__(self, alpha: np.ndarray | float) -> np.ndarray:
        """L_acc at one α or many."""
        return self.amplitude * np.exp(-self.rate * np.asarray(alpha)) + self.floor

    @classmethod
    def fit(cls, alphas: np.ndarray, losses: np.ndarray, floor: float) -> "LossCurve":
        """Least-squares c4, c5 >= 0 for the mean losses at n α, with c6 given."""

        def curve(alpha: np.ndarray, amplitude: float, rate: float) -> np.ndarray:
            return cls(amplitude, rate, floor)(alpha)

        start = (max(1e-6, float(losses[0]) - floor), 1 / float(np.median(alphas)))
        (amplitude, rate), _ = curve_fit(
            curve, alphas, losses, p0=start, bounds=(0, np.inf), max_nfev=10_000
        )
        return cls(float(amplitude), float(rate), floor)

    def best_alpha(self, low: float = ALPHAS[0], high: float = ALPHAS[-1]) -> float:
        """The α in [low, high], to 1e-4 of it, with the largest U_priv(α) - L_acc(α).

        The range is part of the question: U_priv grows without bound as α falls to 0.
        """
        grid = np.geomspace(low, high, 50_001)  # two local maxima are usual
        return float(grid[np.argmax(privacy_utility(grid) - self(grid))])


def privacy_utility(alpha: np.ndarray | float) -> np.ndarray:
    """U_priv(α) = ω1 ln(ω2 / (ω3 α + ω4 α²)), which falls with α."""
    w1, w2, w3, w4 = PRIVACY_WEIGHTS
    alpha = np.asarray(alpha)
    return w1 * np.log(w2 / (w3 * alpha + w4 * alpha**2))


def fit_tradeoff(runs: Runs, method: str) -> dict[str, Any]:
    """Fits L_acc at t = 100, and the best α by the fit and by the published curve."""
    losses = np.array([runs[method, alpha]["loss"].mean(1) for alpha in ALPHAS])  # (α, T)
    settled = losses[-1]
    floor = float(settled.min() if method == "dvp" else settled[19:100].mean())
    fitted = LossCurve.fit(np.array(ALPHAS), losses[:, max(MOMENTS) - 1], floor)
    published = LossCurve(*PUBLISHED_CURVES[method], floor)
    return {
        "fitted": asdict(fitted),
        "best_alpha_of_fit": fitted.best_alpha(),
        "published": asdict(published),
        "best_alpha_of_published": published.best_alpha(),
    }


def compare(runs: Runs) -> list[dict[str, Any]]:
    """Mean and deviation over seeds of both methods, in the middle and at the end.

    One is better where the mean difference of a seed's two runs exceeds twice its standard error.
    """
    found = []
    for alpha in CURVES:
        for label, when in WHEN.items():
            for measure in ("loss", "error"):
                row: dict[str, Any] = {"alpha": alpha, "when": label, "measure": measure}
                values = {method: runs[method, alpha][measure][when].mean(0) for method in NAMES}
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
            columns[f"{name}_mean"] = values.mean(1)
            columns[f"{name}_std"] = values.std(1, ddof=1)
        tables.append(pd.DataFrame(columns))
    return pd.concat(tables)


def draw_convergence(path: Path, runs: Runs) -> None:
    """Fig. 3: empirical loss and test error against t, one column per method."""
    figure, axes = _panels(2, 2)
    for column, method in enumerate(NAMES):
        drawn = {f"α = {alpha}": runs[method, alpha] for alpha in CURVES}
        drawn["no noise"] = runs["none", math.inf]
        for axis, measure in zip(axes[:, column], ("loss", "error"), strict=True):
            for label, measured in drawn.items():
                mean, std = _spread(measured[measure])
                steps = np.arange(1, len(mean) + 1)
                colour = "black" if label == "no noise" else None
                (line,) = axis.plot(steps, mean, label=label, linewidth=1, color=colour)
                axis.fill_between(steps, mean - std, mean + std, alpha=0.2, color=line.get_color())
            _name(axis, measure, "iteration", NAMES[method])
    figure.savefig(path, dpi=120, metadata={"Software": None})


def draw_tradeoff(path: Path, runs: Runs, tradeoff: dict[str, Any]) -> None:
    """Fig. 4: empirical loss against α at some iterations, the fitted curve and its best α."""
    figure, axes = _panels(1, 2)
    for axis, method in zip(axes[0], NAMES, strict=True):
        for t in MOMENTS:
            mean, std = _spread([runs[method, alpha]["loss"][t - 1] for alpha in ALPHAS])
            axis.errorbar(ALPHAS, mean, std, fmt="o", label=f"t = {t}")
        fit = tradeoff[method]
        fine = np.geomspace(ALPHAS[0], ALPHAS[-1], 200)
        axis.plot(fine, LossCurve(**fit["fitted"])(fine), label="fit at t = 100")
        axis.axvline(fit["best_alpha_of_fit"], linestyle=":", color="gray", label="best α of fit")
        axis.set_xscale("log")
        _name(axis, "loss", "α", NAMES[method])
    figure.savefig(path, dpi=120, metadata={"Software": None})


def draw_final(path: Path, runs: Runs) -> None:
    """Fig. 5: loss and test error of the last output against α."""
    figure, axes = _panels(1, 2)
    for axis, measure in zip(axes[0], ("loss", "error"), strict=True):
        for method, name in NAMES.items():
            mean, std = _spread([runs[method, alpha][measure][-1] for alpha in ALPHAS])
            axis.errorbar(ALPHAS, mean, std, fmt="o-", label=name)
        axis.set_xscale("log")
        _name(axis, measure, "α", "final output")
    figure.savefig(path, dpi=120, metadata={"Software": None})


def _panels(rows: int, columns: int) -> tuple[Figure, np.ndarray]:
    figure = Figure(figsize=(5 * columns, 3.5 * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def _spread(values: Any) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sample deviation over the seeds, the last dimension."""
    return np.mean(values, -1), np.std(values, -1, ddof=1)


def _name(axis: Axes, measure: str, x: str, title: str) -> None:
    axis.set(xlabel=x, ylabel={"loss": "mean logistic loss", "error": "test error"}[measure])
    axis.set_title(title)
    if measure == "loss":
        axis.set_yscale("log")
    axis.legend(fontsize=7)


if __name__ == "__main__":
    sys.exit(run_command(lambda: tyro.cli(Figures)))
