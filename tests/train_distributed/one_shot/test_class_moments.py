"""Class sums and second moments: what a record moves, what is sent, and what it counts."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from torch import Tensor

from embed import PublicTransform
from heads import class_sums, class_sums_sensitivity, least_squares_sensitivity, second_moments
from tests.train_distributed.one_shot.fitting import made
from train_distributed.one_shot.discriminant import ClassMoments, class_counts
from train_distributed.one_shot.registry import build_method
from train_distributed.one_shot.statistic import Chunk, NoisedSum

K, FEATURES, CONSTANT = 3, 4, 0.5
TRANSFORM = PublicTransform.identity(FEATURES, math.sqrt(1 + CONSTANT**2), CONSTANT)


def rows_of(n: int, seed: int = 0) -> Chunk:
    """One user's rows of length at most c, classes of unequal size and place."""
    draw = torch.Generator().manual_seed(seed)
    labels = (torch.arange(n) % 6).clamp(max=K - 1)
    x = torch.randn(n, FEATURES, generator=draw) / 4 + torch.eye(K, FEATURES)[labels] / 2
    return Chunk(torch.zeros(1).long(), TRANSFORM(x)[None], labels[None], torch.tensor([n]))


def statistic(transform: PublicTransform = TRANSFORM, k: int = K, **options) -> ClassMoments:
    return made("discriminant", transform, k, options).statistic


def scaled(own: ClassMoments, chunk: Chunk) -> Tensor:
    return own.submit(chunk)[0] * own.scale


def test_what_is_sent_are_sums_and_the_triangle_of_moments() -> None:
    held = rows_of(41)
    sums = class_sums(held.x, held.y, K).flatten(1)
    alone, both = statistic(moments=False), statistic()
    assert torch.equal(alone.submit(held), sums)
    assert alone.scale == 1.0
    assert torch.equal(both.submit(held), torch.cat([sums, second_moments(held.x[..., 1:])], 1))
    sizes = torch.tensor([3, 50])
    assert alone.record_sensitivity(sizes) == class_sums_sensitivity(TRANSFORM.clip_norm, CONSTANT)
    stated = least_squares_sensitivity(TRANSFORM.clip_norm, both.weight, CONSTANT)
    assert both.record_sensitivity(sizes) == stated
    noised = NoisedSum(both.submit(held)[0], 41, 1.0)
    x = held.x[0].double()
    assert torch.allclose(both.moment_matrix(noised), x[:, 1:].T @ x[:, 1:])
    assert torch.equal(both.sums(noised)[0], CONSTANT * held.y[0].bincount().double())
    assert both.counted_rows(noised) == (41.0, K * (1.0 / CONSTANT) ** 2)


def test_a_users_clip_leaves_the_moments_out() -> None:
    """Of n rows they are about n/√2 long, where class sums of mixed classes are √n long."""
    clipped = build_method("discriminant", TRANSFORM, K, {"user_clip": 1.0}).statistic
    assert clipped.dimension == TRANSFORM.dim * K
    assert clipped.unclipped == statistic(moments=False)
    with pytest.raises(ValueError, match="moments must be left out with user_clip, got True"):
        build_method("discriminant", TRANSFORM, K, {"user_clip": 1.0, "moments": True})
    with pytest.raises(ValueError, match=r"alpha must be left out without moments, got 0\.5"):
        build_method("discriminant", TRANSFORM, K, {"user_clip": 1.0, "alpha": 0.5})
    with pytest.raises(ValueError, match="alpha must be left out without moments"):
        statistic(moments=False, alpha=0.5)


