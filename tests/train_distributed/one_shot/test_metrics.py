"""Every metric against loops that follow its definition, and words of caution."""

import math

import numpy as np
import pytest
import torch

from train_distributed.one_shot import metrics as module
from train_distributed.one_shot.metrics import BINS, ClassifierMetrics, brief, few_classes, shifted
from train_distributed.one_shot.model import log_odds, probabilities


def evaluated(scores: np.ndarray, labels: np.ndarray, names: tuple[str, ...], t: float = 1.0):
    evaluation = ClassifierMetrics(names, len(labels), t)
    for start in range(0, len(labels), 7):  # blocks that do not divide n
        part = slice(start, start + 7)
        evaluation.add(torch.from_numpy(scores[part]), labels[part])
    return evaluation.report()


def problem(rows: int, classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, rows)
    return rng.standard_normal((rows, classes)) + 1.5 * np.eye(classes)[labels], labels


def softmax(row: np.ndarray, t: float) -> list[float]:
    powers = [math.exp((s - max(row)) / t) for s in row]
    return [power / sum(powers) for power in powers]


def naive_area(scores: list[float], mine: list[bool]) -> float:
    """How often a row of the class ranks above one that is not of it; ties count a half."""
    wins = [
        1.0 if a > b else 0.5 if a == b else 0.0
        for a, is_a in zip(scores, mine, strict=True)
        if is_a
        for b, is_b in zip(scores, mine, strict=True)
        if not is_b
    ]
    return sum(wins) / len(wins)


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
def test_all_metrics_are_those_of_naive_loops(classes: int, t: float) -> None:
    scores, labels = problem(83, classes)
    names = tuple(f"class {k}" for k in range(classes))
    found = evaluated(scores, labels, names, t)
    shares = [softmax(row, t) for row in scores]
    guesses = [p.index(max(p)) for p in shares]
    pairs = list(zip(labels.tolist(), guesses, strict=True))
    assert found["accuracy"] == pytest.approx(sum(y == g for y, g in pairs) / 83)
    assert found["majority_baseline"] == max(labels.tolist().count(k) for k in range(classes)) / 83
    recalls, f1s, areas = [], [], []
    for k, name in enumerate(names):
        hits = sum(y == g == k for y, g in pairs)
        precision = hits / sum(g == k for _, g in pairs)
        recalls.append(hits / sum(y == k for y, _ in pairs))
        f1s.append(2 * precision * recalls[-1] / (precision + recalls[-1]))
        areas.append(naive_area([p[k] for p in shares], [y == k for y, _ in pairs]))
        expected = {"precision": precision, "recall": recalls[-1], "f1": f1s[-1]}
        assert found["per_class"][name] == pytest.approx(
            expected | {"rows": labels.tolist().count(k), "auroc": areas[-1]}
        )
    assert found["balanced_accuracy"] == pytest.approx(np.mean(recalls))
    assert found["macro_f1"] == pytest.approx(np.mean(f1s))
    assert found["auroc"] == pytest.approx(areas[1] if classes == 2 else np.mean(areas))
    expected = naive_calibration_error(shares, labels)
    assert found["expected_calibration_error"] == pytest.approx(expected, abs=1e-12)
    assert found["warnings"] == []


def test_a_class_that_no_row_has_is_left_out_and_named() -> None:
    scores, labels = problem(60, 4)
    labels[labels == 2] = 3
    found = evaluated(scores, labels, ("a", "b", "c", "d"))
    assert found["auroc_classes_absent"] == ["c"]
    areas = [found["per_class"][name]["auroc"] for name in "abd"]
    assert found["auroc"] == pytest.approx(np.mean(areas))
    assert found["per_class"]["c"]["recall"] is None
    assert found["per_class"]["c"]["auroc"] is None
    recalls = [found["per_class"][name]["recall"] for name in "abd"]
    assert found["balanced_accuracy"] == pytest.approx(np.mean(recalls))


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


def test_rows_of_one_class_have_no_curve() -> None:
    found = evaluated(np.eye(2)[[0, 0, 1]], np.zeros(3, int), ("a", "b"))
    assert found["auroc"] is None
    assert found["warnings"] == []
    assert dict(brief(found))["auroc"] == "unknown"


