"""Progress of long work: a bar on a terminal, a line now and then in a log."""

import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

EVERY = 30.0  # seconds between two lines


class Progress:
    """A context in which finished pieces are counted.

    A terminal shows tqdm's bar. Elsewhere a line is written every 30 seconds, and at the end if
    there was one before: `embedded 12,288 of 100,000, 35/s, 41 min left`.
    """

    def __init__(
        self,
        total: int,
        done: str,
        unit: str = "image",
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begins to count.

        Args:
            total: number of pieces.
            done: participle for finished pieces, such as "embedded".
            unit: name of a piece, for the bar.
            stream: where to write; None: stderr.
            clock: returns seconds.
        """
        self.total, self.done, self.unit = total, done, unit
        self.stream = sys.stderr if stream is None else stream
        self.clock, self.count = clock, 0
        self.started = self.written = clock()
        self.bar: Any = None

    def __enter__(self) -> "Progress":
        if self.stream.isatty():
            from tqdm import tqdm

            self.bar = tqdm(total=self.total, unit=self.unit, file=self.stream, smoothing=0.05)
        return self

    def update(self, pieces: int) -> None:
        """Counts more finished pieces."""
        self.count += pieces
        if self.bar is not None:
            self.bar.update(pieces)
        elif self.clock() - self.written >= EVERY:
            self._write()

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.close()
        elif self.written > self.started and error[0] is None:
            self._write()

    def _write(self) -> None:
        self.written = self.clock()
        seconds = self.written - self.started
        rate = self.count / seconds
        left = f"{_time((self.total - self.count) / rate)} left" if rate else "no end in sight"
        if self.count == self.total:
            left = f"{_time(seconds)} in all"
        speed = f"{rate:.0f}/s" if rate >= 10 else f"{rate:.2g}/s"
        line = f"{self.done} {self.count:,} of {self.total:,}, {speed}, {left}"
        print(line, file=self.stream, flush=True)


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
