"""A release as scikit-learn takes it."""

import math
import pickle
from typing import Any

import numpy as np
import pytest
from sklearn import base
from sklearn.model_selection import GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator

from embed import PublicTransform
from train_distributed import PrivateClassifier

clone: Any = base.clone  # its types know no estimator
NAMES = np.array(["cat", "dog", "owl"])


@pytest.fixture
def rows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = np.arange(600) % 3
    x = np.eye(3, 6)[labels] + 0.2 * rng.standard_normal((600, 6))
    return x, NAMES[labels], rng.permutation(600) % 30


@pytest.mark.parametrize(
    "estimator",
    [
        PrivateClassifier(),
        PrivateClassifier(math.inf, method="class-sums"),
        PrivateClassifier(3.0, 1e-4, options={"prior": "equal"}),
    ],
    ids=["default", "without noise", "another prior"],
)
@pytest.mark.filterwarnings("ignore")
def test_scikit_learn_finds_nothing_to_object_to(estimator: PrivateClassifier) -> None:
    found = check_estimator(estimator, on_fail=None, on_skip=None)
    assert len(found) > 40
    assert {each["check_name"] for each in found if each["status"] == "failed"} == set()
    assert {each["check_name"] for each in found if each["status"] == "skipped"} <= {
        "check_array_api_input"  # wants an environment variable
    }


def test_a_release_of_many_users(rows) -> None:
    x, y, users = rows
    model = PrivateClassifier(2.0, 1e-5, classes=NAMES).fit(x, y, groups=users)
    assert model.report_.suitable_for_release
    assert (model.report_["noise"], model.report_.users, model.report_.rows) == (
        "discrete",
        30,
        600,
    )
    assert model.report_.honest_users == 15
    assert model.score(x, y) > 0.9
    assert set(model.predict(x)) <= set(NAMES)
    assert model.predict_proba(x).sum(1) == pytest.approx(1)
    again = clone(model).fit(x, y, groups=users)
    assert not np.array_equal(again.predict_proba(x), model.predict_proba(x))  # fresh noise
    names = model.release_.predict(x, names=True)
    assert np.array_equal(names, model.predict(x))


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
    assert not seeded.fit(x, y).report_.suitable_for_release


def test_classes_may_be_declared_that_do_not_occur(rows) -> None:
    x, y, users = rows
    classes = ["elk", *NAMES]
    model = PrivateClassifier(5.0, classes=classes).fit(x, y, groups=users)
    assert model.classes_.tolist() == sorted(classes)
    assert model.predict_proba(x).shape == (600, 4)
    assert model.score(x, y) > 0.9


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
