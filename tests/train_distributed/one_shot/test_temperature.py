"""The temperature of a ridge regression: right where theory gives it, and of use where not."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from embed import EmbeddingSet, PublicTransform
from train_distributed import Privacy, Release, release
from train_distributed.one_shot.faults import FaultInjection
from train_distributed.one_shot.registry import build_method
from train_distributed.one_shot.report import measure
from train_distributed.one_shot.temperature import gaussian_temperature
from train_distributed.partition import split

ROWS, TEST_ROWS, USERS = 4000, 3000, 20


@pytest.mark.parametrize(("mean", "deviation"), [(0.5, 0.3), (0.1, 0.4), (3.0, 2.0)])
def test_two_gaussian_scores_have_the_temperature_of_their_posterior(
    mean: float, deviation: float
) -> None:
    """Scores (g, −g), g ~ N(±m, s²): log-odds are 2mg/s², and those of softmax(f/T) are 2g/T."""
    means = mean * torch.tensor([[1.0, -1.0], [-1.0, 1.0]]).double()
    covariance = deviation**2 * torch.tensor([[1.0, -1.0], [-1.0, 1.0]]).double()
    found = gaussian_temperature(means, covariance, torch.tensor([0.5, 0.5]).double())
    assert found == pytest.approx(deviation**2 / mean, rel=0.1)


def test_scores_that_tell_nothing_are_evened_out() -> None:
    means, noise = torch.zeros(3, 3).double(), torch.eye(3).double()
    assert gaussian_temperature(means, noise, torch.full((3,), 1 / 3).double()) > 5


def gaussian_classes(classes: int, dim: int) -> tuple[EmbeddingSet, PublicTransform]:
    rng = np.random.default_rng(0)
    centres = 0.7 * rng.standard_normal((classes, dim))
    labels = rng.integers(0, classes, ROWS + TEST_ROWS)
    rows = centres[labels] + rng.standard_normal((len(labels), dim))
    public = centres[rng.integers(0, classes, 1000)] + rng.standard_normal((1000, dim))
    private = EmbeddingSet(
        embeddings=rows.astype(np.float32),
        labels=labels,
        split=np.repeat([0, 1], [ROWS, TEST_ROWS]).astype(np.uint8),
        meta={"class_names": [str(k) for k in range(classes)]},
    )
    return private, PublicTransform.fit(torch.from_numpy(public).float())


def learned(
    private: EmbeddingSet, transform: PublicTransform, epsilon: float, **options
) -> Release:
    generator = torch.Generator().manual_seed(1)
    labels = torch.from_numpy(private.labels[private.split == 0])
    return release(
        private,
        "least-squares",
        Privacy(epsilon, 1e-5),
        transform=transform,
        partition=split(labels, USERS, "iid", generator=generator),
        noise="float",
        generator=generator,
        **options,
    )


@pytest.mark.parametrize(("classes", "dim"), [(2, 6), (3, 10), (20, 30)])
@pytest.mark.parametrize("epsilon", [1.0, 100.0])
def test_gaussian_classes_are_calibrated(classes: int, dim: int, epsilon: float) -> None:
    private, transform = gaussian_classes(classes, dim)
    released = learned(private, transform, epsilon)
    metrics = released.report["test_metrics"]
    raw = measure(replace(released, temperature=1.0), private)
    assert metrics["accuracy"] == raw["accuracy"]
    assert metrics["confusion"] == raw["confusion"]
    assert metrics["expected_calibration_error"] < 0.08
    assert raw["expected_calibration_error"] > 2 * metrics["expected_calibration_error"]
    assert raw["expected_calibration_error"] > 0.15
    assert released.report["temperature"] == released.temperature < 0.5


def test_the_temperature_is_a_function_of_what_was_opened() -> None:
    private, transform = gaussian_classes(3, 10)
    released = learned(private, transform, 2.0)
    method = build_method("least-squares", transform, 3, {})
    assert released.opened is not None
    std = released.report["local_noise_std"] * math.sqrt(USERS)
    found = method.fit(method.opened(released.opened, ROWS, std))
    assert torch.equal(found.weights, released.weights)
    assert found.temperature == released.temperature


def test_it_is_found_at_any_noise() -> None:
    private, transform = gaussian_classes(3, 10)
    for epsilon in (1e-3, 0.05, math.inf):
        released = learned(private, transform, epsilon)
        assert 0 < released.temperature <= 10
        assert released.predict_proba(private.embeddings[:50]).isfinite().all()


def test_others_and_rehearsals_have_none() -> None:
    private, transform = gaussian_classes(3, 10)
    assert learned(private, transform, 2.0, faults=FaultInjection()).temperature == 1.0
    method = build_method("class-sums", transform, 3, {})
    total = torch.ones(method.statistic.dimension, dtype=torch.float64)
    assert method.fit(method.opened(total, ROWS, 1.0)).temperature == 1.0
