"""A party's own process, asked by the ClientApp of its Flower node over a Unix socket.

    ClientApp  status u16 | content     what the operator's service has answered to its last poll
    party      is it done u8 | federation 32 | what its poll's header shows 132 | poll

Each sends until it ends its half of the stream. Who may ask is a matter of the socket's mode: its
owner, and where its folder has the setgid bit that folder's group, so that Flower, which runs what
the operator sends it, can have an account of its own that reads no keys and no rows.
"""

import errno
import os
import socket
import stat
import struct
import threading
from pathlib import Path
from typing import Self

from train_distributed.federation.attendance import Attendance, Away, Foreign
from train_distributed.federation.orders import QUESTION_BYTES, Poll, write_poll

UNIX = "unix:"  # begins the address of an operator that is asked over Flower
SILENT_SECONDS = 600.0  # after which a Flower node that asks nothing counts as gone
BROKEN_SECONDS = 10.0  # that a ClientApp may pause between two bytes
MOST_BYTES = 107  # of a socket's path
_STATUS = struct.Struct(">H")
_UMASK = threading.Lock()  # a process has one


class NodeLine:
    """A party's line to the operator over the Flower node that asks at a socket.

    Args:
        attendance: of the party; its address is `unix:` and the socket's path.
    """

    def __init__(self, attendance: Attendance) -> None:
        self._at, self._path = attendance, Path(attendance.address.removeprefix(UNIX))
        self._node: socket.socket | None = None  # waits for a poll

    def __enter__(self) -> Self:
        """Listens.

        Raises:
            ValueError: the path is too long, or taken.
        """
        if len(os.fsencode(self._path)) > MOST_BYTES:
            raise ValueError(f"operator must be unix: and <= {MOST_BYTES} bytes, got {self._path}")
        try:
            self._listener = listening(self._path)
        except OSError as error:
            why = error.strerror or error
            raise ValueError(f"operator must be a free path, got {self._path}: {why}") from error
        self._listener.settimeout(min(self._at.patience, SILENT_SECONDS))
        self._at.say(f"waits for a Flower node at {self._path}")
        return self

    def __exit__(self, *_: object) -> None:
        self._hang_up()
        self._listener.close()
        self._path.unlink(missing_ok=True)

    def __call__(self, poll: Poll) -> tuple[int, bytes]:
        """Gives the node a poll, if it waits for one; what it brings next, as a web service does.

        Raises:
            Away: nobody asks, or not to the end.
            Foreign: more than a question, or less.
        """
        over, federation = self._at.endpoint.over, self._at.federation
        if self._node is not None:
            body, shown = write_poll(federation, poll, self._at.keys)
            try:
                self._node.sendall(bytes([over]) + federation.digest + shown + body)
            except OSError as error:  # it is asked again
                raise Away(f"Flower's node broke off: {error}") from error
            finally:
                self._hang_up()
            if over:
                return 204, b""
        try:
            self._node, _ = self._listener.accept()
            self._node.settimeout(BROKEN_SECONDS)
            return self._read(self._node, _STATUS.size + QUESTION_BYTES)
        except OSError as error:
            self._hang_up()
            raise Away(f"no Flower node asks at {self._path}: {error}") from error

    def _read(self, node: socket.socket, head: int) -> tuple[int, bytes]:
        most, got = head + self._at.endpoint.largest_frame, bytearray()
        while len(got) <= most and (piece := node.recv(2**20)):
            got += piece
        if not _STATUS.size <= len(got) <= most:
            self._hang_up()
            raise Foreign(f"question must be of {_STATUS.size} to {most} bytes, got {len(got)}")
        return *_STATUS.unpack_from(got), bytes(got[_STATUS.size :])

    def _hang_up(self) -> None:
        if self._node is not None:
            self._node.close()
        self._node = None


def listening(path: Path) -> socket.socket:
    """A socket that listens at a path, and takes the place of one that a killed process has left.

    Raises:
        OSError: somebody listens there, another file is there, or there is no such folder.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
            if path.is_socket() and other.connect_ex(str(path)) == errno.ECONNREFUSED:
                path.unlink()
        shared = path.parent.stat().st_mode & stat.S_ISGID
        with _UMASK:
            before = os.umask(0o117 if shared else 0o177)
            try:
                listener.bind(str(path))
            finally:
                os.umask(before)
        listener.listen()
    except OSError:
        listener.close()
        raise
    return listener
