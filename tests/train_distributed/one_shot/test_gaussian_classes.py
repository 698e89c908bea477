"""Gaussian classes, their posterior under public guesses, and how sure scores may be."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor

from embed import PublicTransform
from tests.train_distributed.one_shot.builders import embedded, simulated
from train_distributed.one_shot import class_gaussians as gaussians
from train_distributed.one_shot import class_posterior
from train_distributed.one_shot.class_posterior import (
    SHIFTS,
    Guess,
    NoisyMeans,
    Scales,
    believed,
    scales_about_one,
    scales_at_all,
    true_share,
    weighed,
)

Q, K, DIM = 3, 4, 60
EQUAL = torch.full((3,), 1 / 3, dtype=torch.float64)


def normal(draw: int | torch.Generator, *shape: int) -> Tensor:
    """Of a seed, or the next ones of a generator."""
    draw = torch.Generator().manual_seed(draw) if isinstance(draw, int) else draw
    return torch.randn(*shape, generator=draw, dtype=torch.float64)


def covariance(dim: int, seed: int) -> Tensor:
    root = normal(seed, dim, 2 * dim)
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
    exact = gaussians.Posterior((x.T @ hot) / counts, none, none, none)
    within = gaussians.within_class(x.T @ x / 200, exact, shares)
    directions, bias = gaussians.linear_discriminant(exact.means, within, shares)
    expected = LinearDiscriminantAnalysis(solver="lsqr").fit(rows, labels)
    assert np.allclose(directions.numpy().T, expected.coef_, rtol=1e-6, atol=1e-8)
    assert np.allclose(bias.numpy(), expected.intercept_, rtol=1e-6, atol=1e-8)


def symmetric_noise(dim: int, draw: torch.Generator) -> Tensor:
    """Independent N(0, 1), N(0, 2) on the diagonal, as of noised second moments."""
    white = normal(draw, dim, dim)
    return (white + white.mT) / math.sqrt(2)


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("strength", [0.75, 1.5, -1.5])
def test_spikes_have_the_length_that_the_truth_has_along_them(strength: float, rank: int) -> None:
    """θ U Uᵀ in Wigner noise, θ beyond half the edge: vᵀWv for the noised directions v."""
    draw, dim, noise = torch.Generator().manual_seed(13), 400, 0.01
    edge = gaussians.noise_edge(noise, dim)
    public = edge * 3 * torch.eye(dim, dtype=torch.float64)
    found, true = [], []
    for _ in range(6):
        turned = torch.linalg.qr(normal(draw, dim, rank)).Q
        truth = public + strength * edge * turned @ turned.T
        noised = truth + noise * symmetric_noise(dim, draw)
        estimate = gaussians.spiked_covariance(public, noised, noise)
        vectors = torch.linalg.eigh(noised).eigenvectors
        spikes = vectors[:, -rank:] if strength > 0 else vectors[:, :rank]
        found.append(float((spikes * ((estimate - public) @ spikes)).sum()))
        true.append(float((spikes * ((truth - public) @ spikes)).sum()))
    assert np.mean(found) == pytest.approx(np.mean(true), rel=0.1)


def test_size_is_the_posterior_mean_of_a_normal_law() -> None:
    assert gaussians.fitted_size(0.5, 1.0) == pytest.approx((1 + 0.5) / 2)  # as of the prior
    assert gaussians.fitted_size(0.5, 0.0) == pytest.approx(0.5)
    assert gaussians.fitted_size(-100.0, 1.0) == pytest.approx(0.5)  # its deviation, half of 1
    assert gaussians.fitted_size(0.0, 0.0) == gaussians.LEAST_VARIANCE
    assert gaussians.fitted_size(0.5, 1e12) == pytest.approx(1, abs=1e-5)


def test_conditioned_covariance_keeps_its_trace_where_it_is_positive() -> None:
    given = covariance(6, 15)
    found = gaussians.conditioned(given, 0.3)
    assert found.trace() == pytest.approx(float(given.trace()))
    broken = given - 2 * torch.eye(6, dtype=torch.float64) * torch.linalg.eigvalsh(given)[1]
    assert torch.linalg.eigvalsh(gaussians.conditioned(broken, 0.0)).min() > 0


def test_posterior_covariance_is_taken_from_the_moments() -> None:
    """Moments of rows around class means that are known with a spread V hold V once."""
    within, spread, means = covariance(3, 16), 0.1 * covariance(3, 17), normal(18, 3, 3)
    moments = within + means / 3 @ means.T + spread
    known = gaussians.Posterior(means, spread, 0 * spread, spread)
    assert torch.allclose(gaussians.within_class(moments, known, EQUAL), within, atol=1e-12)


@pytest.mark.parametrize("length", [1.0, 3.0])
@pytest.mark.parametrize("ratio", [1.0, 0.4])
def test_the_temperature_is_that_of_rows_with_scales_of_their_own(length, ratio):
    """Rows lie g times as far from the other class, Var g = 4 `TAILS`, and scatter by `ratio`."""
    means = torch.tensor([[length / 2, -length / 2], [0.0, 0.0]]).double()
    claimed = torch.eye(2, dtype=torch.float64)
    found = gaussians.Gaussians(means, claimed, torch.full((2,), 0.5).double())
    assert found.temperature(ratio) == pytest.approx(ratio + gaussians.TAILS * length**2)
    draw = np.random.default_rng(0)
    g = draw.gamma(1 / (4 * gaussians.TAILS), 4 * gaussians.TAILS, 400_000)
    odds = length * (g * length / 2 + math.sqrt(ratio) * draw.standard_normal(len(g)))
    grid = np.geomspace(0.3, 3, 60) * found.temperature(ratio)
    losses = [np.logaddexp(0, -odds[:100_000] / t).mean() for t in grid]
    assert grid[int(np.argmin(losses))] == pytest.approx(found.temperature(ratio), rel=0.25)


def scatter_case(kind: str, noise: float, draw: torch.Generator):
    """Private rows of a kind, what Σ solves, and how far scores scatter to what Σ says."""
    public = torch.diag(torch.logspace(-1, 0, DIM, dtype=torch.float64))
    means = 0.3 * normal(draw, DIM, 3)
    apart = means - means.mean(1, keepdim=True)
    turn = torch.linalg.qr(normal(draw, DIM, DIM)).Q
    wider = public + apart / 3 @ apart.mT
    truth = {"alike": public, "turned": turn @ public @ turn.mT, "wider": wider}[kind]
    noised = truth + noise * symmetric_noise(DIM, draw)
    scatter = gaussians.NoisyScatter(public, noised, noise, 0 * public)
    covariance = scatter.covariance()
    slopes = torch.linalg.solve(covariance, apart)
    said, actual = (float((slopes * (of @ slopes)).sum()) for of in (covariance, truth))
    return scatter, gaussians.Gaussians(means, covariance, EQUAL), actual / said


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.03, 0.1])
@pytest.mark.parametrize("kind", ["alike", "turned", "wider"])
def test_the_scatter_of_scores_is_found(kind: str, noise: float) -> None:
    """On average within a fifth, single ones within a half."""
    draw = torch.Generator().manual_seed(0)
    ratios, true = [], []
    for _ in range(12):
        scatter, found, actual = scatter_case(kind, noise, draw)
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
        scatter, found, _ = scatter_case("alike", noise, draw)
        scatter = replace(scatter, knowing=knowing)
        found = replace(found, means=length * found.means, covariance=scatter.covariance())
        ratio = scatter.ratio(found)
        assert 0 < ratio <= 1
        assert ratio == 1 or length > 0


@pytest.mark.parametrize("shares", [(0.25, 0.25, 0.25, 0.25), (0.7, 0.1, 0.1, 0.1)])
def test_a_ridge_neither_evens_probabilities_out_nor_costs_small_classes_their_rows(
    shares: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, classes, rows = np.random.default_rng(0), 4, 9000
    labels = rng.choice(classes, rows, p=shares)
    centres, scatter = 0.15 * rng.standard_normal((classes, DIM)), np.geomspace(0.5, 1, DIM)
    x = centres[labels] + scatter * rng.standard_normal((rows, DIM))
    private = embedded(x, labels, classes, test=np.arange(rows) >= 6000)
    public = rng.standard_normal((5000, DIM)) * scatter
    transform = PublicTransform.fit(torch.from_numpy(public).float())

    def measured() -> np.ndarray:
        found = []
        for seed in range(3):
            given = {"transform": transform, "prior": "private"}
            metrics = simulated(private, "discriminant", 0.3, seed, **given).report["test_metrics"]
            found.append((metrics["expected_calibration_error"], metrics["balanced_accuracy"]))
        return np.mean(found, 0)

    error, balanced = measured()
    monkeypatch.setattr(gaussians.NoisyScatter, "ratio", lambda self, found, true=1.0: 1.0)
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
    public = torch.diag(10 * torch.arange(1, q + 1, dtype=torch.float64) ** -0.5)
    rotation = torch.linalg.qr(normal(draw, q, q))[0]
    sizes = torch.tensor([other, other if other == 1 else 3.0] * (q // 2), dtype=torch.float64)
    true = public.sqrt() @ (rotation * sizes) @ rotation.T @ public.sqrt()
    means = 0.3 * public.sqrt() @ normal(draw, q, 5)
    along, seen, told = 0.0, 0.0, []
    for _ in range(3):
        noised = true + noise * symmetric_noise(q, draw)
        scatter = gaussians.NoisyScatter(public, noised, noise, 0 * true)
        slopes = torch.linalg.solve(scatter.covariance(), means)
        for slope, said in zip(slopes.T, (slopes * means).sum(0), strict=True):
            squares = torch.outer(slope, slope) / said
            along += float((squares * true).sum())
            seen += scatter.ratio_along(squares, noised)
        told.append(scatter.optimism(means, 0 * true))
    truth = max(1.0, along / seen)
    assert 0.85 * truth <= sum(told) / 3 <= 1.05 * truth
    assert (truth > 1.5) == (other < 1)


def one_scale(t: float) -> Scales:
    return Scales(torch.tensor([t], dtype=torch.float64), torch.zeros(1, dtype=torch.float64))


def case(noise: list[float]) -> tuple[NoisyMeans, Guess, Tensor]:
    """V and C share their eigenvectors, as C's off-diagonal entries are left out."""
    between = torch.linalg.eigh(covariance(Q, 2))[1]
    own, shift = (
        between * torch.tensor(values, dtype=torch.float64) @ between.T
        for values in ([2.0, 0.5, 0.1], [1.0, 3.0, 0.2])
    )
    tau = torch.tensor(noise, dtype=torch.float64)
    noisy = NoisyMeans(normal(1, Q, K), tau, tau.reciprocal() / (1 / tau).sum())
    return noisy, Guess("guess", normal(2, Q, K), own, one_scale(0.7)), shift


