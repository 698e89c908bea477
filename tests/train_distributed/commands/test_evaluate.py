"""`evaluate` from a directory of a model and one of embeddings."""

import json
from pathlib import Path

import pytest

from train_distributed.ledger.ledger import Ledger


@pytest.fixture
def held(say, sets) -> tuple[str, str]:
    """Directories of embeddings with rows held out, and of a model of the others."""
    private, public = sets
    given = ("--embeddings", private, "--share", "0.4", "--out", "held")
    assert say("embed", "hold-out", *given)[0] == 0
    given = ("--embeddings", "held", "--public", public, "--epsilon", "5", "--out", "model")
    assert say("run", *given, "--method", "discriminant", "--sums", "1")[0] == 0
    return "held", "model"


def test_a_model_is_evaluated_and_counted(say, held) -> None:
    given = ("evaluate", "--embeddings", held[0], "--model", held[1], "--epsilon", "2")
    code, printed, error = say(*given, "--out", "good")
    assert (code, error) == (0, "")
    for words in ("accuracy", "balanced_accuracy", "expected_calibration_error", "recall of a"):
        assert words in printed
    report = json.loads(Path("good/evaluation.json").read_text())
    assert report["suitable_for_release"]
    assert report["rows"] == 36 - 36 % 4 or report["rows"] > 0
    assert len(report["model"]) == 64
    assert report["ledger"]["epsilon_total"] == pytest.approx(5, rel=1e-6)  # the costlier part
    lines = Ledger(Path("held.ledger")).lines()
    assert [line.kind for line in lines] == ["reserve", "spend"] * 2
    code, _, error = say(*given, "--out", "good")
    assert code == 2
    assert "good" in error
    code, printed, _ = say(*given, "--overlap", "add", "--out", "both", "--seed", "1")
    assert code == 0
    report = json.loads(Path("both/evaluation.json").read_text())
    assert report["ledger"]["epsilon_total"] > 5.3
    assert not report["suitable_for_release"]
    code, _, _ = say(*given, "--ledger", "none", "--out", "third", "--noise", "float")
    assert code == 0
    assert json.loads(Path("third/evaluation.json").read_text())["ledger"] == "none"
