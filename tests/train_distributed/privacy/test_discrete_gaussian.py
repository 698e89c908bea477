"""The sampler has the law it claims; submissions are the integers plus exactly its draws."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from train_distributed.privacy.discrete_gaussian import add_noise, discrete_gaussian


@pytest.mark.parametrize("std", [0.7, 1.0, 2.5])
def test_the_sampler_follows_the_discrete_gaussian(std: float) -> None:
    """Pearson's statistic, at a level of 1e-9: the draws come from the operating system."""
    draws = discrete_gaussian(std, 20_000)
    edge = math.ceil(2.5 * std)
    support = np.arange(-60, 61)
    mass = np.exp(-(support**2) / (2 * std**2))
    mass /= mass.sum()
    inside = np.abs(support) <= edge
    expected = 20_000 * np.append(mass[inside], mass[~inside].sum())
    seen = [int((draws == z).sum()) for z in support[inside]]
    observed = np.array([*seen, 20_000 - sum(seen)])
    statistic = float(((observed - expected) ** 2 / expected).sum())
    degrees = len(expected) - 1
    # Laurent and Massart 2000: P[χ² ≥ n + 2 sqrt(n t) + 2 t] ≤ exp(-t), and room for finite counts.
    t = 2 * math.log(1e9)
    assert statistic < degrees + 2 * math.sqrt(degrees * t) + 2 * t


def test_large_noise_has_the_stated_spread_and_is_never_the_same_twice() -> None:
    std = 2.0**40 / 3
    first, second = discrete_gaussian(std, 4000), discrete_gaussian(std, 4000)
    assert np.std(first.astype(float)) == pytest.approx(std, rel=0.1)  # 9 standard errors
    assert not np.array_equal(first, second)


def test_a_submission_is_its_integers_plus_the_recorded_noise() -> None:
    asked: list[tuple[float, int]] = []

    def recorded(std: float, count: int) -> NDArray[np.int64]:
        asked.append((std, count))
        return np.full(count, -int(std))

    encoded = np.array([5, 6, 7, 2**64 - 1], np.uint64)
    sent = add_noise(encoded, [10.0, 20.0, 10.0, 20.0], recorded)
    assert asked == [(10.0, 2), (20.0, 2)]
    assert sent.view(np.int64).tolist() == [-5, -14, -3, -21]
    assert encoded.tolist() == [5, 6, 7, 2**64 - 1]


@pytest.mark.parametrize("std", [0.0, -1.0, math.nan, math.inf, 2.0**54])
def test_a_standard_deviation_out_of_range_is_refused(std: float) -> None:
    with pytest.raises(ValueError, match=r"std must be in \(0, 2\^53\] steps, got"):
        discrete_gaussian(std, 1)


def test_shapes_must_fit() -> None:
    with pytest.raises(ValueError, match=r"encoded must be \(d,\) uint64"):
        add_noise(np.zeros((2, 2), np.uint64), 1.0)
    with pytest.raises(ValueError, match="count must be >= 0, got -1"):
        discrete_gaussian(1.0, -1)
