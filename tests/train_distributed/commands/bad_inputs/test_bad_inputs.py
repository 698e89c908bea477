"""Bad inputs to every command: one line that says what is wrong, and nothing is changed on disk."""

import re
import shutil
from pathlib import Path

import pytest
import torch

from tests.train_distributed.commands.bad_inputs import of_data, of_settings
from tests.train_distributed.commands.bad_inputs.case import Case, state

CASES = [*of_data.CASES, *of_settings.CASES]


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
    assert len(CASES) >= 450
    assert len({(case.typed, case.spoil, case.says) for case in CASES}) == len(CASES)


WRITING = {
    "run": "run --embeddings private --public public --ledger none",
    "run that is counted": "run --embeddings private --public public",
    "embed run": "embed run --data private.npz --encoder network.safetensors",
    "fit-transform": "embed fit-transform --public public --components 3",
    "hold-out": "embed hold-out --embeddings train_only --share .5",
    "predict": "predict --model model --embeddings private",
    "evaluate": "evaluate --model model --embeddings private",
    "export": "export --model model --format torch-export",
    "card": "card --model model",
}


@pytest.mark.slow
@pytest.mark.parametrize("command", WRITING.values(), ids=WRITING)
def test_a_full_disk_is_one_line_and_nothing_is_left(
    say, world, tmp_path, small_disk: Path, command: str
) -> None:
    (small_disk / "filling").write_bytes(bytes(1 << 20))
    shutil.copytree(world, tmp_path, dirs_exist_ok=True)
    before = state(tmp_path)
    code, _, error = say(*command.split(), "--out", str(small_disk / "out"))
    assert code == 2, error
    assert re.fullmatch(r"error: [^\n]*(No space left|must be free)[^\n]*\n", error), error
    assert str(small_disk) in error
    assert state(tmp_path) == before  # no ledger either: nothing was spent
