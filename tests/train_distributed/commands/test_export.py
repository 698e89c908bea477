"""`export` writes one file that was compared, or nothing."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from embed import EmbeddingSet, PublicTransform
from train_distributed import Privacy, Release, release
from train_distributed.released.export.estimator import load_sklearn


@pytest.fixture
def model(sets, tmp_path) -> Path:
    """A model of embeddings that nobody knows the encoder of."""
    transform = PublicTransform.fit(EmbeddingSet.open(sets[1]), components=3)
    learned = release(
        EmbeddingSet.open(sets[0]),
        "discriminant",
        Privacy(5.0, 1e-5),
        transform=transform,
        sums=1,
    )
    learned.save(tmp_path / "model")
    return tmp_path / "model"


def test_an_estimator_is_written_and_compared(call, model, tmp_path) -> None:
    out = tmp_path / "out"
    code, said, error = call(
        "export", "--model", str(model), "--format", "sklearn", "--out", str(out)
    )
    assert (code, error) == (0, "")
    assert sorted(p.name for p in out.iterdir()) == ["export.json", "model.skops"]
    told = json.loads((out / "export.json").read_text())
    assert told["largest_difference"] < 1e-10
    assert told["classes_that_differ"] == 0
    assert told["class_names"] == ["a", "b", "c"]
    assert told["encoding"] is None
    assert "warning" not in said
    rows = np.random.default_rng(0).standard_normal((9, 5))
    shares = Release.load(model).predict_proba(rows).numpy()
    assert np.allclose(load_sklearn(out / "model.skops").predict_proba(rows), shares)


def test_a_missing_package_is_named_with_its_extra(call, model, tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "skops", None)
    out = str(tmp_path / "out")
    code, _, error = call("export", "--model", str(model), "--format", "sklearn", "--out", out)
    assert code == 2
    assert "must have skops installed: pip install 'blind-averaging[export]'" in error
    assert not (tmp_path / "out").exists()


def test_a_difference_is_said(call, model, tmp_path, monkeypatch) -> None:
    from train_distributed.released.export import estimator

    whole = estimator._classifier

    def wrong(released: Release, reach: float):
        made = whole(released, reach)
        made.intercept_ = made.intercept_ + torch.tensor([1e-2, 0, 0]).numpy()
        return made

    monkeypatch.setattr(estimator, "_classifier", wrong)
    out = str(tmp_path / "out")
    code, said, _ = call("export", "--model", str(model), "--format", "sklearn", "--out", out)
    assert code == 0
    assert "differs from predict by more than 1e-05" in said
