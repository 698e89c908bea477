"""Draws that decide which rows are used how, from the operating system and never from a row."""

import os

import numpy as np


def random_keys(count: int, seed: int | None = None) -> np.ndarray:
    """(count,) uint64, independent and uniform: whoever sorts by them sorts at random.

    Args:
        count: how many.
        seed: makes them reproducible, for simulations; None: from the operating system, which
            keeps nothing by which they could be drawn again.
    """
    if seed is not None:
        return np.random.default_rng(seed).integers(2**64, size=count, dtype=np.uint64)
    return np.frombuffer(bytearray(os.urandom(8 * count)), np.uint64)


def greatest(keys: np.ndarray, group: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """(n,) bool: the rows with the `counts[g]` greatest keys of every group g.

    Args:
        keys: (n,) of `random_keys`.
        group: (n,) int64 in [0, len(counts)).
        counts: (groups,) how many of each.
    """
    order = np.lexsort((keys, group))
    ends = np.cumsum(np.bincount(group, minlength=len(counts)))
    place = np.empty(len(keys), np.int64)  # counted from the end of a row's group
    place[order] = ends[group[order]] - np.arange(len(keys))
    return place <= counts[group]
