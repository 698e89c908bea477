"""What is printed: characters that a terminal lacks, who is waited for, and how far work is."""

import contextlib
import fcntl
import io
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pretrain.cli import command, waiting
from pretrain.cli.waiting import Progress, Waiting, lock

NARROW = {
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "cp1252": {"PYTHONIOENCODING": "cp1252"},
    "C": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "utf-8": {"PYTHONIOENCODING": "utf-8"},
}
SCRIPT = "import sys; from train_distributed.__main__ import main; sys.exit(main())"
PROGRAMS = [
    ("-c", SCRIPT, "--help"),
    ("-m", "train_distributed", "run", "--help"),
    ("-m", "embed", "run", "--help"),
    ("-m", "pretrain", "simclr", "--help"),
    ("-m", "heads", "fit", "--help"),
]
COUNTED = (("1,050", 47), ("2,100", 47), ("2,450", 46))
EVEN = [f"{count} of 100,000, 35/s, {left} min left" for count, left in COUNTED]
SLOW = ["1 of 2, 0.00012/s, 2 h 15 min left", *["2 of 2, 0.00012/s, 4 h 30 min in all"] * 2]


def ran(*command: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, *command], env=os.environ | environment, capture_output=True, check=False
    )


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program[1].split()[0])
def test_help_is_printed(program: tuple[str, ...]) -> None:
    done = ran(*program, **NARROW["ascii"])
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
    pytest.importorskip("torch")
    from PIL import Image

    for name in ("é", "猫"):
        (tmp_path / "pics" / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "pics" / name / "a.png")
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


def test_a_reason_that_changes_is_said_at_once_and_one_that_stays_now_and_then(monkeypatch) -> None:
    monkeypatch.setattr(waiting, "FIRST", 0.0)
    said = list[str]()
    with Waiting("it", "a", say=said.append) as wait:
        until(lambda: len(said) == 1)
        wait.because("a")
        wait.because("b")
        until(lambda: len(said) == 2)
        time.sleep(0.1)
        assert [line.rpartition(": ")[2] for line in said] == ["a", "b"]
        monkeypatch.setattr(waiting, "EVERY", 0.0)
        wait.because("c")  # from here on it is due at once
        until(lambda: len(said) > 9)
    assert said[-2].endswith("): c")


def test_a_wait_in_vain_ends_with_the_error_alone(monkeypatch) -> None:
    monkeypatch.setattr(waiting, "FIRST", 0.0)
    said = list[str]()

    def in_vain() -> None:
        with Waiting("it", "a", say=said.append):
            until(lambda: bool(said))
            raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        in_vain()
    assert said == ["waiting for it (0 s): a"]


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
        (10, [10], 0, []),  # short work says nothing
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
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", screen := Terminal())
    with Progress(10, "embedded") as progress:
        progress.update(10)
    assert "10/10" in screen.getvalue()
    assert "embedded 10" not in screen.getvalue()
