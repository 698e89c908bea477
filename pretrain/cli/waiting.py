"""Notices of waits and of long work, soon or on a terminal at once, then every 30 seconds."""

import contextlib
import fcntl
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Self

FIRST, EVERY = 1.0, 30.0  # seconds until the first line of a wait, and between two


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


class Progress:
    """A context in which finished pieces are counted.

    A terminal shows tqdm's bar. Elsewhere a line is written every 30 seconds, and at the end if
    there was one before: `embedded 12,288 of 100,000, 35/s, 41 min left`.
    """

    def __init__(self, total: int, done: str, unit: str = "image") -> None:
        """Begins to count.

        Args:
            total: number of pieces.
            done: participle for finished pieces, such as "embedded".
            unit: name of a piece, for the bar.
        """
        self.total, self.done, self.unit, self.count = total, done, unit, 0
        self.started = self.written = time.monotonic()
        self.bar: Any = None

    def __enter__(self) -> "Progress":
        if sys.stderr.isatty():
            from tqdm import tqdm

            self.bar = tqdm(total=self.total, unit=self.unit, file=sys.stderr, smoothing=0.05)
        return self

    def update(self, pieces: int) -> None:
        """Counts more finished pieces."""
        self.count += pieces
        if self.bar is not None:
            self.bar.update(pieces)
        elif time.monotonic() - self.written >= EVERY:
            self._write()

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.close()
        elif self.written > self.started and error[0] is None:
            self._write()

    def _write(self) -> None:
        self.written = time.monotonic()
        seconds = self.written - self.started
        rate = self.count / seconds
        left = f"{_time((self.total - self.count) / rate)} left" if rate else "no end in sight"
        if self.count == self.total:
            left = f"{_time(seconds)} in all"
        speed = f"{rate:.0f}/s" if rate >= 10 else f"{rate:.2g}/s"
        line = f"{self.done} {self.count:,} of {self.total:,}, {speed}, {left}"
        to_terminal(line)


def _time(seconds: float) -> str:
    """Duration in words.

    Examples:
        >>> [_time(seconds) for seconds in (41.2, 2460, 9000)]
        ['41 s', '41 min', '2 h 30 min']
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
