"""What no release may rest on: two transforms, private rows in a public one, undeclared classes."""

import json
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from embed import EmbeddingSet, PublicTransform
from heads import SoftmaxHead
from train_distributed import Privacy, release
from train_distributed.one_shot.blind_averaging import BlindAveraging
from train_distributed.one_shot.class_sums import ClassSums
from train_distributed.one_shot.least_squares import LeastSquares
from train_distributed.one_shot.methods import METHODS, build_method
from train_distributed.one_shot.users import Chunk, EmbeddingUsers
from train_distributed.partition import Partition, split
from train_distributed.research.baselines.learn import learn
from train_distributed.research.experiments.lineups import raw_transform

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
    return PublicTransform.fit(on, clip_norm=math.sqrt(1.25), constant=0.5)


# One transform


def methods_of(transform: PublicTransform) -> list[Any]:
    head = SoftmaxHead(num_classes=K, l2_reg=1.0, clip_norm=transform.clip_norm)
    return [
        ClassSums(num_classes=K, transform=transform),
        LeastSquares(num_classes=K, transform=transform),
        BlindAveraging(head=head, dim=transform.dim),
    ]


@pytest.mark.parametrize("number", range(3))
def test_a_method_made_for_shorter_rows_is_refused(number: int) -> None:
    """Its sensitivity would be that of rows of norm 1 where norm 8 goes in."""
    short, long = (PublicTransform.identity(P, clip_norm, 0.5) for clip_norm in (1.0, 8.0))
    for noise in ("discrete", "float"):
        with pytest.raises(ValueError, match=r"norm 8\.0"):
            release(rows(), methods_of(short)[number], PROMISE, transform=long, noise=noise)
    assert release(rows(), methods_of(long)[number], PROMISE, transform=long).report["users"] == 9


def test_another_transform_of_the_same_bounds_is_refused_too() -> None:
    one, other = fitted(rows(1)), fitted(rows(2))
    with pytest.raises(ValueError, match="transform must be the method's own"):
        release(rows(), ClassSums(num_classes=K, transform=one), PROMISE, transform=other)
    again = PublicTransform.from_tensors(one.tensors())
    release(rows(), ClassSums(num_classes=K, transform=again), PROMISE, transform=one)


def test_a_method_that_holds_the_transform_needs_no_second_one() -> None:
    transform = fitted(rows(1))
    released = release(rows(), ClassSums(num_classes=K, transform=transform), PROMISE)
    assert released.transform is transform
    with pytest.raises(ValueError, match="method must be made for rows of norm"):
        release(rows(), methods_of(transform)[2], PROMISE)  # which knows a norm alone


def test_a_method_for_other_columns_or_classes_is_refused() -> None:
    transform = fitted(rows(1))
    head = SoftmaxHead(num_classes=K, l2_reg=1.0, clip_norm=transform.clip_norm)
    with pytest.raises(ValueError, match=r"7 columns, got one for 1.118.* and 4"):
        release(rows(), BlindAveraging(head=head, dim=4), PROMISE, transform=transform)
    with pytest.raises(ValueError, match="num_classes must be the method's 4, got 3"):
        release(rows(), ClassSums(num_classes=4, transform=transform), PROMISE)


def test_a_method_that_does_not_say_for_which_rows_it_is_refused() -> None:
    @dataclass(frozen=True)
    class Unknown:
        num_classes: int = K

        def validate(self) -> None:
            pass

    with pytest.raises(ValueError, match="method must be of ClassSums"):
        release(rows(), Unknown(), PROMISE)  # pyright: ignore[reportArgumentType]


def test_users_that_carry_a_transform_are_looked_at_as_the_set_they_are() -> None:
    held = rows()
    own = split(torch.from_numpy(held.labels[:72]), 9)
    with pytest.raises(ValueError, match="transform must not have seen private rows"):
        release(EmbeddingUsers(held, fitted(held), own), "class-sums", PROMISE, num_classes=K)
    clipped_to_8 = EmbeddingUsers(held, PublicTransform.identity(P, 8.0, 0.5), own)
    changes: list[Any] = [{"transform": PublicTransform.identity(P, 1.0, 0.5)}, {"partition": own}]
    for change in changes:
        with pytest.raises(ValueError, match="transform and partition must be None"):
            release(clipped_to_8, "class-sums", PROMISE, num_classes=K, **change)
    assert release(clipped_to_8, "class-sums", PROMISE, num_classes=K).report["users"] == 9


