"""How far scores scatter, from a noised covariance that made them: against the truth."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from train_distributed import Privacy, release
from train_distributed.one_shot.class_gaussians import Gaussians
from train_distributed.one_shot.report import measure
from train_distributed.one_shot.thinning import LEAST_RATIO, NoisyScatter, Scattered, tempered

Q, CLASSES = 60, 3


def noised(truth: Tensor, noise: float, generator: torch.Generator) -> Tensor:
    white = torch.randn(Q, Q, generator=generator, dtype=torch.float64)
    return truth + noise * (white + white.mT) / math.sqrt(2)


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.02, 0.03])
@pytest.mark.parametrize("wider", [False, True])
def test_the_scatter_of_scores_is_found(noise: float, wider: bool) -> None:
    """That of private rows, beside Σ: wider than public rows where the classes differ, or turned.

    Where it is wider, and noise hides it, the covariance says too little by a factor of two.
    """
    draw = torch.Generator().manual_seed(0)
    rows = torch.diag(torch.logspace(-2, 0, Q, dtype=torch.float64))
    public = rows if wider else rows.roll((7, 7), (0, 1))
    shares = torch.full((CLASSES,), 1 / CLASSES, dtype=torch.float64)
    ratios, true = [], []
    for _ in range(6):
        means = 0.3 * torch.randn(Q, CLASSES, generator=draw, dtype=torch.float64)
        apart = means - means.mean(1, keepdim=True)
        truth = rows + apart * shares @ apart.mT if wider else rows
        scatter = NoisyScatter(public, noised(truth, noise, draw), noise, 0 * public)
        seen = scatter.estimate()
        slopes = torch.linalg.solve(seen, apart)
        said, actual = (float((slopes * (of @ slopes)).sum()) for of in (seen, truth))
        ratios.append(scatter.ratio(Gaussians(means, seen, shares)))
        true.append(actual / said)
    kept = [max(LEAST_RATIO, each) for each in true]
    assert ratios == pytest.approx(kept, rel=0.25 if wider else 0.45)
    if noise == 0.03:
        assert (min(true) > 1.7) if wider else (max(true) < 0.5)


def test_scores_are_judged_by_noise_that_they_have_not_seen() -> None:
    """Private rows scatter in other directions: by its own noise Σ seems a quarter too wide."""
    draw = torch.Generator().manual_seed(0)
    public = torch.diag(torch.logspace(-1, 0, Q, dtype=torch.float64))
    shares = torch.full((CLASSES,), 1 / CLASSES, dtype=torch.float64)
    ratios = true = seen_twice = 0.0
    for _ in range(12):
        turn = torch.linalg.qr(torch.randn(Q, Q, generator=draw, dtype=torch.float64)).Q
        means = 0.3 * torch.randn(Q, CLASSES, generator=draw, dtype=torch.float64)
        truth = turn @ public @ turn.mT
        scatter = NoisyScatter(public, noised(truth, 0.1, draw), 0.1, 0 * public)
        seen = scatter.estimate()
        slopes = torch.linalg.solve(seen, means - means.mean(1, keepdim=True))
        said, actual, again = (
            float((slopes * (of @ slopes)).sum()) for of in (seen, truth, scatter.noised)
        )
        ratios += scatter.ratio(Gaussians(means, seen, shares)) / 12
        true += actual / said / 12
        seen_twice += again / said / 12
    assert seen_twice < 0.75 * true
    assert ratios == pytest.approx(true, rel=0.08)


def test_noise_that_hides_everything_changes_nothing() -> None:
    """All is as good as 1: temperature, prior, and the weights to the last bit."""
    draw = torch.Generator().manual_seed(1)
    truth = torch.eye(Q, dtype=torch.float64)
    means = torch.randn(Q, CLASSES, generator=draw, dtype=torch.float64)
    found = Gaussians(means, truth, torch.full((CLASSES,), 1 / CLASSES).double())
    for noise in (1e3, 1e9):
        scatter = NoisyScatter(truth, noised(truth, noise, draw), noise, 0 * truth)
        assert scatter.ratio(found) == pytest.approx(1, abs=0.3)
    alike = Gaussians(0 * means, truth, found.shares)
    assert NoisyScatter(truth, truth, 0.1, 0 * truth).ratio(alike) == 1


def test_a_prior_counts_less_only_where_scores_are_too_even() -> None:
    shares = torch.tensor([0.8, 0.2]).double()
    assert torch.equal(tempered(shares, 3.0), shares)
    half = tempered(shares, 0.5)
    assert half.tolist() == pytest.approx([2 / 3, 1 / 3])
    equal = torch.full((4,), 0.25).double()
    assert tempered(equal, 0.5).tolist() == pytest.approx([0.25] * 4)
    weights = torch.zeros(2, 2).double()
    assert Scattered(weights, 0.5).temperature == 1
    assert Scattered(weights, 2.5).temperature == 2.5


def test_probabilities_of_a_discriminant_are_not_too_sure() -> None:
    """Private rows scatter most where their classes differ, as public ones do not."""
    rng = np.random.default_rng(0)
    dim, classes, rows = 60, 4, 9000
    labels = rng.integers(0, classes, rows)
    centres = 0.3 * rng.standard_normal((classes, dim))
    wide = rng.standard_normal((rows, classes)) @ centres
    scatter = np.geomspace(0.1, 1, dim)
    private = EmbeddingSet(
        embeddings=centres[labels] + 0.5 * wide + scatter * rng.standard_normal((rows, dim)),
        labels=labels,
        users=np.zeros(rows, np.int64),
        split=np.repeat([0, 1], [6000, 3000]).astype(np.uint8),
        meta={"class_names": [str(k) for k in range(classes)]},
    )
    public = rng.standard_normal((5000, dim)) * scatter
    transform = PublicTransform.fit(torch.from_numpy(public).float())
    found, raw = [], []
    for seed in range(3):
        more = {"noise": "float", "generator": torch.Generator().manual_seed(seed)}
        made = release(private, "discriminant", Privacy(0.3, 1e-5), transform=transform, **more)
        found.append(made.report["test_metrics"]["expected_calibration_error"])
        raw.append(measure(replace(made, temperature=1.0), private)["expected_calibration_error"])
    assert sum(found) < 0.6 * sum(raw)
