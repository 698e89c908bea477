"""Several sums under one promise: what they cost, a first one of places, rounds of gradients."""

import math
from collections import Counter
from dataclasses import replace
from itertools import product
from typing import Any

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torch.nn import functional

from embed import EmbeddingSet, PublicTransform
from embed.water_filling import LEAST_SHARE, Centre, noised_place
from tests.train_distributed.one_shot.builders import embedded, one_user, simulated
from train_distributed import Privacy, accounting, release
from train_distributed.ledger.entry import Entry
from train_distributed.one_shot.class_gaussians import Gaussians
from train_distributed.one_shot.extra_sums import (
    FIRST_SHARE,
    NOISE,
    OWN_SHARE,
    ClippedGradient,
    Descent,
    FeatureSum,
)
from train_distributed.one_shot.method import ReleaseState
from train_distributed.one_shot.registry import build_method
from train_distributed.one_shot.request import FaultInjection
from train_distributed.one_shot.statistic import Chunk, NoisedSum, Statistic
from train_distributed.one_shot.summation import Plan
from train_distributed.privacy.composition import Cost
from train_distributed.privacy.mechanism import DiscreteGaussian

TRANSFORM = PublicTransform.identity(3, math.sqrt(1.25), 0.5)
CONSTANT = 0.5
SIZES, BARE = torch.tensor([20, 30, 7, 11]), Privacy(math.inf, 1e-5)


def planned(epsilon: float, delta: float, rounds: int, before: int = 1) -> list[DiscreteGaussian]:
    """Of a sum or two, and further rounds."""
    first = {"sums": 2, "class_noise": 0.1} if before == 2 else {}
    method = build_method("discriminant", TRANSFORM, 3, {"rounds": rounds, **first})
    return Plan.of(method, SIZES, Privacy(epsilon, delta)).integers


def spent(epsilon: float, fields: dict[str, Any]) -> float:
    """ε at δ = 1e-5 of the ledger's entry with these fields."""
    known = {"kind": "release", "data": "rows", "method": "discriminant", "unit": "record"}
    return Entry(**known, epsilon=epsilon, delta=1e-5, **fields).cost.at(1e-5)


@pytest.mark.parametrize("rounds", [0, 3, 16])
@pytest.mark.parametrize("first", [1, 2])
@pytest.mark.parametrize("epsilon", [0.4, 3.0])
def test_all_sums_together_keep_the_promise_by_another_accountant(epsilon, first, rounds):
    plans = planned(epsilon, 1e-5, rounds, first)
    assert len(plans) == first + rounds
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    for multiplier, times in Counter(each.noise_multiplier for each in plans).items():
        accountant.compose(dp_accounting.GaussianDpEvent(multiplier), times)
    found = accountant.get_epsilon(1e-5)
    assert found == pytest.approx(epsilon, rel=2e-3)
    assert Cost.of(each.cost() for each in plans).at(1e-5) <= epsilon * (1 + 1e-9)
    if len(plans) > 1:  # a round left out shows
        assert Cost.of(each.cost() for each in plans[1:]).at(1e-5) < epsilon


@pytest.mark.parametrize("rounds", [1, 8])
def test_float_sums_have_the_noise_of_their_shares(rounds):
    method = build_method("discriminant", TRANSFORM, 3, {"rounds": rounds})
    promise = Privacy(1.0, 1e-5)
    plan = Plan.of(method, SIZES, promise, discrete=False)
    certain = math.sqrt(plan.main.guarantee.honest)
    mus = [of.guarantee.sensitivity / (of.mechanism.local_std * certain) for of in plan.sums]
    mu = math.sqrt(sum(each**2 for each in mus))
    assert accounting.epsilon(1e-5, 1 / mu) == pytest.approx(1.0, rel=1e-6)
    assert accounting.epsilon(1e-5, 1 / mu) <= 1.0
    assert mus[0] ** 2 / mu**2 == pytest.approx(OWN_SHARE)
    assert [each**2 / mu**2 for each in mus[1:]] == pytest.approx(rounds * [OWN_SHARE / rounds])


def test_the_zeta_of_every_sum_is_charged_to_all():
    """Steps as coarse as they may be: discreteness is a good part of the promise."""
    shape = {"sensitivity": 1.0, "honest": 40, "dimension": 1000, "rounded_users": 0}
    step = 0.4
    alone = DiscreteGaussian.for_promise(2.0, 1e-5, share=0.5, step=step, **shape)
    assert alone.zeta > 1e-4
    others = Cost(zeta=0.3)
    zeta = 0.3 + 2 * alone.zeta
    with_them = DiscreteGaussian.for_promise(2.0, 1e-5, share=0.5, step=step, zeta=zeta, **shape)
    assert with_them.zeta < alone.zeta
    assert Cost.of([with_them.cost(), with_them.cost(), others]).at(1e-5) <= 2.0
    assert Cost.of([alone.cost(), alone.cost(), others]).at(1e-5) > 2.0


