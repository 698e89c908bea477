"""A disk that is full: found before noise is drawn, said in one line, nothing left on it."""

import re
import shutil
from pathlib import Path

import pytest

from tests.train_distributed.commands.bad_inputs.case import state

COMMANDS = {
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
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
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
    assert state(tmp_path).keys() == before.keys()  # no ledger either: nothing was spent
    assert state(tmp_path) == before
