"""What a release and a method refuse; private rows in a transform, rows of two users, counts."""

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from embed import EmbeddingSet, PublicTransform
from heads import least_squares_norm
from tests.train_distributed.one_shot.builders import METHODS_OF_CLASSES, embedded, made
from tests.train_distributed.research.learning import learn
from train_distributed import Privacy, release
from train_distributed.one_shot.extra_sums import ClippedGradient
from train_distributed.one_shot.registry import METHODS, build_method
from train_distributed.one_shot.request import FaultInjection, FederationSize, ReleaseRequest
from train_distributed.one_shot.source import EmbeddingUsers, own_partition
from train_distributed.one_shot.summation import second_dimension
from train_distributed.partition import Partition, split
from train_distributed.research.experiments.catalogue import raw_transform

N, P, K, PAIR = 90, 6, 3, (1.0, 2.0)
PROMISE = Privacy(1.0, 1e-5)
DECLARED = {"class_names": ["a", "b", "c"]}


def rows(seed: int = 0, **changes: Any) -> EmbeddingSet:
    """Nine users of eight rows each, every ninth their own, and 18 rows for testing."""
    rng, every = np.random.default_rng(seed), np.arange(N)
    x = 2 * np.eye(K, P)[every % K] + 0.3 * rng.standard_normal((N, P))
    given = {"labels": every % K, "users": every % 9, "test": every >= 72} | changes
    return embedded(x, classes=K, **given)


fitted = PublicTransform.fit
ROWS, PUBLIC, OTHER = rows(), fitted(rows(1)), fitted(rows(2))
OWN = own_partition(ROWS)
SHORT, LONG = (PublicTransform.identity(P, norm, 0.5) for norm in (1.0, 8.0))
NARROW = PublicTransform.identity(3, PUBLIC.clip_norm, PUBLIC.constant)
HELD = EmbeddingUsers(ROWS, LONG, OWN)


def head(transform: PublicTransform, name: str = "softmax", **options: Any) -> Any:
    """Averaged heads that know a norm alone, not the transform."""
    return METHODS[name].build(transform, K, **{"l2_reg": 1.0} | options)


ONE: Any = np.int64(1)
TINY: Any = np.float32(1e-5)
SHOWN = 1 - np.eye(K, dtype=np.int8)[np.arange(N) % K]  # two of three findings
SEVERAL = {"embeddings": rows(labels=np.full(N, -1), findings=SHOWN), "method": "findings"}
RELEASES: list[tuple[dict[str, Any], str]] = [
    # settings
    ({"method": "nearest"}, "method must be one of .*, got 'nearest'"),
    ({"noise": "laplace"}, "noise must be one of discrete, float, got 'laplace'"),
    ({"generator": torch.Generator()}, "generator must be None for noise 'discrete'"),
    ({"num_classes": 5}, "num_classes must be 3, the set's class names, got 5"),
    # what no report can state is refused before any epsilon is spent
    ({"num_classes": np.int64(3)}, r"num_classes must be a Python number .*, got np\.int64\(3\)"),
    ({"min_survivors": np.int64(9)}, "min_survivors must be a Python number"),
    ({"user_clip": np.float32(5)}, "user_clip must be a Python number"),
    ({"privacy": Privacy(ONE, 1e-5)}, "epsilon must be a Python number"),
    ({"privacy": Privacy(1.0, TINY)}, "delta must be a Python number"),
    ({"min_survivors": 0}, r"min_survivors must be in \[1, 9\]"),
    ({"min_survivors": 4}, "one certainly honest user, got 0"),
    ({"faults": FaultInjection([9])}, r"dropped must hold users in \[0, 9\), got 9"),
    ({"faults": FaultInjection([0])}, r"survivors must be >= min_survivors = 9, got 8"),
    ({"l2_reg": 1.0}, "options must fit method 'discriminant'"),
    # rows
    ({"embeddings": rows(meta={})}, "num_classes must be given"),
    ({"embeddings": rows(meta={}), "num_classes": 2}, r"labels must lie in \[0, 2\), got 2"),
    ({"embeddings": ROWS.subset(ROWS.split == 1)}, "must hold training rows"),
    ({"embeddings": HELD, "transform": SHORT, "num_classes": K}, "transform and partition must be"),
    ({"embeddings": HELD, "partition": OWN, "num_classes": K}, "transform and partition must be"),
    # a method for other rows: its sensitivity would be that of shorter ones, or of other columns
    ({"transform": PublicTransform.identity(4)}, "transform must be of 6 columns, got one of 4"),
    ({"method": made("discriminant", SHORT, K), "transform": LONG}, r"norm 8\.0"),
    ({"method": made("softmax", SHORT, K), "transform": LONG}, r"transform must be the method's"),
    ({"method": head(SHORT), "transform": LONG}, r"method must be made for rows of norm 8\.0"),
    ({"method": head(PUBLIC)}, "method must be made for rows of norm"),
    ({"method": head(NARROW), "transform": PUBLIC}, r"7 columns, got one for 1.118.* and 4"),
    ({"method": made("softmax", NARROW, K), "transform": PUBLIC}, "transform must be the method's"),
    ({"method": made("discriminant", PUBLIC, 4)}, "num_classes must be 4, got 3"),
    ({"method": made("softmax", PUBLIC, K), "transform": OTHER}, "transform must be the method's"),
    # findings
    (SEVERAL | {"method": "softmax"}, "method must be one of findings, svm, logistic"),
    ({"method": "findings"}, "must hold findings"),
    (SEVERAL | {"method": "logistic", "prior": "equal"}, "prior must be private, got equal"),
    (SEVERAL | {"most_findings": 0.5}, "most_findings must be in"),
    (SEVERAL | {"unknown": "no"}, "unknown must be one of"),
    (SEVERAL | {"rounds": 3}, "options must fit method 'findings'"),
    (SEVERAL | {"prior": (0.2, 0.3, 1.0)}, "prevalences < 1"),
    (SEVERAL | {"num_classes": 5}, "num_classes must be 3"),
]


