"""How a report ends: in one order, and never with a yes for a model that must not be shown."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from embed import EmbeddingSet, PublicTransform
from train_distributed import Privacy, Release, release
from train_distributed.one_shot import Rehearsal
from train_distributed.one_shot.report import class_names, reported, suitability, with_reason

PROMISE = Privacy(1.0, 1e-5)
TRANSFORM = PublicTransform.identity(2)


def embedding_set(test_rows: int) -> EmbeddingSet:
    rows = 12
    return EmbeddingSet(
        embeddings=np.tile(np.eye(2, dtype=np.float32), (rows // 2, 1)),
        labels=np.arange(rows) % 2,
        split=(np.arange(rows) >= rows - test_rows).astype(np.uint8),
        users=np.arange(rows) // 2,
        meta={"class_names": ["a", "b"]},
    )


def test_facts_come_first_and_keep_their_places() -> None:
    released = Release(torch.zeros(3, 2).double(), TRANSFORM, ("a", "b"))
    verdict = suitability(PROMISE, "float", seeded=True)
    report = reported(released, {"users": 6, "versions": {}, "noise": "float"}, verdict).report
    assert list(report) == [
        "users",
        "versions",
        "noise",
        "suitable_for_release",
        "unsuitable_because",
        "ledger",
    ]
    assert report["ledger"] == "none"
    assert "python" in report["versions"]
    whole = reported(released, {"users": 6}, verdict, embedding_set(4)).report
    assert list(whole)[-3:] == ["versions", "test_accuracy", "test_accuracy_per_class"]
    assert "test_accuracy" not in reported(released, {}, verdict, embedding_set(0)).report


def test_accuracy_is_counted_by_class() -> None:
    always_a = Release(torch.tensor([[1.0, 0], [0, 0], [0, 0]]).double(), TRANSFORM, ("a", "b"))
    report = reported(always_a, {}, {}, embedding_set(4)).report
    assert report["test_accuracy"] == 0.5
    assert report["test_accuracy_per_class"] == {"a": 1.0, "b": 0.0}


@pytest.mark.parametrize(
    ("privacy", "noise", "more", "why"),
    [
        (PROMISE, "discrete", {}, []),
        (PROMISE, "float", {}, ["floating-point noise"]),
        (Privacy(math.inf, 1e-5), "float", {}, ["it has no noise: not private"]),
        (PROMISE, "discrete", {"rehearsed": "an audit", "others": ("x",)}, ["an audit", "x"]),
        (
            PROMISE,
            "float",
            {"seeded": True},
            ["floating-point noise", "seeded: whoever knows the seed can subtract the noise"],
        ),
    ],
)
def test_every_reason_makes_a_model_unsuitable(
    privacy: Privacy, noise: Any, more: dict[str, Any], why: list[str]
) -> None:
    arguments: dict[str, Any] = {"seeded": False} | more
    verdict = suitability(privacy, noise, **arguments)
    assert verdict["suitable_for_release"] is (not why)
    assert verdict.get("unsuitable_because", []) == why
    assert with_reason(verdict, "another")["unsuitable_because"] == [*why, "another"]
    assert with_reason(verdict, "another")["suitable_for_release"] is False


@pytest.mark.parametrize(
    ("rehearsal", "why"),
    [
        (Rehearsal(), "a rehearsal: 0 users were made to drop out"),
        (Rehearsal(dropped=[1]), "a rehearsal: 1 users were made to drop out"),
        (Rehearsal(known_noise=[0, 2, 2]), "an audit: 2 users added no noise"),
        (Rehearsal(dropped=[1], known_noise=range(1)), "an audit: 1 users added no noise"),
    ],
)
def test_a_rehearsal_is_never_suitable(rehearsal: Rehearsal, why: str) -> None:
    """Discrete noise, declared classes, no transform: nothing else is wrong with it."""
    arguments: dict[str, Any] = {"vouch_for_transform": True, "min_survivors": 5}
    real = release(embedding_set(0), "class-sums", PROMISE, **arguments)
    assert real.report["suitable_for_release"] is True
    played = release(embedding_set(0), "class-sums", PROMISE, rehearsal=rehearsal, **arguments)
    assert played.report["unsuitable_because"] == [why]
    assert played.report["survivors"] == 6 - len(set(rehearsal.dropped))
    assert list(real.report) == [key for key in played.report if key != "unsuitable_because"]


def test_classes_without_names_are_numbered() -> None:
    assert class_names((), 3) == ("0", "1", "2")
    assert class_names(["x", "y"], 2) == ("x", "y")
