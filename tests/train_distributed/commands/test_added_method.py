"""A method from a file of its own: one entry of the registry, and every command knows it."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from embed import EmbeddingSet, PublicTransform
from train_distributed import Privacy
from train_distributed.one_shot.registry import METHODS
from train_distributed.simulation.plan import Grid, MethodConfig, Scenario
from train_distributed.simulation.runner import run_trials

PROGRAM = """
import sys

import torch

from train_distributed.one_shot.discriminant import ClassMoments
from train_distributed.one_shot.discriminant import Discriminant
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

if __name__ == "__main__":
    import json

    from train_distributed.__main__ import main

    for line in json.loads(sys.argv[1]):
        sys.argv[1:] = line
        if main():
            sys.exit(1)
"""


def rows(seed: int, users: int | None, classes: int = 3) -> EmbeddingSet:
    """Rows around the corners of a simplex."""
    draw = np.random.default_rng(seed)
    labels = np.arange(1200) % classes
    return EmbeddingSet(
        embeddings=(np.eye(classes, 8)[labels] + 0.1 * draw.standard_normal((1200, 8))).astype(
            np.float32
        ),
        labels=labels,
        users=None if users is None else np.arange(1200) // classes % users,
        split=(np.arange(1200) >= 900).astype(np.uint8),
        meta={"class_names": [f"class {k}" for k in range(classes)]},
    )


@pytest.fixture
def program(tmp_path: Path):
    """Runs the file's own program on command lines, one after another."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)

    def run(*lines: str) -> str:
        done = subprocess.run(
            [sys.executable, path, json.dumps([line.split() for line in lines])],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_run_and_card_know_it_and_help_names_it(program, tmp_path: Path) -> None:
    rows(0, 30).save(tmp_path / "mine")
    rows(1, None).save(tmp_path / "public")
    said = program(
        "run --embeddings mine --public public --method plain-mean --components 4 --epsilon 5 "
        "--out model",
        "card --model model --out card",
        "run --help",  # ends the program
    )
    assert "plain-mean" in said
    report = json.loads((tmp_path / "model" / "report.json").read_text())
    assert report["method"] == "plain-mean"
    assert report["test_accuracy"] > 0.9
    assert report["prior"] == "equal"
    assert report["suitable_for_release"] is True
    pages = [path.read_text() for path in (tmp_path / "card").iterdir() if path.suffix == ".md"]
    assert "the plain mean of every class" in pages[0]


def test_a_federation_agrees_on_it(program, tmp_path: Path) -> None:
    rows(1, None).save(tmp_path / "public")
    parties = " ".join(f"u{user}/u{user}.party.json" for user in range(3))
    config = {"method": "plain-mean", "options": {}, "privacy": {"epsilon": 5.0, "delta": 1e-5}}
    (tmp_path / "plain.json").write_text(json.dumps(config))
    shown = program(
        "embed fit-transform --public public --components 4 --out transform",
        *(f"federation join --folder u{user} --name u{user} --rows 9" for user in range(3)),
        f"federation init --folder fed --parties {parties} "
        "--transform transform/transform.safetensors --hosts 127.0.0.1 --num-classes 3 "
        "--config plain.json",
    )
    assert "3 users" in shown
    assert '"plain-mean"' in (tmp_path / "fed" / "federation.json").read_text()


def test_simulations_play_it(monkeypatch: pytest.MonkeyPatch) -> None:
    home: dict = {"__name__": "added"}
    exec(compile(PROGRAM, "program.py", "exec"), home)  # the entry of the file, in this process
    monkeypatch.setitem(METHODS, "plain-mean", METHODS.pop("plain-mean"))
    grid = Grid(
        settings=[
            MethodConfig("plain mean", "plain-mean", options={"sums": 2, "class_noise": 0.1})
        ],
        scenarios=[Scenario(users=20)],
        promises=[Privacy(5.0, 1e-5)],
        seeds=[0],
        num_classes=3,
    )
    transforms = {"default": PublicTransform.fit(rows(1, None), components=4)}
    ((_, (result,)),) = run_trials(rows(0, None), transforms, grid)
    assert result.method == "plain-mean"
    assert result.accuracy > 0.8
