"""`evaluate` from a directory of a model and one of embeddings."""

import json
from pathlib import Path

import numpy as np
import pytest

from embed import EmbeddingSet
from train_distributed.ledger.ledger import Ledger


@pytest.fixture(autouse=True)
def held(say, sets, no_pictures) -> None:
    """A set `held` with rows held out, and a `model` of the others."""
    say.done("embed hold-out --embeddings private --share 0.4 --out held")
    learn = "run --embeddings held --public public --epsilon 5 --out model"
    say.done(f"{learn} --method discriminant --sums 1")


def evaluation(out: str) -> dict:
    return json.loads(Path(out, "evaluation.json").read_text())


def test_a_model_is_evaluated_and_counted(say) -> None:
    given = "evaluate --embeddings held --model model --epsilon 2 --out"
    printed = say.done(f"{given} good")
    for words in ("accuracy", "balanced_accuracy", "expected_calibration_error", "recall of a"):
        assert words in printed
    report = evaluation("good")
    assert report["suitable_for_release"]
    assert report["rows"] > 0
    assert len(report["model"]) == 64
    assert report["ledger"]["epsilon_total"] == pytest.approx(5, rel=1e-6)  # the costlier part
    lines = Ledger(Path("held.ledger")).lines()
    assert [line.kind for line in lines] == ["reserve", "spend"] * 2
    say.refused(f"{given} good", "good")
    say.done(f"{given} both --overlap add --seed 1")
    assert evaluation("both")["ledger"]["epsilon_total"] > 5.3
    assert not evaluation("both")["suitable_for_release"]
    say.done(f"{given} third --ledger none --noise float")
    assert evaluation("third")["ledger"] == "none"


def test_a_model_is_shown_rows_of_any_prior(say) -> None:
    """By one evaluation of two priors, by predictions for each, and not where it has one alone."""
    Path("prior.json").write_text('{"a": 0.98, "b": 0.01, "c": 0.01}')
    learn = "run --embeddings held --public public --epsilon 1 --ledger none"
    for name, method in {"model2": "discriminant", "head": "softmax"}.items():
        say.done(f"{learn} --method {method} --out {name}")
    given = "evaluate --embeddings held --model model2 --ledger none"
    printed = say.done(f"{given} --prior both --out both")
    assert "accuracy, private" in printed
    assert "balanced_accuracy, equal" in printed
    say.done(f"{given} --prior prior.json --out given")
    both, alone = evaluation("both"), evaluation("given")
    assert (both["prior"], list(both["by_prior"])) == ("equal", ["equal", "private"])
    assert (alone["prior"], "by_prior" in alone) == ("given", False)
    assert both["epsilon"] == alone["epsilon"]
    assert both["sensitivity"] == pytest.approx(2**0.5 * alone["sensitivity"])
    assert both["noise_std"] == pytest.approx(2**0.5 * alone["noise_std"], rel=1e-3)
    say.done("card --model model2 --evaluation both")
    assert "| private |" in Path("model2/card.md").read_text()
    found = {}
    for prior, said in {"equal": "equal", "private": "private", "prior.json": "given"}.items():
        given = f"predict --embeddings held --model model2 --evaluate --out by_{said}"
        printed = say.done(f"{given} --prior {prior}")
        assert json.loads(Path(f"by_{said}", "metrics.json").read_text())["prior"] == said
        found[said] = int(printed.partition("predicted a")[2].split()[0])
    assert found["given"] > found["equal"]
    for line in ("predict --prior private", "evaluate --prior both", "evaluate --prior private"):
        say.refused(
            f"{line} --embeddings held --model head --out none",
            "prior must be the model's own, 'equal' (what it learned from carries",
        )
        assert not Path("none").exists()


def test_hold_out_says_why_users_hold_out_nothing(say, tmp_path: Path) -> None:
    meta = {"class_names": ["a", "b"]}
    users = np.repeat([0, 1, 2], [10, 2, 1])  # a fifth of two and of one row is none
    rows, labels = np.eye(13, 4), np.arange(13) % 2
    EmbeddingSet(embeddings=rows, labels=labels, users=users, meta=meta).save(tmp_path / "mine")
    printed = say.done("embed hold-out --embeddings mine --share 0.2 --out rows")
    counted, why = printed.splitlines()
    assert counted == "11 rows to train on, 2 held out, in rows"
    assert why.startswith("2 of 3 users hold out no row: the share of their rows rounds to none")
    _, printed, _ = say("embed hold-out --embeddings mine --share 0.4 --by user --out users")
    assert "1 users are held out with all of their rows" in printed