@pytest.mark.parametrize("same_label", [True, False])
def test_the_worst_pairs_attain_the_reach_and_no_pair_exceeds_it(same_label: bool) -> None:
    """Antipodal rows of one label, or rows of two labels, beside records of others."""
    constant = 0.125 if same_label else 0.9
    clip = math.sqrt(1 + constant**2) if same_label else 1.0
    reach = math.sqrt(clip**2 - constant**2)
    own = statistic(PublicTransform.identity(FEATURES, clip, constant), moments=False)
    stated = own.record_sensitivity(torch.tensor([3]))
    assert stated == class_sums_sensitivity(clip, constant)
    draw, largest = torch.Generator().manual_seed(2), 0.0
    for trial in range(50):
        features = torch.randn(3, FEATURES, generator=draw, dtype=torch.float64)
        features *= reach / features.norm(dim=1, keepdim=True)
        other = features.clone()
        other[2] = -features[2] if trial % 2 else other[2].roll(1)
        x = torch.stack([features, other])
        x = torch.cat([torch.full((2, 3, 1), constant, dtype=torch.float64), x], 2)
        y = torch.tensor([[0, 1, 2], [0, 1, 2 if same_label else 0]])
        sent = own.submit(Chunk(torch.arange(2), x, y, torch.tensor([3, 3])))
        moved = float((sent[0] - sent[1]).norm())
        assert moved <= stated * (1 + 1e-12)
        largest = max(largest, moved)
    assert largest >= stated * (1 - 1e-12)


def test_padding_and_partition_leave_the_sum_alone() -> None:
    own, one = statistic(), rows_of(24)
    x, y = one.x.view(4, 6, -1).clone(), one.y.view(4, 6).clone()
    x[1, 4:], y[1, 4:] = 7.0, 0  # two rows that are nobody's
    padded = Chunk(torch.arange(4), x, y, torch.tensor([6, 4, 6, 6]))
    alone = Chunk(torch.tensor([1]), x[1:2, :4], y[1:2, :4], torch.tensor([4]))
    assert torch.equal(own.submit(padded)[1], own.submit(alone)[0])


@pytest.mark.parametrize("n", [1, 40])
def test_no_entry_of_a_sum_exceeds_its_bound(n: int) -> None:
    """n equal rows, almost all of whose length is in one entry."""
    own = statistic(PublicTransform.identity(2, 1.0, 1e-3), 2, moments=False)
    row = torch.tensor([1e-3, math.sqrt(1 - 1e-6), 0.0], dtype=torch.float64)
    held = Chunk(
        torch.zeros(1).long(), row.expand(1, n, 3), torch.zeros(1, n).long(), torch.tensor([n])
    )
    largest = float(own.submit(held).abs().max())
    assert 0.999 * own.entry_bound(n) <= largest <= own.entry_bound(n)


@pytest.mark.parametrize("weight", [0.2, 1 / math.sqrt(2), 1.0, 3.0])
@pytest.mark.parametrize("same_label", [True, False])
def test_no_pair_moves_further_than_the_reach(weight: float, same_label: bool) -> None:
    """Full length at every angle; the worst of them attains what is stated, labels included."""
    constant = 0.5
    own = statistic(k=2, alpha=weight)  # r = 1
    largest = 0.0
    for cosine in np.linspace(-1, 1, 401):
        pair = torch.tensor(
            [[1.0, 0, 0, 0], [cosine, math.sqrt(1 - cosine**2), 0, 0]], dtype=torch.float64
        )
        x = torch.cat([torch.full((2, 1), constant, dtype=torch.float64), pair], 1)[:, None]
        y = torch.tensor([[0], [0 if same_label else 1]])
        sent = own.submit(Chunk(torch.arange(2), x, y, torch.ones(2).long())) * own.scale
        largest = max(largest, float((sent[0] - sent[1]).norm()))
    stated = own.record_sensitivity(torch.ones(1))
    assert largest <= stated * (1 + 1e-12)
    alone = statistic(k=2, moments=False).record_sensitivity(torch.ones(1))
    if same_label:
        expected = 2.0 if weight**2 <= 0.5 + 1e-12 else math.sqrt(2) * (weight + 1 / (2 * weight))
        assert largest == pytest.approx(expected, rel=1e-4)
        assert (stated == pytest.approx(alone)) is (weight**2 <= 0.5 + 1e-12)


def test_by_default_the_moments_cost_nothing() -> None:
    """The largest α whose pair moves no further than the class sums alone."""
    own, alone = statistic(k=2), statistic(k=2, moments=False).record_sensitivity(torch.ones(1))
    assert own.record_sensitivity(torch.ones(1)) == pytest.approx(alone, rel=1e-12)
    heavier = statistic(k=2, alpha=1.01 * own.weight)
    assert heavier.record_sensitivity(torch.ones(1)) > alone * (1 + 1e-5)


