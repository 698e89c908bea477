"""The command beside a result can be typed again, and names no place of this machine."""

import sys
from pathlib import Path

import pytest

from pretrain.cli.provenance import provenance


@pytest.mark.parametrize(
    ("program", "command"),
    [
        ("train_distributed/__main__.py", "python -m train_distributed run --public public"),
        ("research/convergence.py", "python -m research.convergence run --public public"),
        ("/somewhere/bin/blind-averaging", "blind-averaging run --public public"),
    ],
)
def test_the_command_as_it_is_typed(monkeypatch, tmp_path: Path, program: str, command: str):
    monkeypatch.chdir(tmp_path)
    place = program if program.startswith("/") else str(tmp_path / program)
    monkeypatch.setattr(sys, "argv", [place, "run", "--public", str(tmp_path / "public")])
    assert provenance()["command"] == command
