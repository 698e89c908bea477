"""Several findings a picture in use: metrics, predictions, private evaluation, the estimator."""

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from embed import EmbeddingSet
from train_distributed import Privacy, PrivateClassifier, release
from train_distributed.one_shot.finding_metrics import FindingMetrics, auroc, average_precision
from train_distributed.released.card import card
from train_distributed.released.evaluate import evaluate

NAMES = ["edema", "mass", "node"]
SHARES = np.array([0.5, 0.3, 0.1])


def rows(count: int, seed: int, users: int = 1, **more: Any) -> EmbeddingSet:
    """Rows around the sum of their findings' directions."""
    rng = np.random.default_rng(seed)
    findings = (rng.random((count, 3)) < SHARES).astype(np.int8)
    more |= {"findings": findings, "users": np.arange(count) % users}
    x, labels = findings @ (2 * np.eye(3, 6)) + rng.normal(size=(count, 6)), np.full(count, -1)
    meta = {"class_names": NAMES, "classes": "declared"}
    return EmbeddingSet(embeddings=x, labels=labels, meta=meta, **more)


def test_metrics_are_those_of_scikit_learn_without_unknown_findings() -> None:
    rng = np.random.default_rng(0)
    findings = rng.integers(-1, 2, (300, 3)).astype(np.int8)
    scores = np.round(rng.normal(size=(300, 3)) + findings, 1)  # with ties
    measured = FindingMetrics(NAMES, 300)
    for part in (slice(0, 100), slice(100, 300)):
        measured.add(torch.from_numpy(scores[part]), findings[part])
    found = measured.report()
    for k, name in enumerate(NAMES):
        known = findings[:, k] >= 0
        has, s = findings[known, k], scores[known, k]
        of = found["per_finding"][name]
        assert of["auroc"]["estimate"] == pytest.approx(roc_auc_score(has, s))
        assert of["average_precision"]["estimate"] == pytest.approx(average_precision_score(has, s))
        assert (of["unknown"], of["present"]) == ((~known).sum(), (has == 1).sum())
        assert of["recall"]["estimate"] == pytest.approx((s[has == 1] > 0).mean())
        false, true, _ = roc_curve(has, s, drop_intermediate=False)
        kept = np.interp(np.linspace(0, 1, 101), false, true)
        np.testing.assert_allclose(of["roc"], kept, atol=1e-4)
    whole = (findings >= 0).all(1)
    exact = ((scores > 0) == findings)[whole].all(1).mean()
    assert found["exact_match"]["estimate"] == pytest.approx(exact)
    json.dumps(found, allow_nan=False)


def test_a_finding_that_all_rows_have_or_lack_has_no_area() -> None:
    measured = FindingMetrics(NAMES, 4)
    measured.add(torch.zeros(4, 3), np.array([[1, 0, 1], [0, 0, 1], [1, 0, 1], [0, 0, 1]]))
    found = measured.report()
    assert found["findings_on_one_side"] == ["mass", "node"]
    assert found["macro"]["auroc"]["estimate"] == 0.5
    with pytest.raises(ValueError, match="rows must be 4 in all, got 5"):
        measured.add(torch.zeros(1, 3), np.zeros((1, 3)))


@pytest.mark.parametrize("measure", [auroc, average_precision])
def test_intervals_cover_as_often_as_they_say(measure: Callable[..., dict[str, float]]) -> None:
    """Those of perfect ranks too, whatever scikit-learn's sum of so many shares is rounded to."""
    for count in range(2, 80):
        found = measure(np.arange(3.0 * count), np.arange(3 * count) >= count)
        assert found["low"] < found["estimate"] == found["high"] == pytest.approx(1)

    def drawn(count: int, seed: int) -> dict[str, float]:
        rng = np.random.default_rng(seed)
        has = rng.random(count) < 0.3
        return measure(rng.normal(size=count) + has, has)

    truth = drawn(400_000, 0)["estimate"]
    inside = [f["low"] <= truth <= f["high"] for f in (drawn(200, s) for s in range(1, 301))]
    assert np.mean(inside) >= 0.92
    sure = measure(np.arange(20.0), np.arange(20) >= 10)
    assert sure["estimate"] == pytest.approx(1)
    assert 1 >= sure["high"] > sure["low"] > 0.6


