"""The Gaussian curve against 50-digit arithmetic, dp-accounting and its own inverse."""

import itertools
import math

import dp_accounting
import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from train_distributed import accounting

GRID = itertools.product(
    (1e-5, 1e-4, 1e-2, 0.1, 0.4, 1.0, 3.0, 10.0, 25.0, 50.0),  # epsilon
    (1e-14, 1e-10, 1e-5, 1e-3, 1e-1),  # delta
    (1, 2, 7, 100),  # compositions
)


def exact_delta(epsilon, sigma, count):
    """Def. 3.13 as it stands: two complementary error functions, in 50 digits."""
    with mpmath.workdps(50):
        epsilon, privacy_loss = mpmath.mpf(epsilon), 1 / mpmath.mpf(sigma)
        shift, width = count * privacy_loss**2 / 2, mpmath.sqrt(2 * count) * privacy_loss
        upper = mpmath.erfc((epsilon - shift) / width)
        return (upper - mpmath.exp(epsilon) * mpmath.erfc((epsilon + shift) / width)) / 2


def condition_of_epsilon(epsilon, delta, sigma, count):
    """|d ln ε / d ln δ| = δ / (ε e^ε Φ(-b))."""
    with mpmath.workdps(50):
        mu = mpmath.sqrt(count) / mpmath.mpf(sigma)
        tail = mpmath.erfc((epsilon / mu + mu / 2) / mpmath.sqrt(2)) / 2
        return float(delta / (epsilon * mpmath.exp(epsilon) * tail))


@pytest.mark.parametrize(("epsilon", "target", "count"), list(GRID))
def test_all_three_agree_with_fifty_digits_and_round_towards_less_privacy(epsilon, target, count):
    sigma = accounting.noise_multiplier(epsilon, target, count)
    less = exact_delta(epsilon, sigma * (1 - 1e-9), count)
    assert exact_delta(epsilon, sigma, count) <= target < less

    for scale in (0.7, 1.0, 1.3):
        exact = exact_delta(epsilon, scale * sigma, count)
        assert 0 <= accounting.delta(epsilon, scale * sigma, count) / exact - 1 < 5e-13

    digits = 4e-14 * (1 + condition_of_epsilon(epsilon, target, sigma, count))
    assert digits <= 1e-9
    found = accounting.epsilon(target, sigma, count)
    less = exact_delta(found * (1 - digits), sigma, count)
    assert exact_delta(found, sigma, count) <= target < less


@pytest.mark.parametrize(
    ("epsilon", "target"), [(0.1, 1e-5), (1.0, 1e-5), (5.0, 1e-8), (20.0, 0.1)]
)
def test_agrees_with_dp_accounting(epsilon, target):
    sigma = accounting.noise_multiplier(epsilon, target, 4)
    their_sigma = 2 * dp_accounting.get_sigma_gaussian(epsilon, target)  # sensitivity √4
    assert sigma == pytest.approx(their_sigma, rel=1e-6)
    assert accounting.epsilon(target, 2 * sigma, 16) == pytest.approx(
        dp_accounting.get_epsilon_gaussian(sigma / 2, target), rel=1e-6
    )


@settings(derandomize=True, max_examples=100, deadline=None)
@given(epsilon=st.floats(1e-5, 50), sigma=st.floats(1e-2, 1e6), count=st.integers(1, 100))
def test_delta_falls_with_epsilon_and_noise_and_grows_with_compositions(epsilon, sigma, count):
    here = accounting.delta(epsilon, sigma, count)
    assert accounting.delta(epsilon * (1 + 1e-9), sigma, count) <= here
    assert accounting.delta(epsilon, sigma * (1 + 1e-9), count) <= here
    assert accounting.delta(epsilon, sigma, count + 1) >= here


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.int64])
def test_numbers_of_other_types_are_the_doubles_that_they_are(kind):
    """So they are for those who ask with the same double later."""
    two, three, target = kind(2), kind(3), 2.0**-10
    accounting._noise_multiplier.cache_clear()
    assert accounting.noise_multiplier(two, kind(0) + target) == accounting.noise_multiplier(
        2.0, target
    )
    sigma = accounting.noise_multiplier(2.0, target)
    assert accounting.delta(2.0, sigma) <= target
    assert accounting.delta(two, three) == accounting.delta(2.0, 3.0)
    assert accounting.epsilon(kind(0) + target, three) == accounting.epsilon(target, 3.0)


