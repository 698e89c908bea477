"""A released model: read as it was written or refused in one line, its figures, its metrics."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from sklearn.metrics import precision_recall_fscore_support, roc_auc_score

from train_distributed import Privacy, Release
from train_distributed.one_shot import metrics as module
from train_distributed.one_shot.figure import draw_confusion, draw_release
from train_distributed.one_shot.metrics import BINS, ClassifierMetrics, brief, few_classes, shifted
from train_distributed.one_shot.model import log_odds, probabilities
from train_distributed.one_shot.report_file import Report


@pytest.fixture
def saved(released, tmp_path) -> Path:
    released.save(tmp_path / "model")
    return tmp_path / "model"


def test_what_was_saved_is_loaded(released, saved) -> None:
    loaded = Release.load(saved)
    rows = np.random.default_rng(1).standard_normal((50, 6)).astype(np.float32) + 5
    assert torch.equal(loaded.scores(rows), released.scores(rows))
    assert torch.equal(loaded.predict(rows), released.predict(rows))
    assert torch.equal(loaded.predict_proba(rows), released.predict_proba(rows))
    assert loaded.encoding == released.encoding
    assert json.loads((saved / "report.json").read_text()) == released.report
    for name in ("class_names", "report", "temperature", "method", "opened"):
        assert getattr(loaded, name) == getattr(released, name)
    with safe_open(saved / "model.safetensors", "pt") as file:
        assert "posterior of Gaussian classes" in file.metadata()["probabilities"]
        assert file.metadata()["method"] == "discriminant"


def test_models_appear_whole_once_and_equal_ones_are_equal_files(released, tmp_path) -> None:
    files = set()
    for name in "abc":
        released.save(tmp_path / name)
        assert sorted(os.listdir(tmp_path / name)) == ["model.safetensors", "report.json"]
        files.add((tmp_path / name / "model.safetensors").read_bytes())
    assert len(files) == 1
    with pytest.raises(FileExistsError, match="must not exist"):
        released.save(tmp_path / "a")
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "c"]


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
    shares = released.predict_proba(size * np.array([[1.0, -1, 1, -1, 1, -1], [1] * 6]))
    assert shares.isfinite().all()
    assert torch.allclose(shares.sum(1), torch.ones(2).double())


def test_rows_of_another_shape_or_not_finite_are_refused(released) -> None:
    for shape in ((3, 5), (3, 7), (6,), (1, 2, 6)):
        with pytest.raises(ValueError, match=r"embeddings must be \(n, 6\), got"):
            released.predict_proba(np.zeros(shape))
    rows = np.zeros((3000, 6))
    rows[2500, 3] = np.inf
    with pytest.raises(ValueError, match="must be finite, got inf in row 2500"):
        released.predict(rows)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("weights", lambda w: w.flatten(), r"weights must be a float \(d, K\), got"),
        ("weights", lambda w: w.long(), r"weights must be a float \(d, K\), got"),
        ("weights", lambda w: w * torch.nan, "weights must be finite"),
        ("weights", lambda w: w[:-1], "weights must have 5 rows, .*, got 4"),
        ("weights", lambda w: w[:, :2], "class_names must name 2 classes, got 3"),
        ("class_names", None, "class_names must be two distinct names or more, got None"),
        ("class_names", "[", "class_names must be JSON"),
        ("class_names", '{"a": 1}', "class_names must be two distinct names"),
        ("class_names", '["a", "b", "a"]', "class_names must be two distinct names"),
        ("class_names", '["a", "b", 3]', "class_names must be two distinct names"),
        ("temperature", None, "temperature must be > 0, got None"),
        ("temperature", "0.0", r"temperature must be > 0, got 0\.0"),
        ("encoding", "{}", "encoding must be readable"),
        ("transform.mean", None, "transform must hold"),
        ("transform.mean", lambda m: m[1:], "mean must be"),
        ("transform.mean", lambda m: m.half(), "transform.mean must be float"),
        ("more", [0.0], r"got \['more'\] too"),
        ("class_shares", [0.5, 0.5], r"class_shares must be float \(3,\), got .*\(2,\)"),
        ("class_shares", [1, 1, 1], r"class_shares must be float \(3,\), got torch.int64"),
        ("class_shares", [0.5, 0.5, 0.0], "class_shares must be > 0, got 0"),
        ("class_shares", [torch.nan, 0.5, 0.5], "class_shares must be > 0, got nan"),
        ("class_shares", [torch.inf, 0.5, 0.5], "class_shares must have the sum 1, got inf"),
        ("class_shares", [0.2, 0.3, 0.500002], "class_shares must have the sum 1, got 1"),
        ("prior", '"flat"', "prior must be one of"),
        ("prior", "[0.5, 0.5]", "3 shares"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(saved, name: str, value: Any, message: str) -> None:
    """Without a tensor or text, with a changed tensor, or with another text or other numbers."""
    model = saved / "model.safetensors"
    tensors = load_file(model)
    with safe_open(model, "pt") as file:
        metadata = dict(file.metadata())
    if value is None:
        tensors.pop(name, None)
        metadata.pop(name, None)
    elif isinstance(value, str):
        metadata[name] = value
    elif isinstance(value, list):
        tensors[name] = torch.from_numpy(np.array(value))
    else:
        tensors[name] = value(tensors[name]).contiguous()
    save_file(tensors, model, metadata)
    with pytest.raises(ValueError, match=message) as refusal:
        Release.load(saved)
    assert str(refusal.value).startswith(str(model))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "names", [["a name that goes on, " * 20, "b", "c"], ["$x^", "$\\frac$"], [*map(str, range(60))]]
)
def test_any_classes_can_be_drawn(names: list[str], tmp_path) -> None:
    """What matplotlib cannot lay out is a warning, which fails here."""
    counts = np.ones((len(names), len(names)), np.int64)
    draw_confusion(counts, names, tmp_path / "confusion.png")
    accuracies = {name: k / len(names) for k, name in enumerate(names)}
    report = {"test_accuracy": 0.5, "test_accuracy_per_class": accuracies}
    draw_release(Report.of(Privacy(1.0, 1e-5).report() | report), tmp_path / "privacy.png")
    assert len(list(tmp_path.iterdir())) == 2


def evaluated(
    scores: np.ndarray, labels: np.ndarray, names: Any, t: float = 1.0, rows: int | None = None
) -> dict[str, Any]:
    evaluation = ClassifierMetrics(names, len(labels) if rows is None else rows, t)
    for start in range(0, len(labels), 7):  # blocks that do not divide n
        part = slice(start, start + 7)
        evaluation.add(torch.from_numpy(scores[part]), labels[part])
    return evaluation.report()


def problem(rows: int, classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, rows)
    return rng.standard_normal((rows, classes)) + 1.5 * np.eye(classes)[labels], labels


def naive_calibration_error(shares: list[list[float]], labels: np.ndarray) -> float:
    error = 0.0
    for b in range(BINS):
        inside = [
            (max(p), p.index(max(p)) == y)
            for p, y in zip(shares, labels, strict=True)
            if b / BINS < max(p) <= (b + 1) / BINS
        ]
        if inside:
            sure, hits = (sum(values) / len(inside) for values in zip(*inside, strict=True))
            error += len(inside) / len(labels) * abs(hits - sure)
    return error


@pytest.mark.parametrize(("classes", "t"), [(2, 1.0), (3, 0.3), (5, 4.0)])
def test_all_metrics_are_those_of_all_rows_at_once(classes: int, t: float) -> None:
    """By scikit-learn, of rows and not of counts; the calibration error by its definition."""
    scores, labels = problem(83, classes)
    names = tuple(f"class {k}" for k in range(classes))
    found = evaluated(scores, labels, names, t)
    shares = torch.softmax(torch.from_numpy(scores) / t, 1).numpy()
    guesses = shares.argmax(1)
    assert found["accuracy"] == pytest.approx((labels == guesses).mean())
    assert found["majority_baseline"] == np.bincount(labels).max() / 83
    by_class = precision_recall_fscore_support(labels, guesses)
    precision, recall, f1, rows = map(np.asarray, by_class)
    areas = [roc_auc_score(labels == k, shares[:, k]) for k in range(classes)]
    for k, name in enumerate(names):
        expected = {"precision": precision[k], "recall": recall[k], "f1": f1[k]}
        expected |= {"rows": rows[k], "auroc": areas[k]}
        assert found["per_class"][name] == pytest.approx(expected)
    assert found["balanced_accuracy"] == pytest.approx(np.mean(recall))
    assert found["macro_f1"] == pytest.approx(np.mean(f1))
    assert found["auroc"] == pytest.approx(areas[1] if classes == 2 else np.mean(areas))
    expected = naive_calibration_error(shares.tolist(), labels)
    assert found["expected_calibration_error"] == pytest.approx(expected, abs=1e-12)
    assert found["warnings"] == []


def test_a_class_that_no_row_has_is_left_out_and_named() -> None:
    scores, labels = problem(60, 4)
    labels[labels == 2] = 3
    found = evaluated(scores, labels, ("a", "b", "c", "d"))
    assert found["auroc_classes_absent"] == ["c"]
    absent, others = found["per_class"].pop("c"), found["per_class"].values()
    assert absent["recall"] is None is absent["auroc"]
    assert found["auroc"] == pytest.approx(np.mean([each["auroc"] for each in others]))
    assert found["balanced_accuracy"] == pytest.approx(np.mean([each["recall"] for each in others]))
    one = evaluated(np.eye(2)[[0, 0, 1]], np.zeros(3, int), ("a", "b"))
    assert one["auroc"] is None
    assert one["warnings"] == []
    assert dict(brief(one))["auroc"] == "unknown"


def test_a_model_that_predicts_one_class_only_is_said_to() -> None:
    labels = np.repeat([0, 1], [50, 30])
    scores = np.stack([np.full(80, 1.0), 0.9 * labels], 1)  # ranks well, decides badly
    found = evaluated(scores, labels, ("sick", "well"))
    assert found["accuracy"] == found["majority_baseline"] == 0.625
    assert found["auroc"] == 1.0
    assert found["balanced_accuracy"] == 0.5
    assert found["per_class"]["well"]["precision"] is None
    assert found["warnings"][0] == "one class only: all 80 rows are taken for 'sick'"
    assert "62.5 % is not above the 62.5 %" in found["warnings"][1]
    assert [name for name, _ in brief(found)][-2:] == ["warning", "warning"]


def test_log_odds_are_those_of_the_probabilities_and_order_rows_where_these_do_not() -> None:
    scores = torch.from_numpy(problem(50, 4)[0])
    p = probabilities(scores, 0.7)
    assert torch.allclose(log_odds(scores, 0.7), (p / (1 - p)).log())
    tied = torch.zeros(1, 4, dtype=torch.float64)
    assert torch.allclose(log_odds(tied), torch.tensor(1 / 3).double().log())
    assert log_odds(torch.tensor([[-1e12, 3.0, -1e12]]).double()).isfinite().all()
    gaps = torch.tensor([-900.0, -60.0, -50.0, 50.0, 60.0, 900.0], dtype=torch.float64)
    scores = torch.stack([torch.zeros(6, dtype=torch.float64), gaps], 1)
    odds = log_odds(scores)
    assert torch.allclose(odds[:, 1], gaps)
    assert torch.allclose(odds[:, 0], -gaps)
    assert (probabilities(scores)[3:, 1] == 1).all()
    found = evaluated(scores.numpy(), np.array([0, 0, 1, 0, 1, 1]), ("a", "b"))
    assert found["auroc"] == pytest.approx(8 / 9)


def test_long_sets_are_ranked_from_a_file(monkeypatch) -> None:
    scores, labels = problem(200, 3)
    expected = evaluated(scores, labels, ("a", "b", "c"))
    monkeypatch.setattr(module, "BLOCK", 100)
    assert isinstance(ClassifierMetrics(("a", "b"), 200)._odds, np.memmap)
    assert evaluated(scores, labels, ("a", "b", "c")) == expected


@pytest.mark.parametrize(
    ("labels", "rows", "message"),
    [
        ([0, 2], 2, r"labels must lie in \[0, 2\), got 0 to 2"),
        ([0, -1], 2, r"labels must lie in \[0, 2\), got -1 to 0"),
        ([0, 1], 1, "rows must be 1 in all, got 2 or more"),
        ([0, 1], 3, "rows must be 3 in all, got 2"),
        ([], 0, "rows with labels must be >= 1, got 0"),
    ],
)
def test_rows_that_do_not_fit_are_refused(labels: list[int], rows: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        evaluated(np.zeros((len(labels), 2)), np.array(labels, int), ("a", "b"), rows=rows)


TEN = np.full(10, 100.0)


@pytest.mark.parametrize(
    ("labels", "predicted", "used"),
    [
        (TEN, [500, 500, 0, 0, 0, 0, 0, 0, 0, 0], 2),
        (TEN, [200, 200, 200, 200, 190, 10, 0, 0, 0, 0], 5),
        (TEN, [200, 200, 200, 150, 100, 150, 0, 0, 0, 0], None),  # six of ten
        ([960, 10, 10, 10, 10], [1000, 0, 0, 0, 0], None),  # so are the labels
        ([0, 0], [0, 0], None),
        (TEN, [400, 0, 0, 0, 0, 0, 0, 0, 0, 0], None),  # noise hides the other columns
    ],
)
def test_few_classes(labels, predicted, used: int | None) -> None:
    said = f"few classes: 95 % of the rows hold 10 classes and are taken for {used}"
    found = few_classes(np.array(labels, float), np.array(predicted, float))
    assert found == ([said] if used else [])


def test_a_shift_of_classes_is_said_beyond_chance_and_noise() -> None:
    names, learned, even = ("ill", "well"), {"ill": 0.74, "well": 0.26}, np.array([500.0, 500.0])
    (words,) = shifted(learned, even, names)
    assert "74.0 % of 'ill', of these rows they are 50.0 %" in words
    assert shifted(learned, np.array([700.0, 300.0]), names) == []
    assert shifted(learned, even / 100, names) == []  # ten rows show nothing
    assert shifted(learned, even, names, noise_std=100.0) == []
    assert shifted(None, even, names) == []
    assert shifted({"a": 1.0}, even, names) == []


def test_metrics_warn_of_two_classes_out_of_ten_and_of_a_shift() -> None:
    labels = np.repeat(np.arange(10), 30)
    scores = torch.nn.functional.one_hot(torch.from_numpy(labels % 2), 10).double()
    learned = {str(k): 0.55 if k == 0 else 0.05 for k in range(10)}
    evaluation = ClassifierMetrics([*learned], len(labels), learned=learned)
    evaluation.add(scores, labels)
    few, shift = evaluation.report()["warnings"]
    assert few.startswith("few classes: 95 %")
    assert shift.startswith("the classes are shifted: the model goes by 55.0 % of '0'")
