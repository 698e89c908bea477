"""Variance of scores within classes beside the one their covariance claims, against the truth."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from train_distributed import Privacy, release
from train_distributed.one_shot.class_gaussians import Gaussians, NoisyScatter

Q, CLASSES = 60, 3


def noised(truth: Tensor, noise: float, generator: torch.Generator) -> Tensor:
    white = torch.randn(Q, Q, generator=generator, dtype=torch.float64)
    return truth + noise * (white + white.mT) / math.sqrt(2)


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
    scatter = NoisyScatter(public, noised(truth, noise, draw), noise, 0 * public)
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
    private = EmbeddingSet(
        embeddings=centres[labels] + scatter * rng.standard_normal((rows, dim)),
        labels=labels,
        users=np.zeros(rows, np.int64),
        split=np.repeat([0, 1], [6000, 3000]).astype(np.uint8),
        meta={"class_names": [str(k) for k in range(classes)]},
    )
    public = rng.standard_normal((5000, dim)) * scatter
    transform = PublicTransform.fit(torch.from_numpy(public).float())

    def measured() -> np.ndarray:
        found = []
        for seed in range(3):
            more: dict[str, Any] = {"noise": "float", "prior": "private"}
            more["generator"] = torch.Generator().manual_seed(seed)
            made = release(private, "discriminant", Privacy(0.3, 1e-5), transform=transform, **more)
            metrics = made.report["test_metrics"]
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
def test_directions_vary_more_than_the_moments_say_that_they_were_solved_by(
    noise: float, other: float
) -> None:
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
        z = normal(q, q)
        noised = true + noise * (z + z.T) / math.sqrt(2)
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
