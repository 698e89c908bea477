"""A first sum finds where the rows lie: what it may show, what it serves, and what is refused."""

import math
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from embed.water_filling import LEAST_SHARE, Centre, noised_place
from train_distributed import Privacy, release
from train_distributed.ledger.entry import Entry
from train_distributed.one_shot.extra_sums import FIRST_SHARE, OWN_SHARE, FeatureSum
from train_distributed.one_shot.method import ReleaseState
from train_distributed.one_shot.model import Release
from train_distributed.one_shot.registry import build_method
from train_distributed.one_shot.request import FaultInjection
from train_distributed.one_shot.statistic import Chunk, NoisedSum, Statistic
from train_distributed.one_shot.summation import second_dimension

P, D, K, USERS, EACH = 12, 8, 3, 40, 30
PROMISE, BARE = Privacy(1.0, 1e-5), Privacy(math.inf, 1e-5)
TWO: dict[str, Any] = {"sums": 2, "class_noise": 0.1, "components": 4}


def rows_at(shift: float, seed: int = 0) -> EmbeddingSet:
    """Classes around a point far from where the public rows lie."""
    rng = np.random.default_rng(seed)
    labels = np.arange(USERS * EACH) % K
    x = shift + 1.5 * np.eye(K, P)[labels] + 0.5 * rng.standard_normal((len(labels), P))
    return EmbeddingSet(
        embeddings=x.astype(np.float32),
        labels=labels,
        users=np.arange(len(labels)) // EACH,
        meta={"class_names": ["a", "b", "c"]},
    )


def fitted(*, labels: bool = True) -> PublicTransform:
    rng = np.random.default_rng(1)
    classes = rng.integers(5, size=800)
    rows = 1.5 * np.eye(5, P)[classes] + rng.standard_normal((800, P))
    rows = rows.astype(np.float32)
    public = EmbeddingSet(embeddings=rows, labels=classes) if labels else rows
    return PublicTransform.fit(public, components=D)


def spent(fields: dict[str, Any]) -> float:
    """ε at δ = 1e-5 of the ledger's entry with these fields, of ε = 1."""
    known = {"kind": "release", "data": "rows", "method": "discriminant", "unit": "record"}
    return Entry(**known, epsilon=1.0, delta=1e-5, **fields).cost.at(1e-5)


def chunk_of(x: Tensor, y: Tensor) -> Chunk:
    return Chunk(torch.zeros(1, dtype=torch.int64), x[None], y[None], torch.tensor([len(y)]))


def moved(statistic: Statistic, state: ReleaseState, first: Tensor, second: Tensor, labels: Tensor):
    """How far a scaled submission of eight rows moves when one of them and its label change."""
    sums = []
    for row, label in ((first, labels[0]), (second, labels[1])):
        rest = torch.full((7, D + 1), 0.3)
        rest[:, 0] = 0.5
        y = torch.tensor([label, *([0] * 7)])
        chunk = state.rows(chunk_of(torch.cat([row[None], rest]), y))
        sums.append(statistic.submit(chunk) * statistic.scale)
    return float((sums[0] - sums[1]).norm()) / math.sqrt(statistic.compositions)


def longest(draw: torch.Generator) -> Tensor:
    x = torch.randn(D, generator=draw, dtype=torch.float64)
    return torch.cat([torch.full((1,), 0.5), (0.9999999 * x / x.norm()).float()])


def test_a_replaced_record_moves_the_first_sum_by_2_and_no_further() -> None:
    transform, draw = fitted(), torch.Generator().manual_seed(0)
    state = ReleaseState(build_method("discriminant", transform, K, TWO))
    statistic = state.statistic
    assert isinstance(statistic, FeatureSum)
    assert statistic.record_sensitivity(torch.tensor([8])) == pytest.approx(2.0)
    assert statistic.zero_out_sensitivity(torch.tensor([8])) == pytest.approx(math.sqrt(2))
    most = 0.0
    for _ in range(300):
        first, second = longest(draw), longest(draw)
        opposite = torch.cat([first[:1], -first[1:]])
        share = 2 * float(torch.rand((), generator=draw)) - 1
        shorter = torch.cat([first[:1], share * first[1:]])
        for other in (second, opposite, shorter):
            most = max(most, moved(statistic, state, first, other, torch.tensor([0, 1])))
    assert 2.0 * (1 - 1e-5) < most <= 2.0 * (1 + 1e-9)


