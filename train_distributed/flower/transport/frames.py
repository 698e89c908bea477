"""Byte strings over a local socket: length u32, content. A longer one than agreed is not read."""

import select
import socket
import struct
import time

LENGTH, NODE = struct.Struct(">I"), struct.Struct(">Q")
# first byte of a frame between an operator and its hub, and between a party and its carrier
ASK, FORGET, WHO = b"a", b"f", b"w"
READY, FAILED, HERE, ANSWER, BAD = b"r", b"e", b"h", b"a", b"b"
QUESTION, STATE, CONNECTED = b"q", b"s", b"connected"


def send(line: socket.socket, *parts: bytes) -> None:
    """Sends one frame, the parts joined.

    Raises:
        OSError: the other end is gone.
    """
    line.sendall(LENGTH.pack(sum(map(len, parts))))
    for part in parts:
        line.sendall(part)


def receive(line: socket.socket, largest: int, seconds: float | None = None) -> bytes | None:
    """The next frame.

    Args:
        line: a connected stream socket.
        largest: bytes; longer frames end the connection.
        seconds: to wait for its first byte; None: for ever.

    Returns:
        None: nothing came in time.

    Raises:
        ConnectionError: hung up, or a frame longer than `largest`.
    """
    if seconds is not None and not select.select([line], [], [], max(0.0, seconds))[0]:
        return None
    (length,) = LENGTH.unpack(_exactly(line, LENGTH.size))
    if length > largest:
        raise ConnectionError(f"frame must be <= {largest} bytes, got {length}")
    return bytes(_exactly(line, length))


def hung_up(line: socket.socket) -> bool:
    """Whether the other end is gone and nothing of it is left to read."""
    if not select.select([line], [], [], 0)[0]:
        return False
    return not line.recv(1, socket.MSG_PEEK)


def _exactly(line: socket.socket, count: int) -> bytearray:
    content = bytearray(count)
    view, at = memoryview(content), 0
    while at < count:
        got = line.recv_into(view[at:])
        if not got:
            raise ConnectionError("line must stay open, was hung up")
        at += got
    return content


class Beat:
    """Says when something that happens every so many seconds is due."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._next = seconds, time.monotonic()

    def due(self) -> bool:
        """Whether the interval has passed; if so, the next one begins now."""
        if time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + self._seconds
        return True
