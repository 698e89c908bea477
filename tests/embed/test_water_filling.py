"""Water-filling beside a numerical optimiser, and the directions that it is over."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import eigh
from scipy.optimize import minimize

from embed.public_scatter import PublicScatter
from embed.water_filling import MOST, Channel, water_filling


def scatter_of(d: int, seed: int = 0, *, labels: bool = True) -> PublicScatter:
    draw = np.random.default_rng(seed)
    a, b = draw.standard_normal((2, d, 2 * d))
    spread = np.diag(np.linspace(1, 0.05, d))
    within, between = spread @ a @ a.T @ spread / d, spread @ b @ b.T @ spread / d
    made = (torch.from_numpy(each) for each in (within, between))
    mean, (within, between) = torch.zeros(d).double(), made
    return PublicScatter(mean, within, between if labels else None)


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


@pytest.mark.parametrize("share", [0.03, 0.25])
def test_directions_diagonalise_both_scatters(share: float) -> None:
    scatter = scatter_of(70)
    channel = Channel.of(scatter, share)
    assert scatter.between is not None
    within, between = scatter.within.numpy(), scatter.between.numpy()
    floor = np.sort(np.linalg.eigvalsh(within))[::-1][63]
    values, vectors = eigh(between + share * (within + between), within + floor * np.eye(70))
    assert np.allclose(channel.strengths, values[::-1], rtol=1e-9)
    cosines = np.abs(np.linalg.inv(vectors[:, ::-1]) @ channel.directions.numpy())
    assert np.allclose(cosines, np.eye(70), atol=1e-6)


def test_few_coordinates_have_the_least_scatter_as_their_floor() -> None:
    scatter = scatter_of(10)
    channel = Channel.of(scatter, 0.1)
    unit = channel.directions.T @ scatter.within @ channel.directions
    floor = float(torch.linalg.eigvalsh(scatter.within)[0])
    added = floor * channel.directions.T @ channel.directions
    assert torch.allclose(unit + added, torch.eye(10, dtype=torch.float64), atol=1e-9)


def test_without_labels_directions_are_principal() -> None:
    scatter = scatter_of(70, labels=False)
    channel = Channel.of(scatter, 0.05)
    _, vectors = torch.linalg.eigh(scatter.within)
    cosines = torch.nn.functional.normalize(channel.directions, dim=0)
    assert torch.allclose((vectors.flip(1).T @ cosines).abs(), torch.eye(70).double(), atol=1e-6)


def test_rows_that_vary_in_few_directions_have_no_more() -> None:
    full = scatter_of(12)
    assert full.between is not None
    flat = torch.zeros(20, 12, dtype=torch.float64)
    flat[:12] = torch.eye(12)
    wide = PublicScatter(
        torch.zeros(20).double(), flat @ full.within @ flat.T, flat @ full.between @ flat.T
    )
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


def test_more_noise_is_heard_in_fewer_directions() -> None:
    channel = Channel.of(scatter_of(300), 0.25)
    counts = [channel.count(noise) for noise in (0.0, 0.01, 0.1, 1.0, 10.0)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] <= MOST
    assert counts[-1] >= 1
    assert math.isfinite(float(channel.lengths(1e300).sum()))
