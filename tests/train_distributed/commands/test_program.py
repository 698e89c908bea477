"""`blind-averaging`: the commands of all rooms, their helps, and what has been retired."""

import functools
import io
import os
import re
import subprocess
import sys
import tomllib
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import get_args

import pytest

from embed.__main__ import MENU as EMBED
from pretrain.retired import RETIRED, RIVALS, Retired
from train_distributed.__main__ import MENU, ROOMS
from train_distributed.commands import options
from train_distributed.commands.rehearsing import Demo
from train_distributed.one_shot.request import Noise
from train_distributed.research.experiments.catalogue import EXPERIMENTS
from train_distributed.research.experiments.conditions import ExperimentName
from train_distributed.research.protection import study
from train_distributed.research.rivals import learn
from train_distributed.research.rivals.options import OPTIONS

ROOT = Path(__file__).parents[3]
WORDS = dict(ROOMS.lines())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MOST = {
    **{"run": 26, "rehearse": 12, "embed run": 26, "federation init": 24},
    **{"audit": 14, "protect": 16},
}
START = "import sys; from train_distributed.__main__ import main; sys.exit(main())"
SECONDS = 1.5  # of CPU here, whatever else runs; some .6 on a quiet machine


@functools.cache
def helped(typed: str) -> str:
    """Help of a command."""
    with redirect_stdout(io.StringIO()) as said, pytest.raises(SystemExit) as stopped:
        ROOMS.parse([*typed.split(), "--help"], "blind-averaging")
    assert not stopped.value.code
    return said.getvalue()


def test_help_lists_every_command_of_every_room_once(say) -> None:
    printed = say.done("--help")
    listed = re.findall(r"^  (\S+(?: \S+)?)  +(\S.*[.`])$", printed, re.MULTILINE)
    names = [name for name, _ in ROOMS.lines()]
    assert [name for name, _ in listed] == names
    assert {"run", "federation init", "pretrain simclr", "embed run", "heads fit"} <= set(names)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", [name for name in WORDS if not name.startswith("heads")])
def test_every_command_explains_its_options(name: str) -> None:
    printed = helped(name)
    assert printed.startswith(f"usage: blind-averaging {name} [-h]")
    assert " ".join(WORDS[name].split()) in " ".join(printed.split())


def test_a_room_that_parses_its_own_command_explains_it_too(say) -> None:
    printed = say.done("heads", "fit", "--help")
    assert printed.startswith("usage: blind-averaging heads fit [-h]")


@pytest.mark.parametrize("command", MOST)
def test_a_command_has_few_options(command: str) -> None:
    found = re.findall(r"^\W{1,4}(--[a-z][a-z-]+)", helped(command), re.MULTILINE)
    assert len(found) == len(set(found))
    assert 8 <= len(found) <= MOST[command]


def test_the_help_of_run_fits_in_a_hundred_lines() -> None:
    assert "--l2-reg" not in helped("run")  # of a method with heads alone
    assert "--l2-reg" in helped("run --method softmax")
    assert "--l2-reg" in helped("simulate --method=svm")
    titles = re.findall(r"^\W+(\w+) options \W+$", helped("run"), re.MULTILINE)
    assert helped("run").count("\n") <= 100
    assert titles == ["data", "privacy", "public", "method", "output"]


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


def test_it_is_declared_as_a_program_says_its_version_and_has_a_default(say, call, monkeypatch):
    module, _, name = PROJECT["scripts"]["blind-averaging"].partition(":")
    assert callable(getattr(import_module(module), name))
    monkeypatch.setattr("train_distributed.__main__.version", lambda name: f"1.2 of {name}")
    assert say("--version") == (0, f"blind-averaging 1.2 of {PROJECT['name']}\n", "")
    ran = []
    monkeypatch.setattr(Demo, "run", lambda self: ran.append(self))
    assert say() == call() == (0, "", "")
    assert ran == [Demo(), Demo()]


