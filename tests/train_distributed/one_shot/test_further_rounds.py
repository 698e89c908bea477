"""Rounds of clipped gradients: how far a record moves one, and what their sums are good for."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torch.nn import functional

from train_distributed.one_shot.class_gaussians import Gaussians
from train_distributed.one_shot.extra_sums import NOISE, ClippedGradient, Descent
from train_distributed.one_shot.statistic import Chunk

CONSTANT = 0.5
HUGE = (0.0, 1.0, 1e3, 1e100)


def one_user(x: Tensor, y: Tensor) -> Chunk:
    return Chunk(torch.zeros(1).long(), x[None], y[None], torch.tensor([len(y)]))


def unit_rows(n: int, q: int, seed: int) -> Tensor:
    """(n, q + 1) rows [a, u], ‖u‖ = 1: the longest there are."""
    u = torch.randn(n, q, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    u = u / u.norm(dim=1, keepdim=True)
    return torch.cat([torch.full((n, 1), CONSTANT, dtype=torch.float64), u], 1)


@pytest.mark.parametrize("size", HUGE)
@pytest.mark.parametrize("classes", [2, 5])
def test_no_replaced_record_moves_a_round_by_more_than_its_sensitivity(size, classes):
    farthest = 0.0
    for seed in range(30):
        draw = torch.Generator().manual_seed(seed)
        weights = size * torch.randn(4, classes, generator=draw, dtype=torch.float64).sign()
        gradient = ClippedGradient(weights=weights, clip_norm=0.14)
        x, y = unit_rows(6, 3, seed), torch.randint(classes, (6,), generator=draw)
        before = gradient.submit(one_user(x, y))
        assert before.isfinite().all()
        assert float(before.norm()) <= gradient.entry_bound(6)
        for record in range(6):
            for row in (-x[record], x[record], unit_rows(1, 3, 100 + seed)[0]):
                for label in range(classes):
                    row[0] = CONSTANT
                    other_x, other_y = x.clone(), y.clone()
                    other_x[record], other_y[record] = row, label
                    moved = float((gradient.submit(one_user(other_x, other_y)) - before).norm())
                    farthest = max(farthest, moved)
                    assert moved <= gradient.record_sensitivity(torch.tensor([6]))
    if size == 0 and classes == 2:  # the same row with the other label: the bound is attained
        assert farthest == pytest.approx(0.28, rel=1e-9)


def test_all_records_of_a_user_together_reach_its_bound():
    weights = torch.zeros(4, 2, dtype=torch.float64)
    gradient = ClippedGradient(weights=weights, clip_norm=0.14)
    x = unit_rows(1, 3, 0).expand(50, -1)
    first, second = (gradient.submit(one_user(x, torch.full((50,), label))) for label in (0, 1))
    bound = float(gradient.user_sensitivity(torch.tensor([50]))[0])
    assert float((first - second).norm()) == pytest.approx(50 * 0.28)
    assert float((first - second).norm()) <= bound
    assert float(first.norm()) <= float(gradient.user_zero_out(torch.tensor([50]))[0])


def test_unclipped_it_is_the_gradient_of_the_softmax_loss():
    draw = torch.Generator().manual_seed(0)
    weights = torch.randn(4, 5, generator=draw, dtype=torch.float64, requires_grad=True)
    x, y = unit_rows(40, 3, 1), torch.randint(5, (40,), generator=draw)
    functional.cross_entropy(x @ weights, y, reduction="sum").backward()
    gradient = ClippedGradient(weights=weights.detach(), clip_norm=10.0)
    found = gradient.submit(one_user(x, y)).view(4, 5)
    torch.testing.assert_close(found, weights.grad, rtol=1e-12, atol=1e-12)


def test_every_record_is_clipped_alone_and_padding_adds_nothing():
    draw = torch.Generator().manual_seed(0)
    gradient = ClippedGradient(
        weights=torch.randn(4, 3, generator=draw, dtype=torch.float64), clip_norm=0.5
    )
    x, y = unit_rows(8, 3, 1), torch.randint(3, (8,), generator=draw)
    whole = Chunk(torch.arange(2), x.view(2, 4, 4), y.view(2, 4), torch.tensor([4, 3]))
    by_hand = torch.zeros(2, 12, dtype=torch.float64)
    for place in range(7):
        p = torch.softmax(x[place] @ gradient.weights, 0) - functional.one_hot(y[place], 3)
        own = torch.outer(x[place], p)
        by_hand[place // 4] += (own * min(1.0, 0.5 / float(own.norm()))).flatten()
    torch.testing.assert_close(gradient.submit(whole), by_hand, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e101])
def test_weights_that_scores_could_overflow_with_are_refused(value):
    with pytest.raises(ValueError, match=r"weights must be finite and at most 1e\+100"):
        ClippedGradient(weights=torch.full((2, 2), value, dtype=torch.float64), clip_norm=1.0)


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


@pytest.mark.parametrize("rounds", [1, 4, 16])
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


def test_a_round_is_a_function_of_what_was_opened_alone():
    x, y, found = blobs(300, 3, 4)
    once, again = (descend(start_of(found), one_user(x, y), 3, std=5.0) for _ in range(2))
    assert torch.equal(once.weights, again.weights)
