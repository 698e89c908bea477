"""Pictures of a card, as PNG in memory."""

import io

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from train_distributed import accounting
from train_distributed.one_shot.report_file import Report
from train_distributed.released.card.numbers import shortened

NAMED, NUMBERED, LONG = 40, 15, 22  # classes with names and with counts; letters of a name
COLOUR, PROMISED = "#2a6db0", "#c8501e"


def privacy_curve(report: Report) -> bytes | None:
    """δ at every ε, where the promise is a whole curve and not one point of it."""
    if not report.private or report.privacy_curve != "gaussian":
        return None
    epsilon, delta = report.epsilon, report.delta
    multiplier, parts = report.noise_multiplier, report.compositions
    figure, panel = _figure(6.4, 3.4)
    shown = np.geomspace(epsilon / 20, 2 * epsilon, 100)
    values = [accounting.delta(float(each), multiplier, parts) for each in shown]
    seen = [(e, d) for e, d in zip(shown, values, strict=True) if d > max(1e-300, delta**2)]
    panel.plot(*zip(*seen, strict=True), color=COLOUR, linewidth=2)
    panel.plot([epsilon], [delta], "o", color=PROMISED, markersize=8)
    panel.annotate(
        f"promised: ε = {epsilon:g}, δ = {delta:g}",
        (epsilon, delta),
        (-10, -14),
        textcoords="offset points",
        ha="right",
    )
    panel.set(yscale="log", xlabel="ε", ylabel="δ", ylim=(delta**2, 1))
    panel.grid(alpha=0.3)
    return _png(figure)


def confusion_matrix(confusion: list[list[int]], names: list[str]) -> bytes:
    """Counts by label and predicted class, coloured by their share of a row."""
    counts = np.asarray(confusion, np.int64)
    shares = counts / counts.sum(1, keepdims=True).clip(min=1)
    side = min(9.0, 3.2 + 0.42 * len(names))
    figure, axes = _figure(side + 0.8, side)
    shown = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(shown, label="share of the rows of a class", shrink=0.7)
    axes.set(xlabel="predicted", ylabel="true class")
    if len(names) <= NAMED:
        called = [shortened(name, LONG).replace("$", r"\$") for name in names]  # no formula
        axes.set_xticks(range(len(names)), called, rotation=90)
        axes.set_yticks(range(len(names)), called)
    if len(names) <= NUMBERED:
        for (row, column), count in np.ndenumerate(counts):
            colour = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, str(count), ha="center", va="center", color=colour, fontsize=8)
    return _png(figure)


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def _png(figure: Figure) -> bytes:
    """PNG without the version of matplotlib: the same numbers give the same bytes."""
    held = io.BytesIO()
    figure.savefig(held, format="png", dpi=150, metadata={"Software": None})
    return held.getvalue()
