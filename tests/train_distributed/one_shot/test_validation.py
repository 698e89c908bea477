"""What no release may rest on: private rows in a public transform, rows of two users, classes."""

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from embed import EmbeddingSet, PublicTransform
from tests.train_distributed.one_shot.fitting import METHODS_OF_CLASSES
from tests.train_distributed.research.learning import learn
from train_distributed import Privacy, release
from train_distributed.one_shot.source import EmbeddingUsers
from train_distributed.partition import Partition, split
from train_distributed.research.experiments.catalogue import raw_transform

N, P, K = 90, 6, 3
PROMISE = Privacy(1.0, 1e-5)
DECLARED = {"class_names": ["a", "b", "c"]}


def rows(seed: int = 0, **changes: Any) -> EmbeddingSet:
    rng = np.random.default_rng(seed)
    labels = np.arange(N) % K
    x = 2 * np.eye(K, P)[labels] + 0.3 * rng.standard_normal((N, P))
    fields = {
        "embeddings": x.astype(np.float32),
        "labels": labels,
        "users": np.arange(N) % 9,
        "split": np.repeat([0, 1], [72, 18]).astype(np.uint8),
        "meta": DECLARED,
    }
    return EmbeddingSet(**fields | changes)


def fitted(on: EmbeddingSet) -> PublicTransform:
    return PublicTransform.fit(on)


def test_users_that_carry_a_transform_are_looked_at_as_the_set_they_are() -> None:
    held = rows()
    own = split(torch.from_numpy(held.labels[:72]), 9)
    with pytest.raises(ValueError, match="transform must not have seen private rows"):
        release(
            EmbeddingUsers(held, fitted(held), own),
            "discriminant",
            PROMISE,
            num_classes=K,
        )
    clipped_to_8 = EmbeddingUsers(held, PublicTransform.identity(P, 8.0, 0.5), own)
    changes: list[Any] = [{"transform": PublicTransform.identity(P, 1.0, 0.5)}, {"partition": own}]
    for change in changes:
        with pytest.raises(ValueError, match="transform and partition must be None"):
            release(clipped_to_8, "discriminant", PROMISE, num_classes=K, **change)
    assert release(clipped_to_8, "discriminant", PROMISE, num_classes=K).report["users"] == 9


@pytest.mark.parametrize("method", ["discriminant", "amp", "admm-dual"])
def test_a_record_that_two_users_hold_is_refused(method: str) -> None:
    """It would move the sum twice as far as the promise says."""
    order = torch.arange(72)
    order[71] = 0
    twice = Partition(order, torch.tensor([0, 36, 72]))
    noise: Any = {"discriminant": "discrete"}.get(method, "float")
    with pytest.raises(ValueError, match="every training row to one user, got a row twice"):
        learn(rows(), method, PROMISE, partition=twice, noise=noise)


