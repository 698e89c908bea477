"""Bad inputs to every command: one line that says what is wrong, and nothing is changed on disk."""

import re
import shutil

import pytest
import torch

from tests.train_distributed.commands.bad_inputs import (
    of_embed,
    of_encoders,
    of_models,
    of_pictures,
    of_sets,
    of_settings,
)
from tests.train_distributed.commands.bad_inputs.case import Case, state

CASES = [
    *of_pictures.CASES,
    *of_encoders.CASES,
    *of_sets.CASES,
    *of_embed.CASES,
    *of_models.CASES,
    *of_settings.CASES,
]


@pytest.mark.parametrize("case", CASES, ids=[case.typed for case in CASES])
def test_bad_input_is_one_line_and_changes_nothing(
    say, world, intact, tmp_path, monkeypatch, case: Case
) -> None:
    if case.typed.endswith("--device cuda") and torch.cuda.is_available():
        pytest.skip("there is such a device here")
    folder, before = world, intact  # a case that changes it fails, and those after it too
    if case.spoil is not None:
        folder = shutil.copytree(world, tmp_path, dirs_exist_ok=True, symlinks=True)
        case.spoil(folder)
        before = state(folder)
    monkeypatch.chdir(folder)
    code, printed, error = say(*case.arguments)
    assert (code, printed) == (2, ""), error
    assert re.fullmatch(r"error: [^\n]+\n", error), error
    assert re.search(case.says, error), error
    after = state(folder)
    assert after.keys() == before.keys()
    assert [name for name in after if after[name] != before[name]] == []


def test_there_are_many_and_no_two_are_one() -> None:
    assert len(CASES) >= 120
    assert len({(case.typed, case.spoil, case.says) for case in CASES}) == len(CASES)
