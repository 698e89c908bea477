"""XofHmacSha256Aes128: bytes and field elements from a seed, as the PINE draft's vectors use it.

HMAC-SHA256 of the domain separation tag and a binder, keyed with the seed, gives the key and the
first counter of an AES-128-CTR keystream.

The tests against wraparound modulo q are dot products of a vector with random signs. A sign is -1
or 1 with probability 1/4 each and 0 with 1/2: two bits of a stream, 00, 11, or others. Signs and
limbs of 10 bits multiply as float32 matrices, exactly: sums stay below 2^24.
"""

import hmac
from enum import IntEnum

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from train_distributed.proofs.field import ELEMENT_BYTES, MODULUS, Elements

SEED_BYTES = 32
_VERSION, _ID = 1, 0xFFFF1004  # of the PINE draft; Pine64HmacSha256Aes128
LIMB_BITS, LIMBS = 10, 7
COLUMNS = 2**14  # COLUMNS * (2^LIMB_BITS - 1) < 2^24
_SIGN = np.array([-1, 0, 0, 1], np.int8)
_SIGNS = _SIGN[np.arange(256)[:, None] >> np.array([0, 2, 4, 6]) & 3]  # (256, 4) of a byte
_WORDS = np.ascontiguousarray(_SIGNS).view(np.uint32).ravel()
_BLOCK = 2**18  # signs at a time


class Usage(IntEnum):
    """Purpose of a stream; no two purposes of one seed give related bytes."""

    SHARE = 1
    PROOF = 2
    JOINT = 3  # randomness of users and aggregators
    PROVE = 4
    QUERY = 5
    JOINT_SEED = 6
    JOINT_PART = 7
    SIGNS = 8  # of the wraparound tests
    SIGNS_SEED = 9
    SIGNS_PART = 10


class Stream:
    """Keystream of one seed, usage and binder, read from its beginning on."""

    def __init__(self, seed: bytes, usage: Usage, binder: bytes) -> None:
        tag = bytes([_VERSION]) + _ID.to_bytes(4, "big") + usage.to_bytes(2, "big")
        digest = hmac.digest(seed, bytes([len(tag)]) + tag + binder, "sha256")
        cipher = Cipher(algorithms.AES128(digest[:16]), modes.CTR(digest[16:]))
        self._keystream = cipher.encryptor()

    def read(self, length: int) -> bytes:
        """The next `length` bytes."""
        return self._keystream.update(bytes(length))

    def elements(self, count: int) -> Elements:
        """(count,) uniform elements: words of q or more are skipped."""
        found = np.zeros(0, np.uint64)
        while len(found) < count:
            words = np.frombuffer(self.read(ELEMENT_BYTES * (count - len(found))), "<u8")
            found = np.append(found, words[words < np.uint64(MODULUS)].astype(np.uint64))
        return found


def derive_seed(seed: bytes, usage: Usage, binder: bytes) -> bytes:
    """Derives 32 bytes from a seed, a usage and a binder."""
    return Stream(seed, usage, binder).read(SEED_BYTES)


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
