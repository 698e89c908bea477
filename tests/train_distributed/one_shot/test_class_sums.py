"""Class sums: what a record moves, and the nearest class mean made of noised sums."""

import math
from collections.abc import Callable

import pytest
import torch
from scipy.integrate import quad
from torch import Tensor

from embed import PublicTransform
from heads import class_sums_sensitivity
from tests.train_distributed.one_shot.fitting import fitted, made
from train_distributed.one_shot.class_sums import class_counts
from train_distributed.one_shot.statistic import NoisedSum
from train_distributed.one_shot.users import Chunk

K, FEATURES, CONSTANT = 3, 4, 0.5
CLIP = math.sqrt(1 + CONSTANT**2)


def public_rows(seed: int = 0, rows: int = 500) -> Tensor:
    """Correlated, off centre, of unequal spread."""
    draw = torch.Generator().manual_seed(seed)
    mixed = torch.randn(rows, FEATURES, generator=draw) @ torch.diag(torch.tensor([3.0, 1, 1, 0.2]))
    return mixed + 0.3 * mixed.roll(1, 1) + torch.tensor([1.0, 0, -2, 0])


def transform() -> PublicTransform:
    return PublicTransform.fit(public_rows(), clip_norm=CLIP, constant=CONSTANT)


def rows_of(users: int, n: int, seed: int = 1) -> Chunk:
    x = transform()(public_rows(seed, users * n)).unflatten(0, (users, n))
    labels = torch.arange(users * n).unflatten(0, (users, n)) % K
    return Chunk(torch.arange(users), x, labels, torch.full((users,), n))


@pytest.mark.parametrize("shrinkage", [0.0, 0.1, 1.0])
def test_without_noise_it_is_the_nearest_class_mean(shrinkage: float) -> None:
    """By loops over classes and rows, in the metric of the shrunk public covariance."""
    method = made("class-sums", transform(), K, {"shrinkage": shrinkage})
    held = rows_of(1, 90)
    weights = fitted(method, method.statistic.submit(held)[0], 90, 0.0)
    x, y = held.x[0, :, 1:].double(), held.y[0]
    covariance = method.statistic.transform.covariance[1:, 1:].double()
    metric = (1 - shrinkage) * covariance
    metric += shrinkage * covariance.diagonal().mean() * torch.eye(FEATURES)
    for row, scores in zip(x[:20], (held.x[0].double() @ weights)[:20], strict=True):
        distances = []
        for label in range(K):
            off = row - x[y == label].mean(0)
            distances.append(float(off @ torch.linalg.solve(metric, off)))
        for one in range(K):
            for other in range(K):
                gap = (distances[other] - distances[one]) / 2
                assert float(scores[one] - scores[other]) == pytest.approx(gap, abs=1e-6)


@pytest.mark.parametrize("code", [1.0, 0.45])
def test_the_noise_in_a_mean_does_not_lengthen_it(code: float) -> None:
    """The bias holds ‖noisy mean‖²: over many draws it is right only with the excess taken off."""
    method = made("class-sums", transform(), K, {"class_code": code})
    total = method.statistic.submit(rows_of(1, 90))[0]
    draw, std = torch.Generator().manual_seed(0), 20.0
    biases = []
    for _ in range(4000):
        noise = std * torch.randn(total.shape, generator=draw, dtype=torch.float64)
        noise /= method.statistic.scale
        noise.unflatten(0, (FEATURES + 1, K))[0] = 0  # counts as they are
        biases.append(fitted(method, total + noise, 90, std)[0])
    found = torch.stack(biases)
    counted = method.statistic.counts(NoisedSum(total, 90, std))
    assert torch.allclose(counted, torch.full((K,), 30.0, dtype=torch.float64))
    true = fitted(method, total, 90, 0.0)[0]
    error = found.std(0) / math.sqrt(len(found))
    assert ((found.mean(0) - true).abs() < 5 * error).all()
    average = method.statistic.transform.covariance[1:, 1:].double().diagonal().mean()
    precision = torch.linalg.inv(
        0.9 * method.statistic.transform.covariance[1:, 1:].double()
        + 0.1 * average * torch.eye(FEATURES)
    )
    common = 1 + method.statistic.common_noise
    excess = common * precision.trace() * (std / 30) ** 2 / 2 / CONSTANT
    assert (excess > 20 * error).all()  # what leaving it out would show


@pytest.mark.parametrize("same_label", [True, False])
def test_the_worst_pairs_attain_the_reach_and_no_pair_exceeds_it(same_label: bool) -> None:
    """Antipodal rows of one label, or rows of two labels, beside records of others."""
    constant = 0.125 if same_label else 0.9
    clip = math.sqrt(1 + constant**2) if same_label else 1.0
    reach = math.sqrt(clip**2 - constant**2)
    method = made("class-sums", PublicTransform.identity(FEATURES, clip, constant), K, {})
    stated = method.statistic.record_sensitivity(torch.tensor([3]))
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
        sent = method.statistic.submit(Chunk(torch.arange(2), x, y, torch.tensor([3, 3])))
        moved = float((sent[0] - sent[1]).norm())
        assert moved <= stated * (1 + 1e-12)
        largest = max(largest, moved)
    assert largest >= stated * (1 - 1e-12)


def test_padding_and_partition_leave_the_sum_alone() -> None:
    method = made("class-sums", transform(), K, {})
    held = rows_of(4, 6)
    held.x[1, 4:], held.y[1, 4:] = 7.0, 0  # two rows that are nobody's
    padded = Chunk(held.users, held.x, held.y, torch.tensor([6, 4, 6, 6]))
    alone = Chunk(torch.tensor([1]), held.x[1:2, :4], held.y[1:2, :4], torch.tensor([4]))
    assert torch.equal(method.statistic.submit(padded)[1], method.statistic.submit(alone)[0])


@pytest.mark.parametrize("n", [1, 40])
def test_no_entry_exceeds_its_bound(n: int) -> None:
    """n equal rows, almost all of whose length is in one entry."""
    method = made("class-sums", PublicTransform.identity(2, 1.0, 1e-3), 2, {})
    row = torch.tensor([1e-3, math.sqrt(1 - 1e-6), 0.0], dtype=torch.float64)
    held = Chunk(
        torch.zeros(1).long(), row.expand(1, n, 3), torch.zeros(1, n).long(), torch.tensor([n])
    )
    largest = float(method.statistic.submit(held).abs().max())
    assert 0.999 * method.statistic.entry_bound(n) <= largest <= method.statistic.entry_bound(n)


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
