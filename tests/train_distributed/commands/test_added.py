"""A command, a method and an encoder of one's own, by one entry each, in every command."""

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.embedding_sets import clusters

ROOT = Path(__file__).parents[3]
COMMAND = """
from dataclasses import dataclass

from pretrain.public import function
from train_distributed.commands import COMMANDS
from train_distributed.commands.releasing import Run


@dataclass(frozen=True, kw_only=True)
class Care:
    \"\"\"How careful.\"\"\"

    half: bool = True
    \"\"\"Take half of it.\"\"\"


@dataclass(frozen=True, kw_only=True)
class Careful(Care, Run):
    \"\"\"Train as `run` does, at half of the epsilon.\"\"\"

    command = "careful"

    @classmethod
    def groups(cls, typed):
        return super().groups(typed) | {"care": (Care,)}


careful = function("careful", Careful)
COMMANDS["careful"] = f"{__name__}:careful"
"""
MAIN = """
import json, sys
from train_distributed.__main__ import main

reference = sys.argv[1] == "reference"
for line in json.load(open("lines.json")):
    sys.argv[1:] = line.split()
    try:
        code = main()
    except SystemExit as stop:  # of --help
        code = stop.code
    if code:
        sys.exit(f"{line}: {code}")

if reference:
    from docs.site import hooks
    from train_distributed import commands

    assert "## careful\\n\\nTrain as `run` does" in hooks._commands()
    assert "half: Take half of it." in commands.careful.__doc__
"""
SETS = "--embeddings mine --public public --epsilon 5"
PICTURES = "--layout user-class --encoder pooled.safetensors"
LINES = [
    f"careful {SETS} --out careful",
    "card --model careful --out card",
    f"run {SETS} --method plain-mean --components 4 --out plain",
    "card --model plain --out plain_card",
    f"simulate {SETS} --method plain-mean --users 20 --sums 2 --out played",
    "embed fit-transform --public public --components 4 --out transform",
    *(f"federation join --folder u{user} --name u{user} --rows 9" for user in range(3)),
    "federation init --folder fed --transform transform/transform.safetensors --hosts 127.0.0.1 "
    "--num-classes 3 --config plain.json --parties u0/u0.party.json u1/u1.party.json "
    "u2/u2.party.json",
    f"embed run --data mine_pictures --out m {PICTURES} --class-names a b",
    f"embed run --data public_pictures --out p {PICTURES}",
    "run --embeddings m --public p --epsilon 3 --delta 1e-3 --out pooled",
    "card --model pooled --out pooled_card",
    f"predict --model pooled --data mine_pictures {PICTURES} --out found",
    *("--help", "careful --help", "run --help", "embed run --help"),
]


@pytest.fixture(scope="module")
def added(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Where one program with the entries of docs/extending.md ran all lines, and what it said."""
    folder = tmp_path_factory.mktemp("added")
    clusters(1200, 3, 8, scale=1, noise=0.1, test=300, users=30).save(folder / "mine")
    clusters(1200, 3, 8, scale=1, noise=0.1, seed=1).save(folder / "public")
    draw = np.random.default_rng(1)
    for name in ("mine", "public"):
        for number in range(120):
            shade = np.full((8, 8, 3), 60 + 120 * (number % 2)) + draw.integers(0, 50, (8, 8, 3))
            place = folder / f"{name}_pictures" / f"user{number % 10}" / "ab"[number % 2]
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(shade.astype(np.uint8)).save(place / f"{number}.png")
    config = {"method": "plain-mean", "options": {}, "privacy": {"epsilon": 5.0, "delta": 1e-5}}
    (folder / "plain.json").write_text(json.dumps(config))
    page = (ROOT / "docs" / "extending.md").read_text()
    encoder, method = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    method = method.partition("if __name__")[0]
    (folder / "program.py").write_text(encoder + method + COMMAND + MAIN)
    (folder / "lines.json").write_text(json.dumps(LINES))
    (folder / "docs").symlink_to(ROOT / "docs")
    command = [sys.executable, "program.py", "reference" if find_spec("mkdocs") else "none"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_a_command_is_in_help_report_and_card(added: tuple[Path, str]) -> None:
    folder, said = added
    report = json.loads((folder / "careful" / "report.json").read_text())
    assert report["configuration"]["command"] == "careful"
    assert "blind-averaging careful --embeddings mine" in (folder / "card" / "card.md").read_text()
    assert re.search("^  careful +Train as `run` does, at half", said, re.MULTILINE)
    assert "Take half of it" in said


def test_a_method_is_in_help_report_card_and_federation(added: tuple[Path, str]) -> None:
    folder, said = added
    assert "plain-mean" in said
    report = json.loads((folder / "plain" / "report.json").read_text())
    assert (report["method"], report["prior"]) == ("plain-mean", "equal")
    assert report["test_accuracy"] > 0.9
    assert report["suitable_for_release"] is True
    assert json.loads((folder / "played" / "report.json").read_text())["test_accuracy"] > 0.8
    assert "the nearest class mean" in (folder / "plain_card" / "card.md").read_text()
    assert "3 users" in said
    assert '"plain-mean"' in (folder / "fed" / "federation.json").read_text()


def test_an_encoder_is_in_help_report_and_card(added: tuple[Path, str]) -> None:
    folder, said = added
    assert "pooled:" in said
    for name in ("m/meta.json", "pooled/report.json", "pooled_card/card.md"):
        assert "pooled.safetensors" in (folder / name).read_text()
