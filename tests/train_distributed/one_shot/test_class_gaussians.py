"""Gaussian classes against brute force, an independent library and the model itself."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor

from embed import PublicTransform
from tests.train_distributed.one_shot.builders import embedded, simulated
from train_distributed.one_shot.class_gaussians import (
    LEAST_VARIANCE,
    TAILS,
    Gaussians,
    NoisyScatter,
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
    white = torch.randn(dim, dim, generator=draw, dtype=torch.float64)
    return (white + white.mT) / math.sqrt(2)


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


def test_size_is_the_posterior_mean_of_a_normal_law() -> None:
    assert fitted_size(0.5, 1.0) == pytest.approx((1 + 0.5) / 2)  # as of the prior
    assert fitted_size(0.5, 0.0) == pytest.approx(0.5)
    assert fitted_size(-100.0, 1.0) == pytest.approx(0.5)  # its deviation, half of 1
    assert fitted_size(0.0, 0.0) == LEAST_VARIANCE
    assert fitted_size(0.5, 1e12) == pytest.approx(1, abs=1e-5)


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
def test_the_temperature_is_that_of_rows_with_scales_of_their_own(length, ratio):
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
    grid = np.geomspace(0.3, 3, 60) * found.temperature(ratio)
    losses = [np.logaddexp(0, -odds[:100_000] / t).mean() for t in grid]
    assert grid[int(np.argmin(losses))] == pytest.approx(found.temperature(ratio), rel=0.25)


# Scatter of scores beside the one that their covariance claims

Q, CLASSES = 60, 3


def case(kind: str, noise: float, draw: torch.Generator) -> tuple[NoisyScatter, Gaussians, float]:
    """Private rows like public ones, turned, or wider where classes differ; what Σ solves.

    Then how many times as much its scores scatter as Σ says, in truth.
    """
    public = torch.diag(torch.logspace(-1, 0, Q, dtype=torch.float64))
    shares = torch.full((CLASSES,), 1 / CLASSES, dtype=torch.float64)
    means = 0.3 * torch.randn(Q, CLASSES, generator=draw, dtype=torch.float64)
    apart = means - means.mean(1, keepdim=True)
    turn = torch.linalg.qr(torch.randn(Q, Q, generator=draw, dtype=torch.float64)).Q
    truth = {
        "alike": public,
        "turned": turn @ public @ turn.mT,
        "wider": public + apart * shares @ apart.mT,
    }[kind]
    scatter = NoisyScatter(public, truth + noise * symmetric_noise(Q, draw), noise, 0 * public)
    covariance = scatter.covariance()
    slopes = torch.linalg.solve(covariance, apart)
    said, actual = (float((slopes * (of @ slopes)).sum()) for of in (covariance, truth))
    return scatter, Gaussians(means, covariance, shares), actual / said


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.03, 0.1])
@pytest.mark.parametrize("kind", ["alike", "turned", "wider"])
def test_the_scatter_of_scores_is_found(kind: str, noise: float) -> None:
    """On average within a fifth, single ones within a half."""
    draw = torch.Generator().manual_seed(0)
    ratios, true = [], []
    for _ in range(12):
        scatter, found, actual = case(kind, noise, draw)
        ratios.append(scatter.ratio(found))
        true.append(actual)
    assert np.mean(ratios) == pytest.approx(np.mean(true), rel=0.2)
    assert ratios == pytest.approx(true, rel=0.5)
    assert np.mean(true) == pytest.approx(1, abs=0.01) if noise == 0 else max(true) < 1
    if kind != "wider" and noise == 0.1:
        assert max(true) < 0.4


@pytest.mark.parametrize("length", [1.0, 1e-12, 0.0])
@pytest.mark.parametrize("knowing", [False, True])
def test_any_noise_gives_a_ratio(length: float, knowing: bool) -> None:
    """Also where rounding leaves nothing of what Σ says beside its ridge."""
    draw = torch.Generator().manual_seed(1)
    for noise in (1e3, 1e9, *[1e16] * 8, 1e20, *[1e30] * 8):
        scatter, found, _ = case("alike", noise, draw)
        scatter = replace(scatter, knowing=knowing)
        found = replace(found, means=length * found.means, covariance=scatter.covariance())
        ratio = scatter.ratio(found)
        assert 0 < ratio <= 1
        assert ratio == 1 or length > 0


@pytest.mark.parametrize("shares", [(0.25, 0.25, 0.25, 0.25), (0.7, 0.1, 0.1, 0.1)])
def test_a_ridge_neither_evens_probabilities_out_nor_costs_small_classes_their_rows(
    shares: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    dim, classes, rows = 60, 4, 9000
    labels = rng.choice(classes, rows, p=shares)
    centres = 0.15 * rng.standard_normal((classes, dim))
    scatter = np.geomspace(0.5, 1, dim)
    x = centres[labels] + scatter * rng.standard_normal((rows, dim))
    private = embedded(x, labels, classes, test=np.arange(rows) >= 6000)
    public = rng.standard_normal((5000, dim)) * scatter
    transform = PublicTransform.fit(torch.from_numpy(public).float())

    def measured() -> np.ndarray:
        found = []
        for seed in range(3):
            given = {"transform": transform, "prior": "private"}
            metrics = simulated(private, "discriminant", 0.3, seed, **given).report["test_metrics"]
            found.append((metrics["expected_calibration_error"], metrics["balanced_accuracy"]))
        return np.mean(found, 0)

    error, balanced = measured()
    monkeypatch.setattr(NoisyScatter, "ratio", lambda self, found, true=1.0: 1.0)
    raw_error, raw_balanced = measured()
    if max(shares) > 0.5:
        assert raw_balanced == pytest.approx(0.25, abs=0.01)  # always the largest
        assert balanced > raw_balanced + 0.05
    else:
        assert error < 0.7 * raw_error
        assert balanced == pytest.approx(raw_balanced, abs=0.005)


@pytest.mark.parametrize("noise", [0.01, 0.03, 0.06])
@pytest.mark.parametrize("other", [1.0, 0.05])
def test_directions_vary_more_than_the_moments_say_that_they_were_solved_by(noise, other):
    """Of private rows that scatter unlike public ones by 1.6 to 1.9 times, of such as those not."""
    draw, q = torch.Generator().manual_seed(3), 100

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw, dtype=torch.float64)

    public = torch.diag(10 * torch.arange(1, q + 1, dtype=torch.float64) ** -0.5)
    rotation = torch.linalg.qr(normal(q, q))[0]
    sizes = torch.ones(q, dtype=torch.float64)
    sizes[::2], sizes[1::2] = other, other if other == 1 else 3.0
    true = public.sqrt() @ (rotation * sizes) @ rotation.T @ public.sqrt()
    means = 0.3 * public.sqrt() @ normal(q, 5)
    along, seen, told = 0.0, 0.0, []
    for _ in range(3):
        noised = true + noise * symmetric_noise(q, draw)
        scatter = NoisyScatter(public, noised, noise, torch.zeros_like(true))
        slopes = torch.linalg.solve(scatter.covariance(), means)
        for slope, said in zip(slopes.T, (slopes * means).sum(0), strict=True):
            squares = torch.outer(slope, slope) / said
            along += float((squares * true).sum())
            seen += scatter.ratio_along(squares, noised)
        told.append(scatter.optimism(means, torch.zeros_like(true)))
    truth = max(1.0, along / seen)
    assert 0.85 * truth <= sum(told) / 3 <= 1.05 * truth
    assert (truth > 1.5) == (other < 1)
