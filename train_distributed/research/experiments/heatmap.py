"""Accuracy over (ε, group size), extrapolated to more users than there are rows for."""

from collections.abc import Sequence
from typing import IO

import numpy as np
from matplotlib.figure import Figure

from train_distributed.research.experiments.summary import summarise
from train_distributed.simulation.plan import Result

MANY = (200_000, 20_000_000)
GROUPS = (1, 2, 5, 10, 20, 50)
EPSILONS = np.geomspace(1e-5, 10, 25)


def draw(cells: Sequence[Result], file: IO[bytes]) -> None:
    """A heat map per method and number of users.

    Fig. 7 of Kirschte et al. 2024: w users at ε stand for n users and groups of G at
    ε′ = w ε G / n. Accuracy is interpolated in log ε; beyond the largest measured ε it stays, and
    below the smallest nothing is claimed.
    """
    labels = list(dict.fromkeys(cell.label for cell in cells))
    figure = Figure(figsize=(5 * len(MANY), 2.6 * len(labels)), layout="constrained")
    axes = figure.subplots(len(labels), len(MANY), squeeze=False, sharex=True, sharey=True)
    image = None
    for row, label in zip(axes, labels, strict=True):
        for axis, users in zip(row, MANY, strict=True):
            values = extrapolated([cell for cell in cells if cell.label == label], users)
            image = axis.imshow(100 * values, aspect="auto", origin="lower", cmap="viridis")
            axis.set_title(f"{label}, {users:,} users", fontsize=8)
            axis.set_yticks(range(len(GROUPS)), [str(group) for group in GROUPS])
            ticks = range(0, len(EPSILONS), 4)
            axis.set_xticks(list(ticks), [f"{EPSILONS[tick]:.0e}" for tick in ticks])
        row[0].set_ylabel("records in a group")
    for axis in axes[-1]:
        axis.set_xlabel("ε (replace the whole group)")
    if image is not None:
        figure.colorbar(image, ax=axes, label="test accuracy / %, extrapolated; blank: unknown")
    figure.savefig(file, dpi=150)


def extrapolated(cells: Sequence[Result], users: int) -> np.ndarray:
    """(groups, ε) accuracies of one label, NaN below the smallest measured ε."""
    summary = summarise(cells, ("epsilon",))
    known = sorted(key[0] for key in summary if key[0] is not None)
    means = [summary[(epsilon,)].mean for epsilon in known]
    held = cells[0].users
    needed = EPSILONS[None] * users / (held * np.array(GROUPS)[:, None])
    values = np.interp(np.log(needed), np.log(known), means)
    return np.where(needed < min(known), np.nan, values)