@pytest.mark.parametrize("method", ["class-sums", "amp", "admm-dual"])
def test_a_record_that_two_users_hold_is_refused(method: str) -> None:
    """It would move the sum twice as far as the promise says."""
    order = torch.arange(72)
    order[71] = 0
    twice = Partition(order, torch.tensor([0, 36, 72]))
    noise: Any = {"class-sums": "discrete"}.get(method, "float")
    with pytest.raises(ValueError, match="every training row to one user, got a row twice"):
        learn(rows(), method, PROMISE, partition=twice, noise=noise)


@pytest.mark.parametrize("method", ["class-sums", "output-perturbation"])
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
        release(rows(), "class-sums", PROMISE, transform=PublicTransform.identity(4))


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
    for method in ("class-sums", "softmax"):
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
    public = replace(rows(1), meta=DECLARED | {"dropped_rows": 3})
    report = release(rows(), "class-sums", PROMISE, transform=fitted(public)).report
    assert report["public_transform"] == "hashes of the public rows, compared"
    assert (report["public_rows"], report["private_rows_compared"]) == (N, N)
    assert (report["shared_rows"], report["public_rows_dropped"]) == (0, 3)
    assert report["shared_rows_by_chance"] == N * N / 2**64
    assert report["suitable_for_release"] is True
    bare = release(rows(), "class-sums", PROMISE).report
    assert bare["public_transform"] == "none: it is the identity"
    assert bare["suitable_for_release"] is True


def test_a_transform_of_unknown_origin_needs_somebody_s_word() -> None:
    known = fitted(rows(1))
    unknown = PublicTransform.from_tensors(known.tensors(), fitted_on=known.fitted_on)
    silent = replace(known, seen=np.empty(0, np.uint64))  # to have seen nothing it does not look it
    with pytest.raises(ValueError, match="transform must say which rows it has seen"):
        release(rows(), "class-sums", PROMISE, transform=silent)
    for method in (*METHODS, "gradient-perturbation"):
        with pytest.raises(ValueError, match="transform must say which rows it has seen"):
            learn(rows(), method, PROMISE, transform=unknown, noise="discrete")
    vouched = release(
        rows(), "class-sums", PROMISE, transform=unknown, vouch_for_transform=True
    ).report
    assert vouched["public_transform"] == "unknown, vouched for"
    assert vouched["suitable_for_release"] is True
    simulated = release(rows(), "class-sums", PROMISE, transform=unknown, noise="float").report
    assert "nobody knows which rows the public transform has seen" in str(simulated)
    very = PublicTransform.from_tensors(known.tensors(), fitted_on=rows().content_hash())
    with pytest.raises(ValueError, match="transform must not be fitted on the private rows"):
        release(rows(), "class-sums", PROMISE, transform=very, vouch_for_transform=True)


@pytest.mark.parametrize("made_by", [{"clip_norm": 1.4}, {"compared": False}, "some transform"])
def test_rows_that_were_transformed_unseen_need_it_as_well(made_by: Any) -> None:
    held = rows(meta=DECLARED | {"transform": made_by})
    with pytest.raises(ValueError, match="the rows must be raw or compared"):
        release(held, "class-sums", PROMISE)
    release(held, "class-sums", PROMISE, vouch_for_transform=True)
    release(rows(meta=DECLARED | {"transform": {"compared": True}}), "class-sums", PROMISE)


@dataclass(frozen=True)
class Stream:
    """Two users with rows that somebody has transformed."""

    x: torch.Tensor
    y: torch.Tensor
    dim: int = P + 1
    sizes = torch.tensor([5, 5])

    def chunks(self):
        yield Chunk(torch.arange(2), self.x, self.y, self.sizes)


def stream(transform: PublicTransform, **change: Any) -> Stream:
    x = transform(rows().embeddings[:10]).unflatten(0, (2, 5))
    return replace(Stream(x, torch.arange(10).unflatten(0, (2, 5)) % K), **change)


