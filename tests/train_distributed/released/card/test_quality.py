"""Intervals of a card: they cover the true share, and are left out where counts are unknown."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.train_distributed.released.conftest import make_release
from train_distributed import Privacy
from train_distributed.one_shot.report_file import Report
from train_distributed.released.card import balanced, bootstrap, card, exact
from train_distributed.released.numbers import percent_range


def metrics(confusion: list[list[int]], **more: object) -> dict:
    counts = np.array(confusion)
    rows, names = int(counts.sum()), [chr(ord("a") + k) for k in range(len(counts))]
    recall, f1 = balanced(counts).tolist()
    per_class = {
        name: {
            "rows": int(of := counts[k].sum()),
            "recall": float(counts[k, k] / of) if of else None,
            "precision": float(counts[k, k] / up) if (up := counts[:, k].sum()) else None,
            "f1": None,
            "auroc": None,
        }
        for k, name in enumerate(names)
    }
    return {
        "rows": rows,
        "accuracy": float(counts.trace() / rows),
        "majority_baseline": float(counts.sum(1).max() / rows),
        "majority_class": names[int(counts.sum(1).argmax())],
        "balanced_accuracy": recall,
        "macro_f1": f1,
        "auroc": 0.75,
        "auroc_of": "macro",
        "expected_calibration_error": 0.1,
        "per_class": per_class,
        "confusion": confusion,
        "warnings": [],
    } | more


def test_the_interval_of_a_share_covers_it() -> None:
    """Of 40 rows, at every tenth of a share: at least as often as it says."""
    rng = np.random.default_rng(0)
    for share in np.arange(0, 1.01, 0.1):
        ends = [exact(hits, 40) for hits in range(41)]
        covers = np.array([each.low <= share <= each.high for each in ends])
        assert covers[rng.binomial(40, share, 4000)].mean() >= 0.94


def test_intervals_of_counts_cover_what_drew_them() -> None:
    rng = np.random.default_rng(1)
    truth = np.array([[0.3, 0.05, 0.05], [0.1, 0.2, 0.0], [0.06, 0.04, 0.2]])
    right = balanced(1e6 * truth)
    covered = np.zeros(2)
    for _ in range(60):
        drawn = rng.multinomial(300, truth.ravel()).reshape(3, 3)
        ends = bootstrap(drawn)
        covered += [low <= of <= high for of, (low, high) in zip(right, ends.values(), strict=True)]
    assert (covered >= 53).all()


def text_of(**more: Any) -> str:
    """The section of a card on quality, as Markdown."""
    made = make_release()
    told = Privacy(1.0, 1e-5).report() | {"users": 3, "suitable_for_release": True}
    text = card(replace(made, report=Report.of(told | more)), markup="markdown")
    return text.partition("## How good it is")[2].partition("\n## ")[0]


def test_ends_are_rounded_outwards() -> None:
    assert percent_range(0.12349, 0.56701) == "12.3 to 56.8 %"
    assert percent_range(0.1, 0.9) == "10.0 to 90.0 %"
    assert percent_range(0.0, 1.0) == "0.0 to 100.0 %"


def test_the_table_has_a_baseline_and_intervals() -> None:
    text = text_of(test_metrics=metrics([[40, 10], [5, 45]]))
    assert "| accuracy | 85.0 % | 76.4 to 91.4 % |" in text
    assert "| always answering 'a' | 50.0 % |  |" in text


def test_warnings_come_first() -> None:
    text = text_of(test_metrics=metrics([[5, 0], [5, 0]], warnings=["one class only"]))
    assert text.startswith("\n\n**Warning: one class only.**")


def test_classes_without_rows_or_predictions_are_said_to_be_so() -> None:
    text = text_of(test_metrics=metrics([[5, 0, 0], [5, 0, 0], [0, 0, 0]]))
    assert "| a | 5 | 100.0 % |" in text
    assert "| b | 5 | 0.0 % | 0.0 to 52.2 % | – |  |" in text
    assert "| c | 0 | – |  | – |  |" in text


def test_many_classes_keep_their_table_without_a_matrix() -> None:
    of = metrics([[5, 1], [2, 8]])
    del of["confusion"]
    text = text_of(test_metrics=of)
    assert "| a | 6 | 83.3 % | 35.8 to 99.6 % | 71.4 % |  |" in text
    assert "| balanced accuracy: mean recall of the classes | 81.7 % |  |" in text


@pytest.mark.parametrize("report", [{}, {"test_accuracy": None}])
def test_without_test_rows_nothing_is_known(report: dict) -> None:
    assert "Nothing is known" in text_of(**report)


def test_an_older_report_has_shares_and_no_interval() -> None:
    text = text_of(test_accuracy=0.5, test_accuracy_per_class={"a": 0.25})
    assert "there is no interval" in text
    assert "| a | 25.0 % |" in text
