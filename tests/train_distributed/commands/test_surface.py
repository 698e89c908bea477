"""How much a command asks, how long its help is, and what it costs to read it."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from train_distributed.__main__ import ROOMS

ROOT = Path(__file__).parents[3]
MOST = {
    **{"run": 26, "rehearse": 12, "embed run": 26, "federation init": 24},
    **{"audit": 14, "protect": 16},
}
START = "import sys; from train_distributed.__main__ import main; sys.exit(main())"
SECONDS = 1.5  # of CPU here, whatever else runs; some .6 on a quiet machine

Say = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize("command", MOST)
def test_a_command_has_few_options(say: Say, command: str) -> None:
    _, printed, _ = say(*command.split(), "--help")
    options = re.findall(r"^\W{1,4}(--[a-z][a-z-]+)", printed, re.MULTILINE)
    assert len(options) == len(set(options))
    assert 8 <= len(options) <= MOST[command]


def test_the_help_of_run_fits_in_a_hundred_lines(say: Say) -> None:
    _, printed, _ = say("run", "--help")
    assert printed.count("\n") <= 100
    titles = re.findall(r"^\W+(\w+) options \W+$", printed, re.MULTILINE)
    assert titles == ["data", "privacy", "public", "method", "output"]


def test_only_a_method_with_heads_shows_their_options(say: Say) -> None:
    assert "--l2-reg" not in say("run", "--help")[1]
    assert "--l2-reg" in say("run", "--method", "softmax", "--help")[1]
    assert "--l2-reg" in say("simulate", "--method=svm", "--help")[1]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["", *ROOMS.commands])
def test_help_is_there_at_once(command: str) -> None:
    typed = [sys.executable, "-c", START, *command.split(), "--help"]

    def seconds() -> float:
        with subprocess.Popen(typed, cwd=ROOT, stdout=subprocess.DEVNULL) as child:
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
        assert child.returncode == 0
        return usage.ru_utime + usage.ru_stime

    assert min(seconds() for _ in range(3)) <= SECONDS
