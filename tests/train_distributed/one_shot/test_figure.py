"""Figures of a release hold with names and numbers of classes that nobody chose for them."""

import numpy as np
import pytest

from train_distributed import Privacy
from train_distributed.one_shot.figure import draw_confusion, draw_release
from train_distributed.one_shot.report_file import Report

LONG = "a name that goes on, " * 20
NAMES = {
    "long": [LONG + "a", LONG + "b", "c"],
    "formula": ["$x^", "$\\frac$", "_"],
    "many": [f"class {k}" for k in range(120)],
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
