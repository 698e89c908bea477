"""Class sums and second moments: what is sent, counted, and made of them whatever the noise."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import quad

from embed import EmbeddingSet, PublicTransform
from embed.known_classes import ClassGuess, KnownClasses
from heads import class_sums, class_sums_sensitivity, least_squares_sensitivity, second_moments
from tests.train_distributed.one_shot.builders import embedded, made, one_user
from train_distributed import Privacy
from train_distributed.one_shot.discriminant import ClassMoments, class_counts
from train_distributed.one_shot.method import ReleaseState
from train_distributed.one_shot.release import release_of
from train_distributed.one_shot.request import ReleaseRequest
from train_distributed.one_shot.statistic import Chunk, NoisedSum

K, FEATURES, CONSTANT = 3, 4, 0.5
TRANSFORM = PublicTransform.identity(FEATURES, math.sqrt(1 + CONSTANT**2), CONSTANT)


def rows_of(n: int, seed: int = 0) -> Chunk:
    """One user's rows of length at most c, classes of unequal size and place."""
    draw = torch.Generator().manual_seed(seed)
    labels = (torch.arange(n) % 6).clamp(max=K - 1)
    x = torch.randn(n, FEATURES, generator=draw) / 4 + torch.eye(K, FEATURES)[labels] / 2
    return one_user(TRANSFORM(x), labels)


def statistic(k: int = K, **options: Any) -> ClassMoments:
    return made("discriminant", TRANSFORM, k, **options).statistic


def test_what_is_sent_are_sums_and_the_triangle_of_moments() -> None:
    held = rows_of(41)
    sums = class_sums(held.x, held.y, K).flatten(1)
    alone, both = statistic(moments=False), statistic()
    assert torch.equal(alone.submit(held), sums)
    assert alone.scale == 1.0
    assert torch.equal(both.submit(held), torch.cat([sums, second_moments(held.x[..., 1:])], 1))
    sizes = torch.tensor([3, 50])
    assert alone.record_sensitivity(sizes) == class_sums_sensitivity(TRANSFORM.clip_norm, CONSTANT)
    stated = least_squares_sensitivity(TRANSFORM.clip_norm, both.weight, CONSTANT)
    assert both.record_sensitivity(sizes) == stated
    noised = NoisedSum(both.submit(held)[0], 41, 1.0)
    x = held.x[0].double()
    assert torch.allclose(both.moment_matrix(noised), x[:, 1:].T @ x[:, 1:])
    assert torch.equal(both.sums(noised)[0], CONSTANT * held.y[0].bincount().double())
    assert both.counted_rows(noised) == (41.0, K * (1.0 / CONSTANT) ** 2)


def test_a_users_clip_leaves_the_moments_out() -> None:
    """Of n rows they are about n/√2 long, where class sums of mixed classes are √n long."""
    clipped = statistic(user_clip=1.0)
    assert clipped.dimension == TRANSFORM.dim * K
    assert clipped.unclipped == statistic(moments=False)


@pytest.mark.parametrize("counts", [[30.0, 30, 30], [60.0, 20, 10], [88.0, 1, 1]])
@pytest.mark.parametrize("std", [0.0, 1.0, 1e6])
def test_class_counts_are_positive_and_add_up(counts: list[float], std: float) -> None:
    """Exact without noise, equal where noise explains everything, between in between."""
    true = torch.tensor(counts, dtype=torch.float64)
    found = class_counts(CONSTANT * true, CONSTANT, 90, std)
    assert float(found.sum()) == pytest.approx(90)
    assert (found > 0).all()
    if std == 0.0:
        assert torch.allclose(found, true.clamp(min=1.5) * 90 / true.clamp(min=1.5).sum())
    if std == 1e6:
        assert torch.allclose(found, torch.full((3,), 30.0, dtype=torch.float64))


