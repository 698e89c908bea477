"""One trusted server: what the default is, and that the search reports the best descent."""

import json
import math
from pathlib import Path

import numpy as np

from embed import EmbeddingSet
from train_distributed.commands.sweep import Sweep
from train_distributed.research.experiments.conditions import Conditions
from train_distributed.research.experiments.trusted import (
    DEFAULT,
    DIRECTIONS,
    ONE_SUM,
    SEARCHED,
    TUNED,
)


def blobs(classes: int, rows: int, **fields) -> EmbeddingSet:
    rng = np.random.default_rng(classes)
    labels = np.arange(rows) % classes
    x = 2 * np.eye(classes, 40)[labels] + 0.3 * rng.standard_normal((rows, 40))
    return EmbeddingSet(embeddings=x.astype(np.float32), labels=labels, **fields)


def test_every_cell_has_the_default_and_the_best_descent(tmp_path: Path, capsys) -> None:
    split = np.repeat([0, 1], [200, 60]).astype(np.uint8)
    blobs(4, 260, split=split, meta={"class_names": list("abcd")}).save(tmp_path / "private")
    blobs(8, 320).save(tmp_path / "public")
    conditions = Conditions(users=(10,), epsilons=(0.5, 80.0), seeds=1)
    paths = tmp_path / "private", tmp_path / "public"
    Sweep("trusted", *paths, conditions, out=tmp_path / "out").run()
    found = json.loads((tmp_path / "out" / "results.json").read_text())["cells"]
    searched = len(DIRECTIONS) * math.prod(map(len, SEARCHED.values()))
    counts = {DEFAULT: 2, ONE_SUM: 2, TUNED: 2 * searched}
    assert {k: sum(c["label"] == k for c in found) for k in counts} == counts
    quiet, noisy = (
        next(c for c in found if c["label"] == DEFAULT and c["epsilon"] == e) for e in (80.0, 0.5)
    )
    often = {"centre": "private", "descent_above": 0.3}  # as `run` has
    assert quiet["options"] == {**often, "rounds": 16}
    assert noisy["options"] == {**often, "descent_above": 0.6, "keep": [16, 16, 17]}
    best = max(c["accuracy"] for c in found if c["label"] == TUNED and c["epsilon"] == 80.0)
    assert min(best, quiet["accuracy"]) > 0.9
    assert f"{100 * best:.1f} ± 0.0" in capsys.readouterr().out
