"""Figure and table of a sweep, drawn from the rows of its JSON alone."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from matplotlib.figure import Figure

from pretrain.cli.output import new_file
from train_distributed.research.experiments import convergence, cost, rivals, rounds
from train_distributed.research.experiments.frontier_figure import draw_frontier
from train_distributed.research.experiments.lineups import RAW
from train_distributed.research.experiments.selected import CHOSEN
from train_distributed.research.experiments.summary import explained, summarise, table, text_table
from train_distributed.simulation.plan import Result


@dataclass(frozen=True)
class Layout:
    """Fields of a cell that make panels, lines and columns."""

    panel: str = "scheme"
    lines: tuple[str, ...] = ("label",)
    x: Literal["epsilon", "users"] = "epsilon"


LAYOUTS = {
    "accuracy": Layout(lines=("label", "users")),
    "users": Layout(panel="epsilon", lines=("label", "scheme"), x="users"),
    "central": Layout(panel="delta"),
    "non-iid": Layout(panel="label", lines=("scheme",)),
    "unequal": Layout(panel="label", lines=("scheme",)),
    "selection": Layout(lines=("label", "users")),
    "frontier": Layout(lines=("label", "users")),
    "user-level": Layout(lines=("label", "users")),
}
# of heat maps
MANY = (200_000, 20_000_000)
GROUPS = (1, 2, 5, 10, 20, 50)
FINE = np.geomspace(1e-5, 10, 25)
SPECIAL = {"cost": cost, "convergence": convergence, "rivals": rivals, "rounds": rounds}


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Writes the PNG of a sweep's result, whole or not at all.

    Args:
        result: the content of results.json.
        path: of the PNG.
    """
    name = result["experiment"]
    with new_file(path) as partial, partial.open("wb") as file:
        if name in SPECIAL:
            SPECIAL[name].draw(result["cells"], file)
        elif name == "groups":
            draw_heat_map(_cells(result), file)
        else:
            layout = LAYOUTS.get(name, Layout())
            draw_frontier(
                _cells(result),
                file,
                title=_title(result),
                chance=1 / int(result["num_classes"]),
                panel=layout.panel,
                lines=layout.lines,
                x=layout.x,
            )


def tell(result: Mapping[str, Any]) -> str:
    """The table of a sweep's result."""
    name = result["experiment"]
    if name in SPECIAL:
        return SPECIAL[name].tell(result["cells"])
    cells, layout = _cells(result), LAYOUTS.get(name, Layout())
    lines = dict.fromkeys((layout.panel, *layout.lines))
    lines.pop(layout.x, None)
    text = table(cells, tuple(lines), layout.x) if layout.panel != layout.x else ""
    if name in ("frontier", "selection"):
        text += "\n\n" + margins(cells)
    return text


def margins(cells: Sequence[Result]) -> str:
    """Choices on public data against the best rivals on the test rows, in per cent."""
    by = ("users", "scheme", "epsilon")
    paper = summarise([cell for cell in cells if cell.transform == RAW], by)
    grid = summarise([cell for cell in cells if cell.transform != RAW and cell.label != CHOSEN], by)
    chosen = [cell for cell in cells if cell.label == CHOSEN]
    used = {(cell.users, cell.scheme, cell.epsilon): cell for cell in chosen}
    shown = []
    for key, ours in summarise(chosen, by).items():
        cell, value, epsilon = used[key], 100 * ours.mean, key[-1]
        best = [100 * found[key].mean if key in found else math.nan for found in (paper, grid)]
        options = ", ".join(f"{name} {value}" for name, value in cell.options.items())
        shown.append(
            {"users hold": cell.scheme, "users": str(cell.users)}
            | {"eps": "inf" if epsilon is None else f"{epsilon:g}", "paper": f"{best[0]:.2f}"}
            | {"grid": f"{best[1]:.2f}", "chosen": f"{value:.2f}"}
            | {"- paper": f"{value - best[0]:+.2f}", "- grid": f"{value - best[1]:+.2f}"}
            | {"chosen on public data": f"{cell.method}, {cell.transform}, {options}"}
        )
    return text_table(shown)


def _cells(result: Mapping[str, Any]) -> list[Result]:
    return [Result(**cell) for cell in result["cells"]]


def _title(result: Mapping[str, Any]) -> str:
    used = result["configuration"]
    users = ", ".join(f"{users:,}" for users in used["users"])
    delta = used["delta"]
    shown = "" if result["experiment"] == "central" else f"δ = {delta:g}, "
    held = "one user" if result["experiment"] == "central" else f"{users} users"
    folds = f" x {used['folds']} folds" if used["folds"] else ""
    data = Path(str(result["embeddings"].get("data", ""))).name
    return f"Accuracy of one model of {held} ({data}, {shown}{used['seeds']} seeds{folds})"


def draw_heat_map(cells: Sequence[Result], file: IO[bytes]) -> None:
    """A heat map per method and number of users.

    Fig. 7 of Kirschte et al. 2024: w users at ε stand for n users and groups of G at
    ε′ = w ε G / n. Accuracy is interpolated in log ε; beyond the largest measured ε it stays, and
    below the smallest nothing is claimed.
    """
    labels = list(dict.fromkeys(cell.label for cell in cells))
    figure = Figure(figsize=(5 * len(MANY), 2.6 * len(labels)), layout="constrained")
    axes = figure.subplots(len(labels), len(MANY), squeeze=False, sharex=True, sharey=True)
    image = None
    for row, label in zip(axes, labels, strict=True):
        for axis, users in zip(row, MANY, strict=True):
            values = extrapolated([cell for cell in cells if cell.label == label], users)
            image = axis.imshow(100 * values, aspect="auto", origin="lower", cmap="viridis")
            axis.set_title(f"{label}, {users:,} users", fontsize=8)
            axis.set_yticks(range(len(GROUPS)), [str(group) for group in GROUPS])
            ticks = range(0, len(FINE), 4)
            axis.set_xticks(list(ticks), [f"{FINE[tick]:.0e}" for tick in ticks])
        row[0].set_ylabel("records in a group")
    for axis in axes[-1]:
        axis.set_xlabel("ε (replace the whole group)")
    if image is not None:
        label = "test accuracy / %, extrapolated; blank: unknown"
        figure.colorbar(image, ax=axes, label=f"{label}\n{explained(cells, brackets=False)}")
    figure.savefig(file, dpi=150)


def extrapolated(cells: Sequence[Result], users: int) -> np.ndarray:
    """(groups, ε) accuracies of one label, NaN below the smallest measured ε."""
    summary = summarise(cells, ("epsilon",))
    known = sorted(key[0] for key in summary if key[0] is not None)
    means = [summary[(epsilon,)].mean for epsilon in known]
    held = cells[0].users
    needed = FINE[None] * users / (held * np.array(GROUPS)[:, None])
    values = np.interp(np.log(needed), np.log(known), means)
    return np.where(needed < min(known), np.nan, values)