@pytest.mark.parametrize("method", ["discriminant", "softmax"])
@pytest.mark.parametrize("length", [0.0, 0.7, 1.0])
def test_whatever_the_centre_is_a_record_moves_the_second_sum_no_further(
    method: str, length: float
) -> None:
    """Numbers that an operator publishes are its own; rows are as long as was planned."""
    transform, draw = fitted(), torch.Generator().manual_seed(1)
    options = {**TWO, **({"l2_reg": 4.0} if method == "softmax" else {})}
    started = ReleaseState(build_method(method, transform, K, options))
    most = 0.0
    for _ in range(60):
        first, second = longest(draw), longest(draw)
        place = (1 - 1e-9) * length * first[1:].double() / first[1:].double().norm()
        square = 0.05 + 0.95 * torch.rand(1, generator=draw, dtype=torch.float64)
        state = started.receive(torch.cat([place, square]))
        statistic = state.statistic
        assert statistic.dimension == started.planned.statistic.dimension
        bound = statistic.record_sensitivity(torch.tensor([8]))
        assert bound == started.planned.statistic.record_sensitivity(torch.tensor([8]))
        labels = torch.randint(K, (2,), generator=draw)
        most = max(most, moved(statistic, state, first, second, labels) / bound)
    assert (0.5 if method == "discriminant" else 0.05) < most <= 1 + 1e-9


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("discriminant", {}),
        ("discriminant", {"moments": False}),
        ("discriminant", {"user_clip": (9.0, 2.0)}),
        ("softmax", {"l2_reg": 4.0}),
        ("svm", {"l2_reg": 4.0, "prior": "equal"}),
        ("softmax", {"l2_reg": 4.0, "prior": "equal", "user_clip": (9.0, 0.5)}),
    ],
)
def test_directions_of_length_0_are_sent_as_zeros_and_left_out_again(
    method: str, more: dict[str, Any]
) -> None:
    """Of eight that were planned, fewer pay where rows turn out to lie as the public ones do."""
    draw, transform = torch.Generator().manual_seed(2), fitted()
    planned = {"sums": 2, "class_noise": 0.15, "components": D, **more}
    started = ReleaseState(build_method(method, transform, K, planned))
    state = started.receive(torch.tensor([*[0.02] * D, 0.9], dtype=torch.float64))
    own, sent_as = state.method.statistic, state.statistic
    assert state.method.dim < started.planned.dim == D + 1
    assert sent_as.dimension == started.planned.statistic.dimension
    chunk = chunk_of(torch.stack([longest(draw) for _ in range(20)]), torch.arange(20) % K)
    sent = sent_as.submit(state.rows(chunk))[0]
    alone = own.submit(replace(chunk, x=state.final_rows(chunk.x[0])[None]))[0]
    places = own.positions(sent_as)
    torch.testing.assert_close(sent[places], alone, rtol=0, atol=1e-3)
    others = torch.ones(len(sent), dtype=torch.bool)
    others[places] = False
    assert float(alone.abs().max()) > 0.1
    assert others.any()
    assert not sent[others].any()
    after = state.advance(sent * sent_as.scale, 20, 0.0)
    by_hand = state.method.fit(NoisedSum(alone * own.scale / own.scale, 20, 0.0))
    torch.testing.assert_close(after.fitted().weights, by_hand.weights, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("noise", [0.05, 0.15, 0.3, 0.5, 2.0])
@pytest.mark.parametrize("length", [0.0, 0.5, 1.0])
def test_no_centre_makes_more_directions_than_were_planned(noise: float, length: float) -> None:
    """Far from the public rows more of them pay, as public classes say less."""
    given = {"sums": 2, "class_noise": noise}
    state = ReleaseState(build_method("discriminant", fitted(), K, given))
    place = length * (1 - 1e-9) * torch.ones(D, dtype=torch.float64) / math.sqrt(D)
    state = state.receive(torch.cat([place, torch.ones(1, dtype=torch.float64)]))
    assert state.method.dim <= state.planned.dim
    rows = torch.stack([longest(torch.Generator().manual_seed(0))] * 3)
    assert state.mapped(rows).shape == (3, state.planned.dim)
    assert state.statistic.dimension == state.planned.statistic.dimension


def test_rows_beyond_a_users_count_are_in_neither_part_of_the_first_sum() -> None:
    first = FeatureSum(transform=fitted())
    draw = torch.Generator().manual_seed(3)
    x, y = torch.stack([longest(draw) for _ in range(4)])[None], torch.zeros(1, 4).long()
    user, count = torch.zeros(1).long(), torch.tensor([3])
    alone = first.submit(Chunk(user, x[:, :3], y[:, :3], count))
    assert torch.equal(first.submit(Chunk(user, x, y, count)), alone)


def test_what_the_first_sum_finds_is_of_means_and_of_their_noise() -> None:
    transform, draw = fitted(), torch.Generator().manual_seed(3)
    statistic, rows, std = FeatureSum(transform=transform), 250, 60.0
    total = rows * torch.cat([0.4 * longest(draw)[1:].double(), torch.tensor([0.6]).double()])
    found = statistic.found(NoisedSum(total, rows, std))
    mean = total / rows
    by_hand = noised_place(mean[:-1], float(mean[-1]), std / rows, transform.public)
    assert torch.equal(found, by_hand)
    centre = statistic.centre(found)
    assert torch.equal(centre.place, found[:-1])
    away = float((found[:-1] - transform.public.mean).square().sum())
    assert centre.common == pytest.approx(away / float(found[-1]))
    assert centre.share == pytest.approx(max(LEAST_SHARE, centre.common**2 / 2))


def test_rows_of_another_length_are_not_mapped() -> None:
    long = PublicTransform.identity(D, 8.0, 0.5)
    with pytest.raises(ValueError, match="transform must clip features to length 1"):
        build_method("discriminant", long, K, {"class_noise": 0.1})


def test_a_release_about_its_rows_is_worth_more_and_says_what_it_did(tmp_path) -> None:
    private, transform, fields = rows_at(8.0), fitted(), {}
    plain = release(private, "discriminant", PROMISE, transform=transform, sums=1)
    found = release(private, "discriminant", PROMISE, transform=transform, reserve=fields.update)
    report = found.report
    assert (report["rounds"], plain.report["rounds"]) == (2, 1)
    assert report["share_per_round"] == [FIRST_SHARE, 1 - FIRST_SHARE]
    assert report["common_share"] > 0.5
    assert "common_share" not in plain.report
    assert found.opened is not None
    assert spent(fields) == pytest.approx(1.0, rel=1e-6)
    found.save(tmp_path / "model")
    again = Release.load(tmp_path / "model")
    assert torch.equal(again.scores(private.embeddings), found.scores(private.embeddings))


def test_rows_far_from_the_public_ones_are_told_apart_better_about_their_centre() -> None:
    private, transform = rows_at(8.0), fitted()
    truth = torch.from_numpy(private.labels)
    right = {1: 0.0, 2: 0.0}
    for sums, seed in product(right, range(10)):
        draw = torch.Generator().manual_seed(seed)
        given: dict[str, Any] = {"sums": sums, "noise": "float", "generator": draw}
        found = release(private, "discriminant", PROMISE, transform=transform, **given)
        right[sums] += float((found.predict(private.embeddings) == truth).float().mean()) / 10
    assert right[2] > right[1] + 0.05


@pytest.mark.parametrize("labels", [True, False])
def test_the_model_is_that_of_rows_mapped_by_hand(labels: bool) -> None:
    """Without noise the centre is the rows' mean; dimension and sensitivity are those planned."""
    private, transform = rows_at(3.0), fitted(labels=labels)
    for method in ("discriminant", "softmax"):
        given: dict[str, Any] = {"l2_reg": 0.1} if method == "softmax" else {}
        found = release(private, method, BARE, transform=transform, **given)
        y = transform(private.embeddings)[:, 1:].double()
        centre = Centre.of(y.mean(0), float(y.square().sum(1).mean()), transform.public)
        assert found.transform.directions is not None
        q = found.report["directions"]
        by_hand = transform.mapped(0.0, q, centre)
        rows = by_hand(private.embeddings)
        assert (found.transform(private.embeddings) - rows).abs().max() < 1e-4
        assert found.report["common_share"] == pytest.approx(centre.common, rel=1e-4)


def test_users_that_drop_out_are_in_neither_sum() -> None:
    private, transform = rows_at(3.0), fitted()
    gone = FaultInjection(dropped=(0, 1, 2))
    kept = private.subset(private.users > 2)  # pyright: ignore[reportOptionalOperand]
    given: dict[str, Any] = {"min_survivors": USERS - 3, "faults": gone}
    found = release(private, "discriminant", BARE, transform=transform, **given)
    alone = release(kept, "discriminant", BARE, transform=transform)
    torch.testing.assert_close(found.weights, alone.weights, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sums": 3, "class_noise": 0.1}, "sums must be one of"),
        ({"sums": 2}, "sums must be 1, got 2"),
        (
            {"sums": 1, "class_noise": 0.1, "user_clip": (1.0, 2.0)},
            "user_clip must be left out of a",
        ),
        (
            {"class_noise": 0.1, "user_clip": (1.0, 2.0, 3.0)},
            "user_clip must be one number, or one of",
        ),
        ({"components": 3}, "components must be left out without class_noise"),
        ({"class_noise": -1.0}, r"class_noise must be in \[0, inf\)"),
        ({"class_noise": math.nan}, r"class_noise must be in \[0, inf\)"),
        ({"class_noise": 0.1, "components": 99}, r"components must be in \[1, 8\], got 99"),
    ],
)
def test_settings_that_do_not_fit_are_refused(given: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_method("discriminant", fitted(), K, given)


def test_rounds_after_both_sums_are_of_mapped_rows_and_all_keep_one_promise() -> None:
    private, transform, fields = rows_at(3.0), fitted(), {}
    found = release(
        private, "discriminant", PROMISE, transform=transform, reserve=fields.update, rounds=3
    )
    left = 1 - FIRST_SHARE
    shares = [FIRST_SHARE, left * OWN_SHARE, *3 * [left * (1 - OWN_SHARE) / 3]]
    assert found.report["share_per_round"] == pytest.approx(shares)
    assert sum(shares) == pytest.approx(1)
    assert spent(fields) == pytest.approx(1.0, rel=1e-6)
    with pytest.raises(ValueError, match="rounds must be left out in a federation, got 3"):
        second_dimension(build_method("discriminant", transform, K, {**TWO, "rounds": 3}))


def test_hostile_centres_are_refused_by_users() -> None:
    state = ReleaseState(build_method("discriminant", fitted(), K, TWO))
    for value in (math.nan, math.inf, 1e300, 0.5):
        with pytest.raises(ValueError, match="centre"):
            state.receive(torch.full((D + 1,), value, dtype=torch.float64))
    with pytest.raises(ValueError, match="centre must be"):
        state.receive(torch.zeros(D, dtype=torch.float64))
    for square in (math.nan, math.inf, -0.1, 0.01, 1.1):
        numbers = torch.zeros(D + 1, dtype=torch.float64)
        numbers[-1] = square
        with pytest.raises(ValueError, match="centre_squared_length must be in"):
            state.receive(numbers)


def test_the_noise_of_the_first_sum_is_that_of_its_share() -> None:
    private, transform, promise = rows_at(3.0), fitted(), Privacy(3.0, 1e-5)
    given: dict[str, Any] = {"transform": transform, "noise": "float"}
    seen = torch.stack(
        [
            release(
                private,
                "discriminant",
                promise,
                generator=torch.Generator().manual_seed(seed),
                **given,
            ).opened[:D]  # pyright: ignore[reportOptionalSubscript]
            for seed in range(100)
        ]
    )
    report = release(private, "discriminant", promise, **given).report
    expected = report["local_noise_std_per_round"][0] * math.sqrt(USERS)
    assert float(seen.std(0).mean()) == pytest.approx(expected, rel=0.1)


def test_clips_of_both_sums_bound_what_a_user_moves() -> None:
    """Where all rows of a user are replaced; about the public mean, which needs no length."""
    by_user = Privacy(3.0, 1e-5, unit="user")
    private, transform = rows_at(0.0), fitted()
    one = release(private, "discriminant", by_user, transform=transform, user_clip=5.0)
    assert one.report["rounds"] == 1
    two = release(private, "discriminant", by_user, transform=transform, user_clip=(4.0, 5.0))
    assert two.report["rounds"] == 2
    assert two.report["sensitivity_per_round"] == pytest.approx([8.0, 10.0], rel=1e-6)
    assert release(private, "discriminant", by_user, transform=transform).report["rounds"] == 1
    method = build_method("discriminant", transform, K, {**TWO, "user_clip": (4.0, 5.0)})
    assert method.first is not None
    assert float(method.first.user_sensitivity(torch.tensor([EACH])).max()) == pytest.approx(8.0)
    draw = torch.Generator().manual_seed(0)
    for sign in (1.0, -1.0):
        x = torch.stack([longest(draw)] * EACH)
        x[:, 1:] *= sign
        sent = method.first.submit(chunk_of(x, torch.zeros(EACH, dtype=torch.int64)))
        assert float((sent * method.first.scale).norm()) <= 4.0
