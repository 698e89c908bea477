"""Intervals of a card: they cover what they are of, and are told from what is not known."""

import numpy as np
import pytest

from train_distributed.released.card.content import Table, Warned
from train_distributed.released.card.quality import (
    balanced,
    bootstrap,
    class_table,
    found_before,
    found_on_tests,
    interval,
    quality_section,
    shown_interval,
)


def metrics(confusion: list[list[int]], **more: object) -> dict:
    counts = np.array(confusion)
    rows, names = int(counts.sum()), [chr(ord("a") + k) for k in range(len(counts))]
    recall, f1 = balanced(counts)
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
        ends = [interval(hits, 40) for hits in range(41)]
        covers = np.array([low <= share <= high for low, high in ends])
        assert covers[rng.binomial(40, share, 4000)].mean() >= 0.94


def test_intervals_of_counts_cover_what_drew_them() -> None:
    rng = np.random.default_rng(1)
    truth = np.array([[0.3, 0.05, 0.05], [0.1, 0.2, 0.0], [0.06, 0.04, 0.2]])
    exact = balanced(1e6 * truth)
    covered = np.zeros(2)
    for _ in range(60):
        drawn = rng.multinomial(300, truth.ravel()).reshape(3, 3)
        ends = bootstrap(drawn)
        covered += [low <= of <= high for of, (low, high) in zip(exact, ends.values(), strict=True)]
    assert (covered >= 53).all()


def test_ends_are_rounded_outwards() -> None:
    assert shown_interval(0.12349, 0.56701) == "12.3 to 56.8 %"
    assert shown_interval(0.1, 0.9) == "10.0 to 90.0 %"
    assert shown_interval(0.0, 1.0) == "0.0 to 100.0 %"


def test_the_table_has_a_baseline_and_intervals() -> None:
    *_, table, _ = found_on_tests(metrics([[40, 10], [5, 45]]))
    assert isinstance(table, Table)
    names = [row[0] for row in table.rows]
    assert names[:2] == ["accuracy", "always answering 'a'"]
    assert table.rows[0][1:] == ("85.0 %", "76.4 to 91.4 %")
    assert table.rows[1][1:] == ("50.0 %", "")


def test_warnings_come_first() -> None:
    first, *_ = found_on_tests(metrics([[5, 0], [5, 0]], warnings=["one class only"]))
    assert first == Warned("Warning: one class only.")


def test_classes_without_rows_or_predictions_are_said_to_be_so() -> None:
    rows = class_table(metrics([[5, 0, 0], [5, 0, 0], [0, 0, 0]])).rows
    assert rows[0][:3] == ("a", "5", "100.0 %")
    assert rows[1] == ("b", "5", "0.0 %", "0.0 to 52.2 %", "–", "")
    assert rows[2] == ("c", "0", "–", "", "–", "")


def test_many_classes_keep_their_table_without_a_matrix() -> None:
    of = metrics([[5, 1], [2, 8]])
    del of["confusion"]
    rows = class_table(of).rows
    assert rows[0] == ("a", "6", "83.3 %", "35.8 to 99.6 %", "71.4 %", "")
    *_, table, _ = found_on_tests(of)
    assert isinstance(table, Table)
    assert table.rows[2][2] == ""  # no interval without the counts


@pytest.mark.parametrize("report", [{}, {"test_accuracy": None}])
def test_without_test_rows_nothing_is_known(report: dict) -> None:
    (block,) = found_before(report)
    assert "Nothing is known" in str(block)


def test_an_older_report_has_shares_and_no_interval() -> None:
    old = {"test_accuracy": 0.5, "test_accuracy_per_class": {"a": 0.25}}
    section = quality_section(old, (), ())
    assert "there is no interval" in str(section.blocks[0])
    assert isinstance(table := section.blocks[1], Table)
    assert table.rows == (("a", "25.0 %"),)