def test_sums_that_cost_more_than_they_were_planned_with_are_refused(monkeypatch):
    zetas = iter([1e-6] * 6 + [1e-6] * 3 + [2e-6] * 3)
    monkeypatch.setattr(DiscreteGaussian, "zeta", property(lambda each: next(zetas)))
    planned(1.0, 1e-5, 2)  # three of 10⁻⁶, alone and together
    with pytest.raises(ArithmeticError, match="zeta of all sums must be <= 3e-06, got 6e-06"):
        planned(1.0, 1e-5, 2)


def test_two_discrete_sums_of_which_the_second_follows_the_first_cost_no_more_than_stated():
    """By all probabilities: the first sum says in which direction the second one moves."""
    of = DiscreteGaussian(
        local_std=4.0, step=1.0, sensitivity=2.0, honest=12, dimension=1, rounded_users=0
    )
    z = np.arange(-60, 61)
    one = np.exp(-(z**2) / (2 * of.local_std**2))
    law = np.array([1.0])
    for _ in range(of.honest):
        law = np.convolve(law, one / one.sum())
    middle, reach = len(law) // 2, 110  # eight standard deviations
    near = np.arange(-reach, reach + 1)

    def moved(by: int) -> np.ndarray:
        return law[middle + near - by]

    first = np.outer(moved(0), moved(0))
    second = np.stack([p * moved(2 if z > 0 else -2) for p, z in zip(moved(2), near, strict=True)])
    cost = Cost.of((of.cost(), of.cost()))
    for epsilon in (0.2, 0.5, 1.0):
        exact = max(
            float(np.maximum(p - math.exp(epsilon) * q, 0).sum())
            for p, q in ((first, second), (second, first))
        )
        assert epsilon <= cost.at(exact) <= 1.1 * epsilon


def test_a_release_of_rounds_reports_all_of_them():
    fields, promise, private = {}, Privacy(2.0, 1e-5), rows_at(0.0)
    released: Any = release(private, "discriminant", promise, rounds=3, reserve=fields.update)
    report = released.report
    assert report["rounds"] == 4
    assert len(report["bytes_per_round"]) == 4
    assert report["bytes_per_user"] == sum(report["bytes_per_round"])
    assert report["suitable_for_release"]
    assert "simulation_only" not in report
    assert report["zero_out_epsilon"] < 2.0
    assert len(released.opened) == 4 * (P + 1) * K + P * (P + 1) // 2
    assert spent(2.0, fields) == pytest.approx(2.0, rel=1e-6)
    single = release(private, "discriminant", promise).report
    assert single["rounds"] == 1
    ratio = report["local_noise_std_per_round"][0] / single["local_noise_std"]
    assert ratio == pytest.approx(1 / math.sqrt(OWN_SHARE), rel=1e-6)


def test_rounds_are_of_the_users_that_are_left():
    private = rows_at(0.0)
    given: dict[str, Any] = {"rounds": 2, "min_survivors": USERS - 1}
    found = release(private, "discriminant", BARE, faults=FaultInjection(dropped=[0]), **given)
    others = private.subset(np.flatnonzero(private.users != 0))
    expected = release(others, "discriminant", BARE, **given)
    torch.testing.assert_close(found.weights, expected.weights)


P, D, K, USERS, EACH = 12, 8, 3, 40, 30
TWO: dict[str, Any] = {"sums": 2, "class_noise": 0.1, "components": 4}


