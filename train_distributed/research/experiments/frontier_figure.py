"""Figures of accuracy against ε or users, readable without their text."""

from collections.abc import Sequence
from pathlib import Path
from typing import IO, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from train_distributed.research.experiments.summary import Summary, summarise
from train_distributed.simulation.plan import Result

AXES = {"epsilon": "ε (replace one record)", "users": "number of users"}
WORDS = {"delta": "δ = {}", "epsilon": "ε = {}", "rows": "{} rows"}


def draw_frontier(
    rows: Sequence[Result],
    path: Path | IO[bytes],
    *,
    title: str,
    chance: float,
    panel: str = "scheme",
    lines: Sequence[str] = ("label",),
    x: Literal["epsilon", "users"] = "epsilon",
) -> None:
    """Accuracy against ε or users: panels of lines with their deviation over seeds as a band.

    Args:
        rows: cells; those without ε are drawn as dotted levels.
        path: of the PNG, or a file to write it to.
        title: what was learned from whom.
        chance: accuracy of guessing.
        panel: field that has a panel for each of its values.
        lines: fields that have a line for each of their values.
        x: field on the logarithmic axis.
    """
    summary = summarise(rows, (*lines, panel, x))
    names = list(dict.fromkeys(tuple(getattr(row, line) for line in lines) for row in rows))
    panels = list(dict.fromkeys(getattr(row, panel) for row in rows))
    places = sorted({getattr(row, x) for row in rows} - {None})
    figure = Figure(figsize=(5.2 * min(3, len(panels)), 4.4 * -(-len(panels) // 3)))
    figure.set_layout_engine("constrained")
    shape = (-(-len(panels) // 3), min(3, len(panels)))
    axes = figure.subplots(*shape, sharey=True, squeeze=False).flatten()
    for axis, value in zip(axes, panels, strict=False):
        for index, name in enumerate(names):
            known = [place for place in places if (*name, value, place) in summary]
            found = [summary[(*name, value, place)] for place in known]
            level = summary.get((*name, value, None)) if x == "epsilon" else None
            _line(axis, known, found, level, ", ".join(map(_word, lines, name)), index)
        axis.axhline(100 * chance, color="grey", linestyle="--", linewidth=1)
        axis.set(xscale="log", xlabel=AXES[x], title=_word(panel, value))
        axis.set_xticks(places, [f"{place:g}" for place in places])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    axes[0].set_ylabel("test accuracy / %   (dotted: without noise, dashed: chance)")
    axes[len(panels) - 1].legend(fontsize=7)
    figure.suptitle(title, wrap=True)
    figure.savefig(path, dpi=150)


def _line(
    axis: Axes,
    places: Sequence[float],
    found: Sequence[Summary],
    level: Summary | None,
    label: str,
    index: int,
) -> None:
    """One method with its band, and dotted what it reaches without noise."""
    if not found and level is None:
        return
    mean = np.array([100 * summary.mean for summary in found])
    std = np.array([100 * summary.std for summary in found])
    colour, style = f"C{index % 10}", "-" if index < 10 else "--"
    axis.plot(places, mean, marker="o", linestyle=style, color=colour, label=label, markersize=4)
    axis.fill_between(places, mean - std, mean + std, color=colour, alpha=0.2)
    if level is not None:
        axis.axhline(100 * level.mean, color=colour, linestyle=":", linewidth=1)


def _word(field: str, value: object) -> str:
    if field == "scheme":
        return f"users hold: {value}"
    return f"{value} users" if field == "users" else WORDS.get(field, "{}").format(value)
