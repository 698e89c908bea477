"""Class sums and second moments: what a record moves, and the ridge regression made of them."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from embed import PublicTransform
from tests.train_distributed.one_shot.fitting import fitted, made
from train_distributed.one_shot.class_sums import ClassSums
from train_distributed.one_shot.method import Method
from train_distributed.one_shot.users import Chunk

K, FEATURES, CONSTANT = 3, 4, 0.5
TRANSFORM = PublicTransform.identity(FEATURES, math.sqrt(1 + CONSTANT**2), CONSTANT)


def rows_of(n: int, seed: int = 0) -> Chunk:
    """One user's rows of length at most c, classes of unequal size and place."""
    draw = torch.Generator().manual_seed(seed)
    labels = (torch.arange(n) % 6).clamp(max=K - 1)
    x = torch.randn(n, FEATURES, generator=draw) / 4 + torch.eye(K, FEATURES)[labels] / 2
    return Chunk(torch.zeros(1).long(), TRANSFORM(x)[None], labels[None], torch.tensor([n]))


def scaled(method: Method, chunk: Chunk) -> Tensor:
    return method.statistic.submit(chunk)[0] * method.statistic.scale


@pytest.mark.parametrize("ridge", [0.0, 1.0, 300.0])
def test_without_noise_it_is_ridge_regression_with_a_free_intercept(ridge: float) -> None:
    """NumPy's least squares of centred one-hot labels, with √λ I below the centred rows."""
    held = rows_of(120)
    method = made("least-squares", TRANSFORM, K, {"ridge": ridge})
    found = fitted(method, method.statistic.submit(held)[0], 120, 0.0).numpy()
    x, hot = held.x[0, :, 1:].double().numpy(), np.eye(K)[held.y[0].numpy()]
    centred = np.vstack([x - x.mean(0), math.sqrt(ridge) * np.eye(FEATURES)])
    goal = np.vstack([hot - hot.mean(0), np.zeros((FEATURES, K))])
    directions = np.linalg.lstsq(centred, goal, rcond=None)[0]
    assert np.allclose(found[1:], directions, rtol=1e-8, atol=1e-10)
    assert np.allclose(CONSTANT * found[0], hot.mean(0) - x.mean(0) @ directions, atol=1e-10)


def test_rows_that_are_all_alike_still_give_a_model() -> None:
    """Neither scatter nor noise to take a ridge from: directions are 0, shares decide."""
    held = rows_of(6)
    alike = Chunk(held.users, held.x[:, :1].expand(-1, 6, -1), held.y, held.counts)
    method = made("least-squares", TRANSFORM, K, {})
    found = fitted(method, method.statistic.submit(alike)[0], 6, 0.0)
    assert torch.allclose(found[1:], torch.zeros(FEATURES, K, dtype=torch.float64), atol=1e-3)
    assert found[0].argmax() == held.y[0].bincount().argmax()


def test_a_public_share_of_one_uses_no_private_moment() -> None:
    held = rows_of(120)
    method = made("least-squares", TRANSFORM, K, {"public_share": 1.0, "ridge": 2.0})
    total = method.statistic.submit(held)[0]
    other = total.clone()
    other[TRANSFORM.dim * K :] += 5.0
    assert torch.equal(fitted(method, total, 120, 0.1), fitted(method, other, 120, 0.1))
    half = made("least-squares", TRANSFORM, K, {"public_share": 0.5, "ridge": 2.0})
    assert not torch.allclose(fitted(half, total, 120, 0.1), fitted(half, other, 120, 0.1))


