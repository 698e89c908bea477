"""The empirical-Bayes steps against brute force, an independent library and the model itself."""

import math

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor

from train_distributed.one_shot.class_gaussians import (
    LEAST_VARIANCE,
    TAILS,
    Gaussians,
    Posterior,
    conditioned,
    fitted_size,
    linear_discriminant,
    noise_edge,
    spiked_covariance,
    within_class,
)

EQUAL = torch.full((3,), 1 / 3, dtype=torch.float64)


def covariance(dim: int, seed: int, rank: int | None = None) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    root = torch.randn(dim, rank or 2 * dim, generator=draw, dtype=torch.float64)
    return root @ root.T / root.shape[1]


def test_without_noise_and_prior_it_is_linear_discriminant_analysis() -> None:
    """Means as they are, and the moments' covariance, beside scikit-learn's on the same rows."""
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], [40, 70, 90])
    rows = rng.standard_normal((200, 5)) @ rng.standard_normal((5, 5)) + 2 * np.eye(3, 5)[labels]
    x, hot = torch.from_numpy(rows), torch.from_numpy(np.eye(3)[labels])
    counts = hot.sum(0)
    shares = counts / 200
    none = torch.zeros(5, 5, dtype=torch.float64)
    exact = Posterior((x.T @ hot) / counts, none, none, none)
    within = within_class(x.T @ x / 200, exact, shares)
    directions, bias = linear_discriminant(exact.means, within, shares)
    expected = LinearDiscriminantAnalysis(solver="lsqr").fit(rows, labels)
    assert np.allclose(directions.numpy().T, expected.coef_, rtol=1e-6, atol=1e-8)
    assert np.allclose(bias.numpy(), expected.intercept_, rtol=1e-6, atol=1e-8)


def symmetric_noise(dim: int, draw: torch.Generator) -> Tensor:
    """Independent N(0, 1), N(0, 2) on the diagonal, as of noised second moments."""
    half = torch.randn(dim, dim, generator=draw, dtype=torch.float64) / math.sqrt(2)
    return half + half.T


@pytest.mark.parametrize("rank", [1, 3, 8])
def test_directions_of_private_rows_alone_are_found(rank: int) -> None:
    """Nearer to the truth than the public covariance, the noised one, or spikes as they are."""
    draw, dim, noise = torch.Generator().manual_seed(12), 60, 0.05
    public = conditioned(covariance(dim, 11), 0.05) / dim
    edge, errors = noise_edge(noise, dim), torch.zeros(4, dtype=torch.float64)
    for _ in range(20):
        turned = torch.linalg.qr(torch.randn(dim, rank, generator=draw, dtype=torch.float64)).Q
        truth = public + edge * turned @ turned.T
        noised = truth + noise * symmetric_noise(dim, draw)
        values, vectors = torch.linalg.eigh(noised - public)
        kept = public + vectors * torch.where(values > edge, values, 0.0) @ vectors.T
        found = spiked_covariance(public, noised, noise)
        tried = (found, public, noised, kept)
        errors += torch.stack([(each - truth).square().sum() for each in tried])
    assert errors[0] < 0.9 * errors[1:].min()


@pytest.mark.parametrize("strength", [0.75, 1.5, -1.5])
def test_a_spike_has_the_length_that_the_truth_has_along_it(strength: float) -> None:
    """θ u uᵀ in Wigner noise, θ beyond half the edge: vᵀWv for the noised direction v."""
    draw, dim, noise = torch.Generator().manual_seed(13), 400, 0.01
    edge = noise_edge(noise, dim)
    public = edge * 3 * torch.eye(dim, dtype=torch.float64)
    along = torch.zeros(dim, dtype=torch.float64)
    along[3] = 1.0
    found, true = [], []
    for _ in range(6):
        truth = public + strength * edge * torch.outer(along, along)
        noised = truth + noise * symmetric_noise(dim, draw)
        end = -1 if strength > 0 else 0
        spike = torch.linalg.eigh(noised).eigenvectors[:, end]
        estimate = spiked_covariance(public, noised, noise)
        found.append(float(spike @ (estimate - public) @ spike))
        true.append(float(spike @ (truth - public) @ spike))
    assert np.mean(found) == pytest.approx(np.mean(true), rel=0.1)


