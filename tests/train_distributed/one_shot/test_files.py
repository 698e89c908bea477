"""A model is read as it was written, or refused in one line; its figures take any names."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tests.train_distributed.released.conftest import make_release
from train_distributed import Privacy, Release
from train_distributed.one_shot.figure import draw_confusion, draw_release
from train_distributed.one_shot.report_file import Report


@pytest.fixture
def released() -> Release:
    return make_release()


@pytest.fixture
def saved(released, tmp_path) -> Path:
    released.save(tmp_path / "model")
    return tmp_path / "model"


def rewrite(path: Path, change: Callable[[dict[str, Any], dict[str, str]], None]) -> None:
    """Saves a model again with some of its tensors or metadata changed."""
    model = path / "model.safetensors"
    tensors = load_file(model)
    with safe_open(model, "pt") as file:
        metadata = dict(file.metadata())
    change(tensors, metadata)
    save_file(tensors, model, metadata)


def test_what_was_saved_is_loaded(released, tmp_path) -> None:
    released.save(tmp_path / "model")
    loaded = Release.load(tmp_path / "model")
    rows = np.random.default_rng(1).standard_normal((50, 6)).astype(np.float32) + 5
    assert torch.equal(loaded.scores(rows), released.scores(rows))
    assert torch.equal(loaded.predict(rows), released.predict(rows))
    assert torch.equal(loaded.predict_proba(rows), released.predict_proba(rows))
    assert loaded.encoding == released.encoding
    assert json.loads((tmp_path / "model" / "report.json").read_text()) == released.report
    for name in ("class_names", "report", "temperature", "method", "opened"):
        assert getattr(loaded, name) == getattr(released, name)
    with safe_open(tmp_path / "model" / "model.safetensors", "pt") as file:
        assert "posterior of Gaussian classes" in file.metadata()["probabilities"]
        assert file.metadata()["method"] == "discriminant"


def test_models_appear_whole_once_and_equal_ones_are_equal_files(released, tmp_path) -> None:
    for name in "abc":
        released.save(tmp_path / name)
        written = sorted(path.name for path in (tmp_path / name).iterdir())
        assert written == ["model.safetensors", "report.json"]
    files = {(tmp_path / name / "model.safetensors").read_bytes() for name in "abc"}
    assert len(files) == 1
    with pytest.raises(FileExistsError, match="must not exist"):
        released.save(tmp_path / "a")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]


def test_probabilities_are_the_softmax_of_the_scores(released) -> None:
    rows = 5 + np.random.default_rng(1).standard_normal((4999, 6))  # more than two blocks
    shares = released.predict_proba(rows)
    z = released.transform(rows).double().numpy() @ released.weights.numpy()
    powers = np.exp(z)
    assert np.allclose(shares, powers / powers.sum(1, keepdims=True), atol=1e-5)
    assert torch.equal(shares.argmax(1), released.predict(rows))
    assert released.predict_proba(rows[:0]).shape == (0, 3)


@pytest.mark.parametrize("size", [1e-300, 1e-30, 1e30, 1e150, 1e307])
def test_probabilities_of_extreme_rows_are_finite(released, size: float) -> None:
    rows = size * np.array([[1.0, -1, 1, -1, 1, -1], [1, 1, 1, 1, 1, 1]])
    shares = released.predict_proba(rows)
    assert shares.isfinite().all()
    assert torch.allclose(shares.sum(1), torch.ones(2).double())


@pytest.mark.parametrize("shape", [(3, 5), (3, 7), (6,), (1, 2, 6)])
def test_rows_of_another_shape_are_refused(released, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"embeddings must be \(n, 6\), got"):
        released.predict_proba(np.zeros(shape))


def test_a_row_that_is_not_finite_is_named(released) -> None:
    rows = np.zeros((3000, 6))
    rows[2500, 3] = np.inf
    with pytest.raises(ValueError, match="must be finite, got inf in row 2500"):
        released.predict(rows)


def _without(name: str):
    return lambda tensors, metadata: (tensors.pop(name, None), metadata.pop(name, None))


def _tensor(name: str, change: Callable[[torch.Tensor], torch.Tensor]):
    return lambda tensors, metadata: tensors.update({name: change(tensors[name]).contiguous()})


def _metadata(name: str, text: str):
    return lambda tensors, metadata: metadata.update({name: text})


def _shares(values: list):
    shares = torch.tensor(values)
    shares = shares.double() if shares.is_floating_point() else shares
    return lambda tensors, metadata: tensors.update(class_shares=shares)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_without("weights"), r"weights must be a float \(d, K\), got none"),
        (_tensor("weights", lambda w: w.flatten()), r"weights must be a float \(d, K\), got"),
        (_tensor("weights", lambda w: w.long()), r"weights must be a float \(d, K\), got"),
        (_tensor("weights", lambda w: w * torch.nan), "weights must be finite"),
        (_tensor("weights", lambda w: w[:-1]), "weights must have 5 rows, .*, got 4"),
        (_tensor("weights", lambda w: w[:, :2]), "class_names must name 2 classes, got 3"),
        (_without("class_names"), "class_names must be two distinct names or more, got None"),
        (_metadata("class_names", "["), "class_names must be JSON"),
        (_metadata("class_names", '{"a": 1}'), "class_names must be two distinct names"),
        (_metadata("class_names", '["a", "b", "a"]'), "class_names must be two distinct names"),
        (_metadata("class_names", '["a", "b", 3]'), "class_names must be two distinct names"),
        (_metadata("class_names", "[" * 100000), "class_names must be JSON"),
        (_without("temperature"), "temperature must be > 0, got None"),
        (_metadata("temperature", "0.0"), r"temperature must be > 0, got 0\.0"),
        (_metadata("temperature", "NaN"), "temperature must be JSON, got: numbers must be finite"),
        (_metadata("encoding", "{}"), "encoding must be readable"),
        (_metadata("encoding", "]"), "encoding must be readable"),
        (_without("transform.mean"), "transform must hold"),
        (_tensor("transform.mean", lambda m: m[1:]), "mean must be"),
        (_tensor("transform.mean", lambda m: m * torch.inf), "mean must be finite"),
        (_tensor("transform.mean", lambda m: m.half()), "transform.mean must be float"),
        (_tensor("transform.scale", lambda s: 0 * s), r"scale must be in \[2\^-126"),
        (_tensor("transform.bounds", lambda b: b.flip(0)), "clip_norm must be > constant"),
        (lambda t, m: t.update({"more": torch.zeros(1)}), r"got \['more'\] too"),
        (_shares([0.5, 0.5]), r"class_shares must be float \(3,\), got .*\(2,\)"),
        (_shares([[0.2, 0.3, 0.5]]), r"class_shares must be float \(3,\)"),
        (_shares([1, 1, 1]), r"class_shares must be float \(3,\), got torch.int64"),
        (_shares([0.5, 0.5, 0.0]), "class_shares must be > 0, got 0"),
        (_shares([1.5, -0.25, -0.25]), "class_shares must be > 0, got -0.25"),
        (_shares([torch.nan, 0.5, 0.5]), "class_shares must be > 0, got nan"),
        (_shares([torch.inf, 0.5, 0.5]), "class_shares must have the sum 1, got inf"),
        (_shares([0.3, 0.3, 0.3]), r"class_shares must have the sum 1, got 0\.9"),
        (_shares([0.2, 0.3, 0.500002]), "class_shares must have the sum 1"),
        (_metadata("prior", '"flat"'), "prior must be one of"),
        (_metadata("prior", "[0.5, 0.5]"), "3 shares"),
        (_metadata("prior", "{"), "prior"),
        (_metadata("prior", "1"), "prior"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(saved, change, message: str) -> None:
    rewrite(saved, change)
    with pytest.raises(ValueError, match=message) as refusal:
        Release.load(saved)
    assert str(refusal.value).startswith(str(saved / "model.safetensors"))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("report.json", b"{", "must be a readable JSON object"),
        ("report.json", b"[]", "must be a JSON object, got list"),
        ("report.json", b'{"epsilon": NaN}', "numbers must be finite, got NaN"),
        ("report.json", b"\xff", "must be a readable JSON object"),
        ("report.json", b"[" * 100000, "must be a readable JSON object"),
        ("report.json", None, "must be a readable JSON object"),
        ("model.safetensors", b"", "must be a released model"),
        ("model.safetensors", b"\xff" * 64, "must be a released model"),
        ("model.safetensors", None, "must be a released model"),
    ],
)
def test_a_file_that_is_damaged_or_missing_is_named(
    saved, name: str, content: bytes | None, message: str
) -> None:
    path = saved / name
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as refusal:
        Release.load(saved)
    assert str(path) in str(refusal.value)


def test_a_file_cut_anywhere_is_refused(saved) -> None:
    model = saved / "model.safetensors"
    whole = model.read_bytes()
    for length in (1, 7, 8, 100, len(whole) // 2, len(whole) - 1):
        model.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="must be a released model"):
            Release.load(saved)


def test_no_directory_is_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match="release must be an existing directory, got"):
        Release.load(tmp_path / "model")


# Figures

LONG = "a name that goes on, " * 20
NAMES = {
    "long": [LONG + "a", LONG + "b", "c"],
    "formula": ["$x^", "$\\frac$", "_"],
    "many": [f"class {k}" for k in range(60)],
}


@pytest.mark.parametrize("kind", NAMES)
def test_any_classes_can_be_drawn(kind: str, tmp_path) -> None:
    """What matplotlib cannot lay out is a warning, which fails here."""
    names = NAMES[kind]
    counts = np.ones((len(names), len(names)), np.int64)
    draw_confusion(counts, names, tmp_path / "confusion.png")
    report = Privacy(1.0, 1e-5).report() | {
        "test_accuracy": 0.5,
        "test_accuracy_per_class": {name: k / len(names) for k, name in enumerate(names)},
    }
    draw_release(Report.of(report), tmp_path / "privacy.png")
    assert len(list(tmp_path.iterdir())) == 2
