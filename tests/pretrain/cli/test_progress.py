"""A bar on a terminal, a line every half minute in a log."""

import io

from pretrain.cli.progress import Progress


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_log_gets_a_line_now_and_then() -> None:
    log, clock = io.StringIO(), Clock()
    with Progress(100_000, "embedded", stream=log, clock=clock) as progress:
        for _ in range(70):
            clock.now += 1
            progress.update(35)
    lines = log.getvalue().splitlines()
    assert lines == [
        "embedded 1,050 of 100,000, 35/s, 47 min left",
        "embedded 2,100 of 100,000, 35/s, 47 min left",
        "embedded 2,450 of 100,000, 35/s, 46 min left",
    ]


def test_the_last_line_says_how_long_it_took() -> None:
    log, clock = io.StringIO(), Clock()
    with Progress(4, "predicted", stream=log, clock=clock) as progress:
        for _ in range(4):
            clock.now += 2700
            progress.update(1)
    assert log.getvalue().splitlines()[0] == "predicted 1 of 4, 0.00037/s, 2 h 15 min left"
    assert log.getvalue().splitlines()[-1] == "predicted 4 of 4, 0.00037/s, 3 h 0 min in all"


def test_short_work_says_nothing() -> None:
    log = io.StringIO()
    with Progress(10, "embedded", stream=log) as progress:
        progress.update(10)
    assert log.getvalue() == ""


def test_nothing_is_claimed_of_work_that_failed() -> None:
    log, clock = io.StringIO(), Clock()
    try:
        with Progress(10, "embedded", stream=log, clock=clock) as progress:
            clock.now += 31
            progress.update(5)
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    assert log.getvalue().splitlines() == ["embedded 5 of 10, 0.16/s, 31 s left"]


def test_a_terminal_gets_a_bar() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    with Progress(10, "embedded", stream=screen) as progress:
        progress.update(10)
    assert "10/10" in screen.getvalue()
    assert "embedded 10" not in screen.getvalue()