def test_covariance_stays_public_where_there_is_but_noise() -> None:
    """But for its size, and what the end of the spectrum is off its limit."""
    public, draw = conditioned(covariance(200, 14), 0.5), torch.Generator().manual_seed(15)
    found = spiked_covariance(public, public + 9 * symmetric_noise(200, draw), 9)
    size = float(found.trace() / public.trace())
    assert 0.5 < size < 2
    assert torch.linalg.matrix_norm(found - size * public, 2) < 0.3 * noise_edge(9, 200)


@pytest.mark.parametrize("size", [0.1, 1.0, 4.0])
def test_size_is_known_before_entries_are(size: float) -> None:
    """Noise as large as every variance itself: their common factor is found all the same."""
    public, draw = conditioned(covariance(200, 19), 0.5), torch.Generator().manual_seed(20)
    noise = size * float(public.diagonal().mean())
    noised = size * public + noise * symmetric_noise(200, draw)
    found = spiked_covariance(public, noised, noise)
    assert float(found.trace()) == pytest.approx(size * float(public.trace()), rel=0.3)


def test_size_is_the_posterior_mean_of_a_normal_law() -> None:
    assert fitted_size(0.5, 1.0) == pytest.approx((1 + 0.5) / 2)  # as of the prior
    assert fitted_size(0.5, 0.0) == pytest.approx(0.5)
    assert fitted_size(-100.0, 1.0) == pytest.approx(0.5)  # its deviation, half of 1
    assert fitted_size(0.0, 0.0) == LEAST_VARIANCE
    assert fitted_size(0.5, 1e12) == pytest.approx(1, abs=1e-5)


def test_covariance_is_the_noised_one_where_there_is_no_noise() -> None:
    public, private = conditioned(covariance(6, 16), 0.05), covariance(6, 17)
    assert torch.allclose(spiked_covariance(public, private, 0.0), private, atol=1e-12)


def test_conditioned_covariance_keeps_its_trace_where_it_is_positive() -> None:
    given = covariance(6, 15)
    found = conditioned(given, 0.3)
    assert found.trace() == pytest.approx(float(given.trace()))
    broken = given - 2 * torch.eye(6, dtype=torch.float64) * torch.linalg.eigvalsh(given)[1]
    assert torch.linalg.eigvalsh(conditioned(broken, 0.0)).min() > 0


def test_posterior_covariance_is_taken_from_the_moments() -> None:
    """Moments of rows around class means that are known with a spread V hold V once."""
    within, spread = covariance(3, 16), 0.1 * covariance(3, 17)
    means = torch.randn(3, 3, generator=torch.Generator().manual_seed(18)).double()
    moments = within + means / 3 @ means.T + spread
    found = within_class(moments, Posterior(means, spread, 0 * spread, spread), EQUAL)
    assert torch.allclose(found, within, atol=1e-12)


@pytest.mark.parametrize("length", [1.0, 3.0])
@pytest.mark.parametrize("ratio", [1.0, 0.4])
def test_the_temperature_is_that_of_rows_with_scales_of_their_own(
    length: float, ratio: float
) -> None:
    """Two classes; rows lie g times as far from the other one, g of variance 4 `TAILS`.

    Their scatter along the way is `ratio` times the one that the classifier claims.
    """
    means = torch.tensor([[length / 2, -length / 2], [0.0, 0.0]]).double()
    claimed = torch.eye(2, dtype=torch.float64)
    found = Gaussians(means, claimed, torch.full((2,), 0.5).double())
    assert found.temperature(ratio) == pytest.approx(ratio + TAILS * length**2)
    draw = np.random.default_rng(0)
    g = draw.gamma(1 / (4 * TAILS), 4 * TAILS, 400_000)
    odds = length * (g * length / 2 + math.sqrt(ratio) * draw.standard_normal(len(g)))
    grid = np.geomspace(0.3, 3, 400) * found.temperature(ratio)
    losses = [np.logaddexp(0, -odds[:100_000] / t).mean() for t in grid]
    assert grid[int(np.argmin(losses))] == pytest.approx(found.temperature(ratio), rel=0.25)


def test_classes_that_are_alike_have_the_temperature_of_their_ratio() -> None:
    found = Gaussians(torch.zeros(3, 4).double(), covariance(3, 1), torch.full((4,), 0.25))
    assert found.temperature(0.7) == pytest.approx(0.7)
