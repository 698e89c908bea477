"""Dot products of a vector with random signs: the tests against wraparound modulo q.

A sign is -1 or 1 with probability 1/4 each and 0 with 1/2: two bits of a stream, 00, 11, or
others. Signs and limbs of 10 bits multiply as float32 matrices, exactly: sums stay below 2^24.
"""

import numpy as np

from train_distributed.proofs.field import MODULUS, Elements
from train_distributed.proofs.streams import Stream

LIMB_BITS, LIMBS = 10, 7
COLUMNS = 2**14  # COLUMNS * (2^LIMB_BITS - 1) < 2^24
_SIGN = np.array([-1, 0, 0, 1], np.int8)
_SIGNS = _SIGN[np.arange(256)[:, None] >> np.array([0, 2, 4, 6]) & 3]  # (256, 4) of a byte
_WORDS = np.ascontiguousarray(_SIGNS).view(np.uint32).ravel()
_BLOCK = 2**18  # signs at a time


def sign_products(vector: Elements, tests: int, stream: Stream) -> Elements:
    """(tests,) dot products of a vector (d,), or of a share of one, with signs."""
    row = -(-len(vector) // 4)
    padded = np.append(vector, np.zeros(-len(vector) % 4, np.uint64))
    shifts = np.arange(0, LIMB_BITS * LIMBS, LIMB_BITS, dtype=np.uint64)
    limbs = ((padded[:, None] >> shifts) & np.uint64(2**LIMB_BITS - 1)).astype(np.float32)
    found, block = [], max(1, _BLOCK // (4 * row))
    for start in range(0, tests, block):
        count = min(block, tests - start)
        octets = np.frombuffer(stream.read(row * count), np.uint8)
        signs = np.take(_WORDS, octets).view(np.int8).reshape(count, -1)
        sums = np.zeros((count, LIMBS), np.int64)
        for first in range(0, len(limbs), COLUMNS):
            part = slice(first, first + COLUMNS)
            sums += (signs[:, part].astype(np.float32) @ limbs[part]).astype(np.int64)
        found.extend(sums.tolist())
    values = [sum(limb << (LIMB_BITS * i) for i, limb in enumerate(row)) for row in found]
    return np.array([value % MODULUS for value in values], np.uint64)