def test_rows_keep_their_order_where_probabilities_have_none() -> None:
    """All are 0 or 1 to the last bit; the scores still tell them apart."""
    gaps = torch.tensor([-900.0, -60.0, -50.0, 50.0, 60.0, 900.0], dtype=torch.float64)
    scores = torch.stack([torch.zeros(6, dtype=torch.float64), gaps], 1)
    odds = log_odds(scores)
    assert torch.allclose(odds[:, 1], gaps)
    assert torch.allclose(odds[:, 0], -gaps)
    assert (probabilities(scores)[3:, 1] == 1).all()
    found = evaluated(scores.numpy(), np.array([0, 0, 1, 0, 1, 1]), ("a", "b"))
    assert found["auroc"] == pytest.approx(8 / 9)


def test_log_odds_are_those_of_the_probabilities() -> None:
    scores = torch.from_numpy(problem(50, 4)[0])
    p = probabilities(scores, 0.7)
    assert torch.allclose(log_odds(scores, 0.7), (p / (1 - p)).log())
    tied = torch.zeros(1, 4, dtype=torch.float64)
    assert torch.allclose(log_odds(tied), torch.tensor(1 / 3).double().log())
    assert log_odds(torch.tensor([[-1e12, 3.0, -1e12]]).double()).isfinite().all()


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
    def evaluate() -> None:
        evaluation = ClassifierMetrics(("a", "b"), rows)
        evaluation.add(torch.zeros(len(labels), 2).double(), np.array(labels, int))
        evaluation.report()

    with pytest.raises(ValueError, match=message):
        evaluate()


# Words of caution

TEN = np.full(10, 100.0)


@pytest.mark.parametrize(
    ("labels", "predicted", "warned"),
    [
        (TEN, [500, 500, 0, 0, 0, 0, 0, 0, 0, 0], "hold 10 classes and are taken for 2"),
        (TEN, [200, 200, 200, 200, 190, 10, 0, 0, 0, 0], "hold 10 classes and are taken for 5"),
        (TEN, [200, 200, 200, 150, 100, 150, 0, 0, 0, 0], ""),  # six of ten
        (TEN, TEN[::-1], ""),
        ([960, 10, 10, 10, 10], [1000, 0, 0, 0, 0], ""),  # so are the labels
        ([0, 0], [0, 0], ""),
        (TEN, [400, 0, 0, 0, 0, 0, 0, 0, 0, 0], ""),  # noise hides the other columns
    ],
)
def test_few_classes(labels, predicted, warned: str) -> None:
    (found,) = few_classes(np.array(labels, float), np.array(predicted, float)) or [""]
    assert warned in found
    assert bool(warned) == bool(found)


def test_a_shift_of_classes_is_said_beyond_chance_and_noise() -> None:
    names, learned = ("ill", "well"), {"ill": 0.74, "well": 0.26}
    (words,) = shifted(learned, np.array([500.0, 500.0]), names)
    assert "74.0 % of 'ill', of these rows they are 50.0 %" in words
    assert "--prior equal" in words
    assert shifted(learned, np.array([700.0, 300.0]), names) == []
    assert shifted(learned, np.array([5.0, 5.0]), names) == []  # ten rows show nothing
    assert shifted(learned, np.array([500.0, 500.0]), names, noise_std=100.0) == []
    assert shifted(None, np.array([500.0, 500.0]), names) == []
    assert shifted({"a": 1.0}, np.array([500.0, 500.0]), names) == []


def test_metrics_warn_of_two_classes_out_of_ten_and_of_a_shift() -> None:
    labels = np.repeat(np.arange(10), 30)
    scores = torch.nn.functional.one_hot(torch.from_numpy(labels % 2), 10).double()
    learned = {str(k): 0.55 if k == 0 else 0.05 for k in range(10)}
    evaluation = ClassifierMetrics(tuple(map(str, range(10))), len(labels), learned=learned)
    evaluation.add(scores, labels)
    few, shift = evaluation.report()["warnings"]
    assert few == "few classes: 95 % of the rows hold 10 classes and are taken for 2"
    assert shift.startswith("the classes are shifted: the model goes by 55.0 % of '0'")
