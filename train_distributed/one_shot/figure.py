"""Figures of a release: its promise, its accuracy by class, its confusion matrix."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from train_distributed.one_shot.attacker import true_positives
from train_distributed.one_shot.metrics import SHOWN
from train_distributed.one_shot.report_file import Report

LONG = 24  # size: letters of a name
SHARES = FuncFormatter(lambda share, _: f"{100 * share:g} %")


def draw_release(
    report: Report,
    path: Path,
    promise: Callable[[Report, Axes], None] | None = None,
) -> None:
    """Draws the promise of a release, and its accuracy by class, or ROC curves of its findings.

    `promise` draws a private release's panel; its attacker's curve if left out.
    """
    per_class, findings = report.test_accuracy_per_class, report.test_findings
    count = 1 + bool(per_class or findings)
    figure = Figure(figsize=(5.2 * count, 4), layout="constrained")
    panels = figure.subplots(1, count, squeeze=False)[0]
    if report.private:
        (promise or draw_attack)(report, panels[0])
    else:
        panels[0].text(0.5, 0.5, "not private", ha="center", va="center", fontsize=20)
        panels[0].set_axis_off()
    if per_class:
        _draw_classes(report, per_class, panels[1])
    if findings:
        _draw_roc(findings, panels[1])
    figure.savefig(path, dpi=150)


def _draw_classes(report: Report, per_class: Mapping[str, float], panel: Axes) -> None:
    """Bars of accuracy by class; lines for overall accuracy and the majority baseline."""
    names = list(map(_called, per_class))
    panel.bar(range(len(names)), [100 * value for value in per_class.values()], tick_label=names)
    levels = {"all": report.test_accuracy or 0.0}
    if (baseline := report.majority_baseline) is not None:
        levels["always the\nmost frequent"] = baseline
    for words, value in levels.items():
        panel.axhline(100 * value, color="black", linewidth=1, linestyle="--")
        end = (1.01, 100 * value)
        panel.annotate(words, end, xycoords=("axes fraction", "data"), va="center", fontsize=9)
    panel.set(ylabel="right answers / %", xlabel="class", ylim=(0, 105))
    panel.set_title("Accuracy on the test pictures")
    crowded = sum(map(len, names)) > 40
    panel.tick_params(axis="x", rotation=90 if crowded else 0)


def roc_figure(metrics: Mapping[str, Any]) -> Figure:
    """The figure of `_draw_roc` alone."""
    figure = Figure(figsize=(5.2, 4.6), layout="constrained")
    _draw_roc(metrics, figure.add_subplot())
    return figure


def _draw_roc(metrics: Mapping[str, Any], panel: Axes) -> None:
    """ROC curve of every finding, with the area under each, from a report of `FindingMetrics`."""
    panel.plot([0, 1], [0, 1], color="black", linewidth=1, linestyle="--", label="chance: 0.500")
    for name, of in metrics["per_finding"].items():
        if of["roc"] is not None:
            area = f"{_called(name)}: {of['auroc']['estimate']:.3f}"
            panel.plot(np.linspace(0, 1, len(of["roc"])), of["roc"], label=area)
    panel.set(xlabel="false positive rate", ylabel="true positive rate")
    panel.set_title("Findings, and areas under their curves")
    panel.legend(fontsize=8, loc="lower right")


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
    contrast = PowerNorm(0.5, 0, 1)  # so that one row in a hundred is seen
    shown = axes.imshow(shares, cmap="Blues", norm=contrast)
    bar = figure.colorbar(shown, label="share of the true class", shrink=0.8, format=SHARES)
    bar.set_ticks([0, 0.01, 0.05, 0.2, 0.5, 1])
    axes.set(xlabel="predicted", ylabel="true class", title="What is taken for what")
    if len(names) <= SHOWN:
        called = list(map(_called, names))
        axes.set_xticks(range(len(names)), called, rotation=90)
        axes.set_yticks(range(len(names)), called)
    if side < 16.0:  # where a number fits into its square
        for (row, column), count in np.ndenumerate(counts):
            colour = "white" if contrast(shares[row, column]) > 0.5 else "black"
            axes.text(column, row, str(count), ha="center", va="center", color=colour, fontsize=8)
    return figure


def _called(name: str) -> str:
    """Class name as an axis label: shortened, with $ escaped."""
    kept = name if len(name) <= LONG else name[: LONG - 1] + "…"
    return kept.replace("$", r"\$")


def draw_attack(report: Report, panel: Axes) -> None:
    """Draws the best attacker's true-positive rate against its false-positive rate."""
    rates = np.geomspace(1e-5, 1, 400)
    panel.fill_between(rates, rates, true_positives(report, rates), color="C3", alpha=0.15)
    panel.plot(rates, true_positives(report, rates), color="C3")
    panel.plot(rates, rates, color="grey", linewidth=1)
    alarms = 1 / 1000
    marked = float(true_positives(report, np.array(alarms)))
    panel.plot(alarms, marked, "o", color="C3")
    most = math.ceil(1000 * 100 * marked) / 1000
    panel.annotate(
        f"1 in 1,000 wrong:\nat most {most:g} % found",
        (alarms, marked),
        (-6, 10),
        textcoords="offset points",
        ha="right",
        va="bottom",
        fontsize=9,
    )
    panel.text(0.9, 0.02, "blind accusations", color="dimgrey", va="top", ha="right", fontsize=9)
    panel.set(
        xscale="log",
        yscale="log",
        xlim=(1e-5, 1),
        ylim=(1e-5, 1.5),
        xlabel="innocent who are accused",
        ylabel="others who are found",
        title=f"What an attacker can find out at ε = {report.epsilon:.4g}",
    )
    panel.xaxis.set_major_formatter(SHARES)
    panel.yaxis.set_major_formatter(SHARES)
    panel.grid(alpha=0.25)
