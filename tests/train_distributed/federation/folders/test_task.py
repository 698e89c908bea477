"""A model from a federation is the model of its survivors' plain sum, and what was agreed holds."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import structs

from embed import EmbeddingSet, PublicTransform
from tests.train_distributed.federation.folders.conftest import embeddings
from tests.train_distributed.federation.folders.tasks import FACTS, ROWS, K, W, embeddings_of
from tests.train_distributed.secure_sum.simulate import simulate_sum
from train_distributed import accounting, release
from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.documents.terms import file_hash
from train_distributed.federation.model_task import ModelTask
from train_distributed.ledger.entry import Entry
from train_distributed.one_shot.method import ReleaseState
from train_distributed.one_shot.registry import build_method
from train_distributed.one_shot.source import EmbeddingUsers
from train_distributed.one_shot.statistic import Chunk, NoisedSum
from train_distributed.partition import split
from train_distributed.privacy.promise import Privacy
from train_distributed.released.card import card
from train_distributed.secure_sum.opening import Opened


@pytest.mark.parametrize("method", ["discriminant", "softmax", "svm"])
def test_without_noise_the_model_is_that_of_the_plain_sum(
    method: str, make: Callable[..., ModelTask], tmp_path: Path
) -> None:
    options = {"prior": "equal"} if method in ("softmax", "svm") else {}
    task, path = make(method, options=options), tmp_path / "public.safetensors"
    encoded = [task.encoded(i, embeddings_of(tmp_path, i)) for i in range(W)]
    sent = np.stack(encoded)
    result = simulate_sum(sent, drop={2: [1]}, dropout_fraction=0.3)
    opened = Opened(result.total, frozenset(result.survivors))
    model = task.released(opened, facts=FACTS)
    plain = build_method(method, PublicTransform.load(path), K, task.terms.options)
    expected = torch.zeros(plain.statistic.dimension, dtype=torch.float64)
    for i in (0, 2, 3):
        expected += plain.statistic.submit(_chunk(task, embeddings_of(tmp_path, i)))[0]
    std = task.mechanism.local_std * 3**0.5
    torch.testing.assert_close(
        model.weights, plain.fit(NoisedSum(expected, 3 * ROWS, std)).weights, rtol=2e-3, atol=2e-3
    )
    assert model.class_names == ("a", "b", "c")
    assert model.report["epsilon_of_all_sessions"] == pytest.approx(1.0, rel=1e-6)
    agreed = structs.replace(task.federation, sessions=2)
    twice = ModelTask.of(agreed, path).released(opened, facts=FACTS)
    (plan,), delta = task.plan.integers, task.guarantee.privacy.delta
    both = accounting.epsilon(delta * math.exp(-2 * plan.zeta), plan.noise_multiplier, 2)
    assert twice.report["epsilon_of_all_sessions"] >= both + 4 * plan.zeta
    assert 1.3 < twice.report["epsilon_of_all_sessions"] < 2
    assert model.report["noise"] == "discrete"
    assert model.report["suitable_for_release"]


def test_what_was_known_of_the_classes_is_agreed_on_by_hash_and_reported(
    make: Callable[..., ModelTask], knowing: Path, tmp_path: Path
) -> None:
    task = make("discriminant", transform=knowing)
    sent = np.stack([task.encoded(i, embeddings_of(tmp_path, i)) for i in range(W)])
    opened = Opened(simulate_sum(sent).total, frozenset(range(W)))
    report = task.released(opened, facts=FACTS).report
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


def _chunk(task: ModelTask, embeddings: EmbeddingSet) -> Chunk:
    partition = split(torch.from_numpy(np.array(embeddings.labels)), 1)
    (chunk,) = EmbeddingUsers(embeddings, task.transform, partition).chunks()
    return ReleaseState(task.method).rows(chunk).rounded(task.mechanism.grid)


@pytest.mark.parametrize("servers", [0, 1])
def test_the_report_says_how_it_was_summed(servers: int, make: Callable[..., ModelTask]) -> None:
    """Protocol, survivors, session, bytes and whom it holds against: as they were, not a guess."""
    task = make(servers=servers)
    words = np.zeros(task.federation.dimension, np.uint64)
    report = task.released(Opened(words, frozenset([0, 2, 3])), facts=FACTS).report
    assert report["protocol"] == ("secagg", "shares")[servers]
    assert "single user" not in report["secure_sum"]
    assert ("shares" in report["secure_sum"]) == bool(servers)
    assert (report["users"], report["survivors"]) == (4, 3)
    assert report["surviving_users"] == [f"user {i} (hospital-{i})" for i in (0, 2, 3)]
    assert report["missing"] == {"user 1 (hospital-1)": "masked input"}
    assert (report["session"], report["bytes_per_user"]) == ("5e" * 32, 1234)
    assert report["federation"] == task.federation.digest.hex()
    assert "server" in report["holds_against"]
    assert report["noise_by"] == ("users", "servers")[servers]
    alone = task.released(Opened(words, frozenset([0, 2, 3])), facts=FACTS)
    text = card(alone, markup="markdown")
    for words in (report["secure_sum"], "hospital-1", "3 of the 4 that were invited"):
        assert words in text
    assert "One process" not in text
    assert ("as long as one server is honest" in text) == bool(servers)


@pytest.mark.parametrize("round_of_liar", [0, 1])
def test_a_sum_out_of_reach_is_not_suitable_and_says_why(
    round_of_liar: int, make: Callable[..., ModelTask]
) -> None:
    task = make("discriminant", options={"sums": 2})
    silent = [np.zeros(each.dimension, np.uint64) for each in task.plan.integers]
    users = frozenset(range(W))
    honest = [Opened(words, users) for words in silent]
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


def test_what_all_others_could_learn_stands_beside_epsilon(make: Callable[..., ModelTask]) -> None:
    task = make(sessions=2)
    words = np.zeros(task.federation.dimension, np.uint64)
    model = task.released(Opened(words, frozenset(range(W))), facts=FACTS)
    alone = model.report["epsilon_if_all_others_collude"]
    assert model.report["epsilon"] < alone < task.epsilon_if_all_others_collude
    assert "an honest user has its own noise alone: ε = " in card(model, markup="markdown")


@pytest.mark.parametrize("far", [False, True])
def test_about_a_centre_the_model_is_that_of_one_process(
    make: Callable[..., ModelTask], elsewhere: Path, tmp_path: Path, far: bool
) -> None:
    """Both sums as the users make them, the second one at the bytes that the operator publishes."""
    options, given = {"sums": 2}, {"transform": elsewhere} if far else {}
    task = make("discriminant", options=options, privacy=Privacy(1e7, 1e-5, 0.75), **given)
    width = task.transform.dim
    agreed = task.federation
    assert agreed.dimension == width
    assert agreed.second_dimension == task.method.statistic.dimension > width
    assert agreed.largest_frame > 16 * agreed.second_dimension
    everybody = frozenset(range(W))
    first = [task.encoded(i, embeddings_of(tmp_path, i)) for i in range(W)]
    opened = Opened(np.stack(first).sum(0, dtype=np.uint64), everybody)
    with pytest.raises(ValueError, match="sum of the method must be opened first"):
        task.released(opened, facts=FACTS)
    published = task.publish(opened)
    asked = [task.at_centre(i, embeddings_of(tmp_path, i)) for i in range(W)]
    for hostile in (np.full(width, np.nan), np.full(width, 1e9), np.zeros(width - 1)):
        with pytest.raises(ValueError, match="centre"):
            asked[0](hostile.tobytes())
    sent = np.stack([at(published)() for at in asked])
    second = Opened(sent.sum(0, dtype=np.uint64), everybody)
    model = task.released(opened, second, facts=FACTS)
    sets = [embeddings_of(tmp_path, i) for i in range(W)]
    pooled = EmbeddingSet(
        embeddings=np.concatenate([each.embeddings for each in sets]),
        labels=np.concatenate([each.labels for each in sets]),
    )
    alone = release(
        pooled,
        "discriminant",
        Privacy(math.inf, 1e-5),
        transform=task.transform,
        num_classes=K,
        partition=split(torch.from_numpy(pooled.labels), W),
        **task.terms.options,
    )
    assert (alone.report["common_share"] > 0.3) == far
    for name in ("directions", "centre"):
        found, expected = getattr(model.transform, name), getattr(alone.transform, name)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)
    torch.testing.assert_close(model.weights, alone.weights, rtol=2e-2, atol=2e-2)
    report = model.report
    assert report["rounds"] == 2
    assert report["share_per_round"] == [0.1, 0.9]
    assert report["epsilon_of_all_sessions"] == pytest.approx(1e7, rel=1e-6)


def test_one_entry_is_of_both_sums(make: Callable[..., ModelTask], tmp_path: Path) -> None:
    task = make("discriminant", options={"sums": 2}, privacy=Privacy(20.0, 1e-5, 0.75))
    entry = Entry(
        **task.plan.spends(),
        kind="release",
        data="rows",
        method="discriminant",
        unit="record",
        epsilon=20.0,
        delta=1e-5,
    )
    assert len(task.plan.integers) == 2
    assert entry.cost.at(1e-5) == pytest.approx(20.0, rel=1e-6)
    numbers = task.method.statistic.dimension
    other = structs.replace(task.federation, second_dimension=3)
    with pytest.raises(ValueError, match=f"second_dimension must be the method's {numbers}, got 3"):
        ModelTask.of(other, tmp_path / "public.safetensors")


@pytest.mark.parametrize(
    ("servers", "options", "words"),
    [
        (1, {"rounds": 2}, "rounds must be left out in a federation, got 2"),
        (0, {"rounds": 2}, "rounds must be left out in a federation, got 2"),
    ],
)
def test_further_sums_that_a_federation_has_not_are_refused(
    servers: int, options: dict[str, Any], words: str, make: Callable[..., ModelTask]
) -> None:
    with pytest.raises(ValueError, match=words):
        make("discriminant", servers=servers, options=options)


def test_noise_is_fresh_and_as_wide_as_planned(
    make: Callable[..., ModelTask], tmp_path: Path
) -> None:
    task = make()
    encoded = task.encoded(0, embeddings_of(tmp_path, 0))
    drawn = np.stack([(task.noised(encoded) - encoded).view(np.int64) for _ in range(200)])
    std = float(task.mechanism.stds_in_steps)
    assert np.std(drawn.astype(float)) == pytest.approx(std, rel=0.1)
    assert len(np.unique(drawn[:, 0])) > 150


def test_what_was_agreed_is_checked(make: Callable[..., ModelTask], tmp_path: Path) -> None:
    task, path = make(), tmp_path / "public.safetensors"
    few = embeddings_of(tmp_path, 0).subset(slice(8))
    with pytest.raises(ValueError, match="training rows must be 12 as agreed, got 8"):
        task.encoded(0, few)
    with pytest.raises(ValueError, match=r"identity must be one of \[0, 1, 2, 3\], got 9"):
        task.encoded(9, embeddings_of(tmp_path, 0))
    other = tmp_path / "other.safetensors"
    PublicTransform.fit(embeddings_of(tmp_path, 1)).save(other)
    with pytest.raises(ValueError, match="transform must have SHA-256"):
        ModelTask.of(task.federation, other)
    with pytest.raises(ValueError, match="dimension must be the method's"):
        ModelTask.of(structs.replace(task.federation, dimension=4), path)


def test_a_user_s_own_rows_are_looked_at_before_its_noise(
    make: Callable[..., ModelTask], tmp_path: Path
) -> None:
    task = make()
    good = embeddings_of(tmp_path, 0)
    broken = np.array(good.embeddings)
    broken[4, 2] = np.nan
    with pytest.raises(ValueError, match="embeddings must be finite, got nan in row 4"):
        task.encoded(0, replace(good, embeddings=broken))
    broken[4, 2] = 3e38
    task.encoded(0, replace(good, embeddings=broken))
    with pytest.raises(ValueError, match=r"class_names must be \('a', 'b', 'c'\) as agreed"):
        task.encoded(0, replace(good, labels=good.labels % 2, meta={"class_names": ["a", "c"]}))
    with pytest.raises(ValueError, match=r"labels must lie in \[0, 3\), got 8"):
        task.encoded(0, replace(good, labels=good.labels + 6, meta={}))
    swapped = replace(task, terms=structs.replace(task.terms, class_names=("a", "c", "b")))
    with pytest.raises(ValueError, match=r"class_names must be \('a', 'c', 'b'\) as agreed"):
        swapped.encoded(0, good)


def _swap(home: Path, transform: PublicTransform) -> ModelTask:
    """The federation as if its operator had chosen this transform."""
    fed, path = home / "fed", home / "public.safetensors"
    transform.save(path)
    federation = Federation.load(fed / "federation.json")
    changed = federation.task | {"transform": file_hash(path)}
    return ModelTask.of(structs.replace(federation, task=changed), path)


def test_a_transform_that_knows_a_user_s_rows_is_refused_by_that_user(
    make: Callable[..., ModelTask], tmp_path: Path
) -> None:
    make()
    seen, others = embeddings_of(tmp_path, 2), embeddings(99, 50)
    public = EmbeddingSet(
        embeddings=np.concatenate([others.embeddings, seen.embeddings[:1]]),
        labels=np.concatenate([others.labels, seen.labels[:1]]),
    )
    task = _swap(tmp_path, PublicTransform.fit(public))
    task.encoded(1, embeddings_of(tmp_path, 1))
    with pytest.raises(ValueError, match="transform must not have seen private rows, got 1 of 12"):
        task.encoded(2, seen)


def test_a_transform_that_says_nothing_of_its_rows_is_refused(
    make: Callable[..., ModelTask], tmp_path: Path
) -> None:
    fitted = make().transform
    mute = PublicTransform.from_tensors(fitted.tensors(), fitted_on=fitted.fitted_on)
    task = _swap(tmp_path, mute)
    with pytest.raises(ValueError, match="transform must say which rows it has seen"):
        task.encoded(0, embeddings_of(tmp_path, 0))


def test_options_reach_the_method(make: Callable[..., ModelTask]) -> None:
    task = make(options={"l2_reg": 7.0})
    agreed = task.federation.task["options"]
    assert agreed.keys() == {"sums", "class_noise", "components", "l2_reg", "prior"}
    assert (agreed["sums"], agreed["l2_reg"], agreed["prior"]) == (1, 7.0, "equal")
    assert dict(task.method.report())["l2_reg"] == 7.0
