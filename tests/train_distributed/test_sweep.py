"""A sweep that is killed and resumed gives the same cells, no finished job twice."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from embed import EmbeddingSet
from train_distributed import experiment
from train_distributed.experiment import Cell
from train_distributed.sweep import Journal, Sweep
from train_distributed.table import summarise, table

ROOT = Path(__file__).parents[2]


@pytest.fixture
def sets(tmp_path) -> tuple[Path, Path]:
    rng = np.random.default_rng(0)
    labels = np.arange(260) % 4
    x = 2 * np.eye(4, 70)[labels] + 0.3 * rng.standard_normal((260, 70))
    split = np.repeat([0, 1], [200, 60]).astype(np.uint8)
    meta = {"class_names": list("abcd")}
    private = EmbeddingSet(embeddings=x.astype(np.float32), labels=labels, split=split, meta=meta)
    private.save(tmp_path / "private")
    public = rng.standard_normal((300, 70)).astype(np.float32)
    EmbeddingSet(embeddings=public, labels=np.zeros(300, np.int64)).save(tmp_path / "public")
    return tmp_path / "private", tmp_path / "public"


def sweep(sets: tuple[Path, Path], out: Path) -> Sweep:
    return Sweep("frontier", *sets, users=10, epsilons=(0.5, 2.0), seeds=2, out=out)


def cells(out: Path) -> list[dict]:
    return json.loads((out / "results.json").read_text())["cells"]


def test_interrupted_sweep_equals_uninterrupted(sets, tmp_path, monkeypatch, capsys):
    sweep(sets, tmp_path / "whole").run()
    trained, real = [], experiment.simulate

    def counted(*arguments):
        trained.append(1)
        if len(trained) == 12:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(experiment, "simulate", counted)
    with pytest.raises(KeyboardInterrupt):
        sweep(sets, tmp_path / "resumed").run()
    assert not (tmp_path / "resumed").exists()
    unfinished = tmp_path / ".resumed.unfinished.jsonl"
    with unfinished.open("a") as file:
        file.write('{"job": "torn')
    sweep(sets, tmp_path / "resumed").run()
    jobs = len(
        {(c["label"], c["scheme"], c["seed"], str(c["options"])) for c in cells(tmp_path / "whole")}
    )
    assert len(trained) == jobs + 1  # the interrupted one is the only one started twice
    assert cells(tmp_path / "resumed") == cells(tmp_path / "whole")
    assert not unfinished.exists()


@pytest.mark.slow
def test_killed_sweep_equals_uninterrupted(sets, tmp_path):
    def command(name: str) -> list[str]:
        options = [f"--embeddings={sets[0]}", f"--public={sets[1]}", "--users=10", "--seeds=2"]
        program = [sys.executable, "-m", "train_distributed", "sweep", "frontier"]
        return [*program, *options, f"--out={tmp_path / name}"]

    subprocess.run(command("whole"), cwd=ROOT, check=True, capture_output=True)
    clock = random.Random(3)
    for _ in range(3):
        process = subprocess.Popen(command("killed"), cwd=ROOT, stdout=subprocess.DEVNULL)
        time.sleep(clock.uniform(4, 12))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    subprocess.run(command("killed"), cwd=ROOT, check=True, capture_output=True)
    assert cells(tmp_path / "killed") == cells(tmp_path / "whole")


def test_a_journal_of_another_sweep_is_not_continued(tmp_path):
    cell = Cell("a", "svm", "iid", 1.0, 0, 0.5, {}, "raw")
    first = Journal(tmp_path / "j", {"users": 1})
    assert first.read() == {}
    first.append("job", [cell])
    assert Journal(tmp_path / "j", {"users": 1}).read() == {"job": [cell]}
    assert Journal(tmp_path / "j", {"users": 2}).read() == {}


def test_summaries_take_the_best_setting_of_a_label():
    rows = [
        Cell("a", "svm", "iid", 1.0, seed, accuracy, {"l2_reg": l2_reg}, "raw")
        for l2_reg, values in ((1.0, (0.5, 0.7)), (2.0, (0.8, 0.9)))
        for seed, accuracy in enumerate(values)
    ]
    found = summarise(rows)["a", "iid", 1.0]
    assert found.mean == pytest.approx(0.85)
    assert found.std == pytest.approx(np.std([0.8, 0.9], ddof=1))
    assert "85.0 ± 7.1" in table(rows)
