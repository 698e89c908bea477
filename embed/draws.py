"""Random choices of rows, by the operating system; they never depend on a row."""

import os

import numpy as np


def random_keys(count: int, seed: int | None = None) -> np.ndarray:
    """(count,) uint64, independent and uniform: keys for sorting at random.

    Args:
        count: number of keys.
        seed: makes them reproducible, for simulations; None: the operating system draws, and they
            cannot be drawn again.
    """
    if seed is not None:
        return np.random.default_rng(seed).integers(2**64, size=count, dtype=np.uint64)
    return np.frombuffer(bytearray(os.urandom(8 * count)), np.uint64)


def greatest(keys: np.ndarray, group: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """(n,) bool: rows with the `counts[g]` greatest keys of every group g.

    Args:
        keys: (n,) of `random_keys`.
        group: (n,) int64 in [0, len(counts)).
        counts: (groups,) number of rows of each group.
    """
    order = np.lexsort((keys, group))
    ends = np.cumsum(np.bincount(group, minlength=len(counts)))
    place = np.empty(len(keys), np.int64)  # counted from the end of a row's group
    place[order] = ends[group[order]] - np.arange(len(keys))
    return place <= counts[group]
