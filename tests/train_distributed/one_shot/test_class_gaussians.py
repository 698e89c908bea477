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
    MOST_NOISE,
    Posterior,
    Prior,
    conditioned,
    fitted_size,
    fitted_variance,
    linear_discriminant,
    moved_covariance,
    within_class,
)

EQUAL = torch.full((3,), 1 / 3, dtype=torch.float64)


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
    """Three dimensions: prior covariance tB, noise τ²I, the dense formula by matrix inverses."""
    between, scale = covariance(3, 2, rank), 0.7
    noise = torch.tensor([0.1, 0.5, 2.0], dtype=torch.float64)
    deviations = torch.randn(3, 3, generator=torch.Generator().manual_seed(3)).double()
    shares = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    found = Prior.of(between).posterior(deviations, noise, scale, shares)
    spread = torch.zeros(3, 3, dtype=torch.float64)
    for k in range(3):
        gain = (
            scale
            * between
            @ torch.linalg.inv(scale * between + noise[k] ** 2 * torch.eye(3, dtype=torch.float64))
        )
        assert torch.allclose(found.means[:, k], gain @ deviations[:, k], atol=1e-12)
        spread += shares[k] * (scale * between - scale * gain @ between)
    assert torch.allclose(found.covariance, spread, atol=1e-12)


def test_evidence_is_the_density_of_the_noisy_means() -> None:
    """For equal noise: centred means have (K − 1)/K of the log determinant, as K − 1 free ones."""
    between, noise = covariance(3, 4), torch.full((3,), 0.3, dtype=torch.float64)
    deviations = torch.randn(3, 3, generator=torch.Generator().manual_seed(5)).double()
    deviations = deviations - deviations.mean(1, keepdim=True)
    scales = torch.tensor([0.1, 1.0, 9.0], dtype=torch.float64)
    contrasts = torch.tensor([[1, -1, 0], [1, 1, -2]], dtype=torch.float64)
    contrasts = contrasts / torch.linalg.vector_norm(contrasts, dim=1, keepdim=True)
    free = deviations @ contrasts.T  # two independent columns
    expected = []
    for scale in scales:
        full = scale * between + 0.09 * torch.eye(3, dtype=torch.float64)
        law = torch.distributions.MultivariateNormal(torch.zeros(3).double(), full)
        expected.append(law.log_prob(free.T).sum())
    found = Prior.of(between).evidence(deviations, noise, scales)
    differences = found.diff(), torch.stack(expected).diff()
    assert torch.allclose(*differences, atol=1e-10)


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


def test_covariance_is_moved_as_far_as_the_likelihood_says() -> None:
    """Draws from the model: the variance is found, and the error is the least of all shares."""
    public, draw = conditioned(covariance(20, 11), 0.05), torch.Generator().manual_seed(12)
    values, vectors = torch.linalg.eigh(public)
    root = vectors * values.sqrt() @ vectors.T
    errors = torch.zeros(4, dtype=torch.float64)
    for _ in range(100):
        truth = public + 0.05 * root @ symmetric_noise(20, draw) @ root
        noised = truth + 0.03 * symmetric_noise(20, draw)
        found, _ = moved_covariance(public, noised, 0.03)
        shares = [0.0, 0.5, 1.0]
        others = [public + share * (noised - public) - truth for share in shares]
        solved = [torch.linalg.solve(public, error) for error in (found - truth, *others)]
        errors += torch.stack([(each * each.T).sum() for each in solved])
    assert errors[0] < 0.95 * errors[1:].min()


@pytest.mark.parametrize("truth", [0.0, 0.01, 4.0])
def test_variance_of_maximum_likelihood(truth: float) -> None:
    """Beside a fine grid of the likelihood, noise of unequal size."""
    draw = torch.Generator().manual_seed(13)
    size = torch.logspace(-2, 1, 30, dtype=torch.float64)
    noise = torch.outer(size, size)
    entries = (truth + noise).sqrt() * symmetric_noise(30, draw)
    found = fitted_variance(entries, noise)
    upper = torch.triu(torch.ones(30, 30)) > 0
    double = (1 + torch.eye(30, dtype=torch.float64))[upper]
    grid = torch.cat([torch.zeros(1), torch.logspace(-6, 2, 20_001)]).double()
    spread = (grid[:, None] + noise[upper]) * double
    likelihood = -(spread.log() + entries[upper].square() / spread).sum(1)
    best = float(grid[likelihood.argmax()])
    assert found == pytest.approx(best, rel=0.2, abs=1e-3)


def test_covariance_stays_public_where_there_is_but_noise() -> None:
    public, draw = conditioned(covariance(20, 14), 0.05), torch.Generator().manual_seed(15)
    found, _ = moved_covariance(public, public + 1e3 * symmetric_noise(20, draw), 1e3)
    moved = torch.linalg.solve(public, found - public)
    assert float((moved * moved.T).sum().sqrt()) < 0.5 * math.sqrt(20)


@pytest.mark.parametrize("size", [0.1, 1.0, 4.0])
def test_size_is_known_before_entries_are(size: float) -> None:
    """Noise as large as every variance itself: their common factor is found all the same."""
    public, draw = conditioned(covariance(200, 19), 0.5), torch.Generator().manual_seed(20)
    noise = size * float(public.diagonal().mean())
    noised = size * public + noise * symmetric_noise(200, draw)
    found, _ = moved_covariance(public, noised, noise)
    assert float(found.trace()) == pytest.approx(size * float(public.trace()), rel=0.3)


def test_size_is_the_posterior_mean_of_a_normal_law() -> None:
    ratios = torch.tensor([0.2, 0.8, 0.5], dtype=torch.float64)
    alike = torch.full((3,), 3.0, dtype=torch.float64)  # of their mean: 1, as of the prior
    assert fitted_size(ratios, alike) == pytest.approx((1 + 0.5) / 2)
    assert fitted_size(ratios, 0 * alike) == pytest.approx(0.5)
    assert fitted_size(-100 * ratios, alike) == pytest.approx(0.5)  # its deviation, half of 1
    assert fitted_size(0 * ratios, 0 * alike) == LEAST_SIZE
    assert fitted_size(ratios, 1e12 * alike) == pytest.approx(1, abs=1e-6)


def test_noise_that_outweighs_the_covariance_is_kept_out() -> None:
    """Signal and noise alike and both far above W_pub: half of each entry would drown W."""
    draw = torch.Generator().manual_seed(21)
    public = torch.eye(60, dtype=torch.float64)
    noised = public + 3 * symmetric_noise(60, draw) + 3 * symmetric_noise(60, draw)
    _, room = moved_covariance(public, noised, 3.0)
    assert 0 < float(room.diagonal().mean()) < MOST_NOISE


def test_covariance_is_the_noised_one_where_there_is_no_noise() -> None:
    public, private = conditioned(covariance(6, 16), 0.05), covariance(6, 17)
    found, room = moved_covariance(public, private, 0.0)
    assert torch.allclose(found, private, atol=1e-12)
    assert not room.any()


def test_room_is_the_edge_of_the_spectrum_of_kept_noise() -> None:
    """Far more signal than noise, so all is kept: the error's least eigenvalue is lifted to 0."""
    draw = torch.Generator().manual_seed(18)
    public = torch.eye(300, dtype=torch.float64)
    truth = public + symmetric_noise(300, draw)
    found, room = moved_covariance(public, truth + 0.02 * symmetric_noise(300, draw), 0.02)
    lowest = float(torch.linalg.eigvalsh(found - truth)[0])
    assert lowest == pytest.approx(-float(room[0, 0]), rel=0.05)


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
