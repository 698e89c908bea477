"""Interruptions of a command: Ctrl-C, SIGTERM, and the end of its terminal."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def listen() -> None:
    """Makes SIGTERM and SIGHUP end a command as Ctrl-C does; what is ignored stays ignored."""
    for stop in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(stop) != signal.SIG_IGN:  # as `nohup` starts it
            signal.signal(stop, _interrupt)


@contextmanager
def held() -> Iterator[Callable[[], bool]]:
    """Lets interruptions wait until the block ends; yields a function that says if one has come.

    They are not masked, since another thread would take them. Only the main thread is ever
    interrupted: in others nothing is held.

    Raises:
        KeyboardInterrupt: at the end of a block that did not fail, if one has come.
    """
    came, before = list[int](), dict[signal.Signals, Callable[[int, FrameType | None], object]]()
    try:
        if threading.current_thread() is threading.main_thread():
            for stop in STOPS:
                if callable(now := signal.getsignal(stop)):  # else it kills, or is ignored
                    before[stop] = now
                    signal.signal(stop, lambda number, _: came.append(number))
        yield lambda: bool(came)
    finally:
        for stop, handler in reversed(before.items()):  # Ctrl-C last: it may end the loop
            signal.signal(stop, handler)
    if came:
        raise KeyboardInterrupt


@contextmanager
def after(done: str) -> Iterator[None]:
    """Lets an interruption of the block say this in the place of "nothing was written"."""
    try:
        yield
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(done) from stop


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
