"""Figures of accuracy against ε or users, readable without their text.

Lines that coincide are drawn once, with both names. Dashed is balanced accuracy, where it is
another one, and grey what needs no model.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from train_distributed.research.experiments.summary import Summary, mean_of, summarise
from train_distributed.simulation.plan import Result

AXES = {"epsilon": "privacy loss ε of one replaced record", "users": "number of users"}
WORDS = {"epsilon": "ε = {}", "users": "{} users"}
SCHEMES = {
    "iid": "pictures dealt at random",
    "one-class": "users with one class each",
    "by-writer": "users are writers",
}
SAME = 0.005  # of accuracy: lines that are never further apart are one

Line = dict[float | None, Summary]


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
    panels = _panels(rows, panel, lines, x)
    places = sorted({getattr(row, x) for row in rows} - {None})
    high, wide = -(-len(panels) // 3), min(3, len(panels))
    figure = Figure(figsize=(5.0 * wide, 4.6 * high), layout="constrained")
    axes = figure.subplots(high, wide, sharey=True, squeeze=False).flatten()
    names = dict.fromkeys(name for drawn in panels.values() for name in drawn)
    colours = {name: f"C{k % 10}" for k, name in enumerate(names)}
    levels = _levels(rows, chance)
    for axis, (words, drawn) in zip(axes, panels.items(), strict=False):
        for name, line in drawn.items():
            _draw_line(axis, line, colours[name], name)
        for words_of, level in levels.items():
            axis.axhline(100 * level, color="grey", linewidth=1)
            side = "bottom" if level == max(levels.values()) else "top"  # two may lie close by
            beside = {"transform": axis.get_yaxis_transform(), "va": side, "fontsize": 8}
            axis.text(0.01, 100 * level, words_of, color="dimgrey", **beside)
        axis.set(xscale="log", xlabel=AXES[x], title=words)
        axis.set_xticks(places, [f"{place:g}" for place in places])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7)
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    summaries = [(x, s) for p in panels.values() for line in p.values() for x, s in line.items()]
    said = ["test accuracy / %"]
    said += ["dotted: without noise"] * any(place is None for place, _ in summaries)
    said += ["dashed: balanced accuracy"] * any(_uneven(each) for _, each in summaries)
    said += ["balanced accuracy: unknown"] * any(s.balanced is None for _, s in summaries)
    axes[0].set_ylabel("\n".join(said))
    figure.suptitle(title, wrap=True)
    figure.savefig(path, dpi=150)


def _levels(rows: Sequence[Result], chance: float) -> dict[str, float]:
    """Accuracies of answers that look at no picture; those that are one are drawn once."""
    majority, guessing, largest = mean_of(rows, "majority"), "guessing", "always the largest class"
    if majority is None:
        return {guessing: chance}
    if abs(majority - chance) <= SAME:
        return {f"{guessing}, {largest}": majority}
    return {guessing: chance, largest: majority}


def _uneven(each: Summary) -> bool:
    """Whether balanced accuracy says something else."""
    return each.balanced is not None and abs(each.balanced - each.mean) > SAME


def _panels(
    rows: Sequence[Result], panel: str, lines: Sequence[str], x: str
) -> dict[str, dict[str, Line]]:
    """Title -> name -> accuracies by place; lines that coincide are under one name."""
    varied = [each for each in lines if len({getattr(row, each) for row in rows}) > 1]
    found: dict[str, dict[str, Line]] = {}
    for (*fields, value, place), accuracy in summarise(rows, (*lines, panel, x)).items():
        words = [_word(n, v) for n, v in zip(lines, fields, strict=True) if n in varied]
        name = ", ".join(words or [_word(lines[0], fields[0])])
        of_panel = found.setdefault(_word(panel, value), {})
        of_panel.setdefault(name, {})[place] = accuracy
    return {title: _joined(drawn) for title, drawn in found.items()}


def _joined(drawn: dict[str, Line]) -> dict[str, Line]:
    kept: list[tuple[list[str], Line]] = []
    for name, line in drawn.items():
        twins = next((names for names, other in kept if _same(line, other)), None)
        if twins is None:
            kept.append(([name], line))
        else:
            twins.append(name)
    return {",\n".join(names): line for names, line in kept}


def _same(one: Line, other: Line) -> bool:
    return one.keys() == other.keys() and all(
        abs(one[place].mean - other[place].mean) <= SAME
        and abs((one[place].balanced or 0) - (other[place].balanced or 0)) <= SAME
        for place in one
    )


def _draw_line(axis: Axes, line: Line, colour: str, label: str) -> None:
    """A method with its band, dotted without noise, dashed its balanced accuracy."""
    places = sorted(place for place in line if place is not None)
    mean = np.array([100 * line[place].mean for place in places])
    std = np.array([100 * line[place].std for place in places])
    axis.plot(places, mean, marker="o", color=colour, label=label, markersize=4)
    axis.fill_between(places, mean - std, mean + std, color=colour, alpha=0.2)
    if any(_uneven(line[place]) for place in places):
        balanced = [100 * (line[place].balanced or 0) for place in places]
        axis.plot(places, balanced, color=colour, linestyle="--", linewidth=1)
    if None in line:
        axis.axhline(100 * line[None].mean, color=colour, linestyle=":", linewidth=1)


def _word(field: str, value: Any) -> str:
    if field == "scheme":
        first, _, rest = str(value).partition(" ")
        return f"{SCHEMES.get(first, first)}{', ' * bool(rest)}{rest}"
    return WORDS.get(field, "{}").format(value)
