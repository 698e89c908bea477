"""Several sums under one promise: what they cost together, and what rounds of gradients give."""

import math
from collections import Counter
from dataclasses import replace

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torch.nn import functional

from embed import EmbeddingSet, PublicTransform
from tests.train_distributed.one_shot.builders import embedded, one_user
from train_distributed import Privacy, accounting, release
from train_distributed.ledger.entry import Entry
from train_distributed.one_shot.class_gaussians import Gaussians
from train_distributed.one_shot.extra_sums import (
    FIRST_SHARE,
    NOISE,
    OWN_SHARE,
    ClippedGradient,
    Descent,
)
from train_distributed.one_shot.registry import build_method
from train_distributed.one_shot.request import FaultInjection
from train_distributed.one_shot.statistic import Chunk
from train_distributed.one_shot.summation import Plan
from train_distributed.privacy.composition import Cost
from train_distributed.privacy.mechanism import DiscreteGaussian

TRANSFORM = PublicTransform.identity(3, math.sqrt(1.25), 0.5)
CONSTANT = 0.5
SIZES = torch.tensor([20, 30, 7, 11])


def rows(users: int = 4, each: int = 25) -> EmbeddingSet:
    rng, every = np.random.default_rng(0), np.arange(users * each)
    labels = every % 3
    x = np.eye(3)[labels] + 0.4 * rng.standard_normal((len(labels), 3))
    return embedded(x, labels, 3, users=every // each, test=every % 5 == 4)


def planned(epsilon: float, delta: float, rounds: int, before: int = 1) -> list[DiscreteGaussian]:
    """Of a sum or two, and further rounds."""
    first = {"sums": 2, "class_noise": 0.1} if before == 2 else {}
    method = build_method("discriminant", TRANSFORM, 3, {"rounds": rounds, **first})
    return Plan.of(method, SIZES, Privacy(epsilon, delta)).integers


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


def test_the_first_of_two_sums_has_its_share_and_leaves_the_others_theirs():
    first, second = (each.squared_mu for each in (plan.cost() for plan in planned(1.0, 1e-5, 0, 2)))
    assert first / (first + second) == pytest.approx(FIRST_SHARE, rel=1e-3)


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
    fields = {}
    released = release(rows(), "discriminant", Privacy(2.0, 1e-5), rounds=3, reserve=fields.update)
    report = released.report
    assert report["rounds"] == 4
    assert len(report["bytes_per_round"]) == 4
    assert report["bytes_per_user"] == sum(report["bytes_per_round"])
    assert report["suitable_for_release"]
    assert "simulation_only" not in report
    assert report["zero_out_epsilon"] < 2.0
    assert released.opened is not None
    assert len(released.opened) == 12 + 6 + 3 * 12
    known = {"kind": "release", "data": "rows", "method": "discriminant", "unit": "record"}
    entry = Entry(**known, epsilon=2.0, delta=1e-5, **fields)
    assert entry.cost.at(1e-5) == pytest.approx(2.0, rel=1e-6)
    single = release(rows(), "discriminant", Privacy(2.0, 1e-5)).report
    assert single["rounds"] == 1
    ratio = report["local_noise_std_per_round"][0] / single["local_noise_std"]
    assert ratio == pytest.approx(1 / math.sqrt(OWN_SHARE), rel=1e-6)


def test_rounds_are_of_the_users_that_are_left():
    played = FaultInjection(dropped=[0])
    bare = Privacy(math.inf, 1e-5)
    found = release(rows(), "discriminant", bare, rounds=2, min_survivors=3, faults=played)
    data = rows()
    others = data.subset(np.flatnonzero(data.users != 0))
    expected = release(others, "discriminant", bare, rounds=2)
    torch.testing.assert_close(found.weights, expected.weights)


# Rounds of clipped gradients


def test_unclipped_it_is_the_gradient_of_the_softmax_loss():
    draw = torch.Generator().manual_seed(0)
    weights = torch.randn(4, 5, generator=draw, dtype=torch.float64, requires_grad=True)
    u = functional.normalize(torch.randn(40, 3, generator=draw, dtype=torch.float64))
    x, y = functional.pad(u, (1, 0), value=CONSTANT), torch.randint(5, (40,), generator=draw)
    functional.cross_entropy(x @ weights, y, reduction="sum").backward()
    gradient = ClippedGradient(weights=weights.detach(), clip_norm=10.0)
    found = gradient.submit(one_user(x, y)).view(4, 5)
    torch.testing.assert_close(found, weights.grad, rtol=1e-12, atol=1e-12)


def blobs(n: int, q: int, classes: int, seed: int = 0) -> tuple[Tensor, Tensor, Gaussians]:
    """Classes that overlap, no Gaussians: cubes of different widths."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=n)
    means = 0.1 * rng.standard_normal((classes, q))
    widths = 0.3 + 0.6 * rng.random((classes, q))
    u = means[labels] + widths[labels] * (rng.random((n, q)) - 0.5)
    x = torch.tensor(np.c_[np.full(n, CONSTANT), u])
    y = torch.tensor(labels)
    groups = [x[y == k][:, 1:] for k in range(classes)]
    within = torch.stack([(g - g.mean(0)).mT @ (g - g.mean(0)) for g in groups]).sum(0) / n
    centres = torch.stack([g.mean(0) for g in groups], 1)
    return x, y, Gaussians(centres, within, torch.full((classes,), 1 / classes).double())


def start_of(found: Gaussians, rounds: int = 4) -> Descent:
    weights = found.weights(found.shares, CONSTANT)
    return Descent.of(weights, torch.zeros_like(weights), found, CONSTANT, math.sqrt(2), rounds)


def descend(
    descent: Descent, chunk: Chunk, rounds: int, std: float = 0.0, seed: int = 0
) -> Descent:
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
    solver.fit(x.numpy(), y.numpy())
    coefficients = torch.tensor(solver.coef_).mT
    if classes == 2:  # of differences
        coefficients = torch.cat([torch.zeros_like(coefficients), coefficients], 1)
    best = loss(coefficients, x, y)
    descent = replace(start_of(found), clip_norm=100.0)
    gap = loss(descent.weights, x, y) - best
    gaps = [loss(descend(descent, one_user(x, y), t).weights, x, y) - best for t in (2, 8, 32)]
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
