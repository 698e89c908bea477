"""A command and an encoder, each from a file of its own with one entry."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from embed import EmbeddingSet

MAIN = """
if __name__ == "__main__":
    import json
    import sys

    from train_distributed.__main__ import main

    for line in json.loads(sys.argv[1]):
        sys.argv[1:] = line
        if main():
            sys.exit(1)
"""

COMMAND = """
from dataclasses import dataclass
from pathlib import Path

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

ENCODER = """
import torch

from pretrain.encoder import BUILDERS
from pretrain.encoders.base import Encoder


class Corners(Encoder):
    \"\"\"The four quarters of a picture, averaged.\"\"\"

    embedding_dim = 12

    def architecture(self):
        return {"kind": "corners"}

    def forward(self, images):
        return torch.nn.functional.adaptive_avg_pool2d(images, 2).flatten(1)


BUILDERS["corners"] = lambda rest, weights, size: Corners()
"""


def run(folder: Path, entry: str, *lines: str) -> str:
    """Runs the file's own program on command lines, one after another."""
    (folder / "program.py").write_text(entry + MAIN)
    typed = json.dumps([line.split() for line in lines])
    command = [sys.executable, "program.py", typed]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """A folder with a private and a public set."""
    draw, labels = np.random.default_rng(0), np.arange(400) % 2
    x = (np.eye(2, 5)[labels] + 0.2 * draw.normal(size=(400, 5))).astype(np.float32)
    meta = {"class_names": ["a", "b"]}
    users, split = np.arange(400) % 20, (np.arange(400) >= 300).astype(np.uint8)
    private = EmbeddingSet(embeddings=x, labels=labels, users=users, split=split, meta=meta)
    private.save(tmp_path / "mine")
    EmbeddingSet(embeddings=x[::-1] + 0.1, labels=labels).save(tmp_path / "public")
    return tmp_path


def test_a_command_is_in_help_report_and_card(rows: Path) -> None:
    made = "careful --embeddings mine --public public --epsilon 3 --out model"
    run(rows, COMMAND, made, "card --model model --out card")
    report = json.loads((rows / "model" / "report.json").read_text())
    assert report["configuration"]["command"] == "careful"
    assert "blind-averaging careful --embeddings mine" in (rows / "card" / "card.md").read_text()
    assert re.search("^  careful +Train as `run` does, at half", run(rows, COMMAND, "--help"), re.M)
    assert "half" in run(rows, COMMAND, "careful --help")


def test_a_command_is_in_the_reference_and_a_function(rows: Path) -> None:
    pytest.importorskip("mkdocs")
    code = """
import importlib.util

from docs.site import hooks
from train_distributed import commands

assert "## careful\\n\\nTrain as `run` does" in hooks._commands()
assert "half: Take half of it." in commands.careful.__doc__
print("there")
"""
    (rows / "docs").symlink_to(Path(__file__).parents[3] / "docs")
    assert run(rows, COMMAND + code).endswith("there\n")


def test_an_encoder_is_in_help_report_and_card(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    for name in ("mine", "public"):
        for number in range(120):
            shade = np.full((8, 8, 3), 60 + 120 * (number % 2)) + draw.integers(0, 50, (8, 8, 3))
            place = tmp_path / name / f"user{number % 10}" / "ab"[number % 2]
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(shade.astype(np.uint8)).save(place / f"{number}.png")
    read = "--layout user-class --encoder corners:2x2 --weights random"
    said = run(
        tmp_path,
        ENCODER,
        f"embed run --data mine --out m {read} --class-names a b",
        f"embed run --data public --out p {read}",
        "run --embeddings m --public p --epsilon 3 --delta 1e-3 --out model",
        "card --model model --out card",
        f"predict --model model --data mine {read} --out found",
        "embed run --help",
    )
    assert "corners:" in said
    meta = json.loads((tmp_path / "m" / "meta.json").read_text())
    assert meta["encoder"] == "corners:2x2"
    assert "corners:2x2" in (tmp_path / "model" / "report.json").read_text()
    assert "corners:2x2" in (tmp_path / "card" / "card.md").read_text()
