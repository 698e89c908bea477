"""Public scatter beside NumPy's; water-filling beside a numerical optimiser; a noised mean."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import eigh
from scipy.optimize import minimize

from embed.public_scatter import PublicScatter
from embed.water_filling import LEAST_SQUARE, SCALES, Centre, Channel, noised_place, water_filling


def scatter_of(d: int) -> PublicScatter:
    a, b = np.random.default_rng(0).standard_normal((2, d, 2 * d))
    spread = np.diag(np.linspace(1, 0.05, d))
    within, between = (torch.from_numpy(spread @ x @ x.T @ spread / d) for x in (a, b))
    return PublicScatter(torch.zeros(d).double(), within, between)


def information(lengths: np.ndarray, beta: np.ndarray, noise: float) -> float:
    return float(np.log1p(beta * lengths**2 / noise**2).sum())


def best(beta: np.ndarray, noise: float) -> np.ndarray:
    """Lengths by a numerical optimiser that knows the criterion and the constraint alone."""
    start = np.full(len(beta), 1 / len(beta))  # of the powers a² (1 + β)
    found = minimize(
        lambda power: -information(np.sqrt(power.clip(0) / (1 + beta)), beta, noise),
        start,
        method="SLSQP",
        bounds=[(0, 1)] * len(beta),
        constraints={"type": "eq", "fun": lambda power: power.sum() - 1},
        options={"ftol": 1e-14, "maxiter": 1000},
    )
    return np.sqrt(found.x.clip(0) / (1 + beta))


@pytest.mark.parametrize("noise", [0.03, 0.3, 1.0, 10.0])
@pytest.mark.parametrize("seed", range(4))
def test_lengths_are_those_of_a_numerical_optimiser(noise: float, seed: int) -> None:
    beta = np.sort(np.random.default_rng(seed).lognormal(0, 1.5, 8))[::-1].copy()
    found = water_filling(torch.from_numpy(beta), noise).numpy()
    assert (found**2 * (1 + beta)).sum() == pytest.approx(1, abs=1e-12)
    reached, sought = (information(each, beta, noise) for each in (found, best(beta, noise)))
    assert reached >= sought - 1e-9
    assert reached == pytest.approx(sought, abs=1e-6)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.lists(st.floats(1e-9, 1e6), min_size=1, max_size=40), st.floats(0, 1e6))
def test_kkt_conditions_hold(values: list[float], noise: float) -> None:
    """Equal marginal information where a length is positive, no more where it is zero."""
    beta = torch.tensor(sorted(values, reverse=True), dtype=torch.float64)
    lengths = water_filling(beta, noise)
    assert lengths.isfinite().all()
    power = lengths**2 * (1 + beta)
    level = max(noise, 1e-6) ** 2 * (1 / beta - 1 / beta[0])  # less the least one
    assert float(power.sum()) == pytest.approx(1, rel=1e-9)
    used = power > 0
    water = (power + level)[used]
    assert torch.allclose(water, water[:1].expand_as(water), rtol=1e-9)
    assert (level[~used] >= float(water.max()) * (1 - 1e-9)).all()
    assert (used[:-1] >= used[1:]).all()  # the widest apart first


@pytest.mark.parametrize(("d", "share"), [(70, 0.03), (70, 0.25), (10, 0.1)])
def test_directions_diagonalise_both_scatters(d: int, share: float) -> None:
    """Few coordinates have the least scatter as their floor."""
    scatter = scatter_of(d)
    channel = Channel.of(scatter, share)
    assert scatter.between is not None
    within, between = scatter.within.numpy(), scatter.between.numpy()
    floor = np.sort(np.linalg.eigvalsh(within))[::-1][min(d, 64) - 1]
    values, vectors = eigh(between + share * (within + between), within + floor * np.eye(d))
    assert np.allclose(channel.strengths, values[::-1], rtol=1e-9)
    cosines = np.abs(np.linalg.inv(vectors[:, ::-1]) @ channel.directions.numpy())
    assert np.allclose(cosines, np.eye(d), atol=1e-6)


def test_without_labels_directions_are_principal() -> None:
    scatter = replace(scatter_of(70), between=None)
    channel = Channel.of(scatter, 0.05)
    _, vectors = torch.linalg.eigh(scatter.within)
    cosines = torch.nn.functional.normalize(channel.directions, dim=0)
    assert torch.allclose((vectors.flip(1).T @ cosines).abs(), torch.eye(70).double(), atol=1e-6)


def test_rows_that_vary_in_few_directions_have_no_more() -> None:
    full = scatter_of(12)
    assert full.between is not None
    flat = torch.zeros(20, 12, dtype=torch.float64)
    flat[:12] = torch.eye(12)
    within, between = (flat @ scatter @ flat.T for scatter in (full.within, full.between))
    wide = PublicScatter(torch.zeros(20).double(), within, between)
    channel = Channel.of(wide, 0.1)
    assert channel.directions.shape == (20, 12)
    assert channel.directions[12:].abs().max() < 1e-6


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.5, 5.0])
def test_the_count_is_the_fewest_that_hold_the_information(noise: float) -> None:
    channel = Channel.of(scatter_of(60), 0.25)
    count, beta = channel.count(noise, 0.9), channel.strengths.numpy()
    lengths, least = channel.lengths(noise).numpy(), max(noise, 1e-6)
    whole = information(lengths, beta, least)
    held = [information(lengths[:n], beta[:n], least) for n in (count - 1, count)]
    assert held[0] < 0.9 * whole * (1 - 1e-12) <= held[1]
    assert channel.count(noise, 1.0) == int((lengths > 0).sum())
    assert channel.count(noise, 1.0, most=3) == min(3, int((lengths > 0).sum()))


def scatter_about(d: int) -> PublicScatter:
    draw = np.random.default_rng(0)
    a = draw.standard_normal((d, 2 * d)) * np.linspace(0.2, 0.01, d)[:, None]
    mean = torch.from_numpy(draw.standard_normal(d) * 0.02)
    covariance = torch.from_numpy(a @ a.T / (2 * d))
    return PublicScatter(mean, 0.7 * covariance, 0.3 * covariance)


def test_the_place_is_the_posterior_mean_over_all_scales() -> None:
    """Beside dense Gaussian posteriors, weighed by their densities."""
    d, noise = 4, 0.05
    scatter, draw = scatter_about(d), np.random.default_rng(1)
    seen = scatter.mean + torch.from_numpy(draw.standard_normal(d) * 0.1)
    covariance, shift = scatter.covariance.numpy(), (seen - scatter.mean).numpy()
    logs, means = [], []
    for g in (SCALES / scatter.covariance.trace()).tolist():
        total = g * covariance + noise**2 * np.eye(d)
        logs.append(-0.5 * (np.linalg.slogdet(total)[1] + shift @ np.linalg.solve(total, shift)))
        means.append(g * covariance @ np.linalg.solve(total, shift))
    weights = np.exp(np.array(logs) - max(logs))
    expected = scatter.mean.numpy() + weights @ np.array(means) / weights.sum()
    found = noised_place(seen, 0.4, noise, scatter)
    assert np.allclose(found[:-1], expected, atol=1e-12)
    assert float(found[-1]) == pytest.approx(0.05 + (0.4 - 0.05) / 2)  # noise as large as usual


def test_without_noise_the_mean_stays_and_the_public_centre_is_that_of_public_rows() -> None:
    scatter = scatter_about(6)
    seen = scatter.mean + 0.3 / math.sqrt(6)
    found = noised_place(seen, 0.5, 0.0, scatter)
    assert torch.allclose(found[:-1], seen, atol=1e-6)
    centre = Centre.of(found[:-1], 0.5, scatter)
    assert centre.common == pytest.approx(0.09 / 0.5, rel=1e-4)
    apart = 0.5 - float(seen.square().sum())
    spread = math.sqrt(apart / float(scatter.covariance.trace()))
    assert centre.spread == pytest.approx(spread, rel=1e-4)
    assert centre.share == max(0.03, centre.common**2 / 2)
    public = Centre.public(scatter)
    assert torch.equal(public.place, scatter.mean)
    assert (public.common, public.spread) == (0.0, 1.0)


def test_noise_alone_moves_the_place_little() -> None:
    """And where it covers everything, place and length are those of public rows."""
    scatter, draw = scatter_about(50), torch.Generator().manual_seed(0)
    usual = max(float(scatter.covariance.trace() + scatter.mean.square().sum()), LEAST_SQUARE)
    for noise, most in ((0.1, 0.2), (1.0, 0.15), (100.0, 1e-2), (1e6, 1e-6)):
        seen = scatter.mean + noise * torch.randn(50, generator=draw, dtype=torch.float64)
        found = noised_place(seen, 0.5 + noise, noise, scatter)
        assert float((found[:-1] - scatter.mean).norm()) < most
        assert float(found[-1]) < usual * (1 + 2 * usual / noise) + 1e-3


@pytest.mark.parametrize("square", [-3.0, 0.0, 0.2, 1.0, 40.0])
@pytest.mark.parametrize("size", [0.0, 0.9, 1e3, 1e200])
def test_noised_numbers_out_of_bounds_make_a_centre_all_the_same(square, size) -> None:
    """Noise knows no bounds; a mean of rows, and their squared length, have some."""
    scatter = scatter_about(5)
    seen = torch.full((5,), size, dtype=torch.float64)
    found = noised_place(seen, square, 0.01, scatter)
    centre = Centre.of(found[:-1], float(found[-1]), scatter)
    assert found.isfinite().all()
    assert float(centre.place.norm()) < 1
    assert LEAST_SQUARE <= float(found[-1]) <= 1
    assert 0 <= centre.common <= 1
    assert math.isfinite(centre.spread)
    assert centre.spread > 0


SIZES = (5, 9, 40, 2)


def rows_of() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(4) * 3, SIZES)  # numbers with gaps
    means = rng.standard_normal((10, 6))
    rows = means[labels] + rng.standard_normal((len(labels), 6)) * np.linspace(0.1, 1, 6)
    order = rng.permutation(len(labels))
    return rows[order], labels[order]


@pytest.mark.parametrize("block", [1, 7, 100])
def test_blocks_give_what_whole_arrays_do(block: int) -> None:
    rows, labels = rows_of()
    parts = [slice(start, start + block) for start in range(0, len(rows), block)]
    blocks = (torch.from_numpy(rows[p]) for p in parts)
    found = PublicScatter.of(blocks, torch.from_numpy(labels))
    assert found.between is not None
    assert np.allclose(found.mean, rows.mean(0), atol=1e-12)
    known = np.unique(labels)
    centred = np.concatenate([rows[labels == k] - rows[labels == k].mean(0) for k in known])
    within = centred.T @ centred / (len(rows) - 4)
    means = np.stack([rows[labels == k].mean(0) for k in known])
    between = np.cov(means.T) - within * np.mean(1 / np.array(SIZES))
    values, vectors = np.linalg.eigh(between)
    assert values.min() < 0  # four means in six dimensions
    assert np.allclose(found.within, within, atol=1e-12)
    assert np.allclose(found.between, vectors * values.clip(0) @ vectors.T, atol=1e-12)


@pytest.mark.parametrize("labels", [[0, 0, 0], [0, 1, 2]])
def test_one_class_or_one_row_of_each_shows_the_covariance_alone(labels: list[int]) -> None:
    rows = torch.from_numpy(rows_of()[0][:3])
    found = PublicScatter.of([rows], torch.tensor(labels))
    assert found.between is None
    assert torch.allclose(found.within, torch.cov(rows.T, correction=0), atol=1e-12)
    assert torch.equal(found.covariance, found.within)


def test_scatter_along_directions_is_that_of_the_projected_rows() -> None:
    rows, labels = rows_of()
    directions = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)).double()
    whole = PublicScatter.of([torch.from_numpy(rows)], torch.from_numpy(labels))
    found, projected = whole.along(directions, 2.0), torch.from_numpy(rows) @ directions / 2
    own = PublicScatter.of([projected], torch.from_numpy(labels))
    assert torch.allclose(found.within, own.within, atol=1e-12)
    assert found.mean.abs().max() == 0
