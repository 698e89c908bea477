"""What every command does before it runs."""

import os
import re
import subprocess
import sys

import pytest

from pretrain.__main__ import MENU
from pretrain.cli.command import Command, run_command

ROOMS = {  # pretrain and embed start as train_distributed does
    "heads": "fit --data missing --out missing --num-classes 2 --l2-reg 1 --clip-norm 1",
    "train_distributed": "predict --model missing --embeddings missing",
}


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({}, "3000"),
        ({"GOMP_SPINCOUNT": "7"}, "7"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, None),
    ],
)
def test_threads_soon_sleep_while_they_wait_unless_told(
    given: dict[str, str], kept: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, "")  # is set back afterwards
        del os.environ[name]
    os.environ.update(given)
    found = []

    class Look:
        def run(self) -> None:
            found.append(os.environ.get("GOMP_SPINCOUNT"))

    def parse() -> Command:
        found.append(os.environ.get("GOMP_SPINCOUNT"))
        return Look()

    assert run_command(parse) == 0
    assert found == [kept, kept]


@pytest.mark.skipif(sys.platform != "linux", reason="another OpenMP elsewhere")
@pytest.mark.parametrize("room", ROOMS)
def test_openmp_is_told_before_it_is_loaded(room: str, tmp_path) -> None:
    """It prints what it has read: in every room, with the torch that a command loads."""
    told_already = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    environment = {name: word for name, word in os.environ.items() if name not in told_already}
    done = subprocess.run(
        [sys.executable, "-m", room, *ROOMS[room].split()],
        cwd=tmp_path,
        env=environment | {"OMP_DISPLAY_ENV": "VERBOSE"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    told = re.findall(r"GOMP_SPINCOUNT = '(\w+)'", done.stderr)
    assert told, done.stderr
    assert set(told) == {"3000"}


ACCOUNT = "account --epsilon 1 --delta 1e-5"


@pytest.mark.parametrize("typed", ["run --help", ACCOUNT])
def test_an_output_may_be_left_unread(typed: str) -> None:
    """As by `| head -2`: without a word of what became of the rest."""
    command = [sys.executable, "-u", "-m", "train_distributed", *typed.split()]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pipesize=4096
    ) as helped:
        assert helped.stdout is not None
        helped.stdout.readline()
        helped.stdout.close()
        assert helped.stderr is not None
        assert helped.stderr.read() == b""
    assert helped.returncode == 0


def test_an_option_without_a_default_shows_none(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        MENU.parse(["simclr", "--help"], "pretrain")
    shown = capsys.readouterr().out
    assert "(default: None)" not in shown
    assert "(default: 512)" in shown