def test_scaled_moments_have_the_frobenius_norm_of_their_matrix() -> None:
    held, own = rows_of(50), statistic(alpha=0.3)
    x = held.x[0, :, 1:].double()
    expected = 0.3 * torch.linalg.matrix_norm(x.T @ x)
    assert float(scaled(own, held)[TRANSFORM.dim * K :].norm()) == pytest.approx(float(expected))
    assert len(scaled(own, held)) == own.dimension == len(own.grid_powers)


@pytest.mark.parametrize("alpha", [0.1, 5.0])
@pytest.mark.parametrize("n", [1, 30])
def test_no_entry_exceeds_its_bound(alpha: float, n: int) -> None:
    """n equal rows along an axis, or a diagonal, whose moment counts √2 times."""
    own = statistic(k=2, alpha=alpha)
    for features in ([1.0, 0, 0, 0], [math.sqrt(0.5), math.sqrt(0.5), 0, 0]):
        row = torch.tensor([CONSTANT, *features], dtype=torch.float64)
        held = Chunk(
            torch.zeros(1).long(), row.expand(1, n, 5), torch.zeros(1, n).long(), torch.tensor([n])
        )
        assert float(scaled(own, held).abs().max()) <= own.entry_bound(n)


def test_grid_rows_give_whole_steps_of_the_stated_powers() -> None:
    """Sums are multiples of g, moments of g², and neither of anything coarser."""
    grid = 2.0**-6
    own = statistic()
    sent = own.submit(rows_of(41).rounded(grid))[0]
    steps = sent / grid ** own.grid_powers.double()
    assert torch.equal(steps, steps.round())
    split = TRANSFORM.dim * K
    assert (steps[:split] % 2 != 0).any()
    assert (steps[split:] % 2 != 0).any()


@pytest.mark.parametrize("counts", [[30.0, 30, 30], [60.0, 20, 10], [88.0, 1, 1]])
@pytest.mark.parametrize("std", [0.0, 1.0, 1e6])
def test_class_counts_are_positive_and_add_up(counts: list[float], std: float) -> None:
    """Exact without noise, equal where noise explains everything, between in between."""
    true = torch.tensor(counts, dtype=torch.float64)
    found = class_counts(CONSTANT * true, CONSTANT, 90, std)
    assert float(found.sum()) == pytest.approx(90)
    assert (found > 0).all()
    if std == 0.0:
        assert torch.allclose(found, true.clamp(min=1.5) * 90 / true.clamp(min=1.5).sum())
    if std == 1e6:
        assert torch.allclose(found, torch.full((3,), 30.0, dtype=torch.float64))


@pytest.mark.parametrize("std", [0.3, 3.0, 12.0, 40.0])
@pytest.mark.parametrize("counts", [[22.0, 26, 19, 23], [30.0, 40, 15, 5]])
def test_class_counts_are_posterior_means(counts: list[float], std: float) -> None:
    """By quadrature: equal, or spread by c, at even odds."""
    noised = torch.tensor(counts, dtype=torch.float64)
    spread, noise = noised / 22.5 - 1, (std / CONSTANT / 22.5) ** 2
    squares = float(spread.square().sum())

    def likely(own: float) -> float:
        return (own + noise) ** -1.5 * math.exp(-squares / (2 * (own + noise)))

    def integral(value: Callable[[float], float]) -> float:
        return quad(lambda c: math.exp(-2 * c**2) * value(c**2), 0, math.sqrt(3), limit=500)[0]

    kept = integral(lambda own: likely(own) * own / (own + noise))
    keep = kept / (integral(lambda _: 1.0) * likely(0.0) + integral(likely))
    found = class_counts(CONSTANT * noised, CONSTANT, 90, std)
    assert torch.allclose(found, 22.5 * (1 + keep * spread), rtol=1e-4, atol=1e-4)


def test_noise_alone_is_not_taken_for_classes_that_differ() -> None:
    """Of noise of 0.7 equal shares a tenth is left, the mean of many draws."""
    draw = torch.Generator().manual_seed(0)
    rows = 25 + 17.5 * torch.randn(500, 10, generator=draw, dtype=torch.float64)
    found = torch.stack([class_counts(row, 1.0, 250, 17.5) for row in rows])
    assert found.std(1).mean() < 0.1 * 17.5
