"""ADMM and Charter under one call: reports, commands, refusals and audits."""

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.benchmarks.audit import audit
from tests.embedding_sets import clusters
from tests.train_distributed.research.learning import learn
from train_distributed.one_shot.registry import MANY_ROUNDS
from train_distributed.privacy.promise import Privacy
from train_distributed.research.rivals.charter.algorithm import OneVsRestLogistic
from train_distributed.research.rivals.common import as_columns, excess


def rows(classes, **given):
    """Of length 1: no test clips them."""
    made = clusters(1400, classes, 5, scale=3.0, **{"test": 200, "users": 4} | given)
    unit = made.embeddings / np.linalg.norm(made.embeddings, axis=1, keepdims=True)
    return replace(made, embeddings=unit)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("method", MANY_ROUNDS)
def test_every_method_reports_its_privacy_and_its_bits(method, classes):
    options: dict[str, Any] = {"cut_rounds": 8} if "charter" in method else {"iterations": 3}
    options["generator"] = torch.Generator().manual_seed(0)
    released = learn(rows(classes), method, Privacy(50.0, 1e-5), **options)
    report = released.report
    assert released.weights.shape == (6, classes)
    assert report["epsilon_per_iteration"] < report["epsilon_composed"] * (1 + 1e-9)
    assert 0.99 * 50 < report["epsilon_composed"] <= 50
    assert report["suitable_for_release"] is False
    assert report["users"] == 4
    assert report["simulation_only"]["excess_risk"] >= -1e-9
    assert set(report["test_accuracy_per_class"]) == set("abc"[:classes])
    problems, messages = (1 if classes == 2 else 3), report["rounds"]
    if "admm" in method:
        assert messages == 3
        assert report["bits_per_edge"] == 2 * 64 * 3 * problems * 6  # both ways, float64
        assert report["bits_per_user"] == report["bits_per_edge"] / 2 * 3  # three neighbours
    else:
        assert messages == 9
        assert report["bits_per_user"] > report["payload_bits_per_user"]
        if method == "charter-sum":
            assert report["payload_bits_per_user"] == 64 * 8 * (6 * problems + 1)
    json.dumps(dict(report), allow_nan=False)


@pytest.mark.parametrize("method", ["admm-dual", "charter-sum"])
def test_without_noise_they_learn_and_say_not_private(method):
    options = {"half_width": 5.0, "gradient_clip": 1.0, "cut_rounds": 40}
    if method == "admm-dual":
        options = {"rho": 1e-3, "iterations": 20}
    options["generator"] = torch.Generator().manual_seed(0)
    report = learn(rows(3), method, Privacy(math.inf, 1e-5), **options).report
    assert report["test_accuracy"] > 0.95
    assert (report["epsilon"], report["noise"]) == ("not private", "none")
    assert "epsilon_composed" not in report
    json.dumps(dict(report), allow_nan=False)


def test_a_run_from_the_system_is_discrete_and_hides_what_depends_on_rows():
    report = learn(rows(2), "charter-sum", Privacy(5.0, 1e-5), cut_rounds=3).report
    assert report["noise"] == "discrete"
    assert report["suitable_for_release"] is True
    assert "simulation_only" not in report


def test_binary_scores_are_those_of_the_one_problem():
    weights = torch.tensor([[1.0, -2.0]], dtype=torch.float64)
    x = torch.tensor([[3.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    scores = x @ as_columns(weights)
    assert torch.equal(scores[:, 1] - scores[:, 0], (x @ weights.T)[:, 0])
    assert scores.argmax(1).tolist() == [1, 0]


def test_excess_risk_is_zero_at_the_minimum_and_known_away_from_it():
    def risk(at):
        x, y = torch.ones(4, 1, dtype=torch.float64), torch.tensor([1, 1, 1, 0])
        return OneVsRestLogistic(2, 1).losses(at, x, y).mean()

    entropy = -0.75 * math.log(0.75) - 0.25 * math.log(0.25)
    away = math.log(2) - entropy
    for at, above, within in ((math.log(3), 0.0, 1e-9), (0.0, away, 1e-6)):  # sigmoid(ln 3) = 3/4
        found = excess(risk, torch.tensor([[at]], dtype=torch.float64), 5.0)
        assert found == pytest.approx(above, abs=within)


@pytest.mark.parametrize("method", ["admm-primal", "charter"])
def test_the_audit_stays_below_the_promise_and_catches_little_noise(method):
    promise = Privacy(1.0, 0.01)
    assert audit(method, promise, 600, rounds=2) <= 1.0
    assert audit(method, promise, 600, rounds=2, noise_scale=0.05) > 1.0


@pytest.mark.usefixtures("sets")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("admm-dual --edges pieces", "graph must be connected, got 6 pieces"),
        ("admm-dual --edges words", "edges must be two numbers a line, got 'a b' in line 1"),
        ("admm-dual --noise discrete", "noise must be 'float' for method 'admm-dual'"),
        ("admm-dual --num-classes 2", "num_classes must be 3, the set's class names, got 2"),
        ("charter --unit user", "unit must be 'record' and group_size 1 for method 'charter'"),
    ],
)
def test_bad_input_is_one_line_and_writes_no_model(call, tmp_path, words, message):
    (tmp_path / "pieces").write_text("0 1\n2 3\n")
    (tmp_path / "words").write_text("a b\n")
    call.refused(f"rival {words} --embeddings private --public public --out out", message)
    assert not (tmp_path / "out").exists()
