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
from tests.train_distributed.one_shot.builders import embedded, one_user, simulated
from train_distributed import Privacy, Release, release
from train_distributed.ledger.entry import Entry
from train_distributed.one_shot.extra_sums import FIRST_SHARE, FeatureSum
from train_distributed.one_shot.method import ReleaseState
from train_distributed.one_shot.registry import build_method
from train_distributed.one_shot.statistic import NoisedSum, Statistic

P, D, K, USERS, EACH = 12, 8, 3, 40, 30
PROMISE, BARE = Privacy(1.0, 1e-5), Privacy(math.inf, 1e-5)
TWO: dict[str, Any] = {"sums": 2, "class_noise": 0.1, "components": 4}


def rows_at(shift: float) -> EmbeddingSet:
    """Classes around a point far from where the public rows lie."""
    rng, every = np.random.default_rng(0), np.arange(USERS * EACH)
    x = shift + 1.5 * np.eye(K, P)[every % K] + 0.5 * rng.standard_normal((len(every), P))
    return embedded(x, every % K, K, users=every // EACH)


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


def moved(statistic: Statistic, state: ReleaseState, first: Tensor, second: Tensor, labels: Tensor):
    """How far a scaled submission of eight rows moves when one of them and its label change."""
    rest = torch.full((7, D + 1), 0.3)
    rest[:, 0] = 0.5
    sums = []
    for row, label in ((first, labels[0]), (second, labels[1])):
        y = torch.tensor([label, *([0] * 7)])
        chunk = state.rows(one_user(torch.cat([row[None], rest]), y))
        sums.append(statistic.submit(chunk) * statistic.scale)
    return float((sums[0] - sums[1]).norm()) / math.sqrt(statistic.compositions)


def longest(draw: torch.Generator) -> Tensor:
    x = torch.randn(D, generator=draw, dtype=torch.float64)
    return torch.cat([torch.full((1,), 0.5), (0.9999999 * x / x.norm()).float()])


@pytest.mark.parametrize("method", ["discriminant", "softmax"])
@pytest.mark.parametrize("length", [0.0, 0.7, 1.0])
def test_whatever_the_centre_is_a_record_moves_the_second_sum_no_further(method, length):
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
def test_directions_of_length_0_are_sent_as_zeros_and_left_out_again(method, more):
    """Of eight that were planned, fewer pay where rows turn out to lie as the public ones do."""
    draw, transform = torch.Generator().manual_seed(2), fitted()
    planned = {"sums": 2, "class_noise": 0.15, "components": D, **more}
    started = ReleaseState(build_method(method, transform, K, planned))
    state = started.receive(torch.tensor([*[0.02] * D, 0.9], dtype=torch.float64))
    own, sent_as = state.method.statistic, state.statistic
    assert state.method.dim < started.planned.dim == D + 1
    assert sent_as.dimension == started.planned.statistic.dimension
    chunk = one_user(torch.stack([longest(draw) for _ in range(20)]), torch.arange(20) % K)
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
        found = simulated(private, "discriminant", 1.0, seed, transform=transform, sums=sums)
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
