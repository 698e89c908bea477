"""Figures of a release: its promise, its accuracy by class, its confusion matrix."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from train_distributed import accounting
from train_distributed.one_shot.report_file import Report

NAMED, NUMBERED, LONG = 50, 20, 24  # classes with names and with counts; letters of a name


def draw_release(
    report: Report,
    path: Path,
    promise: Callable[[Report, Axes], None] | None = None,
) -> None:
    """Draws the promise of a release, and its accuracy by class where that is known, as a PNG.

    `promise` draws a private release's panel; its privacy curve if left out.
    """
    per_class = report.test_accuracy_per_class
    figure = Figure(figsize=(5.2 * (1 + bool(per_class)), 4), layout="constrained")
    panels = figure.subplots(1, 1 + bool(per_class), squeeze=False)[0]
    if report.private:
        (promise or draw_curve)(report, panels[0])
        panels[0].set_title(report.neighbouring.split(";")[0])
    else:
        panels[0].text(0.5, 0.5, "not private", ha="center", va="center", fontsize=20)
        panels[0].set_axis_off()
    if per_class:
        names = list(map(_called, per_class))
        values = [100 * value for value in per_class.values()]
        panels[1].bar(range(len(names)), values, tick_label=names)
        panels[1].axhline(100 * (report.test_accuracy or 0), color="grey", linestyle="--")
        words = "test accuracy / % (dashed: all classes"
        if (baseline := report.majority_baseline) is not None:
            panels[1].axhline(100 * baseline, color="C3", linestyle=":")
            words += "; dotted: always the most frequent"
        panels[1].set(ylabel=words + ")", xlabel="class")
        panels[1].tick_params(axis="x", rotation=90 if len(names) > 10 else 30)
    figure.savefig(path, dpi=150)


def draw_confusion(
    confusion: Sequence[Sequence[int]] | np.ndarray, names: Sequence[str], path: Path
) -> None:
    """Writes `confusion_figure` as a PNG."""
    confusion_figure(confusion, names).savefig(path, dpi=150)


def confusion_figure(
    confusion: Sequence[Sequence[int]] | np.ndarray, names: Sequence[str]
) -> Figure:
    """A (K, K) confusion matrix as a picture: rows are labels, columns what was predicted.

    Colours are shares of a row, so that classes of few rows can be read; numbers are counts.
    """
    counts = np.asarray(confusion)
    shares = counts / counts.sum(1, keepdims=True).clip(min=1)
    side = min(16.0, max(4.5, 2.5 + 0.55 * len(names)))
    figure = Figure(figsize=(side + 0.8, side), layout="constrained")
    axes = figure.add_subplot()
    shown = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(shown, label="share of the label's rows", shrink=0.8)
    axes.set(xlabel="predicted", ylabel="label")
    if len(names) <= NAMED:
        called = list(map(_called, names))
        axes.set_xticks(range(len(names)), called, rotation=90)
        axes.set_yticks(range(len(names)), called)
    if len(names) <= NUMBERED:
        for (row, column), count in np.ndenumerate(counts):
            colour = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, str(count), ha="center", va="center", color=colour, fontsize=8)
    return figure


def _called(name: str) -> str:
    """A class name that fits beside an axis and is no formula."""
    kept = name if len(name) <= LONG else name[: LONG - 1] + "…"
    return kept.replace("$", r"\$")


def draw_curve(report: Report, panel: Axes) -> None:
    """Draws the promise of a private release: δ at every ε where that is known, and its point."""
    epsilon, delta = report.epsilon, report.delta
    if report.privacy_curve == "gaussian":  # others promise a point, not a curve
        curve = np.geomspace(epsilon / 10, 2 * epsilon, 100)
        multiplier, compositions = report.noise_multiplier, report.compositions
        values = [accounting.delta(e, multiplier, compositions) for e in curve]
        shown = [(e, d) for e, d in zip(curve, values, strict=True) if d > 1e-300]
        panel.plot(*zip(*shown, strict=True))
    panel.plot(
        [epsilon], [delta], "o", color="C1", label=f"promised: ε = {epsilon:g}, δ = {delta:g}"
    )
    panel.set(xscale="log", yscale="log", xlabel="ε", ylabel="δ", ylim=(delta**2, 1))
    panel.legend()
