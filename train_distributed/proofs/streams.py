"""XofHmacSha256Aes128: bytes and field elements from a seed, as the PINE draft's vectors use it.

HMAC-SHA256 of the domain separation tag and a binder, keyed with the seed, gives the key and the
first counter of an AES-128-CTR keystream.
"""

import hmac
from enum import IntEnum

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from train_distributed.proofs.field import ELEMENT_BYTES, MODULUS, Elements

SEED_BYTES = 32
_VERSION, _ID = 1, 0xFFFF1004  # of the PINE draft; Pine64HmacSha256Aes128


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
