"""A command, a method and an encoder from a file of one's own, by one entry each."""

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from embed import PublicTransform
from tests.embedding_sets import clusters
from train_distributed import Privacy
from train_distributed.one_shot.registry import METHODS
from train_distributed.simulation.plan import Grid, MethodConfig, Scenario
from train_distributed.simulation.runner import run_trials

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
METHOD = """
import torch

from train_distributed.one_shot.discriminant import ClassMoments, Discriminant
from train_distributed.one_shot.method import Fitted, Method
from train_distributed.one_shot.registry import METHODS, MethodEntry


class PlainMean(Discriminant):
    def fit(self, noised):
        means = self.statistic.sums(noised) / self.statistic.counts(noised)
        bias = -0.5 * means[1:].square().sum(0) / self.statistic.transform.constant
        return Fitted(torch.cat([bias[None], means[1:]]))


def build(transform, num_classes, *, prior="equal"):
    sums = ClassMoments(num_classes=num_classes, transform=transform, moments=False)
    return Method("plain-mean", sums, PlainMean(statistic=sums, prior=prior), num_classes)


METHODS["plain-mean"] = MethodEntry(
    build=build, words="the plain mean of every class", sums_rows=True
)
"""
ENCODER = """
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
MAIN = """
import json, sys
from train_distributed.__main__ import main

what = sys.argv[1]
for line in json.load(open("lines.json")):
    sys.argv[1:] = line.split()
    try:
        code = main()
    except SystemExit as stop:  # of --help
        code = stop.code
    if code:
        sys.exit(f"{line}: {code}")

if what == "reference":
    from docs.site import hooks
    from train_distributed import commands

    assert "## careful\\n\\nTrain as `run` does" in hooks._commands()
    assert "half: Take half of it." in commands.careful.__doc__
"""
SETS = "--embeddings mine --public public --epsilon 5"
PICTURES = "--layout user-class --encoder corners:2x2 --weights random"
LINES = [
    f"careful {SETS} --out careful",
    "card --model careful --out card",
    f"run {SETS} --method plain-mean --components 4 --out plain",
    "card --model plain --out plain_card",
    "embed fit-transform --public public --components 4 --out transform",
    *(f"federation join --folder u{user} --name u{user} --rows 9" for user in range(3)),
    "federation init --folder fed --transform transform/transform.safetensors --hosts 127.0.0.1 "
    "--num-classes 3 --config plain.json --parties u0/u0.party.json u1/u1.party.json "
    "u2/u2.party.json",
    f"embed run --data mine_pictures --out m {PICTURES} --class-names a b",
    f"embed run --data public_pictures --out p {PICTURES}",
    "run --embeddings m --public p --epsilon 3 --delta 1e-3 --out corners",
    "card --model corners --out corners_card",
    f"predict --model corners --data mine_pictures {PICTURES} --out found",
    *("--help", "careful --help", "run --help", "embed run --help"),
]


@pytest.fixture(scope="module")
def added(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Where one program ran all of these command lines, and what it printed."""
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
    (folder / "program.py").write_text(METHOD + ENCODER + COMMAND + MAIN)
    (folder / "lines.json").write_text(json.dumps(LINES))
    (folder / "docs").symlink_to(Path(__file__).parents[3] / "docs")
    what = "reference" if find_spec("mkdocs") else "no reference"
    command = [sys.executable, "program.py", what]
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
    assert "the plain mean of every class" in (folder / "plain_card" / "card.md").read_text()
    assert "3 users" in said
    assert '"plain-mean"' in (folder / "fed" / "federation.json").read_text()


def test_an_encoder_is_in_help_report_and_card(added: tuple[Path, str]) -> None:
    folder, said = added
    assert "corners:" in said
    assert json.loads((folder / "m" / "meta.json").read_text())["encoder"] == "corners:2x2"
    assert "corners:2x2" in (folder / "corners" / "report.json").read_text()
    assert "corners:2x2" in (folder / "corners_card" / "card.md").read_text()


def test_simulations_play_a_method(monkeypatch: pytest.MonkeyPatch) -> None:
    exec(METHOD, {"__name__": "added"})  # the entry of the file, in this process
    monkeypatch.setitem(METHODS, "plain-mean", METHODS.pop("plain-mean"))
    options = {"sums": 2, "class_noise": 0.1}
    grid = Grid(
        settings=[MethodConfig("plain mean", "plain-mean", options=options)],
        scenarios=[Scenario(users=20)],
        promises=[Privacy(5.0, 1e-5)],
        seeds=[0],
        num_classes=3,
    )
    private, public = (clusters(1200, 3, 8, noise=0.2, seed=s, test=300) for s in (0, 1))
    transforms = {"default": PublicTransform.fit(public, components=4)}
    ((_, (result,)),) = run_trials(private, transforms, grid)
    assert result.method == "plain-mean"
    assert result.accuracy > 0.8
