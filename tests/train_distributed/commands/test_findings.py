"""Commands with several findings a picture."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from embed import EmbeddingSet

NAMES = ["edema", "mass", "node"]
SHARES = np.array([0.5, 0.3, 0.1])


def rows(count: int, seed: int, users: int | None = None, **more: object) -> EmbeddingSet:
    """Rows around the sum of their findings' directions."""
    rng = np.random.default_rng(seed)
    directions = 2 * np.eye(3, 6)
    findings = (rng.random((count, 3)) < SHARES).astype(np.int8)
    return EmbeddingSet(
        embeddings=findings @ directions + rng.normal(size=(count, 6)),
        labels=np.full(count, -1),
        findings=findings,
        users=None if users is None else np.arange(count) % users,
        meta={"class_names": NAMES, "classes": "declared"},
        **more,  # pyright: ignore[reportArgumentType]
    )


def test_predictions_have_a_probability_for_each_finding(tmp_path: Path, say: Callable) -> None:
    held, public = rows(900, 1, 6), rows(300, 2)
    other = [2, 0, 1]
    test = EmbeddingSet(
        embeddings=rows(200, 3).embeddings,
        labels=np.full(200, -1),
        findings=np.asarray(rows(200, 3).findings)[:, other],
        meta={"class_names": [NAMES[k] for k in other]},
    )
    for name, each in (("held", held), ("public", public), ("test", test)):
        each.save(tmp_path / name)
    place = [f"--{n}={tmp_path / n}" for n in ("held", "public", "test", "model", "out")]
    code, _, error = say(
        *("run", place[0].replace("held", "embeddings", 1), place[1], "--epsilon", "5"),
        *("--ledger", "none", "--out", str(tmp_path / "model")),
    )
    assert code == 0, error
    command = ("predict", place[3], place[2].replace("test", "embeddings", 1), "--evaluate")
    code, _, error = say(*command, "--threshold", "prevalence", place[4])
    assert code == 0, error
    lines = (tmp_path / "out" / "predictions.csv").read_text().splitlines()
    assert lines[0] == "path,findings," + ",".join(f"probability of {name}" for name in NAMES)
    assert len(lines) == 201
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["macro"]["auroc"]["estimate"] > 0.85
    assert (tmp_path / "out" / "roc.png").exists()
    for wrong in ("0", "1"):
        code, _, error = say(*command, "--threshold", wrong, "--overwrite", place[4])
        assert (code != 0, "threshold must be in (0, 1), or prevalence" in error) == (True, True)
