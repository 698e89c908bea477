"""Interruptions that wait, and signals that end a command."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pretrain.cli.command import STOPS, after, held, listen


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Those of a program in a terminal, whatever the tests were started by; then what was there."""
    before = {stop: signal.getsignal(stop) for stop in STOPS}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for stop, handler in before.items():
        signal.signal(stop, handler)


@pytest.mark.parametrize("stop", STOPS)
def test_a_signal_waits_until_the_block_ends(stop: signal.Signals) -> None:
    listen()
    before, done = [signal.getsignal(each) for each in STOPS], []

    def stopped() -> None:
        with after("the file was written"), held() as interrupted:
            done.append(interrupted())
            os.kill(os.getpid(), stop)
            os.kill(os.getpid(), stop)
            done.append(interrupted())

    with pytest.raises(KeyboardInterrupt, match="the file was written"):
        stopped()
    assert done == [False, True]
    assert [signal.getsignal(each) for each in STOPS] == before
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), stop)


def test_an_error_of_the_block_is_what_is_said() -> None:
    def stopped() -> None:
        with held():
            os.kill(os.getpid(), signal.SIGINT)
            raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        stopped()


def test_blocks_in_blocks_and_in_threads() -> None:
    def stopped() -> None:
        with held():
            os.kill(os.getpid(), signal.SIGINT)

    with held() as outer:
        with pytest.raises(KeyboardInterrupt):
            stopped()
        assert not outer()

    def other() -> bool:
        with held() as interrupted:
            return interrupted()

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(other).result() is False


def test_what_is_ignored_or_kills_stays_so() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup has it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with held():
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    listen()
    os.kill(os.getpid(), signal.SIGHUP)
    assert callable(signal.getsignal(signal.SIGTERM))


@pytest.mark.parametrize("ignored", [False, True])
def test_a_terminal_that_is_closed_ends_a_command_unless_it_was_told_to_stay(ignored: bool) -> None:
    program = """
import os, signal
from pretrain.cli.command import run_command
class Command:
    def run(self):
        os.kill(os.getpid(), signal.SIGHUP)
        print("stayed")
raise SystemExit(run_command(Command))
"""
    action = (lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)) if ignored else None
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
        preexec_fn=action,
    )
    said = (0, "stayed\n", "") if ignored else (130, "", "interrupted; nothing was written\n")
    assert (done.returncode, done.stdout, done.stderr) == said