@pytest.mark.parametrize(("change", "message"), RELEASES)
@pytest.mark.parametrize("noise", ["discrete", "float"])
def test_releases_that_are_refused(change: dict[str, Any], message: str, noise: str) -> None:
    """Under either noise, but for a generator, which simulations may have."""
    if noise == "float" and {"generator", "num_classes"} & change.keys():
        return
    given = {"embeddings": ROWS, "method": "discriminant", "privacy": PROMISE, "noise": noise}
    with pytest.raises(ValueError, match=message):
        release(**given | change)


METHODS_REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("softmax", {"l2_reg": 0.0}, "l2_reg must be finite and > 0, got 0.0"),
    ("softmax", {"bound": "paper"}, "radius must be given for bound='paper'"),
    ("softmax", {"solver": "newton"}, "solver must be one of exact, sgd, got 'newton'"),
    ("softmax", {"epochs": 0}, "epochs must be >= 1, got 0"),
    ("softmax", {"alpha": 1.0, "user_clip": 1.0}, "options must fit method 'softmax'"),
    ("svm", {"prior": (0.2, 0.3, 0.5)}, "prior must be 'equal' or 'private' for an SVM"),
    ("discriminant", {"alpha": 0.0}, "alpha must be finite and > 0, got 0.0"),
    ("discriminant", {"alpha": 0.5, "user_clip": 1.0}, r"alpha must be left out without moments"),
    ("discriminant", {"moments": True, "user_clip": 1.0}, "moments must be left out with user_cl"),
    ("discriminant", {"sums": 3, "class_noise": 0.1}, "sums must be one of"),
    ("discriminant", {"sums": 2}, "sums must be 1, got 2"),
    ("discriminant", {"user_clip": PAIR}, "first_clip must be left out without class_n"),
    ("discriminant", {"sums": 1, "class_noise": 0.1, "user_clip": PAIR}, "user_clip must be left"),
    ("discriminant", {"user_clip": (1.0, 2.0, 3.0)}, "user_clip must be one number, or one of"),
    ("discriminant", {"user_clip": 3.0, "rounds": 2}, "user_clip must be left out with rounds"),
    ("discriminant", {"rounds": 1.5}, "rounds must be >= 0 and whole, got 1.5"),
    ("discriminant", {"components": 3}, "components must be left out without class_noise"),
    ("discriminant", {"class_noise": 0.1, "components": 99}, r"components must be in \[1, 6\]"),
    ("discriminant", {"class_noise": -1.0}, r"class_noise must be in \[0, inf\)"),
    ("discriminant", {"class_noise": math.nan}, r"class_noise must be in \[0, inf\)"),
    *(
        ("discriminant", {"user_clip": norm}, "^user_clip must ")
        for norm in (0.0, -1.0, math.nan, math.inf, 1e-70, 1e70)
    ),
]
PRIORS: list[tuple[Any, str]] = [
    ("flat", "prior must be one of 'equal', 'private'"),
    (0.5, "prior must be one of"),
    ([0.5, 0.5], "prior must hold 3 shares, got 2"),
    ([0.5, 0.5, 0.0], "finite shares > 0, got 0.0"),
    ([2.0, -0.5, -0.5], "finite shares > 0, got -0.5"),
    ([math.nan, 0.5, 0.5], "finite shares > 0, got nan"),
    ([math.inf, 0.5, 0.5], "finite shares > 0, got inf"),
    ([True, 0.5, 0.5], "finite shares > 0, got True"),
    (["1", 0.5, 0.5], "finite shares > 0, got '1'"),
    ([0.3, 0.3, 0.3], r"shares of sum 1, got 0\.9"),
    ([0.4, 0.3, 0.300002], r"shares of sum 1, got 1\.000002"),
]
OF_PRIORS = [
    (name, {"prior": prior}, message)
    for name in ("discriminant", "softmax", "logistic")
    for prior, message in PRIORS
]


