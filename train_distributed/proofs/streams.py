"""XofHmacSha256Aes128: bytes and field elements from a seed, as the PINE draft's vectors use it.

HMAC-SHA256 of the domain separation tag and a binder, keyed with the seed, gives the key and the
first counter of an AES-128-CTR keystream.
"""

import hmac

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from train_distributed.proofs.field import ELEMENT_BYTES, MODULUS, Elements

SEED_BYTES = 32


class Stream:
    """Keystream of one seed, tag and binder, read from its beginning on."""

    def __init__(self, seed: bytes, tag: bytes, binder: bytes) -> None:
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


def derive_seed(seed: bytes, tag: bytes, binder: bytes) -> bytes:
    """32 bytes that depend on all three."""
    return Stream(seed, tag, binder).read(SEED_BYTES)
