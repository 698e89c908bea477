"""The release as a whole: noise, dropouts, its report, and all that is refused before it spends."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from embed import EmbeddingSet, PublicTransform
from embed.encoding import Encoding
from pretrain.preprocess import Preprocess
from tests.embedding_sets import clusters
from tests.train_distributed.one_shot.builders import (
    METHODS_OF_CLASSES,
    embedded,
    events,
    made,
    refused_early,
    simulated,
)
from train_distributed import Privacy, Release, accounting, release
from train_distributed.one_shot.blind_averaging import TrainedHeads
from train_distributed.one_shot.release import reported, suitability
from train_distributed.one_shot.report_file import VERSION, Report
from train_distributed.one_shot.request import FaultInjection
from train_distributed.one_shot.statistic import Chunk
from train_distributed.one_shot.summation import Plan
from train_distributed.privacy.discrete_gaussian import discrete_gaussian
from train_distributed.privacy.mechanism import DiscreteGaussian
from train_distributed.released.evaluation import Evaluation

PROMISE, BARE = Privacy(1.0, 1e-5), Privacy(math.inf, 1e-5)
DATA = clusters(72 + 30, 3, 6, test=30, users=6)  # twelve training rows of each user
PUBLIC = PublicTransform.fit(clusters(200, 3, 6, seed=9).embeddings)


def learned(method: str = "discriminant", privacy: Privacy = BARE, **more: Any) -> Release:
    given: dict[str, Any] = {"transform": PUBLIC} | more
    return release(DATA, method, privacy, **given)


@pytest.mark.parametrize("method", METHODS_OF_CLASSES)
@pytest.mark.parametrize("noise", ["discrete", "float"])
def test_every_method_learns_at_large_epsilon(method: str, noise: str) -> None:
    report = learned(method, Privacy(500.0, 1e-5), noise=noise).report
    assert report["test_accuracy"] > 0.9
    assert report["suitable_for_release"] is (noise == "discrete")
    assert report["noise"] == noise
    assert "replace one record" in report["neighbouring"]
    json.dumps(dict(report), allow_nan=False)


@pytest.mark.parametrize("method", METHODS_OF_CLASSES)
@pytest.mark.parametrize("noise", ["discrete", "float"])
def test_the_noise_in_the_sum_is_what_the_promise_needs(method: str, noise: Any) -> None:
    """Observed standard deviation of the released sum against the exact curve, per coordinate."""
    data, users, least = DATA.subset(DATA.split == 0), 6, 5
    built = made(method, PUBLIC, 3)
    statistic = built.statistic
    honest = least - 1  # ⌊0.3 · 6⌋ = 1 may be dishonest
    needed = accounting.noise_multiplier(1.0, 1e-5, statistic.compositions)
    needed *= statistic.record_sensitivity(torch.tensor([12])) * math.sqrt(users / honest)

    def opened(epsilon: float) -> np.ndarray:
        privacy = Privacy(epsilon, 1e-5, honest_fraction=0.7)
        released: Any = release(data, built, privacy, noise=noise, min_survivors=least)
        return released.opened.numpy()

    exact = opened(math.inf)
    draws = [opened(1.0) - exact for _ in range(20)]
    assert len({draw.tobytes() for draw in draws}) == 20  # nobody has seeded them
    observed = np.concatenate(draws)
    spread = observed.std() / needed
    assert 1 - 4 / math.sqrt(2 * observed.size) < spread < 1 + 4 / math.sqrt(2 * observed.size)


def test_dropouts_divide_by_what_arrived_and_keep_the_promise() -> None:
    """With two of six users gone the average is that of the other four."""
    promise = Privacy(math.inf, 1e-5, honest_fraction=0.9)
    given: dict[str, Any] = {"l2_reg": 0.1}
    faults = FaultInjection(dropped=(2, 4))
    dropped = learned("softmax", promise, min_survivors=4, faults=faults, **given)
    kept = DATA.subset(~np.isin(DATA.users, [2, 4]))  # pyright: ignore[reportArgumentType]
    present = release(kept, "softmax", promise, transform=PUBLIC, **given)
    assert torch.allclose(dropped.weights, present.weights, rtol=0, atol=1e-6)
    assert (dropped.report["survivors"], dropped.report["honest_users"]) == (4, 4)
    assert "a rehearsal: 2 users were made to drop out" in dropped.report["unsuitable_because"]


def test_seeded_runs_repeat_and_are_marked() -> None:
    once, again, other = (simulated(DATA, "svm", 1.0, seed, transform=PUBLIC) for seed in (3, 3, 4))
    assert torch.equal(once.weights, again.weights)
    assert not torch.equal(once.weights, other.weights)
    assert "3" not in json.dumps(once.report.get("seed", ""))
    assert any("seed" in why for why in once.report["unsuitable_because"])


TRANSFORM = PublicTransform.identity(2)
SEEDED = "seeded: whoever knows the seed can subtract the noise"


def embedding_set(test_rows: int) -> EmbeddingSet:
    return clusters(12, 2, 2, scale=1, noise=0, test=test_rows, users=6)


def test_a_model_says_what_made_its_rows() -> None:
    """The set says it, or where it says nothing the transform does."""
    meta = {"encoder": "simclr-small", "encoder_hash": "a" * 64, "preprocess": asdict(Preprocess())}
    made, data = Encoding.of(meta), embedding_set(4)
    assert made is not None
    known = replace(data, meta=data.meta | meta | {"image_shape": [3, 8, 8]})
    sized = replace(made, preprocess=Preprocess(pictures=8))
    fitted = replace(TRANSFORM, encoding=replace(made, weights="shipped"))
    for embeddings, transform, expected in (
        (known, TRANSFORM, sized),
        (known, fitted, sized),
        (data, fitted, fitted.encoding),
        (None, TRANSFORM, None),
    ):
        bare = Release(torch.zeros(3, 2).double(), transform, ("a", "b"))
        released = reported(bare, {"method": "svm"}, {}, embeddings)
        assert released.encoding == expected
        assert released.report["encoding"] == (expected and expected.to_json())
        assert released.report["probabilities"].endswith("not calibrated")
        assert ("test_accuracy" in released.report) is (embeddings is not None)
        assert released.report["ledger"] == "none"
    assert "test_accuracy" not in reported(released, {}, {}, embedding_set(0)).report


@pytest.mark.parametrize(
    ("privacy", "noise", "more", "why"),
    [
        (PROMISE, "discrete", {}, []),
        (PROMISE, "float", {}, ["floating-point noise"]),
        (BARE, "float", {}, ["it has no noise: not private"]),
        (PROMISE, "discrete", {"rehearsed": "an audit", "others": ("x",)}, ["an audit", "x"]),
        (PROMISE, "float", {"seeded": True}, ["floating-point noise", SEEDED]),
    ],
)
def test_every_reason_makes_a_model_unsuitable(privacy, noise, more, why):
    verdict = suitability(privacy, noise, **{"seeded": False, **more})
    assert verdict["suitable_for_release"] is (not why)
    assert verdict.get("unsuitable_because", []) == why
    worse = Report.of(verdict).with_reason("another")
    assert (worse.unsuitable_because, worse.suitable_for_release) == ([*why, "another"], False)


@pytest.mark.parametrize(
    ("faults", "why"),
    [
        (FaultInjection(), "a rehearsal: 0 users were made to drop out"),
        (FaultInjection(dropped=[1]), "a rehearsal: 1 users were made to drop out"),
        (FaultInjection([1], range(1)), "an audit: 1 users or servers added no noise"),
        (FaultInjection(known_noise=[0, 2, 2]), "an audit: 2 users or servers added no noise"),
    ],
)
def test_a_rehearsal_is_never_suitable(faults: FaultInjection, why: str) -> None:
    """Discrete noise, declared classes, no transform: nothing else is wrong with it."""
    arguments: dict[str, Any] = {"vouch_for_transform": True, "min_survivors": 5}
    real = release(embedding_set(0), "discriminant", PROMISE, **arguments)
    assert real.report["suitable_for_release"] is True
    played = release(embedding_set(0), "discriminant", PROMISE, faults=faults, **arguments)
    assert played.report["unsuitable_because"] == [why]
    assert played.report["survivors"] == 6 - len(set(faults.dropped))
    told = {*played.report} ^ {*real.report}
    # a rehearsal leaves it at 1, and other priors with it
    assert told == {"unsuitable_because", "temperature", "other_priors"}


def test_every_key_comes_back_in_its_place_and_what_is_missing_promises_nothing(tmp_path) -> None:
    path = tmp_path / "report.json"
    written = {"zebra": [1], "private": True, "epsilon": 2, "encoding": None, "written": 3}
    Report.of(written).write(path)
    again = Report.read(path)
    assert list(again.items()) == [("report_version", VERSION), *written.items()]
    assert (again.private, again.epsilon, again.delta) == (True, 2.0, 1.0)
    path.write_text("{}")
    read = Report.read(path)
    assert (read.report_version, read.private, read.epsilon) == (VERSION, False, math.inf)
    assert not read.suitable_for_release
    assert Report.of({"epsilon": "not private"}).epsilon == math.inf


OTHER_KINDS: dict[str, list[Any]] = {
    **{"epsilon": [-1, "much"], "delta": [0], "users": [True], "private": ["yes"]},
    **{"report_version": [VERSION + 1], "test_metrics": [{"rows": 3}], "ledger": [{"file": "x"}]},
}


@pytest.mark.parametrize(("key", "value"), [(k, v) for k, of in OTHER_KINDS.items() for v in of])
def test_a_known_key_of_another_kind_is_one_line(key: str, value: Any, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(json.dumps({key: value}))
    with pytest.raises(ValueError, match=r"report\.json: report must") as refused:
        Report.read(tmp_path / "report.json")
    assert "\n" not in str(refused.value)
    assert f"$.{key}" in str(refused.value)


PRIVACY = st.builds(
    Privacy,
    st.sampled_from(np.geomspace(1e-3, 50, 99).tolist()),
    st.sampled_from([1e-3, 1e-5, 1e-9]),
    unit=st.sampled_from(["record", "user"]),
    noise_by=st.sampled_from(["users", "servers"]),
    group_size=st.sampled_from([1, 1, 3]),
)
REGULARISED: list[dict[str, Any]] = [{}, {"l2_reg": 1e-4}, {"l2_reg": 1.0}, {"l2_reg": 1e2}]
OF_SUMS: list[dict[str, Any]] = [
    *({}, {"moments": False}, {"user_clip": 0.03}, {"user_clip": 300.0}, {"rounds": 3}),
    {"sums": 2, "class_noise": 0.1},
    {"sums": 2, "class_noise": 30.0, "user_clip": (2.0, 0.3)},
    {"sums": 2, "class_noise": 0.1, "rounds": 2},
]
ASKED = st.one_of(
    st.tuples(
        st.sampled_from(["softmax", "svm", "logistic"]),
        st.sampled_from(REGULARISED + [each | {"user_clip": 0.5} for each in REGULARISED]),
    ),
    st.tuples(st.just("discriminant"), st.sampled_from(OF_SUMS)),
)
EVALUATIONS = [Evaluation(num_classes=7, bins=bins) for bins in (0, 10)]
ALWAYS = settings(max_examples=150, deadline=None)


def rows_of(users: int, rows: int, scale: float = 1.0) -> EmbeddingSet:
    """So many users of equally many rows of three columns."""
    draw, count = np.random.default_rng(0), users * rows
    x = draw.standard_normal((count, 3)) * 10.0 ** draw.uniform(-scale, scale, (count, 1))
    return embedded(x, draw.integers(0, 4, count), 4, users=np.arange(count) % users)


@ALWAYS
@given(PRIVACY, ASKED, st.sampled_from([1, 2, 5, 300, 3000]), st.sampled_from([1, 50, 900, 20_000]))
@example(Privacy(1e-3, 1e-9, unit="user"), ("discriminant", {}), 5, 20_000)  # 2^55 fine steps
def test_every_grid_is_one_that_the_sampler_takes(privacy, asked, users, rows):
    """Of every sum, and of an evaluation, before any is made; none of these is refused."""
    sizes = torch.full((users,), rows)
    sizes[0] = 1
    for method in (made(asked[0], PublicTransform.identity(3), 4, **asked[1]), *EVALUATIONS):
        for planned in Plan.of(method, sizes, privacy).integers:
            for std in np.unique(planned.stds_in_steps):
                discrete_gaussian(float(std), 1)
            assert planned.code.largest_sum < 2.0**63


@ALWAYS
@given(
    PRIVACY,
    ASKED,
    st.sampled_from([1, 2, 5]),
    st.sampled_from([1, 50]),
    st.sampled_from([0.0, 30.0]),
    st.sampled_from(["discrete", "discrete", "float"]),
)
def test_a_reservation_is_followed_by_a_noised_sum(privacy, asked, users, rows, scale, noise):
    data, (name, options) = rows_of(users, rows, scale), asked
    given = {"noise": noise, "allow_delta": True, "num_classes": 4, **options}
    with events() as seen:
        released = release(data, name, privacy, reserve=lambda _: seen.append("reserve"), **given)
    adders = 1 if noise == "float" else 2 if privacy.noise_by == "servers" else users
    assert seen == ["reserve"] + ["draw"] * adders * released.report["rounds"]
    assert released.weights.isfinite().all()


def test_noise_that_nobody_can_draw_is_no_plan() -> None:
    enough = {"sensitivity": 1.0, "honest": 1, "dimension": 2, "rounded_users": 0}
    DiscreteGaussian(local_std=2.0**53, step=1.0, **enough)
    for step in (np.array([1.0, 0.5]), 0.5):
        with pytest.raises(ValueError, match=r"must be <= 2\^53 steps.* got 1.801e\+16 steps"):
            DiscreteGaussian(local_std=2.0**53, step=step, **enough)


@pytest.mark.parametrize("stop", [ArithmeticError, MemoryError, KeyboardInterrupt])
def test_a_user_that_cannot_be_trained_costs_nothing(monkeypatch, stop):
    """The last of them, after all others have been."""
    right, trained = TrainedHeads.submit, []

    def submit(self: TrainedHeads, chunk: Chunk) -> torch.Tensor:
        trained.extend(chunk.users.tolist())
        if len(trained) == 6:
            raise stop("tolerance must be reached, got 1")
        return right(self, chunk)

    monkeypatch.setattr(TrainedHeads, "submit", submit)
    data = replace(rows_of(6, 4), users=np.repeat(range(6), [1, 2, 3, 4, 5, 9]))
    refused_early(pytest.raises(stop), data, "softmax")
