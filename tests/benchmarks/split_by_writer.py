"""Splits an embedding set with writers into a private and a public one without common writers.

    python -m tests.benchmarks.split_by_writer --source DIR --private DIR --public DIR

Training writers stay private users. Of the test writers every other one counts as public: people
who donated their labelled digits. The rest test.
"""

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import tyro

from embed.store import EmbeddingSet
from pretrain.cli.command import run_command
from pretrain.datasets import TEST, TRAIN


@dataclass(frozen=True)
class SplitByWriter:
    """Split an embedding set with writers into a private and a public one."""

    source: Path  # names its users in both splits
    private: Path  # to write: all training rows, test rows of half of the test writers
    public: Path  # to write: the other test rows, split 0

    def run(self) -> None:
        """Writes both sets; prints their sizes."""
        source = EmbeddingSet.open(self.source)
        if source.users is None:
            raise ValueError("source must name its users, got none")
        writers = np.unique(source.users[source.split == TEST])
        donated = (source.split == TEST) & np.isin(source.users, writers[::2])
        kept = np.flatnonzero(~donated)
        source.subset(kept).save(self.private)
        given = source.subset(np.flatnonzero(donated))
        replace(given, split=np.zeros(len(given), np.uint8)).save(self.public)
        users = len(np.unique(source.users[source.split == TRAIN]))
        print(f"{users} private users, {len(kept)} private and test rows, {len(given)} public rows")


if __name__ == "__main__":
    sys.exit(run_command(lambda: tyro.cli(SplitByWriter)))
