"""Command lines in this process."""

import signal
import sys
from collections.abc import Callable, Iterator

import pytest

from pretrain.cli.command import run_command
from train_distributed.__main__ import _parse, main

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


@pytest.fixture
def call(monkeypatch, capsys, tmp_path) -> Iterator[Callable[..., Said]]:
    """Runs `python -m train_distributed` in an empty directory: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGTERM)

    def run(*arguments: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["train_distributed", *arguments])
        code = run_command(_parse)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    yield run
    signal.signal(signal.SIGTERM, before)
