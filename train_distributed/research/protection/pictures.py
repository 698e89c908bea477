"""Originals and what an attacker makes of them as noise rises."""

from collections.abc import Sequence
from pathlib import Path

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from train_distributed.research.protection.inversion import Observation, invert
from train_distributed.research.protection.measure import Laboratory
from train_distributed.research.protection.mechanisms import Randomisation

LEVELS = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0)  # standard deviation over the update's root mean square
SHOWN = 4


def draw_reconstructions(
    laboratory: Laboratory, path: Path, levels: Sequence[float] = LEVELS
) -> None:
    """One row per client, one column per noise level, the similarity above each picture."""
    records = laboratory.records[0][:SHOWN]
    figure = Figure(figsize=(1.5 * (1 + len(levels)), 1.7 * len(records)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(records), 1 + len(levels), squeeze=False)
    size = laboratory.update_size
    for row, record in enumerate(records):
        panels[row][0].imshow(_image(record[0]), cmap="gray", vmin=0, vmax=1)
        panels[row][0].set_title("original", fontsize=8)
        for column, level in enumerate(levels):
            guess = _attack(laboratory, row, level * size)
            panel = panels[row][column + 1]
            panel.imshow(_image(guess), cmap="gray", vmin=0, vmax=1)
            value = laboratory.similarity.of(guess, record[0])
            panel.set_title(f"noise {level:g}: {value:.2f}", fontsize=8)
    for panel in panels.flat:
        panel.set_axis_off()
    figure.suptitle(
        "noise: standard deviation over the update's size; then the similarity", fontsize=8
    )
    figure.savefig(path, dpi=130)


def _attack(laboratory: Laboratory, client: int, deviation: float) -> Tensor:
    federation, model = laboratory.federation, laboratory.models[0]
    updates = federation.updates(model, *laboratory.records)
    generator = torch.Generator().manual_seed(laboratory.seed)
    views = Randomisation(deviation**2).views(updates[client : client + 1], generator)
    seen = Observation.of(views["message"][0], model, federation.step)
    return invert(federation.surface, seen, federation.batch, generator).x[0]


def _image(x: Tensor) -> Tensor:
    return x.clamp(0, 1).movedim(0, -1)
