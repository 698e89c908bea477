"""Figures that can be read without the text beside them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from train_distributed import accounting
from train_distributed.experiment import Cell
from train_distributed.table import summarise


def draw_frontier(rows: Sequence[Cell], path: Path, *, title: str, chance: float) -> None:
    """Accuracy against ε: a panel per partition, a line per method with its deviation as a band.

    Args:
        rows: cells; those without ε are drawn as dotted levels.
        path: of the PNG.
        title: what was learned from whom.
        chance: accuracy of guessing.
    """
    summary = summarise(rows)
    labels = list(dict.fromkeys(row.label for row in rows))
    schemes = list(dict.fromkeys(row.scheme for row in rows))
    epsilons = sorted({row.epsilon for row in rows if row.epsilon is not None})
    figure = Figure(figsize=(5.2 * len(schemes), 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(schemes), sharey=True, squeeze=False)[0]
    for panel, scheme in zip(panels, schemes, strict=True):
        for index, label in enumerate(labels):
            known = [e for e in epsilons if (label, scheme, e) in summary]
            mean = np.array([100 * summary[label, scheme, e].mean for e in known])
            std = np.array([100 * summary[label, scheme, e].std for e in known])
            colour = f"C{index}"
            panel.plot(known, mean, "o-", color=colour, label=label, markersize=4)
            panel.fill_between(known, mean - std, mean + std, color=colour, alpha=0.2)
            if (label, scheme, None) in summary:
                level = 100 * summary[label, scheme, None].mean
                panel.axhline(level, color=colour, linestyle=":", linewidth=1)
        panel.axhline(100 * chance, color="grey", linestyle="--", linewidth=1)
        panel.set(xscale="log", xlabel="ε (replace one record)", title=f"users hold: {scheme}")
        panel.set_xticks(epsilons, [f"{e:g}" for e in epsilons])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("test accuracy / %   (dotted: without noise, dashed: chance)")
    panels[-1].legend(fontsize=8)
    figure.suptitle(title)
    figure.savefig(path, dpi=150)


def draw_release(report: dict[str, Any], path: Path) -> None:
    """What one release promises and what it can do: its privacy curve, and accuracy per class."""
    per_class = report.get("test_accuracy_per_class")
    figure = Figure(figsize=(5.2 * (1 + bool(per_class)), 4), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 1 + bool(per_class), squeeze=False)[0]
    _privacy_curve(report, panels[0])
    if per_class:
        names, values = list(per_class), [100 * value for value in per_class.values()]
        panels[1].bar(names, values)
        panels[1].axhline(100 * report["test_accuracy"], color="grey", linestyle="--")
        panels[1].set(ylabel="test accuracy / % (dashed: all classes)", xlabel="class")
        panels[1].tick_params(axis="x", rotation=90 if len(names) > 10 else 30)
    figure.savefig(path, dpi=150)


def _privacy_curve(report: dict[str, Any], panel: Axes) -> None:
    if not report["private"]:
        panel.text(0.5, 0.5, "not private", ha="center", va="center", fontsize=20)
        panel.set_axis_off()
        return
    epsilon, delta = report["epsilon"], report["delta"]
    if report.get("privacy_curve") == "gaussian":  # others promise a point, not a curve
        curve = np.geomspace(epsilon / 10, 2 * epsilon, 100)
        values = [
            accounting.delta(e, report["noise_multiplier"], report["compositions"]) for e in curve
        ]
        shown = [(e, d) for e, d in zip(curve, values, strict=True) if d > 1e-300]
        panel.plot(*zip(*shown, strict=True))
    panel.plot(
        [epsilon], [delta], "o", color="C1", label=f"promised: ε = {epsilon:g}, δ = {delta:g}"
    )
    panel.set(xscale="log", yscale="log", xlabel="ε", ylabel="δ", ylim=(delta**2, 1))
    panel.set_title(report["neighbouring"].split(";")[0])
    panel.legend()
