"""The discriminant: what is made of class sums and moments withstands noise."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from embed import EmbeddingSet, PublicTransform
from embed.known_classes import ClassGuess, KnownClasses
from tests.train_distributed.one_shot.fitting import fitted, made
from train_distributed import Privacy, release
from train_distributed.one_shot.discriminant import Discriminant
from train_distributed.one_shot.method import ReleaseState
from train_distributed.one_shot.release import measure, release_of
from train_distributed.one_shot.request import ReleaseRequest
from train_distributed.one_shot.statistic import NoisedSum

K, P, Q, CONSTANT = 4, 12, 8, 0.5


def rows_of(n: int, classes: int, seed: int, shares: list[float] | None = None) -> EmbeddingSet:
    """Gaussian classes; public and private means are drawn alike, so differ by their seed."""
    rng = np.random.default_rng(seed)
    scatter = np.diag(np.linspace(0.3, 2.0, P))
    means = 1.5 * rng.standard_normal((classes, P))
    labels = rng.choice(classes, n, p=shares)
    rows = means[labels] + rng.standard_normal((n, P)) @ scatter
    split = (np.arange(n) % 4 == 3).astype(np.uint8)
    names = {"class_names": [str(k) for k in range(classes)]}
    users = np.zeros(len(rows), np.int64)  # one user's own
    return EmbeddingSet(embeddings=rows, labels=labels, users=users, split=split, meta=names)


@pytest.fixture(scope="module")
def transform() -> PublicTransform:
    return PublicTransform.fit(rows_of(4000, 30, 1), components=Q, constant=CONSTANT)


@pytest.mark.parametrize("epsilon", [0.3, 3.0])
@pytest.mark.parametrize("moments", [True, False])
def test_it_is_no_worse_than_the_nearest_noisy_mean(
    transform: PublicTransform, epsilon: float, moments: bool
) -> None:
    data, privacy = rows_of(4000, K, 3), Privacy(epsilon, 1e-5)
    held, labels = data.embeddings[data.split == 1], data.labels[data.split == 1]
    ours, nearest = [], []
    for seed in range(5):
        made = release(
            data,
            "discriminant",
            privacy,
            transform=transform,
            noise="float",
            generator=torch.Generator().manual_seed(seed),
            moments=moments,
        )
        ours.append(made.report["test_accuracy"])
        assert made.opened is not None
        dim = made.transform.dim
        sums = made.opened[Q + 1 :][: dim * K].view(dim, K)  # after the first sum
        means = sums[1:] / (sums[0] / CONSTANT).clamp(min=1)
        scores = made.transform(held).double()[:, 1:] @ means - means.square().sum(0) / 2
        nearest.append(float((scores.argmax(1).numpy() == labels).mean()))
    assert np.mean(ours) >= np.mean(nearest) - 0.01


@pytest.mark.parametrize("epsilon", [1e-3, 2.0, math.inf])
def test_the_model_is_a_function_of_what_was_opened(
    transform: PublicTransform, epsilon: float
) -> None:
    """By two sums, one after the other; the first says along which directions the second is."""
    data, given = rows_of(400, K, 7), {"noise": "float", "options": {"alpha": 0.5}}
    draw = torch.Generator().manual_seed(1)
    request = ReleaseRequest(
        embeddings=data,
        method="discriminant",
        privacy=Privacy(epsilon, 1e-5),
        transform=transform,
        generator=draw,
        **given,  # pyright: ignore[reportArgumentType]
    )
    released, state = release_of(request), ReleaseState(request.built)
    assert released.opened is not None
    first, own = released.opened[: Q + 1], released.opened[Q + 1 :]
    for total, std in zip(
        (first, own), released.report["local_noise_std_per_round"], strict=True
    ):  # of the one user
        state = state.advance(total, 300, std)
    found = state.fitted()
    assert torch.equal(found.weights, released.weights)
    assert found.temperature == released.temperature
    assert 0 < released.temperature < math.inf
    assert released.predict_proba(data.embeddings).isfinite().all()


@pytest.mark.parametrize("std", [0.0, 1.0, 1e9])
@pytest.mark.parametrize("moments", [True, False])
def test_any_noise_gives_finite_weights(
    transform: PublicTransform, std: float, moments: bool
) -> None:
    method = made("discriminant", transform, K, {"moments": moments})
    noise = torch.randn(
        method.statistic.dimension, generator=torch.Generator().manual_seed(4)
    ).double()
    weights = fitted(method, noise * std / method.statistic.scale, 100, std)
    assert weights.shape == (transform.dim, K)
    assert weights.isfinite().all()


def test_equal_priors_serve_the_smaller_class(transform: PublicTransform) -> None:
    data = rows_of(6000, 2, 5, shares=[0.9, 0.1])
    recall = {}
    for prior in ("equal", "private"):
        more = {"noise": "float", "generator": torch.Generator().manual_seed(0), "prior": prior}
        made = release(data, "discriminant", Privacy(3.0, 1e-5), transform=transform, **more)
        recall[prior] = list(measure(made, data)["per_class"].values())[1]["recall"]
    assert recall["equal"] > recall["private"]


def test_a_transform_without_labels_serves_with_what_it_has() -> None:
    public = PublicTransform.fit(rows_of(4000, 30, 1).embeddings, components=Q)
    assert public.between_class is None
    method = made("discriminant", public, K, {})
    assert (
        fitted(method, torch.zeros(method.statistic.dimension).double(), 10, 1.0).isfinite().all()
    )


def test_an_unknown_prior_is_refused(transform: PublicTransform) -> None:
    with pytest.raises(ValueError, match=r"prior must be one of .*flat"):
        made("discriminant", transform, K, {"prior": "flat"})


def test_an_identity_with_scatter_of_private_rows_makes_no_release(
    transform: PublicTransform,
) -> None:
    """Its rows were compared with nothing: the covariance may be of the private ones."""
    data = rows_of(400, K, 6)
    known = PublicTransform.fit(data)
    bare = PublicTransform.identity(P)
    planted = replace(bare, within_class=known.within_class, between_class=known.between_class)
    promise = Privacy(1.0, 1e-5)
    release(data, "discriminant", promise, transform=bare)
    with pytest.raises(ValueError, match="transform"):
        release(data, "discriminant", promise, transform=planted)


def test_a_guess_that_errs_where_public_classes_do_not_differ_still_serves(
    transform: PublicTransform,
) -> None:
    """A source that says V = one direction, and errs in all: as good as if it had said C."""
    draw, counts, spread = torch.Generator().manual_seed(8), 100.0, transform.public.covariance
    root = torch.linalg.cholesky(0.3 * spread)
    risks = torch.zeros(3, dtype=torch.float64)
    narrow = 0.3 * spread.trace() * torch.eye(Q, dtype=torch.float64)[:, :1]
    shapes = {1: narrow @ narrow.T / float(narrow.norm()), 2: 0.3 * spread.double()}
    for _ in range(20):
        normal = torch.randn(3, Q, K, generator=draw, dtype=torch.float64)
        truth = 1.5 * torch.linalg.cholesky(spread) @ normal[0]
        guessed = truth + root @ normal[1]
        std = counts * float(root.diagonal().mean())
        sums = torch.cat([torch.full((1, K), counts * CONSTANT), counts * truth + std * normal[2]])
        noised = NoisedSum(sums.flatten(), int(counts) * K, std)
        for place in range(3):
            guess = () if not place else (ClassGuess("names", guessed, shapes[place]),)
            known = KnownClasses(tuple("abcd"), guess) if guess else None
            method = made("discriminant", replace(transform, known=known), K, {"moments": False})
            assert isinstance(method.estimator, Discriminant)
            found, odds = method.estimator.posterior(noised)
            assert sum(odds.values()) == pytest.approx(1)
            risks[place] += (found.means - truth).square().sum()
    nothing, narrowly, widely = risks.tolist()
    assert widely < 0.9 * nothing
    assert narrowly < 1.05 * widely
