"""Splits an embedding set with writers into a private and a public one without common writers.

    python -m tests.benchmarks.split_by_writer --source DIR --private DIR --public DIR

Training writers stay private users. Of the test writers every other one counts as public: people
who donated their labelled digits. The rest test.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import tyro

from embed.store import EmbeddingSet
from pretrain.datasets import TEST, TRAIN


def split_by_writer(source: Path, private: Path, public: Path) -> None:
    """Split an embedding set with writers into a private and a public one; print their sizes.

    Args:
        source: names its users in both splits.
        private: to write: all training rows, test rows of half of the test writers.
        public: to write: the other test rows, split 0.
    """
    rows = EmbeddingSet.open(source)
    if rows.users is None:
        raise ValueError("source must name its users, got none")
    writers = np.unique(rows.users[rows.split == TEST])
    donated = (rows.split == TEST) & np.isin(rows.users, writers[::2])
    kept = np.flatnonzero(~donated)
    rows.subset(kept).save(private)
    given = rows.subset(np.flatnonzero(donated))
    replace(given, split=np.zeros(len(given), np.uint8)).save(public)
    users = len(np.unique(rows.users[rows.split == TRAIN]))
    print(f"{users} private users, {len(kept)} private and test rows, {len(given)} public rows")


if __name__ == "__main__":
    tyro.cli(split_by_writer)
