"""`blind-averaging`: the commands of all rooms, with the errors and exit codes of `python -m`."""

import re
import tomllib
from importlib import import_module
from pathlib import Path
from typing import get_args

import pytest

from pretrain.retired import RIVALS
from train_distributed.__main__ import ROOMS
from train_distributed.commands import options
from train_distributed.commands.rehearsing import Demo
from train_distributed.one_shot.request import Noise
from train_distributed.research.experiments.catalogue import EXPERIMENTS
from train_distributed.research.experiments.conditions import ExperimentName
from train_distributed.research.protection import study
from train_distributed.research.rivals import learn
from train_distributed.research.rivals.options import OPTIONS

ROOT = Path(__file__).parents[3]
ALL = [name for name, _ in ROOMS.lines()]


def test_help_lists_every_command_of_every_room_once(say) -> None:
    code, printed, error = say("--help")
    assert (code, error) == (0, "")
    listed = re.findall(r"^  (\S+(?: \S+)?)  +(\S.*[.`])$", printed, re.MULTILINE)
    assert [name for name, _ in listed] == ALL
    assert {"run", "federation init", "pretrain simclr", "embed run", "heads fit"} <= set(ALL)
    assert len(set(ALL)) == len(ALL)


@pytest.mark.parametrize("name", ALL)
def test_every_command_explains_its_options(say, name: str) -> None:
    code, printed, error = say(*name.split(), "--help")
    assert (code, error) == (0, "")
    assert printed.startswith(f"usage: blind-averaging {name} [-h]")
    words = dict(ROOMS.lines())[name]
    assert " ".join(words.split()) in " ".join(printed.split())


def test_it_says_its_version(say, monkeypatch) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    seen = []

    def asked(name: str) -> str:
        seen.append(name)
        return "1.2"

    monkeypatch.setattr("train_distributed.__main__.version", asked)
    assert say("--version") == (0, "blind-averaging 1.2\n", "")
    assert seen == [project["name"]]


def test_it_is_declared_as_a_program() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, name = scripts["blind-averaging"].partition(":")
    assert callable(getattr(import_module(module), name))


@pytest.mark.parametrize(
    "arguments",
    [
        ["account", "--epsilon", "1", "--delta", "1e-5"],
        ["account", "--epsilon", "0"],
        ["account", "--colour", "red"],
        ["run", "--epsilon", "soon"],
        ["federation", "join"],
        ["sweep", "all"],
    ],
)
def test_it_ends_as_the_module_does(say, call, arguments: list[str]) -> None:
    code, printed, error = say(*arguments)
    as_module = call(*arguments)
    program = "python -m train_distributed"
    assert (code, printed) == as_module[:2]
    assert error == as_module[2].replace(program, "blind-averaging")


def test_without_a_command_the_default_runs(say, call, monkeypatch) -> None:
    ran = []
    monkeypatch.setattr(Demo, "run", lambda self: ran.append(self))
    assert say() == call() == (0, "", "")
    assert ran == [Demo(), Demo()]


def test_options_offer_what_their_rooms_know() -> None:
    rivals = [name.split()[1] for name in ALL if name.startswith("rival ")]
    assert {*get_args(options.MethodName), *rivals} == set(learn.ALL_METHODS)
    assert set(RIVALS) == set(OPTIONS) == set(rivals)
    assert get_args(options.Noise) == get_args(Noise)
    assert list(get_args(ExperimentName)) == list(EXPERIMENTS)
    assert get_args(options.Cost) == get_args(study.Cost)
