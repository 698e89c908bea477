"""Figure and table of a sweep, drawn from the rows of its JSON alone."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pretrain.cli.output import new_file
from train_distributed.research.experiments import convergence, cost, heatmap, rivals, rounds
from train_distributed.research.experiments.frontier_figure import draw_frontier
from train_distributed.research.experiments.lineups import RAW
from train_distributed.research.experiments.selected import CHOSEN
from train_distributed.research.experiments.summary import summarise, table
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
            heatmap.draw(_cells(result), file)
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
    head = f"{'users':>6}  {'users hold':22}  {'eps':>5}  {'paper':>6}  {'grid':>6}  {'chosen':>6}"
    lines = [f"{head}  {'- paper':>7}  {'- grid':>7}  chosen on public data"]
    for key, ours in summarise(chosen, by).items():
        users, scheme, epsilon = key
        cell, value = used[key], 100 * ours.mean
        best = [100 * found[key].mean if key in found else math.nan for found in (paper, grid)]
        options = ", ".join(f"{name} {value}" for name, value in cell.options.items())
        lines.append(
            f"{users:6}  {scheme:22}  {'inf' if epsilon is None else f'{epsilon:g}':>5}  "
            f"{best[0]:6.2f}  {best[1]:6.2f}  {value:6.2f}  {value - best[0]:+7.2f}  "
            f"{value - best[1]:+7.2f}  {cell.method}, {cell.transform}, {options}"
        )
    return "\n".join(lines)


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
