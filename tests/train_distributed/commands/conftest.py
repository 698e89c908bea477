"""Command lines of the program `blind-averaging`, in this process."""

import signal
import sys
from collections.abc import Callable, Iterator

import pytest

from train_distributed.__main__ import main

Said = tuple[int, str, str]


@pytest.fixture
def say(monkeypatch, capsys, tmp_path) -> Iterator[Callable[..., Said]]:
    """Runs `blind-averaging` in an empty directory: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGTERM)

    def run(*arguments: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["blind-averaging", *arguments])
        try:
            code = main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 0
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    yield run
    signal.signal(signal.SIGTERM, before)
