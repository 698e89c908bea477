"""A method and the rows that it is made for: one transform, one number of classes."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from embed import EmbeddingSet, PublicTransform
from tests.train_distributed.one_shot.fitting import METHODS_OF_CLASSES
from train_distributed import Privacy, release
from train_distributed.one_shot.method import Method
from train_distributed.one_shot.registry import METHODS, build_method
from train_distributed.one_shot.request import FederationSize, ReleaseRequest
from train_distributed.one_shot.source import EmbeddingUsers, own_partition

P, K = 6, 3
PROMISE = Privacy(1.0, 1e-5)


def rows(seed: int = 0) -> EmbeddingSet:
    """Nine users of eight rows."""
    x = np.random.default_rng(seed).standard_normal((72, P)).astype(np.float32)
    names = {"class_names": ["a", "b", "c"]}
    every = np.arange(72)
    return EmbeddingSet(embeddings=x, labels=every % K, users=every % 9, meta=names)


def fitted(on: EmbeddingSet) -> PublicTransform:
    return PublicTransform.fit(on)


def methods_of(transform: PublicTransform) -> list[Method]:
    softmax = build_method("softmax", transform, K, {"l2_reg": 1.0})
    return [build_method("discriminant", transform, K, {}), softmax]


@pytest.mark.parametrize("number", range(2))
def test_a_method_made_for_shorter_rows_is_refused(number: int) -> None:
    """Its sensitivity would be that of rows of norm 1 where norm 8 goes in."""
    short, long = (PublicTransform.identity(P, clip_norm, 0.5) for clip_norm in (1.0, 8.0))
    for noise in ("discrete", "float"):
        with pytest.raises(ValueError, match=r"norm 8\.0"):
            release(rows(), methods_of(short)[number], PROMISE, transform=long, noise=noise)
    assert release(rows(), methods_of(long)[number], PROMISE, transform=long).report["users"] == 9


@pytest.mark.parametrize("name", ["softmax", "svm", "logistic"])
def test_centred_heads_made_for_shorter_features_are_refused(name: str) -> None:
    """Rows as long, with a smaller constant: more than what is stated for the sum of features."""
    short, long = (PublicTransform.identity(P, 1.2, constant) for constant in (1.0, 0.5))
    for prior in ("equal", "private"):
        method = METHODS[name].build(short, K, l2_reg=0.3, prior=prior)  # of any rows so long
        if prior == "private":  # one bound for whole rows
            assert release(rows(), method, PROMISE, transform=long).report["users"] == 9
            continue
        with pytest.raises(ValueError, match="transform must have the heads' constant"):
            release(rows(), method, PROMISE, transform=long)


def test_another_transform_of_the_same_bounds_is_refused_too() -> None:
    one, other = fitted(rows(1)), fitted(rows(2))
    with pytest.raises(ValueError, match="transform must be the method's own"):
        release(rows(), build_method("discriminant", one, K, {}), PROMISE, transform=other)
    again = PublicTransform.from_tensors(one.tensors())
    release(rows(), build_method("discriminant", again, K, {}), PROMISE, transform=one)


def test_class_scatter_of_private_rows_comes_with_no_other_transform() -> None:
    """The identity has seen no row; covariances that only the method's carries might have."""
    plain, private = PublicTransform.identity(P), fitted(rows())
    for name in ("within_class", "between_class"):
        scattered = replace(plain, **{name: getattr(private, name)})
        method = build_method("discriminant", scattered, K, {})
        with pytest.raises(ValueError, match="transform must be the method's own"):
            release(rows(), method, PROMISE, transform=plain)
        with pytest.raises(ValueError, match="transform must say which rows it has seen"):
            release(rows(), method, PROMISE)
        users = EmbeddingUsers(rows(), plain, own_partition(rows()))
        with pytest.raises(ValueError, match="transform must be the method's own"):
            release(users, method, PROMISE)


def test_a_method_that_holds_the_transform_needs_no_second_one() -> None:
    transform = fitted(rows(1))
    for method in methods_of(transform):
        assert release(rows(), method, PROMISE).transform is transform
    mapped = build_method("discriminant", transform, K, {"class_noise": 0.1})
    assert mapped.transform is not None
    found = release(rows(), mapped, PROMISE).transform
    assert found.directions is not None
    assert found.raw.same_rows(transform)
    with pytest.raises(ValueError, match="method must be made for rows of norm"):
        release(
            rows(), METHODS["softmax"].build(transform, K, l2_reg=1.0), PROMISE
        )  # which knows a norm alone


def test_a_method_for_other_columns_or_classes_is_refused() -> None:
    transform = fitted(rows(1))
    narrow = PublicTransform.identity(3, transform.clip_norm, transform.constant)
    with pytest.raises(ValueError, match=r"7 columns, got one for 1.118.* and 4"):
        release(
            rows(), METHODS["softmax"].build(narrow, K, l2_reg=1.0), PROMISE, transform=transform
        )
    with pytest.raises(ValueError, match="transform must be the method's own"):
        release(
            rows(),
            build_method("softmax", narrow, K, {"l2_reg": 1.0}),
            PROMISE,
            transform=transform,
        )
    with pytest.raises(ValueError, match="num_classes must be 4, got 3"):
        release(rows(), build_method("discriminant", transform, 4, {}), PROMISE)


def test_build_method_and_release_agree() -> None:
    """A method by its name and the same method built elsewhere are one."""
    bare, transform = Privacy(math.inf, 1e-5), fitted(rows(1))
    size = FederationSize(sizes=torch.full((9,), 8), num_classes=K)
    for name in METHODS_OF_CLASSES:
        asked = ReleaseRequest(embeddings=size, method=name, privacy=bare, transform=transform)
        assert asked.settings.options["sums"] == 2
        built = build_method(name, transform, K, asked.settings.options)
        given = release(rows(), built, bare, transform=transform)
        named = release(rows(), name, bare, transform=transform)
        torch.testing.assert_close(given.weights, named.weights, rtol=1e-6, atol=1e-6)  # any order
