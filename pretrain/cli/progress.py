"""How far a long piece of work is: a bar where somebody looks, a line now and then in a log."""

import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

EVERY = 30.0  # seconds between two lines


class Progress:
    """A context in which finished pieces are counted.

    On a terminal that is tqdm's bar. Elsewhere a line is written every 30 seconds, and one at the
    end if there was any before: `embedded 12,288 of 100,000, 35/s, 41 min left`.
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
            total: pieces there are.
            done: what has happened to a finished one, such as "embedded".
            unit: a piece, for the bar.
            stream: where to write; stderr if left out.
            clock: seconds.
        """
        self.total, self.done, self.unit = total, done, unit
        self.stream = sys.stderr if stream is None else stream
        self.clock, self.count = clock, 0
        self.started = self.told = clock()
        self.bar: Any = None

    def __enter__(self) -> "Progress":
        if self.stream.isatty():
            from tqdm import tqdm

            self.bar = tqdm(total=self.total, unit=self.unit, file=self.stream, smoothing=0.05)
        return self

    def update(self, pieces: int) -> None:
        """So many more are finished."""
        self.count += pieces
        if self.bar is not None:
            self.bar.update(pieces)
        elif self.clock() - self.told >= EVERY:
            self._tell()

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.close()
        elif self.told > self.started and error[0] is None:
            self._tell()

    def _tell(self) -> None:
        self.told = self.clock()
        seconds = self.told - self.started
        rate = self.count / seconds
        left = f"{_time((self.total - self.count) / rate)} left" if rate else "no end in sight"
        if self.count == self.total:
            left = f"{_time(seconds)} in all"
        speed = f"{rate:.0f}/s" if rate >= 10 else f"{rate:.2g}/s"
        line = f"{self.done} {self.count:,} of {self.total:,}, {speed}, {left}"
        print(line, file=self.stream, flush=True)


def _time(seconds: float) -> str:
    """In words.

    Examples:
        >>> [_time(seconds) for seconds in (41.2, 2460, 9000)]
        ['41 s', '41 min', '2 h 30 min']
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