@pytest.mark.parametrize("std", [0.0, 1.0, 1e9])
def test_moments_that_noise_makes_indefinite_still_give_a_model(std: float) -> None:
    """The ridge is at least the noise's own size."""
    held = rows_of(120)
    method = made("least-squares", TRANSFORM, K, {})
    noise = std * torch.randn(
        method.statistic.dimension, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    weights = fitted(
        method, method.statistic.submit(held)[0] + noise / method.statistic.scale, 120, std
    )
    assert weights.isfinite().all()
    if std == 1.0:
        ridge = 2 * std / (method.statistic.weight * math.sqrt(2)) * math.sqrt(FEATURES)
        fixed = made("least-squares", TRANSFORM, K, {"ridge": ridge})
        again = fitted(
            fixed, fixed.statistic.submit(held)[0] + noise / fixed.statistic.scale, 120, std
        )
        assert torch.allclose(weights, again, rtol=1e-12)


def test_eigenvalues_below_zero_are_clipped() -> None:
    """Of the centred scatter matrix: what is left is solved as it stands."""
    method = made("least-squares", TRANSFORM, K, {"ridge": 0.5})
    total = method.statistic.submit(rows_of(120))[0]
    split = TRANSFORM.dim * K
    sums = total[:split].unflatten(0, (TRANSFORM.dim, K))
    mean = sums[1:].sum(1) / 120
    turn = torch.linalg.qr(
        torch.randn(4, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    )[0]
    values = torch.tensor([-7.0, -0.1, 2.0, 5.0], dtype=torch.float64)
    given = turn * values @ turn.T + 120 * torch.outer(mean, mean)
    row, column = torch.triu_indices(4, 4)
    total[split:] = given[row, column]
    found = fitted(method, total, 120, 0.0)
    shares = sums[0] / CONSTANT / 120
    left = turn * torch.tensor([0.5, 0.5, 2.5, 5.5]).double() @ turn.T
    expected = torch.linalg.solve(left, sums[1:] - 120 * mean[:, None] * shares)
    assert torch.allclose(found[1:], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("weight", [0.2, 1 / math.sqrt(2), 1.0, 3.0])
@pytest.mark.parametrize("same_label", [True, False])
def test_no_pair_moves_further_than_the_reach(weight: float, same_label: bool) -> None:
    """Full length at every angle; the worst of them attains what is stated, labels included."""
    constant = 0.5
    method = made("least-squares", TRANSFORM, 2, {"alpha": weight})  # r = 1
    largest = 0.0
    for cosine in np.linspace(-1, 1, 401):
        pair = torch.tensor(
            [[1.0, 0, 0, 0], [cosine, math.sqrt(1 - cosine**2), 0, 0]], dtype=torch.float64
        )
        x = torch.cat([torch.full((2, 1), constant, dtype=torch.float64), pair], 1)[:, None]
        y = torch.tensor([[0], [0 if same_label else 1]])
        sent = (
            method.statistic.submit(Chunk(torch.arange(2), x, y, torch.ones(2).long()))
            * method.statistic.scale
        )
        largest = max(largest, float((sent[0] - sent[1]).norm()))
    stated = method.statistic.record_sensitivity(torch.ones(1))
    assert largest <= stated * (1 + 1e-12)
    alone = ClassSums(num_classes=2, transform=TRANSFORM).record_sensitivity(torch.ones(1))
    if same_label:
        expected = 2.0 if weight**2 <= 0.5 + 1e-12 else math.sqrt(2) * (weight + 1 / (2 * weight))
        assert largest == pytest.approx(expected, rel=1e-4)
        assert (stated == pytest.approx(alone)) is (weight**2 <= 0.5 + 1e-12)


def test_by_default_the_moments_cost_nothing() -> None:
    """The largest α whose pair moves no further than the class sums alone."""
    method = made("least-squares", TRANSFORM, 2, {})
    alone = ClassSums(num_classes=2, transform=TRANSFORM).record_sensitivity(torch.ones(1))
    assert method.statistic.record_sensitivity(torch.ones(1)) == pytest.approx(alone, rel=1e-12)
    heavier = made("least-squares", TRANSFORM, 2, {"alpha": 1.01 * method.statistic.weight})
    assert heavier.statistic.record_sensitivity(torch.ones(1)) > alone * (1 + 1e-5)


def test_scaled_moments_have_the_frobenius_norm_of_their_matrix() -> None:
    held = rows_of(50)
    method = made("least-squares", TRANSFORM, K, {"alpha": 0.3})
    x = held.x[0, :, 1:].double()
    expected = 0.3 * torch.linalg.matrix_norm(x.T @ x)
    assert float(scaled(method, held)[TRANSFORM.dim * K :].norm()) == pytest.approx(float(expected))
    assert (
        len(scaled(method, held)) == method.statistic.dimension == len(method.statistic.grid_powers)
    )


@pytest.mark.parametrize("alpha", [0.1, 5.0])
@pytest.mark.parametrize("n", [1, 30])
def test_no_entry_exceeds_its_bound(alpha: float, n: int) -> None:
    """n equal rows along an axis, or a diagonal, whose moment counts √2 times."""
    method = made("least-squares", TRANSFORM, 2, {"alpha": alpha})
    for features in ([1.0, 0, 0, 0], [math.sqrt(0.5), math.sqrt(0.5), 0, 0]):
        row = torch.tensor([CONSTANT, *features], dtype=torch.float64)
        held = Chunk(
            torch.zeros(1).long(), row.expand(1, n, 5), torch.zeros(1, n).long(), torch.tensor([n])
        )
        assert float(scaled(method, held).abs().max()) <= method.statistic.entry_bound(n)


def test_grid_rows_give_whole_steps_of_the_stated_powers() -> None:
    """Sums are multiples of g, moments of g², and neither of anything coarser."""
    grid = 2.0**-6
    method = made("least-squares", TRANSFORM, K, {})
    sent = method.statistic.submit(rows_of(41).rounded(grid))[0]
    steps = sent / grid ** method.statistic.grid_powers.double()
    assert torch.equal(steps, steps.round())
    split = TRANSFORM.dim * K
    assert (steps[:split] % 2 != 0).any()
    assert (steps[split:] % 2 != 0).any()