def test_without_noise_with_much_and_with_so_much_that_delta_suffices_alone():
    assert accounting.noise_multiplier(math.inf, 1e-5) == 0
    assert accounting.epsilon(1e-5, 0.0) == math.inf
    assert accounting.delta(3.0, 0.0) == 1
    assert accounting.delta(math.inf, 2.0) == 0
    assert accounting.epsilon(0.1, 10.0) == 0  # δ(0) = 0.0399
    assert accounting.epsilon(0.0398, 10.0) > 0
    assert accounting.delta(1.0, 100.0) == accounting.SMALLEST_DELTA  # e^-5000: not called zero
    assert accounting.delta(math.inf, 100.0) == 0


@pytest.mark.parametrize("epsilon", [1e-300, 1e-12, 700.0, 1e4, 1e12, 1e300])
@pytest.mark.parametrize("target", [1e-290, 1e-14, 0.5, 1 - 1e-12])
def test_extremes_stay_sound(epsilon, target):
    sigma = accounting.noise_multiplier(epsilon, target)
    with mpmath.workdps(700):  # a = ε/μ - μ/2 cancels to 10¹⁵⁰ times less than its parts
        mu = 1 / mpmath.mpf(sigma)
        a, b = epsilon / mu - mu / 2, epsilon / mu + mu / 2
        below = mpmath.erfc(a / mpmath.sqrt(2)) / 2
        tail = mpmath.erfc(b / mpmath.sqrt(2)) / 2 if b < 1e10 else 0
        assert below - mpmath.exp(epsilon) * tail <= target
    assert 0 < sigma < math.inf
    assert accounting.epsilon(target, sigma) >= 0


@pytest.mark.parametrize("sigma", [1e-300, 1e-160, 1e-5, 1e300])
def test_extreme_noise_gives_a_limit_and_not_an_exception(sigma):
    assert accounting.delta(1.0, sigma) == (1.0 if sigma < 1 else accounting.SMALLEST_DELTA)
    reached = accounting.epsilon(1e-5, sigma)
    assert reached == 0 if sigma > 1 else reached >= 0.5 / sigma / sigma


@pytest.mark.parametrize(
    ("function", "given", "message"),
    [
        ("delta", (0.0, 1.0), "epsilon must be > 0, got 0.0"),
        ("delta", (math.nan, 1.0), "epsilon must be > 0, got nan"),
        ("delta", (1.0, -1.0), "noise_multiplier must be >= 0, got -1.0"),
        ("delta", (1.0, math.nan), "noise_multiplier must be >= 0, got nan"),
        ("delta", (1.0, 1.0, 0), "compositions must be a whole number >= 1, got 0"),
        ("delta", (1.0, 1.0, 1.5), "compositions must be a whole number >= 1, got 1.5"),
        ("epsilon", (0.0, 1.0), r"delta must be in \(0, 1\), got 0.0"),
        ("epsilon", (1.0, 1.0), r"delta must be in \(0, 1\), got 1.0"),
        ("noise_multiplier", (1.0, 1e-320), "delta must be >= 1e-290"),
        ("noise_multiplier", (-1.0, 0.1), "epsilon must be > 0, got -1.0"),
        ("noise_multiplier", (1.0, math.nan), r"delta must be in \(0, 1\), got nan"),
    ],
)
def test_bad_input_is_named(function, given, message):
    with pytest.raises(ValueError, match=message):
        getattr(accounting, function)(*given)
