"""A bar on a terminal, a line every half minute in a log."""

import io
import sys

import pytest

from pretrain.cli.waiting import Progress


class Clock:
    now = 100.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("pretrain.cli.waiting.time.monotonic", lambda: clock.now)
    return clock


def test_a_log_gets_a_line_now_and_then(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(100_000, "embedded") as progress:
        for _ in range(70):
            clock.now += 1
            progress.update(35)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "embedded 1,050 of 100,000, 35/s, 47 min left",
        "embedded 2,100 of 100,000, 35/s, 47 min left",
        "embedded 2,450 of 100,000, 35/s, 46 min left",
    ]


def test_the_last_line_says_how_long_it_took(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with Progress(4, "predicted") as progress:
        for _ in range(4):
            clock.now += 2700
            progress.update(1)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "predicted 1 of 4, 0.00037/s, 2 h 15 min left"
    assert lines[-1] == "predicted 4 of 4, 0.00037/s, 3 h 0 min in all"


def test_short_work_says_nothing(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(10, "embedded") as progress:
        progress.update(10)
    assert capsys.readouterr().err == ""


def test_nothing_is_claimed_of_work_that_failed(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        with Progress(10, "embedded") as progress:
            clock.now += 31
            progress.update(5)
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    assert capsys.readouterr().err.splitlines() == ["embedded 5 of 10, 0.16/s, 31 s left"]


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", screen := Terminal())
    with Progress(10, "embedded") as progress:
        progress.update(10)
    assert "10/10" in screen.getvalue()
    assert "embedded 10" not in screen.getvalue()
