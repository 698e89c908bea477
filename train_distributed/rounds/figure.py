"""What a run of many rounds promises, as a picture."""

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


def draw_rounds(report: dict[str, Any], path: Path) -> None:
    """ε of one iteration and of all of them, and accuracy per class where it is known."""
    per_class = report.get("test_accuracy_per_class")
    figure = Figure(figsize=(5.2 * (1 + bool(per_class)), 4), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 1 + bool(per_class), squeeze=False)[0]
    _epsilons(report, panels[0])
    if per_class:
        panels[1].bar(list(per_class), [100 * value for value in per_class.values()])
        panels[1].axhline(100 * report["test_accuracy"], color="grey", linestyle="--")
        panels[1].set(ylabel="test accuracy / % (dashed: all classes)", xlabel="class")
        panels[1].tick_params(axis="x", rotation=90 if len(per_class) > 10 else 30)
    figure.savefig(path, dpi=150, metadata={"Software": None})


def _epsilons(report: dict[str, Any], panel: Axes) -> None:
    if not report["private"]:
        panel.text(0.5, 0.5, "not private", ha="center", va="center", fontsize=20)
        panel.set_axis_off()
        return
    names = {
        "epsilon_per_iteration": "one iteration",
        "epsilon_composed": f"all {report['rounds']} rounds",
        "epsilon_composed_pure": "all rounds, δ = 0",
    }
    shown = {label: report[name] for name, label in names.items() if name in report}
    bars = panel.bar(list(shown), list(shown.values()))
    panel.bar_label(bars, fmt="%.3g")
    panel.set(ylabel=f"ε at δ = {report['delta']:g}", yscale="log")
    panel.set_title(report["neighbouring"].split(";")[0])
