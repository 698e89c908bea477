"""Two clouds with their hyperplanes, and excess objective against local steps."""

from collections.abc import Sequence
from typing import IO, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from train_distributed.research.experiments.convergence import slopes

STYLES = {
    "user 1": ("C0", "-"),
    "user 2": ("C1", "-"),
    "global": ("black", "-"),
    "average": ("C2", "--"),
}


def draw(rows: Sequence[dict[str, Any]], file: IO[bytes]) -> None:
    """Left the clouds, in the middle the normal vectors, right the rates."""
    figure = Figure(figsize=(16, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    left, middle, right = figure.subplots(1, 3)
    _clouds(rows, left)
    _normals(rows, middle)
    _rates(rows, right)
    figure.savefig(file, dpi=150)


def _clouds(rows: Sequence[dict[str, Any]], axis: Axes) -> None:
    for row in (row for row in rows if row["kind"] == "points"):
        axis.scatter(row["x"], row["y"], s=6, alpha=0.4, color=f"C{row['label']}")
    span = np.linspace(-5, 5, 2)
    for row in (row for row in rows if row["kind"] == "model"):
        a, b, c = row["weights"]
        colour, style = STYLES[row["model"]]
        line = -(a + b * span) / c
        look = {"color": colour, "linestyle": style, "zorder": 5 if style == "--" else 3}
        axis.plot(span, line, linewidth=2.5, label=f"{row['model']} hyperplane", **look)
    axis.set(xlim=(-4, 4), ylim=(-4, 4), xlabel="first feature", ylabel="second feature")
    axis.set_title("two users, one class each: Λ = 20, R = 1, c = 5")
    axis.legend(fontsize=8)


def _normals(rows: Sequence[dict[str, Any]], axis: Axes) -> None:
    models = [row for row in rows if row["kind"] == "model"]
    distance = models[0]["distance"]
    for row in models:
        _, b, c = row["weights"]
        colour, style = STYLES[row["model"]]
        look = {"color": colour, "linestyle": style, "zorder": 5 if style == "--" else 3}
        axis.plot([0, b], [0, c], linewidth=2.5, marker="o", label=row["model"], **look)
    axis.set(xlabel="first weight", ylabel="second weight")
    axis.set_title(f"normal vectors: ‖average − global‖ = {distance:.1e} ‖global‖")
    axis.legend(fontsize=8)
    axis.grid(alpha=0.3)


def _rates(rows: Sequence[dict[str, Any]], axis: Axes) -> None:
    rates = [row for row in rows if row["kind"] == "rate"]
    for l2_reg, (slope, _, inside) in slopes(list(rows)).items():
        mine = [row for row in rates if row["l2_reg"] == l2_reg]
        steps = sorted({row["iterations"] for row in mine})
        values = np.array(
            [[row["excess"] for row in mine if row["iterations"] == m] for m in steps]
        )
        where = "all rows inside the margin" if inside else "rows outside the margin"
        label = f"Λ = {l2_reg:g}, {where}: slope {slope:.2f}"
        (line,) = axis.plot(steps, values.mean(1), "o-", markersize=3, label=label)
        axis.fill_between(steps, values.min(1), values.max(1), alpha=0.2, color=line.get_color())
    axis.set(xscale="log", yscale="log", xlabel="local steps M of every user")
    axis.set_ylabel("J(average) − min J on the union (band: seeds)")
    axis.set_title("20 users, one class each, hinge loss (Thm 6.2)")
    axis.legend(fontsize=7)
    axis.grid(alpha=0.3)


def tell(rows: Sequence[dict[str, Any]]) -> str:
    """Distance of the two-cloud models, then slope and last excess by Λ."""
    distance = next(row["distance"] for row in rows if row["kind"] == "model")
    lines = [f"two clouds: ‖average − global‖ / ‖global‖ = {distance:.2e}", ""]
    lines.append(
        f"{'Λ':>6}  {'slope':>6}  {'excess at last M':>16}  {'of exact heads':>14}  margin"
    )
    for l2_reg, (slope, last, inside) in slopes(list(rows)).items():
        mine = [r["floor"] for r in rows if r["kind"] == "rate" and r["l2_reg"] == l2_reg]
        where = "all rows inside" if inside else "rows outside"
        lines.append(
            f"{l2_reg:6g}  {slope:6.2f}  {last:16.2e}  {float(np.mean(mine)):14.2e}  {where}"
        )
    return "\n".join(lines)
