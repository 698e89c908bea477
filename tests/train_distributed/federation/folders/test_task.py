"""A model from a federation is the model of its survivors' plain sum, and what was agreed holds."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import structs

from embed import EmbeddingSet, PublicTransform
from tests.train_distributed.federation.folders import homes
from tests.train_distributed.federation.folders.homes import FACTS, ROWS, K, W
from tests.train_distributed.secure_sum.simulate import simulate_sum
from train_distributed import accounting, release
from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.documents.party import Keys
from train_distributed.federation.documents.terms import file_hash, promise_fields
from train_distributed.federation.model_task import ModelTask
from train_distributed.federation.sum_task import repeated
from train_distributed.one_shot.method import ReleaseState
from train_distributed.one_shot.registry import METHODS, build_method
from train_distributed.one_shot.source import EmbeddingUsers
from train_distributed.one_shot.statistic import NoisedSum
from train_distributed.partition import split
from train_distributed.privacy.guarantee import Guarantee
from train_distributed.privacy.mechanism import DiscreteGaussian
from train_distributed.privacy.promise import Privacy
from train_distributed.released.card import card
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.opening import Opened

EVERYBODY = frozenset(range(W))


def zeros(task: ModelTask, users: frozenset[int] = EVERYBODY) -> Opened:
    return Opened(np.zeros(task.federation.dimension, np.uint64), users)


def changed(task: ModelTask, home: Path, terms: dict[str, Any], **fields: Any) -> ModelTask:
    """The task as if its operator had chosen these terms, and these fields of the federation."""
    terms = task.federation.task | terms
    federation = structs.replace(task.federation, task=terms, **fields)
    return ModelTask.of(federation, home / "public.safetensors")


@pytest.mark.parametrize("method", ["discriminant", "softmax", "svm"])
def test_without_noise_the_model_is_that_of_the_plain_sum(method: str, agreed, tmp_path) -> None:
    options = {"prior": "equal"} if method in ("softmax", "svm") else {}
    task, path = agreed(method, options=options), tmp_path / "public.safetensors"
    sent = np.stack([task.encoded(i, homes.rows_of(tmp_path, i)) for i in range(W)])
    result = simulate_sum(sent, drop={2: [1]}, dropout_fraction=0.3)
    opened = Opened(result.total, frozenset(result.survivors))
    model = task.released(opened, facts=FACTS)
    plain = build_method(method, PublicTransform.load(path), K, task.terms.options)
    expected = torch.zeros(plain.statistic.dimension, dtype=torch.float64)
    for i in (0, 2, 3):
        rows = homes.rows_of(tmp_path, i)
        partition = split(torch.from_numpy(np.array(rows.labels)), 1)
        (chunk,) = EmbeddingUsers(rows, task.transform, partition).chunks()
        own = ReleaseState(task.method).rows(chunk).rounded(task.mechanism.grid)
        expected += plain.statistic.submit(own)[0]
    std = task.mechanism.local_std * 3**0.5
    weights = plain.fit(NoisedSum(expected, 3 * ROWS, std)).weights
    torch.testing.assert_close(model.weights, weights, rtol=2e-3, atol=2e-3)
    assert model.class_names == ("a", "b", "c")
    assert method == "discriminant" or task.terms.options["l2_reg"] > 0  # of the public rule
    assert model.report["epsilon_of_all_sessions"] == pytest.approx(1.0, rel=1e-6)
    twice = changed(task, tmp_path, {}, sessions=2).released(opened, facts=FACTS)
    (plan,), delta = task.plan.integers, task.guarantee.privacy.delta
    both = accounting.epsilon(delta * math.exp(-2 * plan.zeta), plan.noise_multiplier, 2)
    assert twice.report["epsilon_of_all_sessions"] >= both + 4 * plan.zeta
    assert 1.3 < twice.report["epsilon_of_all_sessions"] < 2
    assert model.report["noise"] == "discrete"
    assert model.report["suitable_for_release"]


def test_what_was_known_of_the_classes_is_agreed_on_by_hash(agreed, knowing, tmp_path) -> None:
    task = agreed("discriminant", transform=knowing)
    sent = np.stack([task.encoded(i, homes.rows_of(tmp_path, i)) for i in range(W)])
    report = task.released(Opened(simulate_sum(sent).total, EVERYBODY), facts=FACTS).report
    assert report["known_before"] == ["names of 200 public classes"]
    assert set(report["believed"]) == {"nothing", "public classes", "names of 200 public classes"}
    assert sum(report["believed"].values()) == pytest.approx(1)
    forgetful = tmp_path / "forgetful.safetensors"
    replace(PublicTransform.load(knowing), known=None).save(forgetful)
    with pytest.raises(ValueError, match="transform must have SHA-256"):
        ModelTask.of(task.federation, forgetful)
    terms = task.federation.task | {"class_names": ["b", "a", "c"]}
    with pytest.raises(ValueError, match="class names must be those that the transform has"):
        ModelTask.of(structs.replace(task.federation, task=terms), knowing)


@pytest.mark.parametrize("servers", [0, 1])
def test_the_report_says_how_it_was_summed(servers: int, agreed) -> None:
    task = agreed(servers=servers, sessions=2 - servers)
    alone = task.released(zeros(task, frozenset([0, 2, 3])), facts=FACTS)
    report, text = alone.report, card(alone, markup="markdown")
    assert report["protocol"] == ("secagg", "shares")[servers]
    assert "single user" not in report["secure_sum"]
    assert ("shares" in report["secure_sum"]) == bool(servers)
    assert (report["users"], report["survivors"]) == (4, 3)
    assert report["missing"] == {"user 1 (hospital-1)": "masked input"}
    assert report["federation"] == task.federation.digest.hex()
    assert "server" in report["holds_against"]
    assert report["noise_by"] == ("users", "servers")[servers]
    for words in (report["secure_sum"], "hospital-1", "3 of the 4 that were invited"):
        assert words in text
    assert "One process" not in text
    assert ("as long as one server is honest" in text) == bool(servers)
    if not servers:
        found = report["epsilon_if_all_others_collude"]
        assert report["epsilon"] < found < task.epsilon_if_all_others_collude
        assert "an honest user has its own noise alone: ε = " in text


@pytest.mark.parametrize("round_of_liar", [0, 1])
def test_a_sum_out_of_reach_is_not_suitable_and_says_why(round_of_liar: int, agreed) -> None:
    task = agreed("discriminant", options={"sums": 2})
    silent = [np.zeros(each.dimension, np.uint64) for each in task.plan.integers]
    honest = [Opened(words, EVERYBODY) for words in silent]
    assert task.released(*honest, facts=FACTS).report["suitable_for_release"]
    integers = task.plan.integers[round_of_liar]
    far = np.int64(1e4 * integers.local_std / np.min(integers.step))
    silent[round_of_liar][:] = np.uint64(far)
    model = task.released(*honest, facts=FACTS)
    assert not model.report["suitable_for_release"]
    (why,) = model.report["unsuitable_because"]
    assert why.startswith("an entry of the sum is ")
    assert "NOT SUITABLE FOR RELEASE" in card(model, markup="markdown")
    assert why in card(model, markup="markdown")


@pytest.mark.parametrize("far", [False, True])
def test_about_a_centre_the_model_is_that_of_one_process(agreed, tmp_path, far) -> None:
    """Both sums as the users make them, the second one at the bytes that the operator publishes."""
    plain = PublicTransform.fit(homes.embeddings(99, 50))
    path = tmp_path / "elsewhere.safetensors"
    replace(plain, mean=plain.mean + 2 * far).save(path)
    options, promise = {"sums": 2}, Privacy(1e7, 1e-5, 0.75)
    task = agreed("discriminant", options=options, privacy=promise, transform=path)
    width, federation = task.transform.dim, task.federation
    assert federation.dimension == width
    assert federation.second_dimension == task.method.statistic.dimension > width
    assert federation.largest_frame > 16 * federation.second_dimension
    sets = [homes.rows_of(tmp_path, i) for i in range(W)]
    first = np.stack([task.encoded(i, each) for i, each in enumerate(sets)])
    opened = Opened(first.sum(0, dtype=np.uint64), EVERYBODY)
    with pytest.raises(ValueError, match="sum of the method must be opened first"):
        task.released(opened, facts=FACTS)
    published = task.publish(opened)
    asked = [task.at_centre(i, each) for i, each in enumerate(sets)]
    for hostile in (np.full(width, np.nan), np.full(width, 1e9), np.zeros(width - 1)):
        with pytest.raises(ValueError, match="centre"):
            asked[0](hostile.tobytes())
    sent = np.stack([at(published)() for at in asked])
    model = task.released(opened, Opened(sent.sum(0, dtype=np.uint64), EVERYBODY), facts=FACTS)
    x = np.concatenate([each.embeddings for each in sets])
    labels = np.concatenate([each.labels for each in sets])
    given = {"partition": split(torch.from_numpy(labels), W), "num_classes": K}
    given |= {"transform": task.transform, **task.terms.options}
    pooled = EmbeddingSet(embeddings=x, labels=labels)
    alone = release(pooled, "discriminant", Privacy(math.inf, 1e-5), **given)
    assert (alone.report["common_share"] > 0.3) == far
    for name in ("directions", "centre"):
        found, expected = getattr(model.transform, name), getattr(alone.transform, name)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)
    torch.testing.assert_close(model.weights, alone.weights, rtol=2e-2, atol=2e-2)
    assert model.report["rounds"] == 2
    assert model.report["share_per_round"] == [0.1, 0.9]
    assert model.report["epsilon_of_all_sessions"] == pytest.approx(1e7, rel=1e-6)


def test_noise_is_fresh_and_as_wide_as_planned(agreed, tmp_path: Path) -> None:
    task = agreed()
    encoded = task.encoded(0, homes.rows_of(tmp_path, 0))
    drawn = np.stack([(task.noised(encoded) - encoded).view(np.int64) for _ in range(200)])
    std = float(task.mechanism.stds_in_steps)
    assert np.std(drawn.astype(float)) == pytest.approx(std, rel=0.1)
    assert len(np.unique(drawn[:, 0])) > 150


def test_a_task_of_another_federation_is_refused(agreed, tmp_path: Path) -> None:
    task = agreed("discriminant", options={"sums": 2})
    numbers = task.method.statistic.dimension
    with pytest.raises(ValueError, match="dimension must be the method's"):
        changed(task, tmp_path, {}, dimension=4)
    with pytest.raises(ValueError, match=f"second_dimension must be the method's {numbers}, got 3"):
        changed(task, tmp_path, {}, second_dimension=3)
    other = tmp_path / "other.safetensors"
    PublicTransform.fit(homes.rows_of(tmp_path, 1)).save(other)
    with pytest.raises(ValueError, match="transform must have SHA-256"):
        ModelTask.of(task.federation, other)


def test_a_user_s_own_rows_are_looked_at_before_its_noise(agreed, tmp_path: Path) -> None:
    task, good = agreed(), homes.rows_of(tmp_path, 0)
    broken = np.array(good.embeddings)
    broken[4, 2] = np.nan
    two = replace(good, labels=good.labels % 2, meta={"class_names": ["a", "c"]})
    findings, none = np.zeros((ROWS, K), np.int8), np.full(ROWS, -1)
    several = replace(good, labels=none, findings=findings)
    swapped = replace(task, terms=structs.replace(task.terms, class_names=("a", "c", "b")))
    counted = good.meta | {"classes": "inferred"}
    for of, user, rows, words in (
        (task, 0, good.subset(slice(8)), "training rows must be 12 as agreed, got 8"),
        (task, 9, good, r"identity must be one of \[0, 1, 2, 3\], got 9"),
        (task, 0, replace(good, embeddings=broken), "embeddings must be finite, got nan in row 4"),
        (task, 0, two, r"class_names must be \('a', 'b', 'c'\) as agreed"),
        (task, 0, replace(good, labels=good.labels + 6, meta={}), r"must lie in \[0, 3\), got 8"),
        (swapped, 0, good, r"class_names must be \('a', 'c', 'b'\) as agreed"),
        (swapped, 0, replace(good, meta=counted), r"must be \('a', 'c', 'b'\) as agreed, got"),
        (task, 0, several, "must hold one class a picture as agreed, got several"),
    ):
        with pytest.raises(ValueError, match=words):
            of.encoded(user, rows)
    broken[4, 2] = 3e38
    task.encoded(0, replace(good, embeddings=broken))


def test_a_transform_that_knows_a_user_s_rows_is_refused_by_that_user(agreed, tmp_path) -> None:
    """And by all users one that does not say which rows it has seen."""
    task, path = agreed(), tmp_path / "public.safetensors"
    seen, others = homes.rows_of(tmp_path, 2), homes.embeddings(99, 50)
    public = EmbeddingSet(
        embeddings=np.concatenate([others.embeddings, seen.embeddings[:1]]),
        labels=np.concatenate([others.labels, seen.labels[:1]]),
    )
    PublicTransform.fit(public).save(path)
    knows = changed(task, tmp_path, {"transform": file_hash(path)})
    knows.encoded(1, homes.rows_of(tmp_path, 1))
    with pytest.raises(ValueError, match="transform must not have seen private rows, got 1 of 12"):
        knows.encoded(2, seen)
    fitted = task.transform
    PublicTransform.from_tensors(fitted.tensors(), fitted_on=fitted.fitted_on).save(path)
    mute = changed(task, tmp_path, {"transform": file_hash(path)})
    with pytest.raises(ValueError, match="transform must say which rows it has seen"):
        mute.encoded(0, homes.rows_of(tmp_path, 0))


@pytest.mark.parametrize(
    ("unit", "group", "times", "words"),
    [
        ("record", 1, 1, "replace one record"),
        ("record", 2, 2, "replace 2 records"),
        ("user", 2, 2 * ROWS, "replace 2 users"),
    ],
)
def test_a_promise_for_users_and_groups_is_kept(
    unit: Any, group: int, times: int, words: str, agreed, tmp_path
) -> None:
    """`--unit user --group-size 2` must add the noise of two users, not of one record."""
    promise = Privacy(1.0, 1e-5, 0.75, unit=unit, group_size=group)
    task = agreed("discriminant", privacy=promise)
    single = changed(task, tmp_path, promise_fields(homes.PROMISE, len(task.terms.sizes)))
    assert task.guarantee.sensitivity == pytest.approx(times * single.guarantee.sensitivity)
    assert words in task.guarantee.report()["neighbouring"]


def test_the_noise_is_planned_for_the_users_that_a_sum_is_sure_to_hold(agreed, monkeypatch) -> None:
    keys = {i: PrivateKeys.generate().public.verifying.hex() for i in range(100)}
    server = Keys.of(PrivateKeys.generate().public)
    fixed: Any = {"version": 3, "protocol": "secagg", "users": keys, "servers": (server,)}
    federation = Federation(**fixed, dimension=7 * K, minimum=80)
    graph = federation.secagg(bytes(32)).graph
    assert graph.strays > 0
    assert federation.certain == graph.certain < 80
    assert structs.replace(federation, minimum=70).certain == 70
    monkeypatch.setattr(Federation, "certain", 2)
    assert agreed("discriminant").guarantee.min_survivors == 2


def test_a_users_clip_is_agreed_on_and_kept(agreed, tmp_path: Path) -> None:
    """It is part of what is digested; every user's whole numbers are as short as it says."""
    promise = replace(homes.PROMISE, unit="user")
    task = agreed("discriminant", privacy=promise, options={"user_clip": (1.5,)})
    options = task.federation.task["options"]
    assert options["user_clip"] == [1.5]
    longer = task.federation.task | {"options": options | {"user_clip": [2.0]}}
    assert structs.replace(task.federation, task=longer).digest != task.federation.digest
    for i in range(W):
        steps = task.encoded(i, homes.rows_of(tmp_path, i)).view(np.int64)
        length = np.linalg.norm(steps * task.mechanism.step)
        assert 1.49 < length <= 1.5
    report = task.released(zeros(task, frozenset([0, 2, 3])), facts=FACTS).report
    assert (report["method"], report["user_clip"]) == ("discriminant", 1.5)
    assert report["sensitivity"] == pytest.approx(3.0, rel=1e-9)
    free = {name: value for name, value in options.items() if name != "user_clip"}
    dimension = build_method("discriminant", task.transform, K, free).statistic.dimension
    bare = changed(task, tmp_path, {"options": free}, dimension=dimension)
    assert bare.guarantee.sensitivity > 3 * task.guarantee.sensitivity
    assert "user_clip" not in bare.released(zeros(bare, frozenset([0, 2, 3])), facts=FACTS).report
    for wrong in (-1, [-1.0], [1.0, 1.0, 1.0]):
        with pytest.raises(ValueError, match=r"options\.user_clip.* must be a "):
            changed(task, tmp_path, {"options": options | {"user_clip": wrong}})


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("unit", "group"), [("record", 1), ("record", 40), ("user", 3)])
def test_noise_and_bounds_depend_on_the_counts_of_sizes_alone(method, unit, group) -> None:
    """Whoever has the numbers of a roll computes what whoever has its lines does, to the bit."""
    sizes = torch.tensor([7, 1, 12, 12, 3, 7, 40, 1, 5, 3, 12])
    counts = {rows: int((sizes == rows).sum()) for rows in sizes.unique().tolist()}
    privacy = Privacy(1.0, 1e-5, unit=unit, group_size=group, noise_by="servers")
    transform = PublicTransform.identity(4)
    own = {} if METHODS[method].sums_rows else {"l2_reg": 0.1}
    for clip in ({}, {"user_clip": 2.0}):
        statistic = build_method(method, transform, 3, own | clip).statistic
        (listed, of_list), (_, counted) = (
            (guarantee, DiscreteGaussian.calibrated(statistic, guarantee, rows))
            for rows in (sizes, repeated(counts))
            for guarantee in [Guarantee.of(rows, statistic, privacy, 9)]
        )
        assert listed == Guarantee.of(repeated(counts), statistic, privacy, 9)
        assert of_list == counted
        distinct = repeated(counts).unique()
        bounds = dict(zip(distinct.tolist(), counted.norm_bounds(statistic, distinct), strict=True))
        assert [bounds[n] for n in sizes.tolist()] == of_list.norm_bounds(statistic, sizes)
