"""A release as scikit-learn takes it."""

import math
import pickle
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn import base, config_context
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator

from embed import PublicTransform
from tests.embedding_sets import clusters
from train_distributed import PrivateClassifier

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
    ids=["default", "without noise", "one owner"],
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
    assert set(model.predict(x)) <= set(NAMES)
    assert model.predict_proba(x).sum(1) == pytest.approx(1)
    again = clone(model).fit(x, y, groups=users)
    assert not np.array_equal(again.predict_proba(x), model.predict_proba(x))  # fresh noise
    assert np.array_equal(model.release_.predict(x, names=True), model.predict(x))
    classes = ["elk", *NAMES]  # one that does not occur
    model = PrivateClassifier(5.0, classes=classes).fit(x, y, groups=users)
    assert model.classes_.tolist() == sorted(classes)
    assert model.predict_proba(x).shape == (600, 4)
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


NOBODY = [
    *([1, 2, None, 4], [1.0, 2.0, math.nan, 4.0], ["a", "b", math.nan, "d"], ["a", "b", "", "d"]),
    np.array(["a", "b", math.nan, "d"]),  # which makes a word of it
    pd.Series([1, 2, None, 4]),
    pd.Series([1, 2, None, 4], dtype="Int64"),
    pd.Series(["a", "b", None, "d"], dtype="string"),
    pd.Series(["a", "b", None, "d"], dtype="category"),
    np.ma.array([1, 2, 3, 4], mask=[False, False, True, False]),
    np.array(["2020-01-01", "2020-01-02", "NaT", "2020-01-01"], "datetime64[D]"),
    [1, 2, pd.NA, 4],
]


MERGED = [
    ([1, "1", 2, "2"], "must be names of one type, got number and str"),
    ([True, 1, False, 0], "got bool and number"),
    ([b"a", "a", "b", "b"], "got bytes and str"),
    ([1, 2, 3], r"all 4 samples, got shape \(3,\)"),
    (np.zeros((4, 2)), r"all 4 samples, got shape \(4, 2\)"),
    ("abcd", r"all 4 samples, got shape \(\)"),
    ({1, 2, 3, 4}, r"all 4 samples, got shape \(\)"),
]


@pytest.mark.parametrize(
    ("groups", "message"),
    [*((groups, "must name the owner of every row, .* in row 2$") for groups in NOBODY), *MERGED],
)
def test_owners_that_are_missing_or_that_a_conversion_would_merge_are_refused(
    groups: Any, message: str
) -> None:
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