@pytest.mark.parametrize("method", ["discriminant", "output-perturbation"])
def test_a_promise_for_users_is_one_for_those_that_the_set_names(method: str) -> None:
    held = rows()  # nine users, every ninth row each
    assert held.users is not None
    named = torch.from_numpy(held.users[:72])
    pairs = split(named, None, "by-writer", writers=named // 2)
    spread = split(named, 4)
    for unit, partition, suits in (
        ("user", None, True),
        ("user", pairs, True),  # whoever holds two users' rows protects both
        ("user", spread, False),
        ("record", spread, True),
    ):
        promise = Privacy(1.0, 1e-5, unit=unit)  # pyright: ignore[reportArgumentType]
        report = learn(held, method, promise, partition=partition, noise="discrete").report
        assert report["suitable_for_release"] is suits
        assert ("are spread over several users" in str(report)) is not suits


def test_a_transform_of_other_columns_is_refused_before_any_work() -> None:
    with pytest.raises(ValueError, match="transform must be of 6 columns, got one of 4"):
        release(rows(), "discriminant", PROMISE, transform=PublicTransform.identity(4))


# A transform that has seen private rows


def leaked() -> dict[str, EmbeddingSet]:
    private, public = rows(), rows(1)
    train = private.subset(private.split == 0)

    def beside(x: np.ndarray) -> EmbeddingSet:
        x = np.concatenate([public.embeddings, x])
        return EmbeddingSet(embeddings=x, labels=np.zeros(len(x), np.int64))

    return {
        "the training rows alone": train,
        "reversed": train.subset(np.arange(72)[::-1]),
        "one user's rows": private.subset(np.flatnonzero(private.users == 4)),
        "the test rows": private.subset(private.split == 1),
        "one row among public ones": beside(private.embeddings[7:8]),
        "one row in half precision": beside(private.embeddings[7:8].astype(np.float16)),
    }


@pytest.mark.parametrize("what", leaked())
@pytest.mark.parametrize("noise", ["discrete", "float"])
def test_a_transform_that_has_seen_a_private_row_is_refused(what: str, noise: Any) -> None:
    transform = fitted(leaked()[what])
    for method in ("discriminant", "softmax"):
        with pytest.raises(ValueError, match="transform must not have seen private rows, got"):
            release(rows(), method, PROMISE, transform=transform, noise=noise)


@pytest.mark.parametrize("method", ["gradient-perturbation", "centralised-svm", "charter-sum"])
def test_so_it_is_by_every_other_learner(method: str) -> None:
    transform = fitted(leaked()["one user's rows"])
    noise: Any = {"gradient-perturbation": "discrete", "centralised-svm": "float"}.get(method)
    options: dict[str, Any] = {"cut_rounds": 2} if method == "charter-sum" else {}
    with pytest.raises(ValueError, match="transform must not have seen private rows, got 10 of 90"):
        learn(rows(), method, PROMISE, transform=transform, noise=noise, **options)


def test_the_paper_s_transform_knows_its_rows() -> None:
    with pytest.raises(ValueError, match="transform must not have seen private rows, got 90"):
        release(rows(), "softmax", PROMISE, transform=raw_transform(rows()))
    release(rows(), "softmax", PROMISE, transform=raw_transform(rows(1)))


def test_the_report_counts_what_was_compared() -> None:
    report = release(rows(), "discriminant", PROMISE, transform=fitted(rows(1))).report
    assert report["public_transform"] == "hashes of the public rows, compared"
    assert (report["public_rows"], report["private_rows_compared"]) == (N, N)
    assert report["shared_rows"] == 0
    assert report["shared_rows_by_chance"] == N * N / 2**64
    assert report["suitable_for_release"] is True
    bare = release(rows(), "discriminant", PROMISE).report
    assert bare["public_transform"] == "none: it is the identity"
    assert bare["suitable_for_release"] is True


@pytest.mark.parametrize(
    ("public", "private", "words", "reason"),
    [
        ({"dropped_rows": 3}, {}, "transform must be fitted on a whole public set", "taken out"),
        ({}, {"held_out": {"seed": 0}}, "rows must be held out by the operating", "a seed says"),
    ],
)
def test_what_private_rows_or_a_seed_have_shaped_is_not_released(
    public: dict, private: dict, words: str, reason: str
) -> None:
    transform = fitted(replace(rows(1), meta=DECLARED | public))
    given = replace(rows(), meta=DECLARED | private)
    with pytest.raises(ValueError, match=words):
        release(given, "discriminant", PROMISE, transform=transform)
    report = release(given, "discriminant", PROMISE, transform=transform, noise="float").report
    assert any(reason in why for why in report["unsuitable_because"])


def test_a_transform_of_unknown_origin_needs_somebody_s_word() -> None:
    known = fitted(rows(1))
    unknown = PublicTransform.from_tensors(known.tensors(), fitted_on=known.fitted_on)
    silent = replace(known, seen=np.empty(0, np.uint64))  # to have seen nothing it does not look it
    with pytest.raises(ValueError, match="transform must say which rows it has seen"):
        release(rows(), "discriminant", PROMISE, transform=silent)
    for method in (*METHODS_OF_CLASSES, "gradient-perturbation"):
        with pytest.raises(ValueError, match="transform must say which rows it has seen"):
            learn(rows(), method, PROMISE, transform=unknown, noise="discrete")
    vouched = release(
        rows(),
        "discriminant",
        PROMISE,
        transform=unknown,
        vouch_for_transform=True,
    ).report
    assert vouched["public_transform"] == "unknown, vouched for"
    assert vouched["suitable_for_release"] is True
    simulated = release(rows(), "discriminant", PROMISE, transform=unknown, noise="float").report
    assert "nobody knows which rows the public transform has seen" in str(simulated)
    very = PublicTransform.from_tensors(known.tensors(), fitted_on=rows().content_hash())
    with pytest.raises(ValueError, match="transform must not be fitted on the private rows"):
        release(
            rows(),
            "discriminant",
            PROMISE,
            transform=very,
            vouch_for_transform=True,
        )


@pytest.mark.parametrize("made_by", [{"clip_norm": 1.4}, {"compared": False}, "some transform"])
def test_rows_that_were_transformed_unseen_need_it_as_well(made_by: Any) -> None:
    held = rows(meta=DECLARED | {"transform": made_by})
    with pytest.raises(ValueError, match="the rows must be raw or compared"):
        release(held, "discriminant", PROMISE)
    release(held, "discriminant", PROMISE, vouch_for_transform=True)
    release(
        rows(meta=DECLARED | {"transform": {"compared": True}}),
        "discriminant",
        PROMISE,
    )


# Classes


def test_classes_that_were_counted_are_refused_for_a_release() -> None:
    """One record with label 6 adds columns to the weights: K itself would be private."""
    labels = np.arange(N) % K
    labels[5] = 6
    counted = {"class_names": [str(k) for k in range(7)], "classes": "inferred"}
    held = rows(labels=labels, meta=counted)
    for method in ("discriminant", "gradient-perturbation", "charter-sum"):
        noise: Any = None if method == "charter-sum" else "discrete"
        options: dict[str, Any] = {"cut_rounds": 2} if method == "charter-sum" else {}
        with pytest.raises(ValueError, match="num_classes must be given for discrete noise"):
            learn(held, method, PROMISE, noise=noise, **options)
    simulated = learn(held, "discriminant", PROMISE, noise="float").report
    assert simulated["classes"] == "inferred"
    assert "its classes were counted" in str(simulated["unsuitable_because"])
    with pytest.raises(ValueError, match=r"labels must lie in \[0, 3\), got 6 and 1 outside"):
        release(held, "discriminant", PROMISE, num_classes=K)
    released = release(held, "discriminant", PROMISE, num_classes=10)
    assert released.class_names == tuple(map(str, range(10)))
    assert released.report["classes"] == "declared"
    assert released.report["suitable_for_release"] is True


def test_numbers_that_an_extraction_says_nothing_about_were_counted() -> None:
    counted = {"class_names": ["0", "1", "2"], "encoder": "simclr-small"}
    with pytest.raises(ValueError, match="num_classes must be given for discrete noise"):
        release(rows(meta=counted), "discriminant", PROMISE)
    release(rows(meta=counted | {"classes": "declared"}), "discriminant", PROMISE)
    release(rows(meta=DECLARED | {"encoder": "simclr-small"}), "discriminant", PROMISE)


# Rows


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "method", ["discriminant", "softmax", "gradient-perturbation", "admm-dual"]
)
def test_rows_that_are_not_finite_are_refused_at_once(method: str, bad: float, monkeypatch) -> None:
    """All of them, before a row is transformed or noise drawn; test rows too."""
    monkeypatch.setattr(PublicTransform, "__call__", lambda *_: pytest.fail("work has begun"))
    x = rows().embeddings.copy()
    x[[11, 60, 85], 2] = bad
    noise: Any = "float" if method == "admm-dual" else "discrete"
    with pytest.raises(
        ValueError, match=f"must be finite, got {bad} in row 11, the first of 3 such rows among 90"
    ):
        learn(rows(embeddings=x), method, PROMISE, noise=noise)


@pytest.mark.parametrize("method", METHODS_OF_CLASSES)
def test_a_row_of_the_largest_numbers_is_a_row_like_another(method: str) -> None:
    x = rows().embeddings.copy()
    x[11] = 3e38
    released = release(rows(embeddings=x), method, PROMISE, transform=fitted(rows(1)))
    assert released.weights.isfinite().all()
    json.dumps(dict(released.report), allow_nan=False)
    learn(rows(embeddings=x), "admm-dual", PROMISE, transform=fitted(rows(1)), iterations=1)
