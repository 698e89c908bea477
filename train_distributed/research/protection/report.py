"""A study as a table, as JSON and as pictures."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from train_distributed.research.protection.mechanisms import Randomisation, Unprotected
from train_distributed.research.protection.study import (
    PROTECTIONS,
    AttackBenchmark,
    Cost,
    Measurement,
    Preference,
    Study,
    by_formula,
    by_measurement,
    extra,
    pareto,
)

MECHANISMS = {each.name: each for each in (Unprotected, *PROTECTIONS)}
HEAD = (
    f"{'':2}{'mechanism':14}{'deployed':>14}  {'success [95 %]':22}{'leakage [95 %]':22}"
    f"{'budget met':>10}{'accuracy':>10}{'loss':>16}{'kB/client':>11}{'CPU s':>9}"
)
INFEASIBLE = (
    "infeasible: no parameter satisfies the formula, which lets noise count for a TV of .01 at "
    "most; attacks may find one that meets the budget all the same"
)
LEVELS = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0)  # standard deviation over the update's root mean square
SHOWN = 4


def table(study: Study, budget: float, preference: Preference | None, cost: Cost) -> str:
    """Printed text: constants, optima with their labels, every measured point, the choice."""
    held = study.constants
    lines = [
        f"C1 = {held.c1:.4f}, C2 = {held.c2:.5g}, budget = "
        f"{budget:g}; 2 C1 = {2 * held.c1:.4f} needs no protection, the formula is proven from "
        f"1.5 C1 = {1.5 * held.c1:.4f} on",
        "",
        f"{'mechanism':14}{'label':15}{'tau':>10}  optimum by the formula",
    ]
    for optimum in (each.optimum for each in study.candidates):
        words = MECHANISMS[optimum.mechanism].optimum_words
        shown = "-" if optimum.parameter is None else words.format(optimum.parameter)
        lines.append(f"{optimum.mechanism:14}{optimum.label:15}{optimum.tau:10.4g}  {shown}")
    front = pareto(study.points, cost)
    optimal = [each.at_optimum for each in study.candidates]
    lines += ["", HEAD]
    for point in study.points:
        star = "*" if any(point is each for each in optimal) else " "
        lines.append(star + ("P" if point in front else " ") + _row(point, budget))
    lines += ["", "* the formula's optimum as deployed   P on the Pareto front"]
    if any(each.optimum.label == "infeasible" for each in study.candidates):
        lines.append(INFEASIBLE)
    if preference is None:
        return "\n".join([*lines, "no preferences given: choose on the Pareto front"])
    chosen = by_formula(study.candidates, preference)
    met = by_measurement(study.points, preference, budget)
    lines.append(f"recommended by the formula:  {_words(chosen, study, preference, budget)}")
    lines.append(f"recommended by measurement:  {_words(met, study, preference, budget)}")
    return "\n".join(lines)


def _deployed(point: Measurement) -> str:
    """The parameter that ran."""
    return MECHANISMS[point.mechanism].deployed_words.format(point.parameter)


def _row(point: Measurement, budget: float) -> str:
    held = point.leakage
    success = f"{held.rate:.3f} [{held.rate_low:.3f}, {held.rate_high:.3f}]"
    leaked = f"{held.value:.3f} [{held.low:.3f}, {held.high:.3f}]"
    loss = f"{100 * point.utility_loss:.2f} ± {100 * point.utility_loss_std:.2f}"
    return (
        f"{point.mechanism:14}{_deployed(point):>14}  {success:22}{leaked:22}"
        f"{held.meets(budget):>10}{100 * point.accuracy:10.2f}{loss:>16}"
        f"{point.bytes_per_client / 1000:11.1f}{point.seconds:9.3f}"
    )


def _words(point: Measurement | None, study: Study, preference: Preference, budget: float) -> str:
    labels = {each.optimum.mechanism: each.optimum.label for each in study.candidates}
    if point is None:
        free = set(labels.values()) == {"unconstrained"}
        return "no protection, the budget asks for none" if free else "none of those measured"
    proof = "nothing" if point.mechanism == "none" else labels[point.mechanism]
    says = f"the formula says of {point.mechanism}: {proof}"
    measured = {"yes": "met", "no": "missed", "open": "undecided"}[point.leakage.meets(budget)]
    return (
        f"{point.mechanism}, {_deployed(point)}: leakage {point.leakage.value:.3f}, at most "
        f"{point.leakage.high:.3f}, budget {measured} by measurement ({says}), objective "
        f"{preference.objective(point):.5g}"
    )


def as_json(
    study: Study, budget: float, preference: Preference | None, cost: Cost
) -> dict[str, Any]:
    """Everything that was found, measured points with their indices on the Pareto front."""
    points, front = study.points, pareto(study.points, cost)
    chosen = None if preference is None else by_formula(study.candidates, preference)
    met = None if preference is None else by_measurement(points, preference, budget)
    return {
        "c1": study.constants.c1,
        "c2": study.constants.c2,
        "inverse_variances": study.inverse_variances,
        "optima": [
            asdict(each.optimum)
            | {"parameter": each.optimum.parameter}
            | {"log_parameter": _finite(each.optimum.log_parameter)}
            | {"deployed": None if each.at_optimum is None else each.at_optimum.parameter}
            for each in study.candidates
        ],
        "points": [
            asdict(p) | {"budget_met": p.leakage.meets(budget), "pareto": p in front}
            for p in points
        ],
        "recommended_by_formula": None if chosen is None else asdict(chosen),
        "recommended_by_measurement": None if met is None else asdict(met),
    }


def _finite(value: float | None) -> float | str | None:
    return "inf" if value is not None and math.isinf(value) else value


def draw_tradeoff(study: Study, budget: float, cost: Cost, path: Path, title: str) -> None:
    """Leakage against accuracy, and against cost; the Pareto front is ringed."""
    figure = Figure(figsize=(12, 5), layout="constrained")
    left, right = figure.subplots(1, 2)
    front = pareto(study.points, cost)
    panels = ((left, lambda p: 100 * p.accuracy), (right, lambda p: extra(p, cost)))
    for index, (name, kind) in enumerate(MECHANISMS.items()):
        points = [p for p in study.points if p.mechanism == name]
        if not points:
            continue
        held = [p.leakage for p in points]
        x, low, high = np.array([(one.value, one.low, one.high) for one in held]).T
        style = {"fmt": kind.mark, "color": f"C{index}", "label": name, "alpha": 0.8}
        for panel, value in panels:
            panel.errorbar(x, [value(p) for p in points], xerr=(x - low, high - x), **style)
    for panel, value in panels:
        ringed = ([p.leakage.value for p in front], [value(p) for p in front])
        panel.plot(*ringed, "o", ms=14, mfc="none", color="black", label="Pareto front")
        panel.axvline(budget, color="grey", linestyle="--", label=f"budget {budget:g}")
        panel.set_xlabel("measured leakage √JS (95 % interval)")
        panel.grid(alpha=0.3)
    left.set_ylabel("test accuracy / %")
    right.set_ylabel(f"extra {cost} per client and message")
    right.set_yscale("symlog", linthresh=1e-2)
    left.legend(fontsize=8)
    figure.suptitle(title)
    figure.savefig(path, dpi=130)


def draw_reconstructions(
    benchmark: AttackBenchmark, path: Path, levels: Sequence[float] = LEVELS
) -> None:
    """One row per client, one column per noise level, the similarity above each picture."""
    records = benchmark.records[0][:SHOWN]
    figure = Figure(figsize=(1.5 * (1 + len(levels)), 1.7 * len(records)), layout="constrained")
    panels = figure.subplots(len(records), 1 + len(levels), squeeze=False)
    size = benchmark.update_size
    for row, record in enumerate(records):
        panels[row][0].imshow(_image(record[0]), cmap="gray", vmin=0, vmax=1)
        panels[row][0].set_title("original", fontsize=8)
        for column, level in enumerate(levels):
            guess = _attack(benchmark, row, level * size)
            panel = panels[row][column + 1]
            panel.imshow(_image(guess), cmap="gray", vmin=0, vmax=1)
            value = benchmark.federation.target.similarity(guess, record[0])
            panel.set_title(f"noise {level:g}: {value:.2f}", fontsize=8)
    for panel in panels.flat:
        panel.set_axis_off()
    figure.suptitle(
        "noise: standard deviation over the update's size; then the similarity", fontsize=8
    )
    figure.savefig(path, dpi=130)


def _attack(benchmark: AttackBenchmark, client: int, deviation: float) -> Tensor:
    federation, model = benchmark.federation, benchmark.models[0]
    updates = federation.updates(model, *benchmark.records)
    generator = torch.Generator().manual_seed(benchmark.seed)
    views = Randomisation(deviation**2).views(updates[client : client + 1], generator)
    return benchmark.reconstruct(views["message"][0], model, generator)[0]


def _image(x: Tensor) -> Tensor:
    return x.clamp(0, 1).movedim(0, -1)
