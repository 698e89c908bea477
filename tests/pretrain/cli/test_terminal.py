"""Terminals that lack characters: they are replaced, whatever a command prints."""

import io
import os
import subprocess
import sys

import pytest

from pretrain.cli import command

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