@pytest.mark.parametrize(("name", "options", "message"), METHODS_REFUSED + OF_PRIORS)
def test_methods_that_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made(name, PUBLIC, K, **options)


def test_constructors_refuse_what_no_option_can_say() -> None:
    with pytest.raises(ValueError, match="num_classes must be >= 2, got 1"):
        made("discriminant", PUBLIC, 1)
    with pytest.raises(ValueError, match=r"constant must be given .* got None"):
        replace(head(PUBLIC, prior="equal").statistic, constant=None).validate()
    with pytest.raises(ValueError, match=r"constant must lie in \(0, clip_norm"):
        least_squares_norm(1.0, 0.7, 1.0)
    with pytest.raises(ValueError, match="transform must clip features to length 1"):
        made("discriminant", LONG, K, class_noise=0.1)
    rounds = made("discriminant", PUBLIC, K, sums=2, class_noise=0.1, rounds=3)
    with pytest.raises(ValueError, match="rounds must be left out in a federation, got 3"):
        second_dimension(rounds)
    for value in (math.nan, math.inf, 1e101):  # with which scores could overflow
        with pytest.raises(ValueError, match=r"weights must be finite and at most 1e\+100"):
            ClippedGradient(weights=torch.full((2, 2), value, dtype=torch.float64), clip_norm=1.0)


@pytest.mark.parametrize("name", ["softmax", "svm", "logistic"])
def test_centred_heads_made_for_shorter_features_are_refused(name: str) -> None:
    """Rows as long, with a smaller constant: more than what is stated for the sum of features."""
    short, long = (PublicTransform.identity(P, 1.2, constant) for constant in (1.0, 0.5))
    plain = head(short, name, prior="private")  # of any rows so long: one bound for whole rows
    assert release(ROWS, plain, PROMISE, transform=long).report["users"] == 9
    with pytest.raises(ValueError, match="transform must have the heads' constant"):
        release(ROWS, head(short, name, prior="equal"), PROMISE, transform=long)


def test_class_scatter_of_private_rows_comes_with_no_other_transform() -> None:
    """The identity has seen no row; covariances that only the method's carries might have."""
    plain, private = PublicTransform.identity(P), fitted(ROWS)
    for name in ("within_class", "between_class"):
        scattered = replace(plain, **{name: getattr(private, name)})
        method = made("discriminant", scattered, K)
        with pytest.raises(ValueError, match="transform must be the method's own"):
            release(ROWS, method, PROMISE, transform=plain)
        with pytest.raises(ValueError, match="transform must say which rows it has seen"):
            release(ROWS, method, PROMISE)
        with pytest.raises(ValueError, match="transform must be the method's own"):
            release(EmbeddingUsers(ROWS, plain, OWN), method, PROMISE)


