"""Picture of a rehearsal: predicted accuracy by ε, with its intervals, beside the baselines."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from train_distributed.simulation.prediction import Interval, Predictions
from train_distributed.simulation.rehearsal import Kind

BASELINES: tuple[tuple[Kind, str], ...] = (
    ("no privacy", "C2"),
    ("public alone", "C1"),
    ("largest class", "grey"),
)


def draw_rehearsal(predictions: Predictions, epsilons: Sequence[float], path: Path) -> None:
    """Draws accuracy and balanced accuracy, each in a panel, as a PNG."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    for panel, balanced in zip(figure.subplots(1, 2, sharey=True), (False, True), strict=True):
        found = [predictions.of("private", each, balanced=balanced) for each in epsilons]
        middle, reach = _drawn(found)
        panel.errorbar(epsilons, middle, reach, fmt="o-", capsize=4, color="C0", label="private")
        for kind, colour in BASELINES:
            if not any(cell.kind == kind for cell in predictions.cells):
                continue
            level = predictions.of(kind, balanced=balanced)
            panel.axhline(100 * level.mean, color=colour, linewidth=1, label=kind)
            panel.axhspan(100 * level.low, 100 * level.high, color=colour, alpha=0.1)
        panel.set(xscale="log", xlabel="ε", ylim=(0, 100))
        panel.set_xticks(epsilons, [f"{each:g}" for each in epsilons])
        panel.minorticks_off()
        panel.set_title("balanced accuracy" if balanced else "accuracy")
        panel.grid(alpha=0.3)
    figure.axes[0].set_ylabel("predicted / %, with 80 % intervals")
    figure.axes[1].legend(loc="lower right", fontsize=8)
    figure.savefig(path, dpi=150)


def _drawn(found: Sequence[Interval]) -> tuple[np.ndarray, np.ndarray]:
    """(n,) means and (2, n) reaches below and above, in per cent."""
    means, low, high = (np.array([getattr(f, n) for f in found]) for n in ("mean", "low", "high"))
    return 100 * means, 100 * np.stack([means - low, high - means])
