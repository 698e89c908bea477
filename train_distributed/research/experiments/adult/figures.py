"""Figures 3 to 5 of Zhang and Zhu."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from train_distributed.research.experiments.adult import tradeoff

Curves = Mapping[tuple[str, float], Mapping[str, np.ndarray]]  # measures (T, seeds)
NAMES = {"dvp": "DVP", "pvp": "PVP"}


def draw_convergence(path: Path, curves: Curves, alphas: Sequence[float]) -> None:
    """Empirical loss and test error against t, one column per method."""
    figure, axes = _panels(2, 2)
    for column, method in enumerate(NAMES):
        for row, (measure, label) in enumerate(
            [("loss", "mean logistic loss"), ("error", "test error")]
        ):
            axis = axes[row][column]
            for alpha in alphas:
                _band(axis, curves[method, alpha][measure], f"α = {alpha}")
            _band(axis, curves["none", float("inf")][measure], "no noise", color="black")
            axis.set(xlabel="iteration", ylabel=label, title=NAMES[method])
            if measure == "loss":
                axis.set_yscale("log")
    axes[0][0].legend(fontsize=7)
    _save(figure, path)


def draw_tradeoff(
    path: Path,
    curves: Curves,
    alphas: Sequence[float],
    moments: Sequence[int],
    report: Mapping[str, Any],
) -> None:
    """Empirical loss against α at some iterations, with the fitted curve and its best α."""
    figure, axes = _panels(1, 2)
    for axis, method in zip(axes[0], NAMES, strict=True):
        for t in moments:
            values = np.array([curves[method, alpha]["loss"][t - 1] for alpha in alphas])
            axis.errorbar(alphas, values.mean(1), values.std(1, ddof=1), fmt="o", label=f"t = {t}")
        fit = report["tradeoff"][method]
        fine = np.geomspace(alphas[0], alphas[-1], 200)
        axis.plot(fine, tradeoff.LossCurve(**fit["fitted"])(fine), label="fit at t = 100")
        axis.axvline(fit["best_alpha_of_fit"], linestyle=":", color="gray", label="best α of fit")
        axis.set(xlabel="α", ylabel="mean logistic loss", title=NAMES[method], xscale="log")
        axis.set_yscale("log")
        axis.legend(fontsize=7)
    _save(figure, path)


def draw_final(path: Path, curves: Curves, alphas: Sequence[float]) -> None:
    """Loss and test error of the last output against α."""
    figure, axes = _panels(1, 2)
    for axis, measure in zip(axes[0], ("loss", "error"), strict=True):
        for method, name in NAMES.items():
            values = np.array([curves[method, alpha][measure][-1] for alpha in alphas])
            axis.errorbar(alphas, values.mean(1), values.std(1, ddof=1), fmt="o-", label=name)
        axis.set(xlabel="α", ylabel=f"{measure} of the final output", xscale="log")
        if measure == "loss":
            axis.set_yscale("log")
        axis.legend(fontsize=7)
    _save(figure, path)


def _band(axis: Axes, values: np.ndarray, label: str, color: str | None = None) -> None:
    mean, spread = values.mean(1), values.std(1, ddof=1)
    steps = np.arange(1, len(mean) + 1)
    (line,) = axis.plot(steps, mean, label=label, linewidth=1, color=color)
    axis.fill_between(steps, mean - spread, mean + spread, alpha=0.2, color=line.get_color())


def _panels(rows: int, columns: int) -> tuple[Figure, np.ndarray]:
    figure = Figure(figsize=(5 * columns, 3.5 * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=120, metadata={"Software": None})
