"""What has been retired is refused in one line that says what to do instead."""

import re
from collections.abc import Callable

import pytest

from embed.__main__ import MENU as EMBED
from pretrain.cli.retired import RETIRED, Retired
from train_distributed.__main__ import MENU, ROOMS

CASES = [(each, command) for each in RETIRED for command in each.commands]
Say = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize(("retired", "command"), CASES)
def test_it_is_refused_with_its_line(say: Say, retired: Retired, command: str) -> None:
    """As typed, as Python spells it, and with a value; whatever else is on the line."""
    line = f"error: {retired.line(command)}\n"
    assert f"{command} {retired.option}".strip() in line
    name, _, value = retired.option.partition(" ")
    spelled = f"{name[:2]}{name[2:].replace('-', '_')}={value or 1}"
    for typed in (["--seed", "1", *retired.option.split()], [spelled] if name else ["--help"]):
        assert say(*command.split(), *typed) == (2, "", line)


@pytest.mark.parametrize(("retired", "command"), CASES)
def test_none_is_still_there_and_its_command_is(say: Say, retired: Retired, command: str) -> None:
    every = dict(ROOMS.lines())
    if not retired.option:
        assert command not in every
        return
    assert command in every
    code, printed, _ = say(*command.split(), "--help")
    assert code == 0
    name, _, value = retired.option.partition(" ")
    assert (name in re.findall(r"--[a-z0-9-]+", printed)) == bool(value)
    assert not value or value not in re.findall(r"[\w-]+", printed)


def test_modules_of_rooms_refuse_as_the_program_does(capsys: pytest.CaptureFixture[str]) -> None:
    for menu, program, command in (
        (MENU, "train_distributed", "run --alpha 1"),
        (MENU, "train_distributed", "federation window --adders h:1"),
        (MENU, "train_distributed", "federation adder --folder f"),
        (EMBED, "embed", "fit-transform --no-whiten"),
    ):
        with pytest.raises(SystemExit) as stopped:
            menu.parse(command.split(), f"python -m {program}")
        assert stopped.value.code == 2
        assert "has been retired: " in capsys.readouterr().err


@pytest.mark.parametrize(
    "typed",
    [
        "--method softmax",
        "--alphabet 1",
        "--out alpha",
        "--method-of class-sums",
        "class-sums --method svm",
    ],
)
def test_other_words_are_not_refused(typed: str) -> None:
    words = typed.split()
    assert not any(each.typed("run", words) for each in RETIRED)
    assert not any(
        each.typed("embed run", ["--alpha", "--method", "class-sums"]) for each in RETIRED
    )
