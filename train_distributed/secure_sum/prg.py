"""Seeds and the masks they expand to: AES-256 in counter mode, one stream per seed.

A stream is the AES-256-CTR keystream from counter zero, read as little-endian 64-bit words. The
counter may start at zero because a seed is used for one stream only. 32 bytes come from the
operating system or, for a mask that two parties share, from HKDF-SHA256 (RFC 5869).
"""

import secrets
from collections.abc import Iterator

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from pretrain import check

WORD = np.dtype("<u8")  # what travels: little-endian on every machine
SEED_BYTES = 32
CHUNK_WORDS = 2**15  # 256 KiB: stays in the second-level cache
_ZEROS = memoryview(bytes(CHUNK_WORDS * WORD.itemsize))
Words = NDArray[np.unsignedinteger]
_HEAD = 32  # bytes of the first two blocks


def new_seed() -> bytes:
    """Draws 32 fresh bytes from the operating system."""
    return secrets.token_bytes(SEED_BYTES)


def derive(secret: bytes, purpose: bytes) -> bytes:
    """HKDF-SHA256 (RFC 5869, no salt) of a secret; 32 bytes, one value per purpose."""
    return HKDF(algorithm=SHA256(), length=SEED_BYTES, salt=None, info=purpose).derive(secret)


def stream(seed: bytes, count: int) -> Iterator[tuple[slice, NDArray[np.uint64]]]:
    """The first `count` words of a seed's stream, chunk by chunk.

    All blocks but the first two are made as AES-GCM's, whose counter begins at two where the nonce
    is zero: OpenSSL enciphers for GCM with the widest AES instructions that a processor has, for
    CTR with the oldest. No tag is asked for.

    Yields:
        The chunk's place in the stream, and its words; the array is overwritten by the next chunk.

    Raises:
        ValueError: the seed is not 32 bytes.
    """
    check.byte_length(SEED_BYTES, seed=seed)
    key = algorithms.AES256(seed)
    words = np.empty(min(count, CHUNK_WORDS), WORD)
    octets = words.data.cast("B")
    head = Cipher(key, modes.CTR(bytes(16))).encryptor().update(_ZEROS[:_HEAD])[: len(octets)]
    octets[: len(head)] = head
    cipher, done = Cipher(key, modes.GCM(bytes(12))).encryptor(), len(head)
    for start in range(0, count, CHUNK_WORDS):
        length = min(CHUNK_WORDS, count - start)
        used = length * WORD.itemsize
        cipher.update_into(_ZEROS[: used - done], octets[done:used])
        yield slice(start, start + length), words[:length]
        done = 0


def add_stream(total: Words, seed: bytes) -> None:
    """Adds a seed's stream to `total` (d,), in place, as words of its width, modulo 2^bits."""
    for own, words in _beside(total, seed):
        own += words


def subtract_stream(total: Words, seed: bytes) -> None:
    """Subtracts what `add_stream` adds."""
    for own, words in _beside(total, seed):
        own -= words


def _beside(total: Words, seed: bytes) -> Iterator[tuple[Words, Words]]:
    """Views of `total`, piece by piece, and as many words of the stream."""
    width = total.dtype.itemsize
    for place, chunk in stream(seed, -(-len(total) * width // WORD.itemsize)):
        own = total[place.start * WORD.itemsize // width :]
        words = chunk.view(total.dtype)[: len(own)]
        yield own[: len(words)], words
