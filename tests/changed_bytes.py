"""Messages changed at random, for tests of what reads them."""

import random
from collections.abc import Sequence


def changed(message: bytes, draw: random.Random, others: Sequence[bytes] = ()) -> bytes:
    """Other bytes: bits flipped, a stretch replaced, cut out, doubled, moved or put in, a new end.

    The new end may be that of one of the `others`, or more bytes, or none.
    """
    while True:
        start = draw.randrange(len(message) + 1)
        length = draw.choice([1, 1, 2, 4, 8, 32, 64, 300, draw.randrange(len(message) + 1)])
        before, piece, after = message[:start], message[start:][:length], message[start + length :]
        flipped = bytes(octet ^ 1 << draw.randrange(8) for octet in piece[:4])
        found = draw.choice(
            [
                before + flipped + piece[4:] + after,
                before + draw.randbytes(len(piece)) + after,
                before + bytes([draw.choice([0, 1, 127, 128, 255])]) * len(piece) + after,
                before + after,
                before + piece + piece + after,
                after + before + piece,
                before + draw.randbytes(length) + piece + after,
                before + draw.choice([*others, b"", draw.randbytes(length)])[start:],
            ]
        )
        if found != message:
            return found
