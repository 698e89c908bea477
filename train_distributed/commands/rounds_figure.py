"""What the rounds of a run promise, as a panel of its picture."""

from typing import Any

from matplotlib.axes import Axes


def draw_rounds(report: dict[str, Any], panel: Axes) -> None:
    """ε of one iteration and of all of them."""
    names = {
        "epsilon_per_iteration": "one iteration",
        "epsilon_composed": f"all {report['rounds']} rounds",
        "epsilon_composed_pure": "all rounds, δ = 0",
    }
    shown = {label: report[name] for name, label in names.items() if name in report}
    bars = panel.bar(list(shown), list(shown.values()))
    panel.bar_label(bars, fmt="%.3g")
    panel.set(ylabel=f"ε at δ = {report['delta']:g}", yscale="log")
