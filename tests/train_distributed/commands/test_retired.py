"""What has been retired is refused in one line, which says what to do instead."""

import re

import pytest

from pretrain.cli.retired import RETIRED
from train_distributed.__main__ import ROOMS

CASES = [(command, each) for each in RETIRED for command in each.commands]


def name_of(case: object) -> str:
    return case if isinstance(case, str) else getattr(case, "option", "") or "itself"


@pytest.mark.parametrize(("command", "retired"), CASES, ids=name_of)
def test_it_is_refused_with_its_own_line(say, command: str, retired) -> None:
    code, printed, error = say(*command.split(), "--seed", "1", *retired.option.split())
    assert (code, printed, error) == (2, "", f"error: {retired.line(command)}\n")
    assert f"{command} {retired.option}".strip() in error
    assert retired.instead in error


def test_every_spelling_is_the_same_option(say) -> None:
    for words in (["--class-code", "0.5"], ["--class_code=0.5"], ["--class-code=0.5"]):
        assert "run --class-code has been retired" in say("run", *words)[2]
    for words in (["--method", "class-sums"], ["--method=class-sums"]):
        assert "run --method class-sums has been retired" in say("run", *words)[2]


@pytest.mark.parametrize("command", sorted({command for command, _ in CASES}))
def test_nothing_that_is_there_has_been_retired(say, command: str) -> None:
    options = [each.option for name, each in CASES if name == command]
    there = command in [name for name, _ in ROOMS.lines()]
    assert there is ("" not in options)
    if there:
        printed = say(*command.split(), "--help")[1]
        known = re.findall(r"(?<![\w-])--[a-z][a-z-]*", printed)
        assert not {option for option in options if " " not in option} & set(known)
        for option in options:
            name, _, value = option.partition(" ")
            assert not value or (name in known and not re.search(rf"\b{value}\b", printed))
