"""What is printed: characters that a terminal lacks, waiting and progress; rules."""

import contextlib
import fcntl
import io
import math
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pretrain import check
from pretrain.cli import command, waiting
from pretrain.cli.waiting import Progress, Waiting, lock
from tests.pretrain.conftest import put

NARROW = {name: {"PYTHONIOENCODING": name} for name in ("ascii", "cp1252", "utf-8")}
NARROW["C"] = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
COUNTED = (("1,050", 47), ("2,100", 47), ("2,450", 46))
EVEN = [f"{count} of 100,000, 35/s, {left} min left" for count, left in COUNTED]
SHAPES = (np.zeros((7, 2)), np.zeros(3), np.zeros((1, 7, 3)))
SLOW = ["1 of 2, 0.00012/s, 2 h 15 min left", *["2 of 2, 0.00012/s, 4 h 30 min in all"] * 2]


def ran(*command: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, *command], env=os.environ | environment, capture_output=True, check=False
    )


@pytest.mark.parametrize(
    "typed",
    ["train_distributed", "train_distributed run", "embed run", "pretrain simclr", "heads fit"],
)
def test_help_is_printed(typed: str) -> None:
    done = ran("-m", *typed.split(), "--help", **NARROW["ascii"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode("ascii").startswith("usage: ")
    assert not done.stderr


PRINTS = """
import sys
from pretrain.cli.command import run_command

class Prints:
    def run(self):
        print("ε = 3 ± 1, class é beside e, 猫, \\udcff")
        raise ValueError("label must be ≥ 0, got −1 of 猫")

sys.exit(run_command(Prints))
"""


@pytest.mark.parametrize(("kind", "said"), [
    ("ascii", b"epsilon = 3 +- 1, class \\xe9 beside e, \\u732b, \\udcff\n"),
    ("cp1252", b"epsilon = 3 \xb1 1, class \xe9 beside e, \\u732b, \\udcff\n"),
    ("C", b"epsilon = 3 +- 1, class \\xe9 beside e, \\u732b, \\udcff\n"),
    ("utf-8", "ε = 3 ± 1, class é beside e, 猫, \\udcff\n".encode()),
])  # fmt: skip
def test_results_and_errors_are_printed(kind: str, said: bytes) -> None:
    source = PRINTS.encode("ascii", "backslashreplace").decode()  # as an argument in any locale
    done = ran("-c", source, **NARROW[kind])
    assert (done.returncode, done.stdout) == (2, said)
    wanted = "≥ 0, got −1 of 猫" if kind == "utf-8" else ">= 0, got -1 of \\u732b"
    assert done.stderr.decode() == f"error: label must be {wanted}\n"


def test_streams_of_others_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in (None, io.StringIO(), io.TextIOWrapper(io.BytesIO(), "ascii")):
        monkeypatch.setattr(sys, "stdout", stream)
        command.replace_missing()
    print("ε")
    sys.stdout.flush()
    assert sys.stdout.buffer.getvalue() == b"epsilon\n"  # pyright: ignore
    with pytest.raises(UnicodeDecodeError):
        b"\xff".decode("ascii", command.HANDLER)


def test_names_that_no_locale_can_write_say_what_to_set(tmp_path) -> None:
    for name in ("é", "猫"):
        put(tmp_path / "pics" / name / "a.png")
    command = ("--data", str(tmp_path / "pics"), "--layout", "class", "--out", str(tmp_path / "o"))
    done = ran("-m", "embed", "run", *command, **NARROW["C"])
    assert done.returncode == 2
    assert b"(set PYTHONUTF8=1: names of files are in UTF-8)" in done.stderr


def until(found: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_first_line_comes_within_two_seconds() -> None:
    said = list[str]()
    with Waiting("the server", "no answer yet", say=said.append) as wait:
        wait.because("refused")
    assert said == []  # a wait that ends soon is silent
    with Waiting("the server", "no answer yet", most=600.0, say=said.append):
        start = time.monotonic()
        until(lambda: bool(said))
        assert time.monotonic() - start < 2
        assert said == ["waiting for the server (1 s of at most 600 s): no answer yet"]
    assert said[1:] == ["no longer waiting for the server, after 1 s"]


def test_reasons_are_said_as_they_change_and_waits_end_with_their_error(monkeypatch) -> None:
    monkeypatch.setattr(waiting, "FIRST", 0.0)
    said = list[str]()

    def in_vain() -> None:
        with Waiting("it", "a", say=said.append) as wait:
            until(lambda: len(said) == 1)
            wait.because("a")
            wait.because("b")
            until(lambda: len(said) == 2)
            time.sleep(0.1)
            assert said == ["waiting for it (0 s): a", "waiting for it (0 s): b"]
            monkeypatch.setattr(waiting, "EVERY", 0.0)
            wait.because("c")  # from here on it is due at once
            until(lambda: len(said) > 9)
            raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        in_vain()
    assert said[-1].endswith("): c")


def test_nobody_who_has_stopped_to_read_disturbs(monkeypatch) -> None:
    monkeypatch.setattr(waiting, "FIRST", 0.0)
    for closed in (True, False):
        read, write = os.pipe()
        os.close(read)
        pipe = os.fdopen(write, "w")
        if closed:
            pipe.close()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", pipe)
            with Waiting("it", "a"):
                time.sleep(0.1)
        with contextlib.suppress(BrokenPipeError):  # of what was not written
            pipe.close()


def test_a_lock_that_another_command_has_is_waited_for_aloud(tmp_path: Path, capsys) -> None:
    path = tmp_path / "file"
    with path.open("w") as first, path.open() as second:
        lock(first.fileno(), fcntl.LOCK_EX, "the file in use")
        assert capsys.readouterr().err == ""
        release = threading.Timer(1.5, fcntl.flock, (first, fcntl.LOCK_UN))
        release.start()
        lock(second.fileno(), fcntl.LOCK_EX, "the file in use")
        release.join()
    who = "another command, which has the file in use"
    first, last = capsys.readouterr().err.splitlines()
    assert first == f"waiting for {who} (1 s): one at a time may use it"
    assert re.fullmatch(rf"no longer waiting for {who}, after \d s", last)


@pytest.mark.parametrize(
    ("total", "steps", "seconds", "lines"),
    [
        (100_000, [35] * 70, 1, EVEN),
        (2, [1, 1], 8100, SLOW),
        (10, [5, 0], 31, ["5 of 10, 0.16/s, 31 s left"]),  # nothing is claimed of work that failed
    ],
)
def test_a_log_gets_a_line_now_and_then(monkeypatch, capsys, total, steps, seconds, lines) -> None:
    now = [100.0]
    monkeypatch.setattr(waiting.time, "monotonic", lambda: now[0])
    with contextlib.suppress(KeyboardInterrupt), Progress(total, "embedded") as progress:
        for step in steps:
            if not step:
                raise KeyboardInterrupt
            now[0] += seconds
            progress.update(step)
    assert capsys.readouterr().err.splitlines() == [f"embedded {line}" for line in lines]


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", screen := io.StringIO())
    monkeypatch.setattr(screen, "isatty", lambda: True)
    with Progress(10, "embedded") as progress:
        progress.update(10)
    assert "10/10" in screen.getvalue()
    assert "embedded 10" not in screen.getvalue()


@pytest.mark.parametrize(
    ("interval", "inside", "outside"),
    [
        ("(0, 1]", (1e-300, 1), (0, math.nextafter(1, 2), math.nan)),
        ("[1, inf)", (1, 1e300), (0.5, math.inf, math.nan)),
        ("[0, 2^63)", (0, 2**63 - 1), (-1, 2**63)),
        ("[-2, -1]", (-2, -1), (0, -3)),
    ],
)
def test_an_interval_reads_as_in_mathematics(interval, inside, outside) -> None:
    for value in inside:
        check.within(interval, share=value)
    for value in outside:
        with pytest.raises(ValueError, match="share must be in "):
            check.within(interval, share=value)
    with pytest.raises(TypeError, match="interval"):  # a mistake of the program
        check.within(interval.replace(", ", ".."), share=0.5)


@pytest.mark.parametrize(
    ("rule", "kept", "refused", "words"),
    [
        (check.positive, 0.5, (0, -1, math.nan, math.inf), "must be finite and > 0"),
        (lambda **x: check.at_least(2, **x), 2, (1, math.nan), "must be >= 2"),
        (lambda **x: check.at_most(2, **x), 2, (3, math.nan), "must be <= 2"),
        (lambda **x: check.one_of(("a", "b"), **x), "a", ("none",), "must be one of a, b"),
        (lambda **x: check.equal(2, **x), 2, (3,), "must be 2"),
        (lambda **x: check.byte_length(3, **x), b"abc", (b"abcd",), "must be 3 bytes"),
        (lambda **x: check.shape(("n", 3), **x), np.zeros((7, 3)), SHAPES, r"must be \(n, 3\)"),
        (check.given, 0, (None,), "must be given"),
    ],
)
def test_a_rule_names_what_breaks_it(rule, kept, refused, words) -> None:
    rule(first=kept, second=kept)
    for value in refused:
        with pytest.raises(ValueError, match=f"^second {words}, got ") as error:
            rule(first=kept, second=value)
        assert "abcd" not in str(error.value)  # bytes may be a key
    if rule is not check.given:  # only options that say so may be left out
        with pytest.raises((TypeError, ValueError, AttributeError)):
            rule(a=None)


def test_what_may_be_left_out() -> None:
    assert check.drop_none(a=None, b=0, c="") == {"b": 0, "c": ""}
    check.not_set("here", a=None, b=(), c="", d=False)
    for port in (0, 7):
        with pytest.raises(ValueError, match="port must be left out with an invitation, got"):
            check.not_set("with an invitation", port=port)
    check.exactly_one(a=0, b=None)
    check.exactly_one(a=(), b="x")
    for values, got in (({"a": None, "b": ()}, "neither"), ({"a": 1, "b": 2}, "both")):
        with pytest.raises(ValueError, match=f"exactly one of a and b must be given, got {got}"):
            check.exactly_one(**values)