def test_users_that_stream_in_cannot_be_compared() -> None:
    transform, promise = fitted(rows(1)), Privacy(1.0, 1e-5, 1.0)
    given: dict[str, Any] = {"transform": transform, "num_classes": K}
    with pytest.raises(ValueError, match="vouch_for_transform must be set for users that stream"):
        release(stream(transform), "class-sums", promise, **given)
    report = release(stream(transform), "class-sums", promise, noise="float", **given).report
    assert "nobody compared private rows with the public ones" in report["unsuitable_because"]
    given |= {"vouch_for_transform": True}
    report = release(stream(transform), "class-sums", promise, **given).report
    assert report["suitable_for_release"] is True
    assert "vouched for" in report["public_transform"]


# Classes


def test_classes_that_were_counted_are_refused_for_a_release() -> None:
    """One record with label 6 adds columns to the weights: K itself would be private."""
    labels = np.arange(N) % K
    labels[5] = 6
    counted = {"class_names": [str(k) for k in range(7)], "classes": "inferred"}
    held = rows(labels=labels, meta=counted)
    for method in ("class-sums", "gradient-perturbation", "charter-sum"):
        noise: Any = None if method == "charter-sum" else "discrete"
        options: dict[str, Any] = {"cut_rounds": 2} if method == "charter-sum" else {}
        with pytest.raises(ValueError, match="num_classes must be given for discrete noise"):
            learn(held, method, PROMISE, noise=noise, **options)
    simulated = learn(held, "class-sums", PROMISE, noise="float").report
    assert simulated["classes"] == "inferred"
    assert "its classes were counted" in str(simulated["unsuitable_because"])
    with pytest.raises(ValueError, match=r"labels must lie in \[0, 3\), got 6 and 1 outside"):
        release(held, "class-sums", PROMISE, num_classes=K)
    released = release(held, "class-sums", PROMISE, num_classes=10)
    assert released.class_names == tuple(map(str, range(10)))
    assert released.report["classes"] == "declared"
    assert released.report["suitable_for_release"] is True


def test_numbers_that_an_extraction_says_nothing_about_were_counted() -> None:
    counted = {"class_names": ["0", "1", "2"], "encoder": "simclr-small"}
    with pytest.raises(ValueError, match="num_classes must be given for discrete noise"):
        release(rows(meta=counted), "class-sums", PROMISE)
    release(rows(meta=counted | {"classes": "declared"}), "class-sums", PROMISE)
    release(rows(meta=DECLARED | {"encoder": "simclr-small"}), "class-sums", PROMISE)


# Rows


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("method", ["class-sums", "softmax", "gradient-perturbation", "admm-dual"])
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


@pytest.mark.parametrize("method", METHODS)
def test_a_row_of_the_largest_numbers_is_a_row_like_another(method: str) -> None:
    x = rows().embeddings.copy()
    x[11] = 3e38
    released = release(rows(embeddings=x), method, PROMISE, transform=fitted(rows(1)))
    assert released.weights.isfinite().all()
    json.dumps(released.report, allow_nan=False)
    learn(rows(embeddings=x), "admm-dual", PROMISE, transform=fitted(rows(1)), iterations=1)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_rows_that_stream_in_are_refused_before_their_noise(
    method: str, bad: float, monkeypatch
) -> None:
    identity = PublicTransform.identity(P)
    broken = stream(identity)
    broken.x[1, 2, 3] = bad
    drawn = []
    monkeypatch.setattr(
        "train_distributed.one_shot.summation.add_noise", lambda *_: drawn.append(1)
    )
    with pytest.raises(ValueError, match=r"rows must be finite, got 1 that are not.* of user 1"):
        release(broken, method, Privacy(1.0, 1e-5, 1.0), num_classes=K)
    assert not drawn


def test_labels_that_stream_in_are_checked_as_well() -> None:
    identity = PublicTransform.identity(P)
    for label in (K, -1):
        broken = stream(identity)
        broken.y[0, 0] = label
        with pytest.raises(ValueError, match=r"labels must lie in \[0, 3\)"):
            release(broken, "class-sums", Privacy(1.0, 1e-5, 1.0), num_classes=K)


def test_build_method_and_release_agree() -> None:
    """A method by its name and the same method built elsewhere are one."""
    transform = fitted(rows(1))
    for name in METHODS:
        given = release(
            rows(),
            build_method(name, transform, K, {}),
            Privacy(math.inf, 1e-5),
            transform=transform,
        )
        named = release(rows(), name, Privacy(math.inf, 1e-5), transform=transform)
        assert torch.equal(given.weights, named.weights)