def test_a_private_evaluation_is_one_of_two_classes_for_every_finding() -> None:
    split = np.where(np.arange(6000) % 3 == 0, 2, 0).astype(np.uint8)
    held = rows(6000, 1, 20, split=split)
    model = release(held, "findings", Privacy(math.inf, 1e-5), noise="float")
    found = evaluate(model, held, Privacy(math.inf, 1e-5), noise="float").report
    said = model.predict(held.embeddings[split == 2]).numpy()
    truth = held.findings[split == 2]  # pyright: ignore[reportOptionalSubscript]
    for k, name in enumerate(NAMES):
        of = found["per_finding"][name]
        recalls = [(said[truth[:, k] == y, k] == y).mean() for y in (0, 1)]
        seen = [of["recall"][word]["estimate"] for word in ("absent", "present")]
        assert seen == pytest.approx(recalls)
    assert "sqrt(3)" in found["one_sum"]
    unknown = np.array(held.findings)
    unknown[split == 2] = -1
    asked = replace(held, findings=unknown, meta=held.meta | {"unknown": "ask"})
    with pytest.raises(ValueError, match=r"must be known .* row 0"):
        evaluate(model, asked, Privacy(math.inf, 1e-5), noise="float")


def test_the_estimator_takes_several_labels() -> None:
    train, test = rows(2000, 1), rows(500, 2)
    model = PrivateClassifier(math.inf, classes=NAMES, owners="one")
    model.fit(train.embeddings, train.findings)
    shares = model.predict_proba(test.embeddings)
    assert shares.shape == (500, 3)
    assert roc_auc_score(test.findings, shares) > 0.9
    assert ((shares > 0.5) == model.predict(test.embeddings)).all()
    assert model.classes_.tolist() == NAMES
    unnamed = PrivateClassifier(1.0, owners="one").fit(train.embeddings, train.findings)
    assert unnamed.report_["suitable_for_release"]
    with pytest.raises(ValueError, match="0 and 1 in every column"):
        model.fit(train.embeddings, 2 * np.asarray(train.findings))
    with pytest.raises(ValueError, match="classes must name all 2 columns"):
        model.fit(train.embeddings, np.asarray(train.findings)[:, :2])


def test_the_card_says_what_is_known_of_every_finding() -> None:
    held = rows(400, 1, 8, split=np.repeat([0, 1], [300, 100]).astype(np.uint8))
    made = release(held, "discriminant", Privacy(5.0, 1e-5), noise="float", sums=1)
    evaluated = rows(200, 5, 8, split=np.full(200, 2, np.uint8))
    found = evaluate(made, evaluated, Privacy(9.0, 1e-5), noise="float").report
    text = card(made, markup="markdown", evaluation=found)
    area = made.report["test_findings"]["per_finding"]["mass"]["auroc"]["estimate"]
    assert re.search(rf"\| mass \| {100 * area:.1f} % \|", text)
    assert re.search(r"\| recall of mass, present \| \d", text)
    assert "| accuracy" not in text
    assert card(made, markup="html", evaluation=found).count("data:image/png") == 2


def test_predictions_have_a_probability_for_each_finding(say, no_pictures) -> None:
    turned = rows(200, 3)
    findings = np.asarray(turned.findings)[:, [2, 0, 1]]
    turned = replace(turned, findings=findings, meta={"class_names": ["node", "edema", "mass"]})
    for name, each in (("held", rows(900, 1, 6)), ("public", rows(300, 2)), ("test", turned)):
        each.save(Path(name))
    say.done("run --embeddings held --public public --epsilon 5 --ledger none --out model")
    predict = "predict --model model --embeddings test --evaluate --out out --threshold"
    say.done(f"{predict} prevalence")
    lines = Path("out/predictions.csv").read_text().splitlines()
    assert lines[0] == "path,findings," + ",".join(f"probability of {name}" for name in NAMES)
    assert len(lines) == 201
    metrics = json.loads(Path("out/metrics.json").read_text())
    assert metrics["macro"]["auroc"]["estimate"] > 0.85
    assert Path("out/roc.png").exists()
    for wrong in ("0", "1"):
        say.refused(f"{predict} {wrong} --overwrite", "threshold must be in (0, 1), or prevalence")