@pytest.mark.parametrize("std", [0.3, 3.0, 12.0, 40.0])
@pytest.mark.parametrize("counts", [[22.0, 26, 19, 23], [30.0, 40, 15, 5]])
def test_class_counts_are_posterior_means(counts: list[float], std: float) -> None:
    """By quadrature: equal, or spread by c, at even odds."""
    noised = torch.tensor(counts, dtype=torch.float64)
    spread, noise = noised / 22.5 - 1, (std / CONSTANT / 22.5) ** 2
    squares = float(spread.square().sum())

    def likely(own: float) -> float:
        return (own + noise) ** -1.5 * math.exp(-squares / (2 * (own + noise)))

    def integral(value: Callable[[float], float]) -> float:
        return quad(lambda c: math.exp(-2 * c**2) * value(c**2), 0, math.sqrt(3), limit=500)[0]

    kept = integral(lambda own: likely(own) * own / (own + noise))
    keep = kept / (integral(lambda _: 1.0) * likely(0.0) + integral(likely))
    found = class_counts(CONSTANT * noised, CONSTANT, 90, std)
    assert torch.allclose(found, 22.5 * (1 + keep * spread), rtol=1e-4, atol=1e-4)


# Discriminant

CLASSES, P, Q = 4, 12, 8


def drawn(n: int, classes: int, seed: int) -> EmbeddingSet:
    """Gaussian classes; public and private means are drawn alike, so differ by their seed."""
    rng = np.random.default_rng(seed)
    means = 1.5 * rng.standard_normal((classes, P))
    labels = rng.choice(classes, n)
    rows = means[labels] + rng.standard_normal((n, P)) * np.linspace(0.3, 2.0, P)
    return embedded(rows, labels, classes, test=np.arange(n) % 4 == 3)


@pytest.fixture(scope="module")
def transform() -> PublicTransform:
    return PublicTransform.fit(drawn(4000, 30, 1), components=Q, constant=CONSTANT)


@pytest.mark.parametrize("epsilon", [1e-3, 2.0, math.inf])
def test_the_model_is_a_function_of_what_was_opened(transform, epsilon):
    """By two sums, one after the other; the first says along which directions the second is."""
    data = drawn(400, CLASSES, 7)
    request = ReleaseRequest(
        embeddings=data,
        method="discriminant",
        privacy=Privacy(epsilon, 1e-5),
        transform=transform,
        generator=torch.Generator().manual_seed(1),
        noise="float",
        options={"alpha": 0.5},
    )
    released, state = release_of(request), ReleaseState(request.built)
    assert released.opened is not None
    stds = released.report["local_noise_std_per_round"]  # of the one user
    for total, std in zip((released.opened[: Q + 1], released.opened[Q + 1 :]), stds, strict=True):
        state = state.advance(total, 300, std)
    found = state.fitted()
    assert torch.equal(found.weights, released.weights)
    assert found.temperature == released.temperature
    assert 0 < released.temperature < math.inf
    assert released.predict_proba(data.embeddings).isfinite().all()


def test_a_guess_that_errs_where_public_classes_do_not_differ_still_serves(transform):
    """A source that says V = one direction, and errs in all: as good as if it had said C."""
    draw, counts, spread = torch.Generator().manual_seed(8), 100.0, transform.public.covariance
    root = torch.linalg.cholesky(0.3 * spread)
    risks = torch.zeros(3, dtype=torch.float64)
    narrow = 0.3 * spread.trace() * torch.eye(Q, dtype=torch.float64)[:, :1]
    shapes = {1: narrow @ narrow.T / float(narrow.norm()), 2: 0.3 * spread.double()}
    for _ in range(20):
        normal = torch.randn(3, Q, CLASSES, generator=draw, dtype=torch.float64)
        truth = 1.5 * torch.linalg.cholesky(spread) @ normal[0]
        guessed = truth + root @ normal[1]
        std = counts * float(root.diagonal().mean())
        counted = torch.full((1, CLASSES), counts * CONSTANT)
        sums = torch.cat([counted, counts * truth + std * normal[2]])
        noised = NoisedSum(sums.flatten(), int(counts) * CLASSES, std)
        for place in range(3):
            guess = () if not place else (ClassGuess("names", guessed, shapes[place]),)
            known = KnownClasses(tuple("abcd"), guess) if guess else None
            knowing = replace(transform, known=known)
            method = made("discriminant", knowing, CLASSES, moments=False)
            found, odds = method.estimator.posterior(noised)
            assert sum(odds.values()) == pytest.approx(1)
            risks[place] += (found.means - truth).square().sum()
    nothing, narrowly, widely = risks.tolist()
    assert widely < 0.9 * nothing
    assert narrowly < 1.05 * widely
