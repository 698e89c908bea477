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
    ("module", "told"),
    [
        ("train_distributed.__main__", "train_distributed"),
        ("tests.benchmarks.split_by_writer",) * 2,
    ],
)
@pytest.mark.parametrize("place", ["", ".venv/lib/", "/site-packages/"])
def test_a_module_is_named_as_it_was_typed(
    monkeypatch, tmp_path: Path, module: str, told: str, place: str
) -> None:
    """Wherever its file lies, which away from the sources tells not which package it is of."""
    run_as(monkeypatch, module)
    program = tmp_path / place / f"{module.replace('.', '/')}.py"
    monkeypatch.setattr(sys, "argv", [str(program), "run", "--public", str(tmp_path / "public")])
    monkeypatch.chdir(tmp_path)
    assert provenance()["command"] == f"python -m {told} run --public public"


def test_a_command_is_named_without_its_place(monkeypatch, tmp_path: Path) -> None:
    run_as(monkeypatch, None)
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/blind-averaging", "run", "--public", "../p"])
    assert provenance()["command"] == "blind-averaging run --public p"


def test_a_script_is_named_as_a_file(monkeypatch, tmp_path: Path) -> None:
    run_as(monkeypatch, None)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "tests" / "bench.py"), "--users", "3"])
    monkeypatch.chdir(tmp_path)
    assert provenance()["command"] == "python tests/bench.py --users 3"
    monkeypatch.chdir("/")
    monkeypatch.setattr(sys, "argv", ["../elsewhere/bench.py"])
    monkeypatch.chdir(tmp_path)
    assert provenance()["command"] == "python bench.py"
