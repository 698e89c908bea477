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


def test_a_model_is_shown_rows_of_any_prior(say, held) -> None:
    """By one evaluation of two priors, by predictions for each, and not where it has one alone."""
    Path("prior.json").write_text('{"a": 0.98, "b": 0.01, "c": 0.01}')
    data = ("--embeddings", "held")
    rows, names = (*data, "--public", "public", "--epsilon", "1"), ("model2", "head")
    for name, method in zip(names, ("discriminant", "softmax"), strict=True):
        assert say("run", *rows, "--method", method, "--ledger", "none", "--out", name)[0] == 0
    given = ("evaluate", *data, "--model", "model2", "--ledger", "none")
    code, printed, error = say(*given, "--prior", "both", "--out", "both")
    assert (code, error) == (0, "")
    assert "accuracy, private" in printed
    assert "balanced_accuracy, equal" in printed
    both = json.loads(Path("both/evaluation.json").read_text())
    assert (both["prior"], list(both["by_prior"])) == ("equal", ["equal", "private"])
    assert say(*given, "--prior", "prior.json", "--out", "given")[0] == 0
    alone = json.loads(Path("given/evaluation.json").read_text())
    assert (alone["prior"], "by_prior" in alone) == ("given", False)
    assert both["sensitivity"] == pytest.approx(2**0.5 * alone["sensitivity"])
    assert both["epsilon"] == alone["epsilon"]
    assert both["noise_std"] == pytest.approx(2**0.5 * alone["noise_std"], rel=1e-3)
    assert say("card", "--model", "model2", "--evaluation", "both")[0] == 0
    assert "| private |" in Path("model2/card.md").read_text()
    found = {}
    for prior in ("equal", "private", "prior.json"):
        to = f"by_{prior}"
        given = ("predict", *data, "--model", "model2", "--evaluate", "--out", to)
        code, printed, error = say(*given, "--prior", prior)
        assert (code, error) == (0, "")
        metrics = json.loads(Path(to, "metrics.json").read_text())
        assert metrics["prior"] == ("given" if prior == "prior.json" else prior)
        found[prior] = printed.partition("predicted a")[2].split()[0]
    assert int(found["prior.json"]) > int(found["equal"])
    for command, prior in (("predict", "private"), ("evaluate", "both"), ("evaluate", "private")):
        given = (command, *data, "--model", "head", "--out", "none", "--prior", prior)
        code, _, error = say(*given)
        assert code == 2
        assert "prior must be the model's own, 'equal' (what it learned from carries" in error
        assert not Path("none").exists()
