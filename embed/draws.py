"""Random choices of rows, by the operating system; they never depend on a row."""

import hashlib
import math
import os

import numpy as np
import torch
from torch import Tensor


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


def drawn_keys(shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
    """Independent uniform int64 keys of this shape, by a generator; None: by `random_keys`."""
    if generator is not None:
        return torch.randint(2**62, shape, generator=generator)
    return torch.from_numpy(random_keys(math.prod(shape)).view(np.int64)).view(shape)


def apart(generator: torch.Generator | None) -> torch.Generator | None:
    """Generator that follows from another one's state, and leaves it as it is; None of None.

    What is drawn from either does not depend on how much is drawn from the other.
    """
    if generator is None:
        return None
    state = hashlib.sha256(generator.get_state().numpy().tobytes()).digest()
    return torch.Generator().manual_seed(int.from_bytes(state[:8]) >> 1)


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
