"""Which rows were seen: a 64-bit hash of every embedding row, the same for either stored precision.

What this catches is mistakes: a public set that holds private rows, in any order, any part of them,
as float16, float32 or float64. It catches exact copies only. A row that was computed again from a
re-encoded, cropped or augmented image is another row, and whoever wants to hide a copy changes one
value: the hashes need no secret key, because nobody gains by forging what he can evade.
"""

import hashlib
from collections.abc import Iterable

import numpy as np
import torch

SMALLEST, LARGEST = 2.0**-6, 2.0**15  # of a row's largest entry, for float16 to hold the row as is
BITS = 64
SIGNIFICANT = 2**11  # of float16
NEGATIVE_ZERO = 0x8000


def row_hashes(rows: np.ndarray) -> np.ndarray:
    """BLAKE2b of every row in its canonical form.

    Canonical is the row as float16: what was stored as float16 and as float32 is one row, as are
    -0 and 0. A row too large or too small for that is first divided by a power of two, which is
    hashed with it.

    Args:
        rows: (n, p) finite floats.

    Returns:
        (n,) uint64.
    """
    if rows.dtype != np.float64:
        rows = rows.astype(np.float32, copy=False)
    mantissa, exponent = np.frexp(np.abs(rows).max(1).astype(np.float64))
    largest = np.ldexp(np.rint(mantissa * SIGNIFICANT) / SIGNIFICANT, exponent)
    shift = np.where((largest >= SMALLEST) & (largest < LARGEST), 0, np.frexp(largest)[1])
    if shift.any():
        rows = np.ldexp(rows, -shift[:, None])
    half = torch.from_numpy(np.array(rows, np.float32, order="C")).half().numpy().view(np.uint16)
    words = np.empty((len(rows), rows.shape[1] + 1), np.uint16)
    words[:, 0] = shift.astype(np.int16).view(np.uint16)
    words[:, 1:] = np.where(half == NEGATIVE_ZERO, 0, half)
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
    """(n,) bool: which of the hashes are among the ascending known ones."""
    if not len(known):
        return np.zeros(len(hashes), bool)
    place = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
    return known[place] == hashes


def false_positives(rows: int, known: int) -> float:
    """Expected number of rows that are taken for known ones though they differ: n m / 2^64."""
    return rows * known / 2.0**BITS
