"""Where private rows lie, from noised numbers: a Gaussian posterior, and its bounds."""

import math

import numpy as np
import pytest
import torch

from embed.public_scatter import PublicScatter
from embed.water_filling import LEAST_SQUARE, SCALES, Centre, noised_place


def scatter_of(d: int, seed: int = 0) -> PublicScatter:
    draw = np.random.default_rng(seed)
    a = draw.standard_normal((d, 2 * d)) * np.linspace(0.2, 0.01, d)[:, None]
    mean = torch.from_numpy(draw.standard_normal(d) * 0.02)
    covariance = torch.from_numpy(a @ a.T / (2 * d))
    return PublicScatter(mean, 0.7 * covariance, 0.3 * covariance)


def test_the_place_is_the_posterior_mean_over_all_scales() -> None:
    """Beside dense Gaussian posteriors, weighed by their densities."""
    d, noise = 4, 0.05
    scatter, draw = scatter_of(d), np.random.default_rng(1)
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


def test_without_noise_the_mean_stays_as_it_is() -> None:
    scatter = scatter_of(6)
    seen = scatter.mean + 0.3 * torch.ones(6, dtype=torch.float64) / math.sqrt(6)
    found = noised_place(seen, 0.5, 0.0, scatter)
    assert torch.allclose(found[:-1], seen, atol=1e-6)
    centre = Centre.of(found[:-1], 0.5, scatter)
    assert centre.common == pytest.approx(0.09 / 0.5, rel=1e-4)
    apart = 0.5 - float(seen.square().sum())
    assert centre.spread == pytest.approx(
        math.sqrt(apart / float(scatter.covariance.trace())), rel=1e-4
    )
    assert centre.share == max(0.03, centre.common**2 / 2)


def test_noise_alone_moves_the_place_little() -> None:
    """And where it covers everything, place and length are those of public rows."""
    scatter, draw = scatter_of(50), torch.Generator().manual_seed(0)
    usual = max(float(scatter.covariance.trace() + scatter.mean.square().sum()), LEAST_SQUARE)
    for noise, most in ((0.1, 0.2), (1.0, 0.15), (100.0, 1e-2), (1e6, 1e-6)):
        seen = scatter.mean + noise * torch.randn(50, generator=draw, dtype=torch.float64)
        found = noised_place(seen, 0.5 + noise, noise, scatter)
        assert float((found[:-1] - scatter.mean).norm()) < most
        assert float(found[-1]) < usual * (1 + 2 * usual / noise) + 1e-3


@pytest.mark.parametrize("square", [-3.0, 0.0, 0.2, 1.0, 40.0])
@pytest.mark.parametrize("size", [0.0, 0.9, 1e3, 1e200])
def test_noised_numbers_out_of_bounds_make_a_centre_all_the_same(
    square: float, size: float
) -> None:
    """Noise knows no bounds; a mean of rows, and their squared length, have some."""
    scatter = scatter_of(5)
    seen = torch.full((5,), size, dtype=torch.float64)
    found = noised_place(seen, square, 0.01, scatter)
    centre = Centre.of(found[:-1], float(found[-1]), scatter)
    assert found.isfinite().all()
    assert float(centre.place.norm()) < 1
    assert LEAST_SQUARE <= float(found[-1]) <= 1
    assert 0 <= centre.common <= 1
    assert math.isfinite(centre.spread)
    assert centre.spread > 0


@pytest.mark.parametrize(
    ("place", "square", "rule"),
    [
        (torch.full((5,), 0.5), 0.5, r"centre_norm must be in \[0, 1\]"),
        (torch.full((5,), math.nan), 0.5, "centre_norm must be in"),
        (torch.zeros(5), 0.01, r"centre_squared_length must be in \[0.05, 1\], got 0.01"),
        (torch.zeros(5), 1.5, "centre_squared_length must be in"),
        (torch.zeros(5), math.nan, "centre_squared_length must be in"),
    ],
)
def test_a_centre_that_no_rows_have_is_refused(
    place: torch.Tensor, square: float, rule: str
) -> None:
    with pytest.raises(ValueError, match=rule):
        Centre.of(place.double(), square, scatter_of(5))


def test_the_public_centre_is_that_of_public_rows() -> None:
    scatter = scatter_of(5)
    centre = Centre.public(scatter)
    assert torch.equal(centre.place, scatter.mean)
    assert (centre.common, centre.spread) == (0.0, 1.0)
