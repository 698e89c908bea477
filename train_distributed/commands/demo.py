"""The embedded default: 5,000 real digits, public, private and test, from pixels to a table."""

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain import check
from pretrain.cli.output import new_directory, output_directory, write_json
from pretrain.cli.provenance import provenance
from train_distributed.privacy.promise import Privacy

if TYPE_CHECKING:  # what works is imported by the command that runs
    import numpy as np
    from torch import Tensor

    from train_distributed.simulation.plan import Grid, Result

DELTA = 1e-5
SCHEMES = ("iid", "one-class")
SIMCLR, PIXELS = "SimCLR", "pixels"
METHODS = {
    "discriminant": "discriminant",
    "softmax, blind averaging": "softmax",
    "SVM, blind averaging": "svm",
}


@dataclass(frozen=True)
class Demo:
    """Demonstration: every method at several ε, on digits of private users."""

    users: int = 100
    """Number of private users, with 25 digits each."""
    epsilons: tuple[float, ...] = (0.3, 1.0, 3.0, math.inf)
    """Values of ε, one per column; inf adds no noise and is not private."""
    seeds: int = 5
    """Number of repetitions, each with its own partition and noise."""
    out: Path | None = None
    """Directory to write (default: a new one under runs/)."""
    overwrite: bool = False
    """Replace the directory if it exists."""

    def run(self) -> Path:
        """Prints the table, writes results.json and accuracy.png.

        Raises:
            ValueError: a setting out of range.
            FileExistsError: the directory exists.
        """
        from train_distributed.simulation.digits import NUM_CLASSES, PRIVATE, load_digits, pixels

        check.within(f"[{NUM_CLASSES}, {PRIVATE}]", users=self.users)
        check.at_least(1, seeds=self.seeds)
        check.given(epsilons=self.epsilons or None)
        out = output_directory(self.out, "demo", overwrite=self.overwrite)
        self._plan().validate()
        started = time.perf_counter()
        images, labels = load_digits()
        rows = [
            cell
            for name, embeddings in ((SIMCLR, simclr_embeddings(images)), (PIXELS, pixels(images)))
            for cell in self._cells(name, embeddings, labels)
        ]
        seconds = time.perf_counter() - started
        print(self._text(rows))
        with new_directory(out, overwrite=self.overwrite) as partial:
            self._write(partial, rows, seconds)
        print(f"written: {out}  ({seconds:.0f} s)")
        return out

    def _plan(self, transform: str = SIMCLR) -> "Grid":
        from train_distributed.simulation.digits import NUM_CLASSES
        from train_distributed.simulation.plan import Grid, MethodConfig, Scenario

        return Grid(
            settings=[MethodConfig(label, name, transform) for label, name in METHODS.items()],
            scenarios=[Scenario(users=self.users, scheme=scheme) for scheme in SCHEMES],
            promises=[Privacy(epsilon, DELTA) for epsilon in self.epsilons],
            seeds=range(self.seeds),
            num_classes=NUM_CLASSES,
        )

    def _cells(self, name: str, embeddings: "np.ndarray", labels: "np.ndarray") -> list["Result"]:
        from tqdm import tqdm

        from embed import PublicTransform
        from train_distributed.simulation.digits import split_digits
        from train_distributed.simulation.runner import run_trials

        plan = self._plan(name)
        public, private = split_digits(embeddings, labels)
        transform = PublicTransform.fit(public)
        jobs = run_trials(private, {name: transform}, plan)
        bar = tqdm(jobs, desc=name, total=len(plan.trials()), unit="job", disable=None, leave=False)
        return [cell for _, cells in bar for cell in cells]

    def _text(self, rows: list["Result"]) -> str:
        from train_distributed.research.experiments.figures import summarise, table
        from train_distributed.simulation.digits import PRIVATE, PUBLIC, TEST_ROWS

        parts = [
            f"5,000 MNIST digits: {PUBLIC} public (unlabelled), {PRIVATE} private of {self.users} "
            f"users, {TEST_ROWS} for testing.\nEncoder: SimCLR, trained just now on the public "
            f"digits; beside it the pixels themselves.\n"
            f"delta = {DELTA:g}, half of the users honest.\nTest accuracy in "
            f"per cent, mean ± deviation over {self.seeds} seeds; a simulation, unsuitable for "
            "release.\n"
        ]
        for name in (SIMCLR, PIXELS):
            parts += [f"{name}:", table(_of(rows, name)), ""]
        parts += ["best method per cell, chosen on the test digits:"]
        parts += [f"{'users hold':10}  {'eps':>11}{SIMCLR:>21}{PIXELS:>21}"]
        simclr, plain = (
            summarise(_of(rows, name), by=("scheme", "epsilon")) for name in (SIMCLR, PIXELS)
        )
        for (scheme, epsilon), summary in simclr.items():
            eps = "not private" if epsilon is None else f"{epsilon:g}"
            parts += [f"{scheme:10}  {eps:>11}{summary!s:>21}{plain[scheme, epsilon]!s:>21}"]
        return "\n".join([*parts, ""])

    def _write(self, directory: Path, rows: list["Result"], seconds: float) -> None:
        from train_distributed.research.experiments.figures import draw_frontier
        from train_distributed.simulation.digits import PRIVATE

        result = {
            **provenance(),
            "configuration": {
                "users": self.users,
                "seeds": self.seeds,
                "delta": DELTA,
            },
            "simulation": True,
            "suitable_for_release": False,
            "seconds": seconds,
            "cells": [row.as_dict() for row in rows],
        }
        write_json(directory / "results.json", result)
        for name, file in ((SIMCLR, "accuracy.png"), (PIXELS, "accuracy_pixels.png")):
            title = f"Accuracy on {PRIVATE:,} digits of {self.users} users, {name}"
            path = directory / file
            draw_frontier(_of(rows, name), path, title=f"{title} ({self.seeds} seeds)", chance=0.1)


def simclr_embeddings(images: "Tensor") -> "np.ndarray":
    """(n, p) float32 of an encoder that saw the public digits alone, without labels."""
    import torch

    from pretrain.probe import embed_all
    from pretrain.recipes import DIGITS
    from pretrain.simclr import pretrain
    from train_distributed.simulation.digits import PUBLIC, SPLIT_SEED

    colour = images.expand(-1, 3, -1, -1).contiguous()
    generator = torch.Generator().manual_seed(SPLIT_SEED)
    encoder, _ = pretrain(colour[:PUBLIC], DIGITS, generator)
    return embed_all(encoder, colour).numpy()


def _of(rows: list["Result"], transform: str) -> list["Result"]:
    return [row for row in rows if row.transform == transform]
