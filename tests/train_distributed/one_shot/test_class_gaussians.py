"""The empirical-Bayes steps against brute force, an independent library and the model itself."""

import math

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor

from train_distributed.one_shot.class_gaussians import (
    LEAST_SCALE,
    LEAST_SIZE,
    Posterior,
    Prior,
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
    """All steps in a row, ρ = 1 and t = ∞, beside scikit-learn's on the same rows."""
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], [40, 70, 90])
    rows = rng.standard_normal((200, 5)) @ rng.standard_normal((5, 5)) + 2 * np.eye(3, 5)[labels]
    x, hot = torch.from_numpy(rows), torch.from_numpy(np.eye(3)[labels])
    counts = hot.sum(0)
    shares, centre = counts / 200, x.mean(0)
    deviations = (x.T @ hot) / counts - centre[:, None]
    unbounded = Prior.of(covariance(5, 1)).posterior(deviations, torch.zeros(3), math.inf, shares)
    within = within_class(x.T @ x / 200, centre, unbounded, shares)
    directions, bias = linear_discriminant(centre[:, None] + unbounded.means, within, shares)
    expected = LinearDiscriminantAnalysis(solver="lsqr").fit(rows, labels)
    assert np.allclose(directions.numpy().T, expected.coef_, rtol=1e-6, atol=1e-8)
    assert np.allclose(bias.numpy(), expected.intercept_, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("rank", [1, None])
def test_posterior_is_that_of_the_joint_gaussian(rank: int | None) -> None:
    """Three classes in three dimensions at once: N(g, tB), g of a prior as good as flat."""
    between, scale, flat = covariance(3, 2, rank), 0.7, 1e7
    noise = torch.tensor([0.1, 0.5, 2.0], dtype=torch.float64)
    deviations = torch.randn(3, 3, generator=torch.Generator().manual_seed(3)).double()
    shares = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    found = Prior.of(between).posterior(deviations, noise, scale, shares)
    eye, ones = torch.eye(3, dtype=torch.float64), torch.ones(3, 3, dtype=torch.float64)
    prior = torch.kron(eye, scale * between) + flat * torch.kron(ones, eye)
    every = torch.kron(noise.square().diag(), eye)
    gain = prior @ torch.linalg.inv(prior + every)
    means = (gain @ deviations.T.flatten()).unflatten(0, (3, 3)).T
    left = gain @ every
    spread = sum(shares[k] * left[3 * k : 3 * k + 3, 3 * k : 3 * k + 3] for k in range(3))
    assert torch.allclose(found.means, means, atol=1e-6)
    assert torch.allclose(found.covariance, torch.as_tensor(spread), atol=1e-6)


@pytest.mark.parametrize("shared", [True, False])
def test_evidence_is_the_density_of_contrasts_of_the_noisy_means(shared: bool) -> None:
    """What is left of K means without a common one: K − 1 contrasts, of this joint density."""
    noise = torch.tensor([0.3, 0.3, 0.3] if shared else [0.1, 0.4, 2.0], dtype=torch.float64)
    between = covariance(3, 4)
    deviations = torch.randn(3, 3, generator=torch.Generator().manual_seed(5)).double()
    scales = torch.tensor([0.1, 1.0, 9.0], dtype=torch.float64)
    eye = torch.eye(3, dtype=torch.float64)
    contrasts = torch.tensor([[1, -1, 0], [1, 1, -2]], dtype=torch.float64)
    many = torch.kron(contrasts, eye)  # (6, 9), of the classes one after another
    expected = []
    for scale in scales:
        full = torch.kron(eye, scale * between) + torch.kron(noise.square().diag(), eye)
        law = torch.distributions.MultivariateNormal(torch.zeros(6).double(), many @ full @ many.T)
        expected.append(law.log_prob(many @ deviations.T.flatten()))
    found = Prior.of(between).evidence(deviations, noise, scales)
    differences = found.diff(), torch.stack(expected).diff()
    assert torch.allclose(*differences, atol=1e-9)


@pytest.mark.parametrize("truth", [0.05, 1.0, 300.0])
def test_fitted_scale_is_the_best_of_a_fine_grid(truth: float) -> None:
    between, noise = covariance(8, 6), torch.full((6,), 0.2, dtype=torch.float64)
    draw = torch.Generator().manual_seed(7)
    root = torch.linalg.cholesky(truth * between)
    means = root @ torch.randn(8, 6, generator=draw, dtype=torch.float64)
    noisy = means + 0.2 * torch.randn(8, 6, generator=draw, dtype=torch.float64)
    deviations = noisy - noisy.mean(1, keepdim=True)
    prior = Prior.of(between)
    fine = torch.logspace(-4, 4, 80_001, dtype=torch.float64)
    best = float(fine[prior.evidence(deviations, noise, fine).argmax()])
    found, evidence = prior.fitted(deviations, noise)
    assert found == pytest.approx(max(best, LEAST_SCALE), rel=2e-3)
    assert truth / 3 < found < 3 * truth
    assert evidence >= float(prior.evidence(deviations, noise, fine).max()) - 1e-6


def test_means_of_one_place_still_leave_a_scale() -> None:
    """No deviation at all: the evidence is for 0, the scale stays above it."""
    noise = torch.full((2,), 1.0, dtype=torch.float64)
    found, _ = Prior.of(covariance(4, 8)).fitted(torch.zeros(4, 2).double(), noise)
    assert found == LEAST_SCALE


@pytest.mark.parametrize("tau", [0.05, 0.5, 3.0])
def test_posterior_means_lose_least_on_draws_from_the_model(tau: float) -> None:
    """200 draws: never above the noisy means, and within 5 % of the true scale's risk."""
    dim, classes, between = 12, 10, covariance(12, 9)
    prior, draw = Prior.of(between), torch.Generator().manual_seed(10)
    root = torch.linalg.cholesky(between)
    noise = torch.full((classes,), tau, dtype=torch.float64)
    shares = torch.full((classes,), 1 / classes, dtype=torch.float64)
    risks = torch.zeros(3, dtype=torch.float64)
    for _ in range(200):
        means = root @ torch.randn(dim, classes, generator=draw, dtype=torch.float64)
        noisy = means + tau * torch.randn(dim, classes, generator=draw, dtype=torch.float64)
        centre = noisy.mean(1, keepdim=True)
        fitted, _ = prior.fitted(noisy - centre, noise)
        for place, scale in enumerate((math.inf, fitted, 1.0)):
            found = prior.posterior(noisy - centre, noise, scale, shares).means + centre
            risks[place] += (found - means).square().sum()
    plain, fitted_risk, oracle = risks.tolist()
    assert fitted_risk <= plain
    assert fitted_risk <= 1.05 * oracle


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
    means = means - means.mean(1, keepdim=True)
    centre = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    between = means / 3 @ means.T
    moments = within + between + spread + torch.outer(centre, centre)
    found = within_class(moments, centre, Posterior(means, spread), EQUAL)
    assert torch.allclose(found, within, atol=1e-12)
