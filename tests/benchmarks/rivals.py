"""Rivals with their papers' settings: ADMM on UCI Adult, Charter's rates, DP-FL beside Opacus."""

import math
import time
import warnings
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pandas as pd
import torch
from dp_accounting.pld import PLDAccountant
from torch import Tensor
from tqdm import tqdm

from pretrain import check
from pretrain.cli.output import refuse_existing
from pretrain.cli.provenance import provenance
from tests.benchmarks.bench_releases import opened, places, transformed
from tests.benchmarks.common import DELTA, Table, command_line, save_folder, show, spread
from tests.train_distributed.research.learning import Distance, learn, plain_opacus
from train_distributed import Privacy, accounting, partition
from train_distributed.partition import split
from train_distributed.privacy.float_noise import normal
from train_distributed.research.rivals.admm.algorithm import AdmmSettings, Network
from train_distributed.research.rivals.admm.calibration import charged, compose
from train_distributed.research.rivals.admm.graph import Nodes, gather, ring
from train_distributed.research.rivals.admm.solver import loss
from train_distributed.research.rivals.charter.algorithm import Objective, run
from train_distributed.research.rivals.charter.plan import CharterTask, make_plan

# Ranges are public knowledge, not taken from the rows; values outside them are clipped.
RANGES = {"age": (0, 100), "fnlwgt": (0, 1_500_000), "education-num": (1, 16)}
RANGES |= {"capital-gain": (0, 100_000), "capital-loss": (0, 5_000), "hours-per-week": (0, 100)}
TARGET = "Salary"
PUBLISHED = {"none": (10**-10, 1750.0), "dvp": (10**-2.5, 1750.0), "pvp": (0.1, 146.0)}  # ρ, C
# η is chosen as the paper chooses ρ: lowest empirical loss at α = .3, powers of ten from .01.
ETA = {"none": 10.0, "dvp": 10.0, "pvp": 1.0}
NODES = 6  # P, on a ring
CURVES = (0.01, 0.1, 0.5, 1.0)  # α of Fig. 3
ALPHAS = (0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
TOLERANCE = 1e-6  # of a step's gradient norm, in units of C/B
PAPER = {
    "intermediate": "DVP is slightly more robust to noise than PVP",
    "final": "PVP is slightly better than DVP in empirical loss",
}
MEASURES = ("loss", "error")  # mean logistic loss, test error
WHEN = {"intermediate, mean of t = 2 … 99": slice(1, -1), "final": slice(-1, None)}
Test = tuple[Tensor, Tensor]  # rows and labels
Measured = dict[str, np.ndarray]  # loss and error: (T, seeds), means over nodes
Runs = dict[tuple[str, float], Measured]  # by method and α


def read_adult(path: Path) -> tuple[Tensor, Tensor]:
    """(N, d) float64 rows and (N,) int64 labels, 1 for more than 50K, of gzip-compressed CSV.

    Numeric columns scaled to [0, 1], the others one-hot, a constant, rows scaled to norm 1. An
    unknown value "?" is a category of its own. The categories, in alphabetical order, are taken
    from the file and count as public. Columns that are missing and other labels are errors.
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


def admm(
    data: Path, output: Path = Path("results/rivals/admm"), iterations: int = 100, seeds: int = 5
) -> None:
    """Zhang and Zhu's comparison on UCI Adult: decentralised ADMM with two perturbations.

    By the privacy of an iteration, on one split. Number of nodes, graph and η are not published; ρ
    and C are (Sec. V). Writes curves.csv, report.json and comparison.txt.
    """
    refuse_existing(output, overwrite=False)
    nodes, test = halves(*read_adult(data))
    runs: Runs = {}
    for method, alphas in (("none", (math.inf,)), ("dvp", ALPHAS), ("pvp", ALPHAS)):
        runs |= trained(nodes, test, method, alphas, iterations, seeds)
    found, text = compare(runs)
    used = {"data": data.name, "output": output.name, "nodes": NODES, "eta_dual": ETA["dvp"]}
    used |= {"eta_primal": ETA["pvp"], "iterations": iterations, "seeds": seeds, "seed": 0}
    used |= {"graph": "ring", "rho_and_C": PUBLISHED}
    of_all = {a: compose(charged(a, TOLERANCE), iterations, DELTA) for a in CURVES}
    report = {"configuration": used, **provenance(), "comparison": found, "paper": PAPER}
    report["seeds"] = f"{seeds} noise seeds on one split; mean, sample standard deviation"
    report["composed_over_all_iterations"] = {str(a): asdict(each) for a, each in of_all.items()}
    curves = as_table(runs).to_csv(index=False, float_format="%.6g")
    save_folder(output, curves_csv=curves, report_json=report, comparison_txt=text)


def halves(x: Tensor, labels: Tensor) -> tuple[Nodes, Test]:
    """Four fifths for the nodes, one fifth to test."""
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(labels), generator=generator)
    train, held_out = order[len(order) // 5 :], order[: len(order) // 5]
    users = partition.split(labels[train], NODES, generator=generator)
    return gather(x[train], labels[train], users, 2), (x[held_out], labels[held_out])


def trained(
    nodes: Nodes, test: Test, method: str, alphas: tuple[float, ...], iterations: int, seeds: int
) -> Runs:
    """Every α and seed is an independent copy of the one binary problem; all run together."""
    shares = torch.tensor(alphas, dtype=torch.float64).repeat_interleave(seeds)
    copies = Nodes(nodes.x, nodes.y.expand(-1, -1, len(shares)), nodes.counts)
    (rho, weight), private = PUBLISHED[method], method != "none"
    given = {"method": method, "iterations": iterations, "rho": rho, "eta": ETA[method]}
    given |= {"loss_weight": weight, "alpha": 1.0 if private else math.inf}
    network = Network(copies, ring(NODES), AdmmSettings(**given, tolerance=TOLERANCE))
    generator = torch.Generator().manual_seed(1)
    states = network.iterations(generator, shares=shares if private else None)
    progress = tqdm(states, desc=method, total=iterations, unit="step", disable=None)
    rows = [_measure(copies, test, state.sent) for state in progress]
    stacked = {name: np.stack([row[name] for row in rows]) for name in MEASURES}
    return {
        (method, alpha): {name: v[:, i * seeds : (i + 1) * seeds] for name, v in stacked.items()}
        for i, alpha in enumerate(alphas)
    }


def _measure(nodes: Nodes, test: Test, weights: Tensor) -> Measured:
    right = (torch.einsum("pkd,nd->pkn", weights, test[0]) > 0) == (test[1] == 1)
    error = 1 - right.double().mean((0, 2))
    return {"loss": loss(nodes, weights).mean(0).numpy(), "error": error.numpy()}


def compare(runs: Runs) -> tuple[list[dict[str, Any]], str]:
    """Mean and deviation over seeds of both methods, in the middle and at the end; printed.

    One is better where the mean difference of a seed's two runs exceeds twice its standard error.
    """
    table = Table()
    for alpha, (label, when), measure in product(CURVES, WHEN.items(), MEASURES):
        row: dict[str, Any] = {"alpha": alpha, "when": label, "measure": measure}
        values = {method: runs[method, alpha][measure][when].mean(0) for method in ("dvp", "pvp")}
        each = {method: [float(v) for v in spread(of)] for method, of in values.items()}
        gap = values["pvp"] - values["dvp"]
        sure = abs(gap.mean()) > 2 * float(gap.std(ddof=1)) / math.sqrt(len(gap))
        row["better"] = ("dvp" if gap.mean() > 0 else "pvp") if sure else "neither"
        shown = {method.upper(): "{:.4f} ± {:.4f}".format(*of) for method, of in each.items()}
        table.add(row | shown, **each)
    said = [f"paper, {when}: {words}" for when, words in PAPER.items()]
    return table.rows, "\n".join([*said, table.text])


def as_table(runs: Runs) -> pd.DataFrame:
    """A row per method, α and iteration: mean and deviation over seeds of each measure."""
    tables = []
    for (method, alpha), measured in runs.items():
        steps = np.arange(1, len(measured["loss"]) + 1)
        columns: dict[str, Any] = {"method": method, "alpha": str(alpha), "iteration": steps}
        for name, values in measured.items():
            columns[f"{name}_mean"], columns[f"{name}_std"] = spread(values.T)
        tables.append(pd.DataFrame(columns))
    return pd.concat(tables)


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
AT = {"clients": 8, "rows": 3000, "epsilon": 0.5}  # what is not varied
DIMENSION, ROUNDS = 5, 30
SPREAD = 0.3  # of a record around the mean
CLIP = 1.5  # gradients w - x have about this length at the corners


def charter(output: Path = Path("results/rivals/charter"), seeds: int = 10) -> None:
    """Rates at which Charter's excess risk falls with clients, rows and ε; of ½‖w - x‖² in R^5."""
    refuse_existing(output, overwrite=False)
    settings = [(name, value) for name, values in SWEEPS.items() for value in values]
    runs = list(product(settings, range(seeds)))
    risks = pd.DataFrame([measure(*at, seed) for at, seed in tqdm(runs, unit="run", disable=None)])
    found = {
        "slopes_and_their_errors": {name: slope(risks, name) for name in THEORY},
        "slopes_of_the_theorem": THEORY,
        "note": "a quadratic may fall up to twice as steeply as the theorem's terms",
    }
    used = {"output": output.name, "dimension": DIMENSION, "delta": DELTA, "rounds": ROUNDS}
    report = {"configuration": used | AT | {"seeds": seeds}} | provenance() | found
    save_folder(output, risk_csv=risks.to_csv(index=False), report_json=report)
    show(found)


def measure(sweep: str, value: float, seed: int) -> dict[str, Any]:
    """One run of every method on the same data, with one setting at this value."""
    at: dict[str, Any] = AT | {sweep: value}
    generator = torch.Generator().manual_seed(seed)
    mean = torch.rand(DIMENSION, generator=generator, dtype=torch.float64) - 0.5
    data = sphere(mean, at["clients"], at["rows"], generator)
    row: dict[str, Any] = {"sweep": sweep, "seed": seed, **at}
    objective, reach = Distance(DIMENSION), 2 * math.sqrt(DIMENSION)
    task = CharterTask(dimension=DIMENSION, delta=DELTA, diameter=reach, **at)
    bounds = {"rounds": ROUNDS, "gradient_clip": CLIP, "loss_clip": CLIP}
    for name, summed in CHARTERS.items():
        plan = make_plan(task, secure_sum=summed, **bounds)
        points, report = run(data, objective, plan, half_width=1.0, generator=generator)
        row[name] = float((points[0] - mean).square().sum() / 2)
        row[f"{name}_bits"] = report["payload_bits_per_user"]
        row[f"{name}_framing_bits"] = report["framing_bits_per_user"]
    descended = private_gradient_descent(data, objective, at["epsilon"], generator)
    row["dp_sgd"] = float((descended[0] - mean).square().sum() / 2)
    row["dp_sgd_bits"] = 32 * DIMENSION * ROUNDS
    everything = torch.cat([x for x, _ in data])
    row["not_private"] = float((everything.mean(0) - mean).square().sum() / 2)
    return row


def sphere(mean: Tensor, clients: int, rows: int, generator: torch.Generator) -> list[Test]:
    """Every client's rows (rows, d), uniform on a sphere around the mean; nobody uses labels."""
    data = []
    for _ in range(clients):
        z = torch.randn(rows, len(mean), generator=generator, dtype=torch.float64)
        x = mean + SPREAD * z / z.norm(dim=1, keepdim=True)
        data.append((x, torch.zeros(rows, dtype=torch.int64)))
    return data


def private_gradient_descent(
    data: list[Test], objective: Objective, epsilon: float, generator: torch.Generator
) -> Tensor:
    """(problems, d) by DP-SGD with full batches: clients send noisy means of clipped gradients.

    Steps fall as 1/(2 √t), and points are projected on [-1, 1]^d; the result is the mean of the
    second half of the iterates. A replaced record moves each of a client's T messages by at most
    2 G/N. An infinite epsilon is no noise.
    """
    points = torch.zeros(objective.problems, objective.dimension, dtype=torch.float64)
    private = math.isfinite(epsilon)
    multiplier = accounting.noise_multiplier(epsilon, DELTA, ROUNDS) if private else 0.0
    late = torch.zeros_like(points)
    for t in range(1, ROUNDS + 1):
        total = torch.zeros_like(points)
        for x, y in data:
            gradients = objective.gradients(points, x, y)
            norms = gradients.flatten(1).norm(dim=1)[:, None, None]
            clipped = torch.where(norms > CLIP, gradients * (CLIP / norms), gradients)
            noise = normal(tuple(points.shape), generator)
            total += clipped.mean(0) + 2 * CLIP / len(x) * multiplier * noise
        points = (points - 0.5 / math.sqrt(t) * total / len(data)).clamp(-1.0, 1.0)
        if t > ROUNDS // 2:
            late += points
    return late / (ROUNDS - ROUNDS // 2)


def slope(risks: pd.DataFrame, sweep: str) -> dict[str, list[float]]:
    """Least-squares slopes of ln(mean excess risk) in ln(x), each with its standard error.

    The error is the deviation of the slope over 200 redrawn sets of seeds (bootstrap).
    """
    draw, found = np.random.default_rng(0), {}
    rows = risks[(risks["sweep"] == sweep) & np.isfinite(risks[sweep].astype(float))]
    for name in NOISY:
        risk: pd.DataFrame = rows.pivot(index=sweep, columns="seed", values=name)
        table = np.ascontiguousarray(risk.to_numpy())
        picks = draw.integers(table.shape[1], size=(200, table.shape[1]))
        means = np.column_stack([table.mean(1), *(table[:, pick].mean(1) for pick in picks)])
        slopes = np.polyfit(np.log(risk.index.to_numpy()), np.log(means), 1)[0]
        found[name] = [float(slopes[0]), float(slopes[1:].std(ddof=1))]
    return found


COMPONENTS, LEARNING_RATE, CLIP_NORM, EPOCHS, BATCH, EPSILON = 64, 4.0, 0.1, 40, 1024, 0.6


def dp_fl(embeddings: Path, public: Path, output: Path, seeds: int = 3) -> None:
    """DP-FL at w = 1 and a plain Opacus script with the same settings, on real embeddings."""
    refuse_existing(output, overwrite=False)
    warnings.simplefilter("ignore")
    data, transform = opened(embeddings, public, components=COMPONENTS)
    (x, y), (x_test, y_test) = (transformed(data, transform, at) for at in places(data))
    classes, single = len(data.meta["class_names"]), split(y, 1)
    batches, table = math.ceil(len(x) / BATCH), Table()
    for seed in range(seeds):
        began = time.perf_counter()
        given: dict[str, Any] = {"transform": transform, "partition": single, "noise": "float"}
        given["generator"] = torch.Generator().manual_seed(seed)
        report = learn(data, "dp-fl", Privacy(EPSILON, DELTA), **given).report
        halfway = time.perf_counter()
        given = {"noise": 2 * report["noise_multiplier"], "learning_rate": LEARNING_RATE}
        given |= {"gradient_clip": CLIP_NORM, "epochs": EPOCHS, "batch_size": BATCH}
        again = torch.Generator().manual_seed(seed)
        weights = plain_opacus(x, y, classes, generator=again, **given)
        ended = time.perf_counter()
        accountant = PLDAccountant()
        gaussian = dp_accounting.GaussianDpEvent(report["noise_multiplier"])
        sampled = dp_accounting.PoissonSampledDpEvent(1 / batches, gaussian)
        accountant.compose(sampled, EPOCHS * batches)
        right = (x_test @ weights).argmax(1) == y_test
        row = {"seed": seed, "accuracy": report["test_accuracy"]}
        row |= {"accuracy_plain_opacus": right.double().mean().item(), "epsilon": report["epsilon"]}
        row |= {"epsilon_dp_accounting": accountant.get_epsilon(DELTA)}
        row |= {"sampling_rate": report["sampling_rate"], "seconds": halfway - began}
        table.add(row | {"seconds_plain_opacus": ended - halfway})
    result = provenance() | {"epsilon_asked_for": EPSILON, "rows": table.rows}
    save_folder(output, results_json=result)


if __name__ == "__main__":
    command_line(admm=admm, charter=charter, dp_fl=dp_fl)