def rows_at(shift: float) -> EmbeddingSet:
    """Classes around a point far from where the public rows lie."""
    rng, every = np.random.default_rng(0), np.arange(USERS * EACH)
    x = shift + 1.5 * np.eye(K, P)[every % K] + 0.5 * rng.standard_normal((len(every), P))
    return embedded(x, every % K, K, users=every // EACH)


def fitted(*, labels: bool = True) -> PublicTransform:
    rng = np.random.default_rng(1)
    classes = rng.integers(5, size=800)
    x = (1.5 * np.eye(5, P)[classes] + rng.standard_normal((800, P))).astype(np.float32)
    return PublicTransform.fit(embedded(x, classes, 5) if labels else x, components=D)


def moved(statistic: Statistic, state: ReleaseState, pair: Any, labels: Tensor) -> float:
    """How far a scaled submission of eight rows moves when one of them and its label change."""
    rest = torch.full((7, D + 1), 0.3)
    rest[:, 0] = 0.5
    sums = []
    for row, label in zip(pair, labels, strict=True):
        chunk = one_user(torch.cat([row[None], rest]), torch.tensor([label, *([0] * 7)]))
        sums.append(statistic.submit(state.rows(chunk)) * statistic.scale)
    return float((sums[0] - sums[1]).norm()) / math.sqrt(statistic.compositions)


def longest(draw: torch.Generator) -> Tensor:
    x = torch.randn(D, generator=draw, dtype=torch.float64)
    return torch.cat([torch.full((1,), 0.5), (0.9999999 * x / x.norm()).float()])


@pytest.mark.parametrize("method", ["discriminant", "softmax"])
@pytest.mark.parametrize("length", [0.0, 0.7, 1.0])
def test_whatever_the_centre_is_a_record_moves_the_second_sum_no_further(method, length):
    """Numbers that an operator publishes are its own; rows are as long as was planned."""
    draw, most, size = torch.Generator().manual_seed(1), 0.0, torch.tensor([8])
    options = {**TWO, **({"l2_reg": 4.0} if method == "softmax" else {})}
    started = ReleaseState(build_method(method, fitted(), K, options))
    for _ in range(60):
        pair = longest(draw), longest(draw)
        place = (1 - 1e-9) * length * pair[0][1:].double() / pair[0][1:].double().norm()
        square = 0.05 + 0.95 * torch.rand(1, generator=draw, dtype=torch.float64)
        state = started.receive(torch.cat([place, square]))
        statistic = state.statistic
        assert statistic.dimension == started.planned.statistic.dimension
        bound = statistic.record_sensitivity(size)
        assert bound == started.planned.statistic.record_sensitivity(size)
        labels = torch.randint(K, (2,), generator=draw)
        most = max(most, moved(statistic, state, pair, labels) / bound)
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
    draw, options = torch.Generator().manual_seed(2), {"sums": 2, "class_noise": 0.15, **more}
    started = ReleaseState(build_method(method, fitted(), K, {"components": D, **options}))
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
    by_hand = state.method.fit(NoisedSum(alone, 20, 0.0))
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


def test_a_release_about_its_rows_says_what_it_did() -> None:
    private, transform, fields, promise = rows_at(8.0), fitted(), {}, Privacy(1.0, 1e-5)
    plain = release(private, "discriminant", promise, transform=transform, sums=1)
    found = release(private, "discriminant", promise, transform=transform, reserve=fields.update)
    report = found.report
    assert (report["rounds"], plain.report["rounds"]) == (2, 1)
    assert report["share_per_round"] == [FIRST_SHARE, 1 - FIRST_SHARE]
    assert report["common_share"] > 0.5
    assert "common_share" not in plain.report
    assert spent(1.0, fields) == pytest.approx(1.0, rel=1e-6)


def test_rows_far_from_the_public_ones_are_told_apart_better_about_their_centre() -> None:
    private, transform = rows_at(8.0), fitted()
    truth = torch.from_numpy(private.labels)
    right = {1: 0.0, 2: 0.0}
    for sums, seed in product(right, range(10)):
        found = simulated(private, "discriminant", 1.0, seed, transform=transform, sums=sums)
        right[sums] += float((found.predict(private.embeddings) == truth).float().mean()) / 10
    assert right[2] > right[1] + 0.05


@pytest.mark.parametrize("labels", [True, False])
@pytest.mark.parametrize(("method", "given"), [("discriminant", {}), ("softmax", {"l2_reg": 0.1})])
def test_the_model_is_that_of_rows_mapped_by_hand(labels: bool, method: str, given: dict) -> None:
    """Without noise the centre is the rows' mean; dimension and sensitivity are those planned."""
    private, transform = rows_at(3.0), fitted(labels=labels)
    found = release(private, method, BARE, transform=transform, **given)
    y = transform(private.embeddings)[:, 1:].double()
    centre = Centre.of(y.mean(0), float(y.square().sum(1).mean()), transform.public)
    by_hand = transform.mapped(0.0, found.report["directions"], centre)(private.embeddings)
    assert (found.transform(private.embeddings) - by_hand).abs().max() < 1e-4
    assert found.report["common_share"] == pytest.approx(centre.common, rel=1e-4)


def test_hostile_centres_are_refused_by_users() -> None:
    state = ReleaseState(build_method("discriminant", fitted(), K, TWO))
    numbers = torch.zeros(D + 1, dtype=torch.float64)
    with pytest.raises(ValueError, match="centre must be"):
        state.receive(numbers[1:])
    for value in (math.nan, math.inf, 1e300, 0.5):
        numbers[:-1], numbers[-1] = value, 0.5
        with pytest.raises(ValueError, match=r"centre_norm must be in \[0, 1\]"):
            state.receive(numbers)
    numbers[:-1] = 0
    for square in (math.nan, math.inf, -0.1, 0.01, 1.1):
        numbers[-1] = square
        with pytest.raises(ValueError, match="centre_squared_length must be in"):
            state.receive(numbers)


def test_unclipped_it_is_the_gradient_of_the_softmax_loss():
    draw = torch.Generator().manual_seed(0)
    weights = torch.randn(4, 5, generator=draw, dtype=torch.float64, requires_grad=True)
    u = functional.normalize(torch.randn(40, 3, generator=draw, dtype=torch.float64))
    x, y = functional.pad(u, (1, 0), value=CONSTANT), torch.randint(5, (40,), generator=draw)
    functional.cross_entropy(x @ weights, y, reduction="sum").backward()
    gradient = ClippedGradient(weights=weights.detach(), clip_norm=10.0)
    found = gradient.submit(one_user(x, y)).view(4, 5)
    torch.testing.assert_close(found, weights.grad, rtol=1e-12, atol=1e-12)


def blobs(n: int, q: int, classes: int) -> tuple[Tensor, Tensor, Gaussians]:
    """Classes that overlap, no Gaussians: cubes of different widths."""
    rng = np.random.default_rng(0)
    labels = rng.integers(classes, size=n)
    means = 0.1 * rng.standard_normal((classes, q))
    widths = 0.3 + 0.6 * rng.random((classes, q))
    u = means[labels] + widths[labels] * (rng.random((n, q)) - 0.5)
    x, y = torch.tensor(np.c_[np.full(n, CONSTANT), u]), torch.tensor(labels)
    groups = [x[y == k][:, 1:] for k in range(classes)]
    within = torch.stack([(g - g.mean(0)).mT @ (g - g.mean(0)) for g in groups]).sum(0) / n
    centres = torch.stack([g.mean(0) for g in groups], 1)
    return x, y, Gaussians(centres, within, torch.full((classes,), 1 / classes).double())


def start_of(found: Gaussians, rounds: int = 4) -> Descent:
    weights = found.weights(found.shares, CONSTANT)
    return Descent.of(weights, torch.zeros_like(weights), found, CONSTANT, math.sqrt(2), rounds)


def descend(descent: Descent, chunk: Chunk, rounds: int, std: float = 0.0, seed: int = 0):
    draw = torch.Generator().manual_seed(seed)
    for _ in range(rounds):
        (total,) = descent.gradient.submit(chunk)
        noise = std * torch.randn(len(total), generator=draw, dtype=torch.float64)
        descent = descent.advance(total + noise, int(chunk.counts[0]), std)
    return descent


def loss(weights: Tensor, x: Tensor, y: Tensor) -> float:
    return float(functional.cross_entropy(x @ weights, y))


@pytest.mark.parametrize("classes", [2, 4])
def test_without_noise_and_clip_many_rounds_reach_logistic_regression(classes):
    x, y, found = blobs(4000, 3, classes)
    solver = LogisticRegression(C=np.inf, fit_intercept=False, tol=1e-10, max_iter=5000)
    coefficients = torch.tensor(solver.fit(x.numpy(), y.numpy()).coef_).mT
    if classes == 2:  # of differences
        coefficients = torch.cat([torch.zeros_like(coefficients), coefficients], 1)
    best, descent = loss(coefficients, x, y), replace(start_of(found), clip_norm=100.0)
    ended = (descend(descent, one_user(x, y), rounds).weights for rounds in (0, 2, 8, 32))
    gap, *gaps = (loss(weights, x, y) - best for weights in ended)
    assert gap > 5e-4
    assert gaps[0] < gap / 5
    assert gaps[1] < gap / 100
    assert gaps[2] < gap / 10_000


@pytest.mark.parametrize("rounds", [1, 16])
def test_where_noise_drowns_the_gradient_it_adds_its_standard_deviation_and_no_more(rounds):
    x, y, found = blobs(500, 3, 4)
    start, ended, released = start_of(found, rounds), [], []
    for seed in range(200):
        done = descend(start, one_user(x, y), rounds, std=1e9, seed=seed)
        ended.append(done.weights - start.weights)
        released.append(done.released - start.released)
    along = start.class_basis.shape[1] / 4  # no noise where all classes gain alike
    assert float(torch.stack(ended).square().mean() / along) == pytest.approx(NOISE**2, rel=0.1)
    assert torch.stack(released).square().mean() <= torch.stack(ended).square().mean()


def test_steps_that_noise_shortens_are_better_than_newtons_and_than_none():
    x, y, found = blobs(4000, 6, 4)
    start = replace(start_of(found, 16), clip_norm=100.0)
    best = descend(start, one_user(x, y), 100).weights
    bold = replace(start, rounds=0)  # as if no round had noise
    errors = np.zeros(3)
    for seed in range(10):
        made = [descend(each, one_user(x, y), 16, std=20.0, seed=seed) for each in (start, bold)]
        for place, weights in enumerate((*(each.released for each in made), start.released)):
            errors[place] += max(loss(weights, x, y) - loss(best, x, y), 0.0)
    assert errors[0] < 0.9 * min(errors[1:])
