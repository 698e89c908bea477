"""Embedding sets of Gaussian classes."""

import string

import numpy as np

from embed import EmbeddingSet


def clusters(
    rows: int,
    classes: int,
    dim: int,
    *,
    scale: float = 2.0,
    noise: float = 0.3,
    seed: int = 0,
    test: int = 0,
    users: int | None = None,
    first: int = 0,
) -> EmbeddingSet:
    """Classes in turns, around `scale` times the unit vectors from the `first` axis on.

    The last rows are of the test split; users hold rows of all classes, in turns.
    """
    labels, place = np.arange(rows) % classes, np.arange(rows)
    x = noise * np.random.default_rng(seed).standard_normal((rows, dim))
    return EmbeddingSet(
        embeddings=(scale * np.eye(classes, dim, first)[labels] + x).astype(np.float32),
        labels=labels,
        users=None if users is None else place // classes % users,
        split=(place >= rows - test).astype(np.uint8),
        meta={"class_names": list(string.ascii_lowercase[:classes])},
    )
