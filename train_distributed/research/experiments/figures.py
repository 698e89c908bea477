"""Figure and table of a sweep, drawn from the rows of its JSON alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pretrain.cli.output import new_file
from train_distributed.research.experiments import convergence, rivals
from train_distributed.research.experiments.frontier_figure import draw_frontier
from train_distributed.research.experiments.summary import table
from train_distributed.simulation.plan import Result


@dataclass(frozen=True)
class Layout:
    """Fields of a cell that make panels, lines and columns."""

    panel: str
    lines: tuple[str, ...]
    x: Literal["epsilon", "users"] = "epsilon"


LAYOUTS = {
    "frontier": Layout("scheme", ("label", "users")),
    "users": Layout("epsilon", ("label", "scheme"), "users"),
    "non-iid": Layout("label", ("scheme",)),
}
SPECIAL = {"convergence": convergence, "rivals": rivals}


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
            return
        layout, chance = LAYOUTS[name], 1 / int(result["num_classes"])
        drawn = {"panel": layout.panel, "lines": layout.lines, "x": layout.x}
        draw_frontier(_cells(result), file, title=_title(result), chance=chance, **drawn)


def tell(result: Mapping[str, Any]) -> str:
    """The table of a sweep's result."""
    name = result["experiment"]
    if name in SPECIAL:
        return SPECIAL[name].tell(result["cells"])
    layout = LAYOUTS[name]
    return table(_cells(result), (layout.panel, *layout.lines), layout.x)


def _cells(result: Mapping[str, Any]) -> list[Result]:
    return [Result(**cell) for cell in result["cells"]]


def _title(result: Mapping[str, Any]) -> str:
    used = result["configuration"]
    users = ", ".join(f"{users:,}" for users in used["users"])
    folds = f" x {used['folds']} folds" if used["folds"] else ""
    data = Path(str(result["embeddings"].get("data", ""))).name
    shown = f"{data}, δ = {used['delta']:g}, {used['seeds']} seeds{folds}"
    return f"Accuracy of one model of {users} users ({shown})"
