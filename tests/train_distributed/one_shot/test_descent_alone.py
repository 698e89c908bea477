"""Gradients in place of the method's own sum, where rows have much in common.

What a record moves, what either course costs, what the report says of both, and what is refused.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

import train_distributed.one_shot.release as release_module
from embed.recentred import recentred
from tests.train_distributed.one_shot.test_centring import (
    EACH,
    PROMISE,
    USERS,
    K,
    P,
    fitted,
    found_at,
    longest,
    moved,
    rows_at,
    spent,
)
from train_distributed import Privacy, release
from train_distributed.ledger.entry import gaussian_fields
from train_distributed.one_shot.centring import CENTRE_SHARE, RowsAbout
from train_distributed.one_shot.course import Course
from train_distributed.one_shot.further_rounds import ALONE, Descent
from train_distributed.one_shot.model import BY_GRADIENTS, Release, reading
from train_distributed.one_shot.registry import build_method
from train_distributed.one_shot.rounds import (
    Planned,
    courses_of,
    epsilon_if_all_others_collude,
    further_sums,
    promise_report,
    sums_of,
    zeta_of,
)
from train_distributed.one_shot.summation import IntegerSum
from train_distributed.partition import split
from train_distributed.privacy.composition import Cost
from train_distributed.privacy.integer_gaussian import DiscreteGaussianMechanism
from train_distributed.released.card.page import card
from train_distributed.simulation.shared_training import RowsInMemory, simulate

BARE = Privacy(math.inf, 1e-5)
ALWAYS: dict[str, Any] = {"centre": "private", "descent_above": 0.0}
SIZES = torch.full((USERS,), EACH)


def plans_of(sums: Sequence[Planned]) -> list[DiscreteGaussianMechanism]:
    return [each.plan for _, each in sums if isinstance(each, IntegerSum)]


@pytest.mark.parametrize("length", [0.0, 0.7, 1.0])
def test_whatever_the_centre_is_a_record_moves_a_gradient_by_2c_and_no_further(
    length: float,
) -> None:
    draw = torch.Generator().manual_seed(1)
    started, most = Course(build_method("discriminant", fitted(), K, ALWAYS)), 0.0
    for _ in range(200):
        first, second = longest(draw), longest(draw)
        course = started.told(found_at(length, first[1:].double()))
        assert course.about is not None
        assert course.descent is not None
        wild = 10 ** float(torch.randint(-2, 6, (), generator=draw))
        weights = wild * torch.randn(P, K, generator=draw, dtype=torch.float64)
        gradient = replace(course.descent.gradient, weights=weights)
        bound = gradient.record_sensitivity(torch.tensor([8]))
        labels = torch.randint(K, (2,), generator=draw)
        most = max(most, moved(gradient, course, first, second, labels) / bound)
    assert 0.7 < most <= 1


def test_weights_score_the_given_rows_as_those_about_the_centre() -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.cat([torch.full((9, 1), 0.8), torch.randn(9, P - 1, generator=draw)], 1).double()
    about = RowsAbout(torch.randn(P - 1, generator=draw, dtype=torch.float64), 0.4, 0.8)
    weights = torch.randn(P, K, generator=draw, dtype=torch.float64)
    torch.testing.assert_close(about.rows(x) @ weights, x @ about.weights_as_given(weights))


def test_the_model_is_that_of_gradients_about_the_mean_of_all_rows() -> None:
    private, transform = rows_at(4.0), fitted()
    found = release(private, "discriminant", BARE, transform=transform, **ALWAYS)
    x, y = transform(private.embeddings), torch.from_numpy(private.labels)
    centre, squares = x[:, 1:].double().mean(0), x[:, 1:].double().square().sum(1)
    around = recentred(transform, centre, None, float(squares.mean()) / transform.reach**2)
    moved = torch.cat([x[:, :1], (x[:, 1:] - centre.float()) / around.length], 1).double()
    descent = Descent.from_zero(around, K)
    assert not descent.weights.any()
    for _ in range(ALONE):
        residual = torch.softmax(moved @ descent.weights, 1) - torch.eye(K)[y]
        norms = moved.norm(dim=1) * residual.norm(dim=1)
        residual *= (descent.clip_norm / norms).clamp(max=1)[:, None]
        descent = descent.after((moved.mT @ residual).flatten(), len(y), 0.0)
    assert found.transform.centre is None
    scores = found.scores(private.embeddings)
    by_hand = moved @ descent.released
    torch.testing.assert_close(scores, by_hand, rtol=1e-4, atol=1e-4)
    assert (found.predict(private.embeddings) == y).double().mean() > 0.9


def test_the_sums_keep_one_promise_and_the_report_says_what_they_were(tmp_path) -> None:
    private, fields = rows_at(8.0), {}
    given: dict[str, Any] = {"centre": "private", "descent_above": 0.5}
    found = release(
        private, "discriminant", PROMISE, transform=fitted(), reserve=fields.update, **given
    )
    report = found.report
    assert (report["rounds"], report["descent_rounds"]) == (1 + ALONE, ALONE)
    shares = [CENTRE_SHARE, *ALONE * [(1 - CENTRE_SHARE) / ALONE]]
    assert report["share_per_round"] == pytest.approx(shares)
    assert sum(shares) == pytest.approx(1)
    assert spent(fields) == pytest.approx(1.0, rel=1e-6)
    assert spent(fields) <= 1 + 1e-9
    assert report["common_share"] > 0.7
    assert report["prior"] == "empirical"
    assert "class_prior" not in report
    assert report["probabilities"] == BY_GRADIENTS == reading("discriminant", ALONE)
    assert found.opened is not None
    assert len(found.opened) == P + ALONE * P * K
    assert report["bytes_per_round"] == [8 * P, *ALONE * [8 * P * K]]
    found.save(tmp_path / "model")
    again = Release.load(tmp_path / "model")
    assert torch.equal(again.scores(private.embeddings), found.scores(private.embeddings))
    assert f"{ALONE} sums of clipped" in " ".join(card(again, markup="markdown").split())


def test_rows_like_the_public_ones_are_summed_as_without_it() -> None:
    private, transform = rows_at(0.0), fitted()
    either: tuple[dict[str, Any], ...] = ({"descent_above": 0.9}, {})
    models = [
        release(
            private,
            "discriminant",
            PROMISE,
            transform=transform,
            noise="float",
            generator=torch.Generator().manual_seed(0),
            centre="private",
            **options,
        )
        for options in either
    ]
    assert torch.equal(models[0].weights, models[1].weights)
    assert "descent_rounds" not in models[0].report
    assert models[0].report["class_prior"] == models[1].report["class_prior"]


@pytest.mark.parametrize("promise", [PROMISE, Privacy(0.1, 1e-6), Privacy(8.0, 1e-5)])
def test_either_course_keeps_the_promise_and_the_report_states_the_worse(promise: Privacy) -> None:
    method = build_method("discriminant", fitted(), K, ALWAYS)
    courses = courses_of(method, SIZES, promise)
    zeta = max(zeta_of(each, SIZES) for each in courses)
    planned = [sums_of(each, SIZES, discrete=True, generator=None, zeta=zeta) for each in courses]
    own, alone = planned
    assert [len(each) for each in planned] == [2, 1 + ALONE]
    assert own[0][1].local_std == alone[0][1].local_std  # it does not know which will follow
    for sums in planned:
        cost = Cost.of(plan.cost for plan in plans_of(sums))
        assert cost.at(promise.delta) <= promise.epsilon * (1 + 1e-9)
    either = [promise_report(own, alone), promise_report(alone, own)]
    for name in ("zero_out_epsilon", "epsilon_if_all_others_collude"):
        assert either[0][name] == either[1][name]
        by_course = [promise_report(each)[name] for each in planned]
        assert by_course[0] != by_course[1]
        assert either[0][name] == max(by_course)
    assert epsilon_if_all_others_collude(own, promise.delta) > promise.epsilon


def test_a_ledger_is_charged_with_the_dearer_course() -> None:
    method = build_method("discriminant", fitted(), K, ALWAYS)
    cheap, dear = (
        plans_of(sums_of(rounds, SIZES, discrete=True, generator=None))
        for rounds in (
            courses_of(method, SIZES, Privacy(0.5, 1e-5))[1],
            courses_of(method, SIZES, PROMISE)[0],
        )
    )
    alone = gaussian_fields(*dear)
    for either in (gaussian_fields(*cheap, or_else=dear), gaussian_fields(*dear, or_else=cheap)):
        assert either["sigma"] == alone["sigma"] < gaussian_fields(*cheap)["sigma"]


def test_simulations_take_the_course_that_a_release_takes() -> None:
    transform = fitted()
    method = build_method("discriminant", transform, K, {"centre": "private", "descent_above": 0.5})
    for shift, descends in ((8.0, True), (0.0, False)):
        private = rows_at(shift)
        x, y = transform(private.embeddings), torch.from_numpy(private.labels)
        partition = split(y, USERS, "iid", generator=torch.Generator().manual_seed(0))
        draw = torch.Generator().manual_seed(0)
        (course,) = simulate(RowsInMemory(x, y, partition), method, [BARE], draw)
        assert (course.about is not None) == descends
        given = {"centre": "private", "descent_above": 0.5}
        found = release(private, "discriminant", BARE, transform=transform, **given)
        scores = course.moved(x).double() @ course.fitted().weights
        torch.testing.assert_close(scores, found.scores(private.embeddings), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("method", "given"),
    [
        ("discriminant", ALWAYS),
        ("softmax", ALWAYS),
        ("discriminant", {**ALWAYS, "prior": "equal"}),
        ("discriminant", {**ALWAYS, "prior": [0.5, 0.3, 0.2]}),
        ("discriminant", {"descent_above": 0.5}),
        ("discriminant", {**ALWAYS, "descent_above": 1.5}),
        ("discriminant", {**ALWAYS, "descent_above": math.nan}),
    ],
)
def test_what_gradients_alone_cannot_serve_is_refused(method: str, given: dict) -> None:
    with pytest.raises(ValueError, match="descent_above must be"):
        build_method(method, fitted(), K, given)


def test_a_federation_does_not_agree_on_sums_that_a_result_decides() -> None:
    with pytest.raises(ValueError, match="centre must be 'public' with rounds of a federation"):
        further_sums(build_method("discriminant", fitted(), K, ALWAYS))


def test_rows_that_are_kept_from_sum_to_sum_are_those_that_are_made_again(monkeypatch) -> None:
    private, transform, models = rows_at(4.0), fitted(), []
    for held in (release_module.HELD, len(private) * P - 1):
        monkeypatch.setattr(release_module, "HELD", held)
        draw = torch.Generator().manual_seed(0)
        given: dict[str, Any] = {"noise": "float", "generator": draw, **ALWAYS}
        models.append(release(private, "discriminant", PROMISE, transform=transform, **given))
    torch.testing.assert_close(models[0].weights, models[1].weights, rtol=1e-9, atol=1e-9)