def joint(noisy: NoisyMeans, guess: Guess, shift: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """Prior covariance of all means, and that of all noised ones, (K q, K q), as written down."""
    eye, ones = torch.eye(Q, dtype=torch.float64), torch.ones(K, K, dtype=torch.float64)
    scale = float(guess.scales.values[0])
    prior = torch.kron(torch.eye(K).double(), scale * guess.covariance)
    prior = prior + gamma * torch.kron(ones, shift)
    return prior, prior + torch.kron(noisy.noise.square().diag(), eye)


@pytest.mark.parametrize("gamma", [0.1, 10.0])
def test_with_equal_noise_it_is_the_posterior_of_the_joint_gaussian(gamma: float) -> None:
    noisy, guess, shift = case([0.8] * K)
    prior, total = joint(noisy, guess, shift, gamma)
    gain = prior @ torch.linalg.inv(total)
    residual = (noisy.means - guess.means).T.flatten()
    expected = guess.means + (gain @ residual).unflatten(0, (K, Q)).T
    found = weighed(noisy, replace(guess, shifts=(gamma,)), shift)
    assert torch.allclose(found.means, expected, atol=1e-9)
    left = prior - gain @ prior
    spread = sum(left[Q * k : Q * k + Q, Q * k : Q * k + Q] for k in range(K)) / K
    assert torch.allclose(found.covariance, torch.as_tensor(spread), atol=1e-9)


def test_evidence_of_a_scale_is_the_density_of_contrasts() -> None:
    noisy, guess, shift = case([0.1, 0.4, 0.8, 2.0])
    contrasts = torch.tensor([[1, -1, 0, 0], [1, 1, -2, 0], [1, 1, 1, -3]], dtype=torch.float64)
    many = torch.kron(contrasts, torch.eye(Q, dtype=torch.float64))
    residual = (noisy.means - guess.means).T.flatten()
    found, expected = [], []
    for t in (0.1, 1.0, 9.0):
        each = replace(guess, scales=one_scale(t))
        _, total = joint(noisy, each, shift, 0.0)
        law = torch.distributions.MultivariateNormal(torch.zeros(9).double(), many @ total @ many.T)
        expected.append(float(law.log_prob(many @ residual)))
        found.append(weighed(noisy, each, shift).evidence)
    ours, theirs = (torch.tensor(each, dtype=torch.float64).diff() for each in (found, expected))
    assert torch.allclose(ours, theirs, atol=1e-8)


def test_a_mixture_over_scales_and_shifts_is_the_integral_over_them() -> None:
    """One feature, two classes: μ_1 by quadrature over g, e_1 and e_2 under a grid of t and γ."""
    noise = torch.tensor([0.5, 0.5], dtype=torch.float64)
    d, m = torch.tensor([[0.9, -0.3]]).double(), torch.tensor([[0.4, 0.1]]).double()
    scales, shifts = scales_about_one(), (0.1, 10.0)
    value, spread = 0.3, 0.6
    guess = Guess("guess", m, torch.full((1, 1), value).double(), scales, shifts=shifts)
    noisy = NoisyMeans(d, noise, torch.full((2,), 0.5).double())
    found = weighed(noisy, guess, torch.full((1, 1), spread).double())
    t, gamma = scales.values[:, None, None], torch.tensor(shifts).double()[:, None]
    line = torch.linspace(-12, 12, 1201, dtype=torch.float64)  # g
    s, seen = t * value + 0.25, (d - m)[0]
    density = torch.exp(-line.square() / (2 * gamma * spread)) / (gamma * spread).sqrt()
    offset = seen[:, None, None, None] - line  # (2, 1, 1, g)
    density = density * torch.exp(-(offset.square() / (2 * s)).sum(0))
    mass, apart = density.sum(2, keepdim=True), float(seen[0] - seen[1])
    weight = torch.exp(scales.log_prior[:, None, None] - apart**2 / (4 * s)) / s.sqrt()
    odds = mass * torch.exp(-gamma.log10())
    law = weight / weight.sum() * odds / odds.sum(1, keepdim=True) * density / mass  # of (t, γ, g)
    own = m[0][:, None, None, None] + line + t * value / s * offset  # (2, t, γ, g)
    mean = (law * own).sum((1, 2, 3))
    square = (law * (own.square() + t * value * 0.25 / s)).sum((1, 2, 3))
    assert torch.allclose(found.means[0], mean, atol=1e-5)
    # C over γ: what γ leaves open is of the common shift, pulled by 1 − keep as at any one γ
    left = float((square - mean.square()).mean())
    assert float(found.covariance) == pytest.approx(left, rel=0.02)


@pytest.mark.parametrize("tau", [0.05, 0.5, 3.0])
def test_no_guess_does_harm_and_a_right_one_serves(tau: float) -> None:
    """Draws from the model: right guess, wrong guess beside none, and none, against noisy means."""
    dim, classes = 12, 10
    between, spread = covariance(dim, 9), covariance(dim, 10)
    root, noise = torch.linalg.cholesky(between), torch.full((classes,), tau, dtype=torch.float64)
    shares, draw = torch.full_like(noise, 1 / classes), torch.Generator().manual_seed(11)
    risks = torch.zeros(4, dtype=torch.float64)
    one, zero = scales_about_one(), torch.zeros(dim, 1, dtype=torch.float64)
    none = Guess("none", zero, between, one)
    for _ in range(60):
        guessed = math.sqrt(0.8) * root @ normal(draw, dim, classes)
        truth = guessed + math.sqrt(0.2) * root @ normal(draw, dim, classes)
        noisy = NoisyMeans(truth + tau * normal(draw, dim, classes), noise, shares)
        right = Guess("right", guessed, 0.2 * between, one, 5.0)
        wrong = Guess("wrong", guessed.roll(1, 1), 0.2 * between, one, 5.0)
        for place, guesses in enumerate(([none], [none, right], [none, wrong])):
            found, odds = believed(noisy, guesses, spread, spread)
            risks[place] += (found.means - truth).square().sum()
            assert sum(odds.values()) == pytest.approx(1)
        risks[3] += (noisy.means - truth).square().sum()
    nothing, right, wrong, plain = risks.tolist()
    assert nothing <= 1.01 * plain
    assert right <= 1.005 * nothing
    if tau < 1:  # the sum says that it is wrong
        assert wrong <= 1.02 * nothing
        assert tau < 0.1 or right < 0.9 * nothing


def test_an_unlikely_guess_that_knows_nothing_leaves_scores_as_they_are() -> None:
    """Its variance is in the posterior's, a hundred times that within classes, not in the doubt."""
    within, draw = covariance(Q, 21), torch.Generator().manual_seed(22)
    noise, shares = torch.full((4,), 30.0).double(), torch.full((4,), 0.25).double()
    noisy, said = NoisyMeans(30 * normal(draw, Q, 4), noise, shares), normal(draw, Q, 4)
    right = Guess("right", said, 0.1 * within, scales_about_one(), 4.0)
    free = Guess("free", said[:, :1], 100 * within, scales_at_all(), shifts=SHIFTS[-1:])
    alone, _ = believed(noisy, [right], within, within)
    found, odds = believed(noisy, [right, free], within, within)
    assert 0.005 < odds["free"] < 0.1
    assert torch.allclose(alone.doubt, alone.covariance)
    assert found.covariance.trace() > 2 * alone.covariance.trace()
    assert found.doubt.trace() < 1.3 * alone.doubt.trace() + 0.1 * within.trace()
    assert torch.linalg.eigvalsh(found.doubt).min() > 0


@pytest.mark.parametrize("std", [0.0, 1e-9, 1e9])
@pytest.mark.parametrize("rank", [0, 1, Q])
def test_extremes_stay_finite(std: float, rank: int) -> None:
    own, one = normal(3, Q, Q)[:, :rank], torch.eye(Q, dtype=torch.float64)
    own = own @ own.T
    shares = torch.full((2,), 0.5).double()
    noisy = NoisyMeans(normal(4, Q, 2), torch.full((2,), std).double(), shares)
    guesses = [
        Guess("some", normal(5, Q, 2), own, scales_about_one()),
        Guess("free", normal(6, Q, 1), own, scales_at_all(), shifts=SHIFTS[-1:]),
    ]
    for of_all in (own, one):
        found, odds = believed(noisy, guesses, of_all, one)
        assert torch.cat([found.means, found.doubt, found.covariance], 1).isfinite().all()
        assert sum(odds.values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("noise", "rank", "sizes"),
    [
        *((noise, rank, [1.0] * 20) for noise in (0.02, 0.2) for rank in (3, 30)),
        (0.5, 30, [1.0] * 20),
        (0.3, 30, [1.0, 3.0]),
        (0.1, 30, [1.0, 1.0, 2.0, 4.0]),
    ],
)
def test_the_true_share_is_unbiased_where_the_prior_is_wrong(noise, rank, sizes, monkeypatch):
    """Classes differ in few directions, the guess says in all; small ones have the more noise."""
    monkeypatch.setattr(class_posterior, "LEAST_TRUE", -1e6)  # the estimate itself, up to 1
    draw, q, k = torch.Generator().manual_seed(rank), 30, len(sizes)
    shares, one = torch.tensor(sizes).double() / sum(sizes), torch.eye(q, dtype=torch.float64)
    tau, found, true, size = noise / (k * shares), 0.0, 0.0, 0.0
    guess = Guess("any", 0 * one[:, :1], 0.09 * one, scales_about_one())
    for _ in range(60 if k > 4 else 400):
        means = torch.zeros(q, k, dtype=torch.float64)
        means[:rank] = 0.3 * normal(draw, rank, k)
        noisy = NoisyMeans(means + tau * normal(draw, q, k), tau, shares)
        posterior, _ = believed(noisy, [guess], one, one)
        apart = posterior.means - posterior.means.mean(1, keepdim=True)
        found += true_share(noisy, posterior, one) * float(apart.square().sum())
        true += float((apart * means).sum())
        size += float(apart.square().sum())
    assert found / size == pytest.approx(true / size, abs=0.08)
    if (noise, rank, k) == (0.2, 3, 20):
        assert true / size < 0.9


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")  # the evidence
@pytest.mark.parametrize("sizes", [[1.0, 1.0, 1.0], [1.0, 4.0], [1.0, 2.0, 9.0, 3.0]])
def test_noise_in_the_means_is_by_their_slopes(sizes: list[float]) -> None:
    """Stein's lemma with all derivatives, those of the scales' weights among them."""
    draw, k = torch.Generator().manual_seed(len(sizes)), len(sizes)
    shares, root = torch.tensor(sizes).double() / sum(sizes), normal(draw, Q, Q)
    tau, one = 0.5 / shares, torch.eye(Q, dtype=torch.float64)
    guess = Guess("any", 0 * one[:, :1], root @ root.T, scales_at_all(), 0, SHIFTS[-1:])

    def apart(seen: Tensor) -> Tensor:
        means = believed(NoisyMeans(seen, tau, shares), [guess], one, one)[0].means
        return means - means.mean(1, keepdim=True)

    seen = normal(draw, Q, k)
    slopes = torch.autograd.functional.jacobian(apart, seen)  # (q, K, q, K)
    expected = torch.einsum("jkik,k->ij", slopes, tau.square()) / (k - 1)
    found = believed(NoisyMeans(seen, tau, shares), [guess], one, one)[0].noise
    assert torch.allclose(found, expected, rtol=1e-6, atol=1e-9)
