"""A run that starts from what is known of the classes, and one whose names say nothing."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embed import EmbeddingSet
from train_distributed import commands

P, NAMES = 40, ("cat", "dog", "ship")
THINGS = tuple(f"thing {k}" for k in range(30))


def mean_of(name: str) -> np.ndarray:
    return 2 * np.random.default_rng(list(name.encode())).standard_normal(P)


def rows_of(names: tuple[str, ...], seed: int, each: int) -> EmbeddingSet:
    """Classes whose means depend on their names alone, rows on the seed."""
    labels = np.repeat(np.arange(len(names)), each)
    noise = np.random.default_rng(seed).standard_normal((len(labels), P))
    rows = np.stack([mean_of(name) for name in names])[labels] + noise
    split = (np.arange(len(labels)) % 5 == 0).astype(np.uint8)
    meta = {"class_names": list(names)}
    users = np.arange(len(labels)) % 10 + 10 * split
    return EmbeddingSet(embeddings=rows, labels=labels, users=users, split=split, meta=meta)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Runs `discriminant` on three classes; names are vectors of the classes' means."""
    rows_of(NAMES, 1, 100).save(tmp_path / "private")
    rows_of(THINGS, 2, 40).save(tmp_path / "public")
    rows_of((*NAMES, *THINGS), 3, 40).save(tmp_path / "with_private_classes")
    monkeypatch.setattr("train_distributed.one_shot.figure.draw_release", lambda *_: None)

    def vectors(names: Any, encoder: str) -> torch.Tensor:
        alike = encoder == "alike"
        found = [mean_of("cat" if alike and name in NAMES else name) for name in names]
        return torch.nn.functional.normalize(torch.from_numpy(np.stack(found)), dim=1)

    monkeypatch.setattr("embed.guesses.name_vectors", vectors)

    def run(out: str, *, public: str = "public", **given: Any) -> dict[str, Any]:
        options: dict[str, Any] = {"public": tmp_path / public, "seed": 1, "ledger": Path("none")}
        options |= {"out": tmp_path / out, "epsilon": 0.5}
        written = commands.run(embeddings=tmp_path / "private", **options | given)
        return json.loads((written / "report.json").read_text())

    return run


def test_names_that_say_nothing_change_nothing(
    run: Callable[..., dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("without")
    run("with", text_encoder="alike")
    assert "names say nothing here" in capsys.readouterr().err
    without, with_names = (tmp_path / each / "model.safetensors" for each in ("without", "with"))
    assert with_names.read_bytes() == without.read_bytes()


@pytest.mark.parametrize("how", ["names", "examples"])
def test_guesses_keep_directions_that_the_rule_leaves_out(
    run: Callable[..., dict[str, Any]], how: str
) -> None:
    """Examples turn up by themselves where the public set has classes of the same names."""
    assert run("without")["configuration"]["options"]["components"] < P
    given: dict[str, Any] = {"text_encoder": "package"}
    given = given if how == "names" else {"public": "with_private_classes"}
    report = run("with", **given)
    assert report["configuration"]["options"]["components"] == P
    assert report["known_before"]