def test_it_ends_as_the_module_does(say, call) -> None:
    account = ("account --epsilon 1 --delta 1e-5", "account --epsilon 0", "account --colour red")
    for typed in (*account, "run --epsilon soon", "federation join", "sweep all"):
        code, printed, error = call(typed)
        error = error.replace("python -m train_distributed", "blind-averaging")
        assert say(typed) == (code, printed, error)


def test_options_offer_what_their_rooms_know() -> None:
    rivals = [name.split()[1] for name in WORDS if name.startswith("rival ")]
    assert {*get_args(options.MethodName), *rivals} == set(learn.ALL_METHODS)
    assert set(RIVALS) == set(OPTIONS) == set(rivals)
    assert get_args(options.Noise) == get_args(Noise)
    assert list(get_args(ExperimentName)) == list(EXPERIMENTS)
    assert get_args(options.Cost) == get_args(study.Cost)


def test_account_solves_each_of_three_from_two_others(call) -> None:
    printed = call.done("account", "--epsilon", "1", "--delta", "1e-5")
    assert "noise_multiplier  3.73063" in printed
    _, printed, _ = call("account", "--delta", "1e-5", "--noise-multiplier", "3.7306316")
    assert "epsilon           1.00000" in printed
    _, printed, _ = call("account", "--epsilon", "1", "--noise-multiplier", "3.7306316")
    assert "delta             1.00000" in printed or "delta             9.9999" in printed


@pytest.mark.parametrize(
    ("noise_by", "honest", "each"),
    [("users", "50 of 100 users", "0.52759"), ("servers", "1 of 2 servers", "3.73063")],
)
def test_account_says_whom_the_promise_needs_and_who_adds_how_much(
    call, noise_by: str, honest: str, each: str
) -> None:
    promise = ("account", "--epsilon", "1", "--delta", "1e-5", "--users", "100")
    _, printed, _ = call(*promise, "--noise-by", noise_by)
    assert f"holds if          {honest} are honest" in printed
    assert f"noise of each     {each}" in printed  # 3.7306316 / sqrt(honest)
    assert "noise in the sum  5.27590" in printed  # 3.7306316 sqrt(2)


@pytest.mark.parametrize(
    ("retired", "command"), [(each, command) for each in RETIRED for command in each.commands]
)
def test_what_is_retired_is_refused_in_one_line(say, retired: Retired, command: str) -> None:
    """As typed, as Python spells it, and with a value; whatever else is on the line."""
    line = f"error: {retired.line(command)}\n"
    assert f"{command} {retired.option}".strip() in line
    name, _, value = retired.option.partition(" ")
    spelled = f"{name[:2]}{name[2:].replace('-', '_')}={value or 1}"
    typed = [["--seed", "1", *retired.option.split()], [spelled] if name else ["--help"]]
    if name and not name.startswith("--"):
        typed = [[name, "--seeds", "1"]]
    for words in typed:
        assert say(*command.split(), *words) == (2, "", line)
    assert (command in WORDS) == bool(name)
    if name:
        shown = helped(command)
        assert (name in re.findall(r"--[a-z0-9-]+", shown)) == bool(value)
        assert not value or value not in re.findall(r"[\w-]+", shown)


def test_modules_of_rooms_refuse_as_the_program_does(capsys: pytest.CaptureFixture[str]) -> None:
    for menu, program, command in (
        (MENU, "train_distributed", "run --alpha 1"),
        (MENU, "train_distributed", "federation window --adders h:1"),
        (MENU, "train_distributed", "federation adder --folder f"),
        (EMBED, "embed", "fit-transform --no-whiten"),
    ):
        with pytest.raises(SystemExit, match="2"):
            menu.parse(command.split(), f"python -m {program}")
        assert "has been retired: " in capsys.readouterr().err


def test_other_words_are_not_refused() -> None:
    others = ("--method softmax", "--alphabet 1", "--out alpha", "--method-of class-sums")
    for typed in (*others, "class-sums --method svm"):
        assert not any(each.typed("run", typed.split()) for each in RETIRED)
    assert not any(
        each.typed("embed run", ["--alpha", "--method", "class-sums"]) for each in RETIRED
    )
