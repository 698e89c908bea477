"""Lists of byte strings as one byte string: count, then length and content of each."""

import struct
from collections.abc import Iterable

from train_distributed.secure_sum.errors import MalformedMessage


def join(blobs: Iterable[bytes]) -> bytes:
    """Joins as count u32 | (length u64 | content)*.

    Examples:
        >>> split(join([b"seed", b""]))
        [b'seed', b'']
    """
    items = list(blobs)
    parts = [struct.pack(">I", len(items))]
    for blob in items:
        parts += [struct.pack(">Q", len(blob)), blob]
    return b"".join(parts)


def split(joined: bytes) -> list[bytes]:
    """The inverse of `join`.

    Raises:
        MalformedMessage: lengths that do not add up.
    """
    if len(joined) < 4:
        raise MalformedMessage(f"list must be >= 4 bytes, got {len(joined)}")
    (count,) = struct.unpack_from(">I", joined)
    at, blobs = 4, list[bytes]()
    for _ in range(count):
        if at + 8 > len(joined):
            raise MalformedMessage(f"list must hold {count} items, got {len(blobs)}")
        (length,) = struct.unpack_from(">Q", joined, at)
        blobs.append(joined[at + 8 : at + 8 + length])
        at += 8 + length
    if at != len(joined):
        raise MalformedMessage(f"list must be {at} bytes, got {len(joined)}")
    return blobs
