"""Notices of a wait: for whom and why, soon, when the reason changes, and every 30 seconds."""

import contextlib
import fcntl
import sys
import threading
import time
from collections.abc import Callable
from typing import Self

FIRST, EVERY = 1.0, 30.0  # seconds until the first line, and between two with the same reason


def to_terminal(line: str) -> None:
    """Prints a line on stderr, if anybody still reads it."""
    with contextlib.suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)


class Waiting:
    """A context in which a command waits for somebody else.

    A wait that ends within a second is silent. Lines come from a thread, so that whatever blocks
    in the block, they are said: `waiting for aggregator 0 (3 s of at most 600 s): no answer yet`.
    """

    def __init__(
        self,
        whom: str,
        why: str,
        *,
        most: float | None = None,
        say: Callable[[str], None] = to_terminal,
    ) -> None:
        """Begins to wait.

        Args:
            whom: that somebody, in words that a user can act on.
            why: what is known of the reason.
            most: seconds after which the wait is given up; None: never.
            say: takes a line.
        """
        self._whom, self._why, self._most, self._say = whom, why, most, say
        self._start, self._told = time.monotonic(), ""
        self._turn, self._ended = threading.Condition(), False
        self._thread = threading.Thread(target=self._work, daemon=True)

    def because(self, why: str) -> None:
        """The reason has changed to this one."""
        with self._turn:
            self._why = why
            self._turn.notify()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        with self._turn:
            self._ended = True
            self._turn.notify()
        self._thread.join()
        if self._told and error[0] is None:
            self._say(f"no longer waiting for {self._whom}, after {self._seconds():.0f} s")

    def _work(self) -> None:
        due = self._start + FIRST
        with self._turn:
            while not self._ended:
                now = time.monotonic()
                if now >= due or (self._told and self._told != self._why):
                    waited, most = self._seconds(), self._most
                    limit = (
                        f" of at most {most:.0f} s" if most is not None and most > waited else ""
                    )
                    self._say(f"waiting for {self._whom} ({waited:.0f} s{limit}): {self._why}")
                    self._told, due = self._why, now + EVERY
                self._turn.wait(due - now)

    def _seconds(self) -> float:
        return time.monotonic() - self._start


def lock(file: int, kind: int, what: str) -> None:
    """Locks an open file, waiting for other commands that have it.

    Args:
        file: its descriptor.
        kind: `fcntl.LOCK_EX` or `fcntl.LOCK_SH`.
        what: the file or folder, in words.

    Raises:
        OSError: it cannot be locked.
    """
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        with Waiting(f"another command, which has {what}", "one at a time may use it"):
            fcntl.flock(file, kind)
