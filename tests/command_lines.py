"""Command lines in the process of the tests."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

Said = tuple[int, str, str]  # exit code, stdout, stderr


@contextmanager
def typed(
    program: str,
    main: Callable[[], int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Callable[..., Said]]:
    """Yields what runs a program's `main` with the words that follow its name."""
    before = {stop: signal.getsignal(stop) for stop in (signal.SIGTERM, signal.SIGHUP)}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which nohup, around the tests, ignores

    def run(*arguments: str) -> Said:
        monkeypatch.setattr(sys, "argv", [program, *arguments])
        try:
            code = main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 0
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    yield run
    for stop, handler in before.items():
        signal.signal(stop, handler)
