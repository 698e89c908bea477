"""The empirical-Bayes steps against brute force, an independent library and the model itself."""

import math

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor

from train_distributed.one_shot.class_gaussians import (
    LEAST_SIZE,
    Posterior,
    conditioned,
    fitted_size,
    linear_discriminant,
    moved_covariance,
    within_class,
)

EQUAL = torch.full((3,), 1 / 3, dtype=torch.float64)
EYE = torch.eye(20, dtype=torch.float64)


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
    exact = Posterior((x.T @ hot) / counts, torch.zeros(5, 5, dtype=torch.float64))
    within = within_class(x.T @ x / 200, exact, shares)
    directions, bias = linear_discriminant(exact.means, within, shares)
    expected = LinearDiscriminantAnalysis(solver="lsqr").fit(rows, labels)
    assert np.allclose(directions.numpy().T, expected.coef_, rtol=1e-6, atol=1e-8)
    assert np.allclose(bias.numpy(), expected.intercept_, rtol=1e-6, atol=1e-8)


def symmetric_noise(dim: int, draw: torch.Generator) -> Tensor:
    """Independent N(0, 1), N(0, 2) on the diagonal, as of noised second moments."""
    half = torch.randn(dim, dim, generator=draw, dtype=torch.float64) / math.sqrt(2)
    return half + half.T


def test_covariance_is_moved_as_far_as_serves_it() -> None:
    """Signal and noise alike: nearer to the truth than the public or the noised one."""
    public, draw = conditioned(covariance(20, 11), 0.05), torch.Generator().manual_seed(12)
    spread = 0.03 * float(public.diagonal().mean())
    errors = torch.zeros(3, dtype=torch.float64)
    for _ in range(100):
        truth = public + spread * symmetric_noise(20, draw)
        noised = truth + spread * symmetric_noise(20, draw)
        found = without_diagonal(moved_covariance(public, noised, spread) - truth)
        others = (without_diagonal(each - truth) for each in (public, noised))
        errors += torch.stack([each.square().sum() for each in (found, *others)])
    assert errors[0] < 0.75 * errors[1:].min()


def without_diagonal(square: Tensor) -> Tensor:
    """Entries that neither the fitted size nor the room for noise touches, W_pub being diagonal."""
    return square - torch.diag(square.diagonal())


@pytest.mark.parametrize("signal", [0.02, 0.3, 3.0])
def test_entries_are_kept_by_the_likeliest_variance_less_two_deviations(signal: float) -> None:
    """Off the diagonal k_i k_j D_ij, k_i² = v w_i/(v w_i + s²), v of a grid of the likelihood."""
    dim, noise, draw = 30, 0.1, torch.Generator().manual_seed(13)
    widths = torch.linspace(20, 90, dim, dtype=torch.float64)  # far above what moves: none is cut
    public, scale = torch.diag(widths), torch.outer(widths, widths).sqrt()
    truth = signal / 50**0.5 * scale.sqrt() * symmetric_noise(dim, draw)
    difference = truth + noise * symmetric_noise(dim, draw)
    upper = torch.triu(torch.ones(dim, dim)).bool()
    size = fitted_size((widths + difference.diagonal()) / widths, 2 * (noise / widths).square())
    moved = difference + torch.diag(widths - size * widths)
    scale = size * scale
    grid = torch.logspace(-8, 2, 20_001, dtype=torch.float64)
    twofold = (1 + torch.eye(dim))[upper].double()  # variances on the diagonal
    entries, unit = moved[upper].square() / twofold, scale[upper]
    variance = grid[:, None] * unit + noise**2
    likelihood = -0.5 * (variance.log() + entries / variance).sum(1)
    best = grid[likelihood.argmax()]
    information = 0.5 * (unit / (best * unit + noise**2)).square().sum()
    sure = float((best - 2 / information.sqrt()).clamp(min=0))
    kept = (sure * size * widths / (sure * size * widths + noise**2)).sqrt()
    expected = torch.outer(kept, kept) * moved
    found = moved_covariance(public, public + difference, noise)
    assert torch.allclose(without_diagonal(found), without_diagonal(expected), rtol=5e-3, atol=1e-6)
    assert (sure > 0) == (signal > 0.1)


def test_covariance_stays_public_where_there_is_but_noise() -> None:
    public, draw = conditioned(covariance(20, 14), 0.05), torch.Generator().manual_seed(15)
    found = moved_covariance(public, public + 1e3 * symmetric_noise(20, draw), 1e3)
    ratio = torch.linalg.solve(public, found)
    assert torch.allclose(ratio, ratio[0, 0] * EYE, atol=1e-9)  # none but its scale


@pytest.mark.parametrize("size", [0.1, 1.0, 4.0])
def test_size_is_known_before_entries_are(size: float) -> None:
    """Noise as large as every variance itself: their common factor is found all the same."""
    public, draw = conditioned(covariance(200, 19), 0.5), torch.Generator().manual_seed(20)
    noise = size * float(public.diagonal().mean())
    noised = size * public + noise * symmetric_noise(200, draw)
    found = moved_covariance(public, noised, noise)
    assert float(found.trace()) == pytest.approx(size * float(public.trace()), rel=0.3)


def test_size_is_the_posterior_mean_of_a_normal_law() -> None:
    ratios = torch.tensor([0.2, 0.8, 0.5], dtype=torch.float64)
    alike = torch.full((3,), 3.0, dtype=torch.float64)  # of their mean: 1, as of the prior
    assert fitted_size(ratios, alike) == pytest.approx((1 + 0.5) / 2)
    assert fitted_size(ratios, 0 * alike) == pytest.approx(0.5)
    assert fitted_size(-100 * ratios, alike) == pytest.approx(0.5)  # its deviation, half of 1
    assert fitted_size(0 * ratios, 0 * alike) == LEAST_SIZE
    assert fitted_size(ratios, 1e12 * alike) == pytest.approx(1, abs=1e-6)


def test_covariance_is_the_noised_one_where_there_is_no_noise() -> None:
    public, private = conditioned(covariance(6, 16), 0.05), covariance(6, 17)
    assert torch.allclose(moved_covariance(public, private, 0.0), private, atol=1e-12)


def test_room_is_the_edge_of_the_spectrum_of_kept_noise() -> None:
    """Far more signal than noise, so all is kept: the error's least eigenvalue is lifted to 0."""
    draw = torch.Generator().manual_seed(18)
    public = torch.eye(300, dtype=torch.float64)
    truth = 40 * public + symmetric_noise(300, draw)
    noised = truth + 0.02 * symmetric_noise(300, draw)
    found = moved_covariance(public, noised, 0.02)
    edge = 2 * 0.02 * math.sqrt(300)
    assert float(torch.linalg.eigvalsh(noised - truth)[0]) == pytest.approx(-edge, rel=0.05)
    assert float(torch.linalg.eigvalsh(found - truth)[0]) == pytest.approx(0, abs=0.05 * edge)


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
    found = within_class(moments, Posterior(means, spread), EQUAL)
    assert torch.allclose(found, within, atol=1e-12)
