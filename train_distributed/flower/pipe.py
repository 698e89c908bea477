"""The line between a Flower app and the process that holds keys and data: a local socket.

Flower starts a fresh process for every message and runs in it the code that the operator shipped.
So that code is a pipe (`client_app.py`), and state, keys and data stay in the party's own process
behind a Unix socket in a directory of its owner alone; both ends prove that they know a random key
kept there. Messages are byte strings; nothing is ever unpickled.
"""

import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, Listener
from pathlib import Path

SOCKET, KEY = "desk.sock", "desk.key"


@dataclass(frozen=True)
class Desk:
    """A socket that waits for apps."""

    folder: Path  # tells an app where to connect
    listener: Listener

    def accept(self) -> Connection | None:
        """The next app's connection; None if it did not prove that it may."""
        try:
            return self.listener.accept()
        except (AuthenticationError, EOFError, ConnectionError):
            return None

    def serve(self, answer: Callable[[bytes], bytes]) -> None:
        """Answers one request per connection until the desk closes; a broken-off app is ignored."""
        while True:
            try:
                connection = self.accept()
            except OSError:  # closed
                return
            if connection is not None:
                with connection, suppress(EOFError, OSError):
                    connection.send_bytes(answer(connection.recv_bytes()))


@contextmanager
def open_desk() -> Iterator[Desk]:
    """A desk in a new directory that only this user can read; both vanish afterwards."""
    with tempfile.TemporaryDirectory(prefix="desk-") as name:
        folder = Path(name)
        key = secrets.token_bytes(32)
        (folder / KEY).write_bytes(key)
        with Listener(str(folder / SOCKET), "AF_UNIX", authkey=key) as listener:
            yield Desk(folder, listener)