def test_a_method_is_the_same_by_its_name_and_built_elsewhere(monkeypatch) -> None:
    """And brings the transform that it holds."""
    monkeypatch.setattr(Partition, "shuffled", lambda partition, generator: partition)
    bare, again = Privacy(math.inf, 1e-5), PublicTransform.from_tensors(PUBLIC.tensors())
    release(ROWS, made("discriminant", again, K), PROMISE, transform=PUBLIC)
    size = FederationSize(sizes=torch.full((9,), 8), num_classes=K)
    for name in METHODS_OF_CLASSES:
        assert release(ROWS, made(name, PUBLIC, K), PROMISE).transform is PUBLIC
        asked = ReleaseRequest(embeddings=size, method=name, privacy=bare, transform=PUBLIC)
        assert asked.settings.options["sums"] == 2
        built = build_method(name, PUBLIC, K, asked.settings.options)
        given = release(ROWS, built, bare)
        assert given.transform.directions is not None
        assert given.transform.raw.same_rows(PUBLIC)
        named = release(ROWS, name, bare, transform=PUBLIC)
        torch.testing.assert_close(given.weights, named.weights, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("method", ["discriminant", "amp", "admm-dual"])
def test_a_record_that_two_users_hold_is_refused(method: str) -> None:
    """It would move the sum twice as far as the promise says."""
    order = torch.arange(72)
    order[71] = 0
    twice = Partition(order, torch.tensor([0, 36, 72]))
    noise: Any = {"discriminant": "discrete"}.get(method, "float")
    with pytest.raises(ValueError, match="every training row to one user, got a row twice"):
        learn(ROWS, method, PROMISE, partition=twice, noise=noise)


@pytest.mark.parametrize("method", ["discriminant", "output-perturbation"])
def test_a_promise_for_users_is_one_for_those_that_the_set_names(method: str) -> None:
    named = torch.arange(72) % 9
    pairs = split(named, None, "by-writer", writers=named // 2)
    spread = split(named, 4)
    for unit, partition, suits in (
        ("user", None, True),
        ("user", pairs, True),  # whoever holds two users' rows protects both
        ("user", spread, False),
        ("record", spread, True),
    ):
        promise = Privacy(1.0, 1e-5, unit=unit)  # pyright: ignore[reportArgumentType]
        report = learn(ROWS, method, promise, partition=partition, noise="discrete").report
        assert report["suitable_for_release"] is suits
        assert ("are spread over several users" in str(report)) is not suits


TRAIN = ROWS.subset(ROWS.split == 0)
BESIDE, ONE = rows(1).embeddings, ROWS.embeddings[7:8]
LEAKED = {
    "the training rows reversed": (TRAIN.subset(np.arange(72)[::-1]), 72),
    "one user's rows": (ROWS.subset(np.flatnonzero(ROWS.users == 4)), 10),
    "the test rows": (ROWS.subset(ROWS.split == 1), 18),
    "one row among public ones": (np.concatenate([BESIDE, ONE]), 1),
    "one row in half precision": (np.concatenate([BESIDE, ONE.astype(np.float16)]), 1),
}
OTHERS: dict[str, dict[str, Any]] = {  # learners, and what they need to be asked
    "discriminant": {"noise": "discrete"},
    "gradient-perturbation": {"noise": "discrete"},
    "centralised-svm": {"noise": "float"},
    "charter-sum": {"cut_rounds": 2},
}


@pytest.mark.parametrize("what", LEAKED)
def test_a_transform_that_has_seen_a_private_row_is_refused(what: str) -> None:
    public, shared = LEAKED[what]
    transform = fitted(public)
    refusal = f"transform must not have seen private rows, got {shared} of 90"
    for method, options in (*OTHERS.items(), ("softmax", {"noise": "discrete"})):
        with pytest.raises(ValueError, match=refusal):
            learn(ROWS, method, PROMISE, transform=transform, **options)
    for embeddings, noise in ((ROWS, "float"), (EmbeddingUsers(ROWS, transform, OWN), "discrete")):
        given: Any = {"num_classes": K, "noise": noise}
        given |= {"transform": transform} if embeddings is ROWS else {}
        with pytest.raises(ValueError, match=refusal):
            release(embeddings, "discriminant", PROMISE, **given)


def test_the_report_counts_what_was_compared() -> None:
    report = release(ROWS, "discriminant", PROMISE, transform=PUBLIC).report
    assert report["public_transform"] == "hashes of the public rows, compared"
    assert (report["public_rows"], report["private_rows_compared"]) == (N, N)
    assert (report["shared_rows"], report["shared_rows_by_chance"]) == (0, N * N / 2**64)
    assert report["suitable_for_release"] is True
    bare = release(ROWS, "discriminant", PROMISE).report
    assert bare["public_transform"] == "none: it is the identity"
    assert bare["suitable_for_release"] is True
    release(ROWS, "softmax", PROMISE, transform=raw_transform(rows(1)))
    with pytest.raises(ValueError, match="transform must not have seen private rows, got 90"):
        release(ROWS, "softmax", PROMISE, transform=raw_transform(ROWS))


UNKNOWN = PublicTransform.from_tensors(PUBLIC.tensors(), fitted_on=PUBLIC.fitted_on)
SILENT = replace(PUBLIC, seen=np.empty(0, np.uint64))  # to have seen nothing it does not look
SIX = np.where(np.arange(N) == 5, 6, np.arange(N) % K)  # a record that adds columns: K is private
COUNTED = rows(labels=SIX, meta={"class_names": [str(k) for k in range(7)], "classes": "inferred"})
EXTRACTED = {"class_names": ["0", "1", "2"], "encoder": "simclr-small"}
NAMED, SEEDED = rows(meta=EXTRACTED), rows(meta=DECLARED | {"held_out": {"seed": 0}})
PARTIAL = rows(1, meta=DECLARED | {"dropped_rows": 3})
MADE = [
    rows(meta=DECLARED | {"transform": by})
    for by in ({"clip_norm": 1.4}, {"compared": False}, "some transform")
]
SIMULATED: list[tuple[dict[str, Any], str, str]] = [
    ({"transform": fitted(PARTIAL)}, "transform must be fitted on a whole public", "taken out"),
    ({"embeddings": SEEDED}, "rows must be held out by the operating", "a seed says"),
    ({"transform": UNKNOWN}, "transform must say which rows it has", "nobody knows which rows"),
    ({"transform": SILENT}, "transform must say which rows it has", "nobody knows which rows"),
    ({"embeddings": COUNTED}, "num_classes must be given for discrete", "classes were counted"),
    ({"embeddings": NAMED}, "num_classes must be given for discrete", "classes were counted"),
    *(({"embeddings": each}, "the rows must be raw or compared", "nobody knows") for each in MADE),
]


@pytest.mark.parametrize(("change", "message", "reason"), SIMULATED)
def test_what_may_depend_on_private_rows_is_simulated_alone(change, message, reason):
    given = {"embeddings": ROWS, "method": "discriminant", "privacy": PROMISE} | change
    with pytest.raises(ValueError, match=message):
        release(**given)
    why = release(**given, noise="float").report["unsuitable_because"]
    assert any(reason in each for each in why)
    if "raw" in message:
        release(**given, vouch_for_transform=True)


def test_a_transform_of_unknown_origin_needs_somebody_s_word() -> None:
    for method in (*METHODS_OF_CLASSES, "gradient-perturbation"):
        with pytest.raises(ValueError, match="transform must say which rows it has seen"):
            learn(ROWS, method, PROMISE, transform=UNKNOWN, noise="discrete")
    vouch: dict[str, Any] = {"vouch_for_transform": True}
    vouched = release(ROWS, "discriminant", PROMISE, transform=UNKNOWN, **vouch).report
    assert vouched["public_transform"] == "unknown, vouched for"
    assert vouched["suitable_for_release"] is True
    very = PublicTransform.from_tensors(PUBLIC.tensors(), fitted_on=ROWS.content_hash())
    with pytest.raises(ValueError, match="transform must not be fitted on the private rows"):
        release(ROWS, "discriminant", PROMISE, transform=very, **vouch)


def test_classes_that_were_counted_are_refused_for_a_release() -> None:
    for method in ("gradient-perturbation", "charter-sum"):
        with pytest.raises(ValueError, match="num_classes must be given for discrete noise"):
            learn(COUNTED, method, PROMISE, **OTHERS[method])
    with pytest.raises(ValueError, match=r"labels must lie in \[0, 3\), got 6 and 1 outside"):
        release(COUNTED, "discriminant", PROMISE, num_classes=K)
    released = release(COUNTED, "discriminant", PROMISE, num_classes=10)
    assert released.class_names == tuple(map(str, range(10)))
    assert released.report["classes"] == "declared"
    assert released.report["suitable_for_release"] is True
    for meta in (
        EXTRACTED | {"classes": "declared"},
        DECLARED | {"encoder": "simclr-small"},
        DECLARED | {"transform": {"compared": True}},
    ):
        release(rows(meta=meta), "discriminant", PROMISE)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "method", ["discriminant", "softmax", "gradient-perturbation", "admm-dual"]
)
def test_rows_that_are_not_finite_are_refused_at_once(method: str, bad: float, monkeypatch) -> None:
    """All of them, before a row is transformed or noise drawn; test rows too."""
    monkeypatch.setattr(PublicTransform, "__call__", lambda *_: pytest.fail("work has begun"))
    x = ROWS.embeddings.copy()
    x[[11, 60, 85], 2] = bad
    noise: Any = "float" if method == "admm-dual" else "discrete"
    words = f"must be finite, got {bad} in row 11, the first of 3 such rows among 90"
    with pytest.raises(ValueError, match=words):
        learn(rows(embeddings=x), method, PROMISE, noise=noise)


@pytest.mark.parametrize("method", METHODS_OF_CLASSES)
def test_a_row_of_the_largest_numbers_is_a_row_like_another(method: str) -> None:
    x = ROWS.embeddings.copy()
    x[11] = 3e38
    released = release(rows(embeddings=x), method, PROMISE, transform=PUBLIC)
    assert released.weights.isfinite().all()
    json.dumps(dict(released.report), allow_nan=False)
    learn(rows(embeddings=x), "admm-dual", PROMISE, transform=PUBLIC, iterations=1)
