"""The command beside a result can be typed again, and names no place of this machine."""

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from pretrain.cli.provenance import provenance


def run_as(monkeypatch: pytest.MonkeyPatch, module: str | None) -> None:
    """`__main__` as after `python -m MODULE`, or of a script."""
    main = ModuleType("__main__")
    main.__spec__ = None if module is None else ModuleSpec(module, None)
    monkeypatch.setitem(sys.modules, "__main__", main)


@pytest.mark.parametrize(
    ("program", "command"),
    [
        ("train_distributed/__main__.py", "python -m train_distributed run --public public"),
        ("research/convergence.py", "python -m research.convergence run --public public"),
        ("/somewhere/bin/blind-averaging", "blind-averaging run --public public"),
    ],
)
def test_the_command_as_it_is_typed(monkeypatch, tmp_path: Path, program: str, command: str):
    run_as(monkeypatch, "whatever")
    monkeypatch.chdir(tmp_path)
    place = program if program.startswith("/") else str(tmp_path / program)
    monkeypatch.setattr(sys, "argv", [place, "run", "--public", str(tmp_path / "public")])
    assert provenance()["command"] == command


@pytest.mark.parametrize(
    ("name", "told"),
    [("train_distributed.__main__", "train_distributed"), ("embed.split_by_writer",) * 2],
)
def test_an_installed_module_is_named_as_it_was_typed(monkeypatch, tmp_path, name, told) -> None:
    """Away from the sources its file tells no longer which package it belongs to."""
    run_as(monkeypatch, name)
    monkeypatch.setattr(sys, "argv", [f"/site-packages/{name.replace('.', '/')}.py"])
    monkeypatch.chdir(tmp_path)
    assert provenance()["command"] == f"python -m {told}"


def test_a_script_is_named_as_a_file(monkeypatch, tmp_path: Path) -> None:
    run_as(monkeypatch, None)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "tests" / "bench.py"), "--users", "3"])
    monkeypatch.chdir(tmp_path)
    assert provenance()["command"] == "python tests/bench.py --users 3"
    monkeypatch.chdir("/")
    monkeypatch.setattr(sys, "argv", ["../elsewhere/bench.py"])
    monkeypatch.chdir(tmp_path)
    assert provenance()["command"] == "python bench.py"
