"""Posterior of class means under public guesses: brute force, integration, and no harm done."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

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

Q, K = 3, 4
DRAW = torch.Generator()


def covariance(dim: int, seed: int) -> Tensor:
    root = torch.randn(dim, 2 * dim, generator=DRAW.manual_seed(seed), dtype=torch.float64)
    return root @ root.T / root.shape[1]


def randn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=DRAW.manual_seed(seed), dtype=torch.float64)


def one_scale(t: float) -> Scales:
    return Scales(torch.tensor([t], dtype=torch.float64), torch.zeros(1, dtype=torch.float64))


def case(noise: list[float], seed: int = 1) -> tuple[NoisyMeans, Guess, Tensor]:
    """V and C share their eigenvectors, as C's off-diagonal entries are left out."""
    v, between = torch.tensor([2.0, 0.5, 0.1]).double(), torch.linalg.eigh(covariance(Q, 2))[1]
    own = between * v @ between.T
    shift = between * torch.tensor([1.0, 3.0, 0.2]).double() @ between.T
    tau = torch.tensor(noise, dtype=torch.float64)
    noisy = NoisyMeans(randn(Q, K, seed=seed), tau, tau.reciprocal() / (1 / tau).sum())
    return noisy, Guess("guess", randn(Q, K, seed=seed + 1), own, one_scale(0.7)), shift


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
        law = torch.distributions.MultivariateNormal(
            torch.zeros(9, dtype=torch.float64), many @ total @ many.T
        )
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
    line = torch.linspace(-12, 12, 1201, dtype=torch.float64)
    total, mean, square = 0.0, 0.0, 0.0
    for t, log_prior in zip(scales.values, scales.log_prior, strict=True):
        contrast = math.sqrt(2 * (t * value + 0.25))
        weight = math.exp(
            float(log_prior - ((d - m)[0, 0] - (d - m)[0, 1]) ** 2 / (2 * contrast**2))
        )
        weight /= contrast
        of_shift = []
        for gamma in shifts:
            s = t * value + 0.25
            density = torch.exp(-line.square() / (2 * gamma * spread)) / math.sqrt(gamma * spread)
            for k in range(2):
                density = density * torch.exp(-((d - m)[0, k] - line).square() / (2 * s))
            own = (m + line[:, None] + t * value / s * (d - m - line[:, None])).T  # (2, points)
            mass = density.sum()
            first, var = (density * own).sum(1) / mass, t * value * 0.25 / s
            second = (density * own.square()).sum(1) / mass + var
            odds = float(mass) * math.exp(-math.log10(gamma))
            of_shift.append((odds, first, second))
        norm = sum(odds for odds, _, _ in of_shift)
        total += weight
        mean = mean + weight * sum(odds * first for odds, first, _ in of_shift) / norm
        square = square + weight * sum(odds * second for odds, _, second in of_shift) / norm
    mean, square = torch.as_tensor(mean / total), torch.as_tensor(square / total)
    assert torch.allclose(found.means[0], mean, atol=1e-5)
    # C over γ: what γ leaves open is of the common shift, pulled by 1 − keep as at any one γ
    assert float(found.covariance) == pytest.approx(
        float((square - mean.square()).mean()), rel=0.02
    )


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

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    for _ in range(60):
        guessed = math.sqrt(0.8) * root @ normal(dim, classes)
        truth = guessed + math.sqrt(0.2) * root @ normal(dim, classes)
        noisy = NoisyMeans(truth + tau * normal(dim, classes), noise, shares)
        right = Guess("right", guessed, 0.2 * between, one, 5.0)
        wrong = Guess("wrong", guessed.roll(1, 1), 0.2 * between, one, 5.0)
        tried = ([none], [none, right], [none, wrong])
        for place, guesses in enumerate(tried):
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
    noisy = NoisyMeans(30 * torch.randn(Q, 4, generator=draw, dtype=torch.float64), noise, shares)
    said = torch.randn(Q, 4, generator=draw, dtype=torch.float64)
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
    root = randn(Q, Q, seed=3)[:, :rank]
    shares = torch.full((2,), 0.5).double()
    noisy = NoisyMeans(randn(Q, 2, seed=4), torch.full((2,), std).double(), shares)
    guesses = [
        Guess("some", randn(Q, 2, seed=5), root @ root.T, scales_about_one()),
        Guess("free", randn(Q, 1, seed=6), root @ root.T, scales_at_all(), shifts=SHIFTS[-1:]),
    ]
    for covariance_of_all in (root @ root.T, torch.eye(Q, dtype=torch.float64)):
        found, odds = believed(noisy, guesses, covariance_of_all, torch.eye(Q, dtype=torch.float64))
        assert found.means.isfinite().all()
        assert found.doubt.isfinite().all()
        assert found.covariance.isfinite().all()
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
    """Classes differ in few of many directions, and the guess says in all: noise stays in them.

    Small classes have the more noise, and count in the score's differences as large ones do.
    """
    monkeypatch.setattr(class_posterior, "LEAST_TRUE", -1e6)  # the estimate itself, up to 1
    draw = torch.Generator().manual_seed(rank)
    shares = torch.tensor(sizes).double() / sum(sizes)
    q, k = 30, len(sizes)
    found = true = size = 0.0
    one, tau = torch.eye(q, dtype=torch.float64), noise / (k * shares)
    for _ in range(60 if k > 4 else 400):
        means = torch.zeros(q, k, dtype=torch.float64)
        means[:rank] = 0.3 * torch.randn(rank, k, generator=draw, dtype=torch.float64)
        seen = means + tau * torch.randn(q, k, generator=draw, dtype=torch.float64)
        noisy = NoisyMeans(seen, tau, shares)
        guess = Guess("any", torch.zeros(q, 1).double(), 0.09 * one, scales_about_one())
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
    draw = torch.Generator().manual_seed(len(sizes))
    shares, k = torch.tensor(sizes).double() / sum(sizes), len(sizes)
    root = torch.randn(Q, Q, generator=draw, dtype=torch.float64)
    guess = Guess("any", torch.zeros(Q, 1).double(), root @ root.T, scales_at_all(), 0, SHIFTS[-1:])
    tau, one = 0.5 / shares, torch.eye(Q, dtype=torch.float64)

    def apart(seen: Tensor) -> Tensor:
        means = believed(NoisyMeans(seen, tau, shares), [guess], one, one)[0].means
        return means - means.mean(1, keepdim=True)

    seen = torch.randn(Q, k, generator=draw, dtype=torch.float64)
    slopes = torch.autograd.functional.jacobian(apart, seen)  # (q, K, q, K)
    expected = torch.einsum("jkik,k->ij", slopes, tau.square()) / (k - 1)
    found = believed(NoisyMeans(seen, tau, shares), [guess], one, one)[0].noise
    assert torch.allclose(found, expected, rtol=1e-6, atol=1e-9)
