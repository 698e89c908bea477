"""64-bit hashes of embedding rows, equal for all stored precisions, to find rows in two sets.

They catch mistakes: a public set that holds private rows, in any order, any part of them, as
float16, float32 or float64. They find exact copies only. A row computed again from a re-encoded,
cropped or augmented image is another row, and changing one value hides a copy. The hashes need no
secret key: forging them gains nothing, as they can be evaded.
"""

import hashlib
from collections.abc import Iterable

import numpy as np
import torch

from embed.encoding import refuse_other
from embed.store import EmbeddingSet

SMALLEST = 2.0**-6  # guard: a row's largest entry; smaller ones are scaled before float16
BITS = 64  # size: of a hash


def row_hashes(rows: np.ndarray) -> np.ndarray:
    """BLAKE2b of every row in its canonical form.

    The canonical form is float16, so that a row stored as float16 and as float32 is one row, as are
    -0 and 0. A row too large or too small for it is first divided by a power of two, which is
    hashed as well.

    Args:
        rows: (n, p) finite floats.

    Returns:
        (n,) uint64.
    """
    if rows.dtype != np.float64:
        rows = rows.astype(np.float32, copy=False)
    mantissa, exponent = np.frexp(np.abs(rows).max(1).astype(np.float64))
    float16 = np.finfo(np.float16)
    significant = 2 / float(float16.eps)
    largest = np.ldexp(np.rint(mantissa * significant) / significant, exponent)
    held = (largest >= SMALLEST) & (largest < 2.0 ** (float16.maxexp - 1))
    shift = np.where(held, 0, np.frexp(largest)[1])
    if shift.any():
        rows = np.ldexp(rows, -shift[:, None])
    half = torch.from_numpy(np.array(rows, np.float32, order="C")).half() + 0  # −0 + 0 is 0
    words = np.empty((len(rows), rows.shape[1] + 1), np.uint16)
    words[:, 0] = shift.astype(np.int16).view(np.uint16)
    words[:, 1:] = half.numpy().view(np.uint16)
    width = words.shape[1] * words.itemsize
    data = memoryview(words.tobytes())
    digests = (
        hashlib.blake2b(data[start : start + width], digest_size=BITS // 8).digest()
        for start in range(0, len(data), width)
    )
    return np.frombuffer(b"".join(digests), np.dtype("<u8")).astype(np.uint64)


def known_rows(blocks: Iterable[np.ndarray]) -> np.ndarray:
    """(m,) uint64: the distinct hashes of all rows, ascending."""
    return np.unique(np.concatenate([row_hashes(block) for block in blocks]))


def found(hashes: np.ndarray, known: np.ndarray) -> np.ndarray:
    """(n,) bool: whether each hash is among the known ones, which are ascending."""
    if not len(known):
        return np.zeros(len(hashes), bool)
    place = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
    return known[place] == hashes


def in_both(rows: EmbeddingSet, others: EmbeddingSet) -> np.ndarray:
    """(n,) bool: whether each of the rows is among the others."""
    known = known_rows(others.blocks())
    return np.concatenate([found(row_hashes(block), known) for block in rows.blocks()])


def refuse_leak(public: EmbeddingSet, private: EmbeddingSet) -> None:
    """Checks that public and private rows have one encoder and no row in common.

    Raises:
        ValueError: another encoder or preprocessing, or some row is in both.
    """
    refuse_other(public.encoding, private.encoding)
    shared = 0 if public.dim != private.dim else int(in_both(public, private).sum())
    if shared:
        raise ValueError(
            "public must be another set than the one it is applied to, without any of its rows "
            "(`embed exclude` takes them out of the private set), "
            f"got {shared} of {len(public)} rows in both"
        )


def false_positives(rows: int, known: int) -> float:
    """Expected number of rows wrongly found among the known ones: n m / 2^64."""
    return rows * known / 2.0**BITS
