"""A release as scikit-learn takes it, and several findings a picture in use."""

import json
import math
import pickle
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn import base, config_context
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator

from embed import EmbeddingSet, PublicTransform
from tests.embedding_sets import clusters
from train_distributed import Privacy, PrivateClassifier, release
from train_distributed.one_shot.finding_metrics import FindingMetrics, auroc, average_precision
from train_distributed.released.card import card
from train_distributed.released.evaluate import evaluate

clone: Any = base.clone  # its types know no estimator
NAMES = np.array(["cat", "dog", "owl"])


@pytest.fixture
def rows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    made = clusters(600, 3, 6, scale=1, noise=0.2)
    users = np.random.default_rng(0).permutation(600) % 30
    return np.asarray(made.embeddings), NAMES[made.labels], users


@pytest.mark.parametrize(
    "estimator",
    [
        PrivateClassifier(),
        PrivateClassifier(math.inf, method="discriminant", options={"prior": "equal"}),
        PrivateClassifier(owners="one"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_scikit_learn_finds_nothing_to_object_to(estimator: PrivateClassifier) -> None:
    found = check_estimator(estimator, on_fail=None, on_skip=None)
    assert len(found) > 40
    assert {each["check_name"] for each in found if each["status"] == "failed"} == set()
    assert {each["check_name"] for each in found if each["status"] == "skipped"} <= {
        "check_array_api_input",  # wants an environment variable
        "check_classifiers_multilabel_output_format_decision_function",  # there is none
    }


def test_a_release_of_many_users(rows) -> None:
    x, y, users = rows
    model = PrivateClassifier(2.0, 1e-5, classes=NAMES).fit(x, y, groups=users)
    report = model.report_
    assert report.suitable_for_release
    assert (report["noise"], report.users, report.rows) == ("discrete", 30, 600)
    assert report.honest_users == 15
    assert model.score(x, y) > 0.9
    assert model.predict_proba(x).sum(1) == pytest.approx(1)
    again = clone(model).fit(x, y, groups=users)
    assert not np.array_equal(again.predict_proba(x), model.predict_proba(x))  # fresh noise
    assert np.array_equal(model.release_.predict(x, names=True), model.predict(x))
    classes = ["elk", *NAMES]  # one that does not occur
    model = PrivateClassifier(5.0, classes=classes).fit(x, y, groups=users)
    assert model.classes_.tolist() == sorted(classes)
    assert model.score(x, y) > 0.9


def test_counted_classes_and_seeds_are_simulations_and_say_so(rows) -> None:
    x, y, users = rows
    with pytest.warns(UserWarning, match="classes were counted from the labels"):
        counted = PrivateClassifier().fit(x, y, groups=users)
    assert not counted.report_.suitable_for_release
    why = " ".join(counted.report_.unsuitable_because)
    assert "counted from the private labels" in why
    assert "floating-point" in why
    seeded = PrivateClassifier(classes=NAMES, random_state=3)
    one, two = (clone(seeded).fit(x, y, groups=users).predict_proba(x) for _ in range(2))
    assert np.array_equal(one, two)
    assert not seeded.set_params(owners="one").fit(x, y).report_.suitable_for_release


def test_in_a_pipeline_by_folds_of_users_and_through_pickle(rows) -> None:
    x, y, users = rows
    public = PublicTransform.fit(x[::-1] + 1e-3, components=3)
    model = PrivateClassifier(5.0, classes=NAMES, transform=public)
    assert not hasattr(model, "transform")  # which would make it a transformer
    assert model.get_params()["transform"] is public
    pipeline = make_pipeline(FunctionTransformer(), model)
    pipeline.fit(x, y, privateclassifier__groups=users)
    kept = pickle.loads(pickle.dumps(pipeline))
    assert np.array_equal(kept.predict_proba(x), pipeline.predict_proba(x))
    assert kept[-1].report_ == model.report_
    scores = cross_val_score(model, x, y, groups=users, cv=GroupKFold(3), params={"groups": users})
    assert scores.min() > 0.9


def test_rows_without_groups_are_one_owner_s_and_that_is_said(rows) -> None:
    x, y, users = rows
    model = PrivateClassifier(1.0, classes=NAMES)
    with pytest.warns(UserWarning, match="no groups: all rows are taken as one owner's.*owners="):
        model.fit(x, y)
    assert model.report_["owners"] == "one, taken as one, as no groups were given"
    assert model.report_.users == 1
    model = clone(model).set_params(owners="one").fit(x, y)
    assert (model.report_["owners"], model.report_.suitable_for_release) == ("one, declared", True)
    for owners in (None, "many"):
        model = PrivateClassifier(1.0, classes=NAMES, owners=owners).fit(x, y, groups=users)
        assert (model.report_["owners"], model.report_.users) == ("named by groups", 30)


NAN, MISSING = math.nan, pd.Series(["a", "b", None, "d"])
NOBODY = [
    *([1, 2, None, 4], [1.0, 2.0, NAN, 4.0], ["a", "b", NAN, "d"], ["a", "b", "", "d"]),
    np.array(["a", "b", NAN, "d"]),  # which makes a word of it
    *(pd.Series([1, 2, None, 4]), pd.Series([1, 2, None, 4], dtype="Int64"), [1, 2, pd.NA, 4]),
    *(MISSING.astype("string"), MISSING.astype("category")),
    np.ma.array([1, 2, 3, 4], mask=[False, False, True, False]),
    np.array(["2020-01-01", "2020-01-02", "NaT", "2020-01-01"], "datetime64[D]"),
]


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        *((groups, "must name the owner of every row, .* in row 2$") for groups in NOBODY),
        ([1, "1", 2, "2"], "must be names of one type, got number and str"),
        ([True, 1, False, 0], "got bool and number"),
        ([b"a", "a", "b", "b"], "got bytes and str"),
        ([1, 2, 3], r"all 4 samples, got shape \(3,\)"),
        (np.zeros((4, 2)), r"all 4 samples, got shape \(4, 2\)"),
        *((other, r"all 4 samples, got shape \(\)") for other in ("abcd", {1, 2, 3, 4})),
    ],
)
def test_owners_that_are_missing_or_would_be_merged_are_refused(groups: Any, message: str) -> None:
    model = PrivateClassifier(classes=[0, 1])
    with pytest.raises(ValueError, match=f"groups .*{message}"):
        model.fit(np.eye(4), [0, 1, 0, 1], groups=groups)
    assert not hasattr(model, "release_")


@pytest.mark.parametrize(
    "groups",
    [
        *(["a", "b", "a", "c"], ("a", "b", "a", "c"), [1, 2.0, 1, 3]),
        np.array([[1], [2], [1], [3]]),
        pd.Series(["x", "y", "x", "z"], dtype="category"),
        [(1, 2), (1, 3), (1, 2), (0, 0)],
    ],
)
def test_owners_may_be_named_in_any_way(groups: Any) -> None:
    model = PrivateClassifier(9.0, classes=[0, 1]).fit(np.eye(4), [0, 1, 0, 1], groups=groups)
    assert model.report_.users == 3


def test_groups_reach_every_fit_of_a_cross_validation_or_it_is_said(rows) -> None:
    """The splitter's groups alone leave each fold to one owner, whose noise is added once."""
    x, y, users = rows
    model = PrivateClassifier(9.0, classes=NAMES)
    given: dict[str, Any] = {"cv": GroupKFold(3)}

    def owners(model: PrivateClassifier, **more: Any) -> list[int]:
        found = cross_validate(model, x, y, **given, **more, return_estimator=True)
        return [each.report_.users for each in found["estimator"]]

    with pytest.warns(UserWarning, match="no groups"):
        assert owners(model, groups=users) == [1, 1, 1]
    with pytest.warns(UserWarning, match="no groups"):
        GridSearchCV(model, {"epsilon": [9.0]}, **given).fit(x, y, groups=users)
    one, many = (clone(model).set_params(owners=owners) for owners in ("one", "many"))
    with pytest.raises(ValueError, match="groups must be given with owners='many'"):
        owners(many, groups=users, error_score="raise")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert owners(one, groups=users) == [1, 1, 1]
    with config_context(enable_metadata_routing=True):
        for asked in (model, many, clone(many).set_fit_request(groups=True)):
            assert owners(asked, params={"groups": users}) == [20, 20, 20]
        search = GridSearchCV(many, {"epsilon": [1e-3, 9.0]}, **given).fit(x, y, groups=users)
        assert search.best_estimator_.report_.users == 30
        pipeline: Any = make_pipeline(FunctionTransformer(), many).fit(x, y, groups=users)
        assert pipeline[-1].report_.users == 30


FINDINGS = ["edema", "mass", "node"]
SHARES = np.array([0.5, 0.3, 0.1])


def of_findings(count: int, seed: int, users: int = 1, **more: Any) -> EmbeddingSet:
    """Rows around the sum of their findings' directions."""
    rng = np.random.default_rng(seed)
    findings = (rng.random((count, 3)) < SHARES).astype(np.int8)
    more |= {"findings": findings, "users": np.arange(count) % users}
    x, labels = findings @ (2 * np.eye(3, 6)) + rng.normal(size=(count, 6)), np.full(count, -1)
    meta = {"class_names": FINDINGS, "classes": "declared"}
    return EmbeddingSet(embeddings=x, labels=labels, meta=meta, **more)


def test_metrics_are_those_of_scikit_learn_without_unknown_findings() -> None:
    rng = np.random.default_rng(0)
    findings = rng.integers(-1, 2, (300, 3)).astype(np.int8)
    scores = np.round(rng.normal(size=(300, 3)) + findings, 1)  # with ties
    measured = FindingMetrics(FINDINGS, 300)
    for part in (slice(0, 100), slice(100, 300)):
        measured.add(torch.from_numpy(scores[part]), findings[part])
    found = measured.report()
    for k, name in enumerate(FINDINGS):
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
    measured = FindingMetrics(FINDINGS, 4)
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
    held = of_findings(6000, 1, 20, split=split)
    model = release(held, "findings", Privacy(math.inf, 1e-5), noise="float")
    found = evaluate(model, held, Privacy(math.inf, 1e-5), noise="float").report
    said = model.predict(held.embeddings[split == 2]).numpy()
    truth = held.findings[split == 2]  # pyright: ignore[reportOptionalSubscript]
    for k, name in enumerate(FINDINGS):
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
    train, test = of_findings(2000, 1), of_findings(500, 2)
    model = PrivateClassifier(math.inf, classes=FINDINGS, owners="one")
    model.fit(train.embeddings, train.findings)
    shares = model.predict_proba(test.embeddings)
    assert shares.shape == (500, 3)
    assert roc_auc_score(test.findings, shares) > 0.9
    assert ((shares > 0.5) == model.predict(test.embeddings)).all()
    assert model.classes_.tolist() == FINDINGS
    unnamed = PrivateClassifier(1.0, owners="one").fit(train.embeddings, train.findings)
    assert unnamed.report_["suitable_for_release"]
    with pytest.raises(ValueError, match="0 and 1 in every column"):
        model.fit(train.embeddings, 2 * np.asarray(train.findings))
    with pytest.raises(ValueError, match="classes must name all 2 columns"):
        model.fit(train.embeddings, np.asarray(train.findings)[:, :2])


def test_the_card_says_what_is_known_of_every_finding() -> None:
    held = of_findings(400, 1, 8, split=np.repeat([0, 1], [300, 100]).astype(np.uint8))
    made = release(held, "discriminant", Privacy(5.0, 1e-5), noise="float", sums=1)
    evaluated = of_findings(200, 5, 8, split=np.full(200, 2, np.uint8))
    found = evaluate(made, evaluated, Privacy(9.0, 1e-5), noise="float").report
    text = card(made, markup="markdown", evaluation=found)
    area = made.report["test_findings"]["per_finding"]["mass"]["auroc"]["estimate"]
    assert re.search(rf"\| mass \| {100 * area:.1f} % \|", text)
    assert re.search(r"\| recall of mass, present \| \d", text)
    assert "| accuracy" not in text
    assert card(made, markup="html", evaluation=found).count("data:image/png") == 2


def test_predictions_have_a_probability_for_each_finding(say, no_pictures) -> None:
    turned = of_findings(200, 3)
    findings = np.asarray(turned.findings)[:, [2, 0, 1]]
    turned = replace(turned, findings=findings, meta={"class_names": ["node", "edema", "mass"]})
    for name, each in (
        ("held", of_findings(900, 1, 6)),
        ("public", of_findings(300, 2)),
        ("test", turned),
    ):
        each.save(Path(name))
    say.done("run --embeddings held --public public --epsilon 5 --ledger none --out model")
    predict = "predict --model model --embeddings test --evaluate --out out --threshold"
    say.done(f"{predict} prevalence")
    lines = Path("out/predictions.csv").read_text().splitlines()
    assert lines[0] == "path,findings," + ",".join(f"probability of {name}" for name in FINDINGS)
    assert len(lines) == 201
    metrics = json.loads(Path("out/metrics.json").read_text())
    assert metrics["macro"]["auroc"]["estimate"] > 0.85
    assert Path("out/roc.png").exists()
    for wrong in ("0", "1"):
        say.refused(f"{predict} {wrong} --overwrite", "threshold must be in (0, 1), or prevalence")
