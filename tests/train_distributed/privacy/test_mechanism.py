"""The integer release is never claimed more private than it is, and costs under 0.1 %."""

import functools
import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from train_distributed import accounting
from train_distributed.privacy.mechanism import TAU, DiscreteGaussian, default_step

for_promise = DiscreteGaussian.for_promise
SPEC = {"sensitivity": 2.8, "honest": 500, "dimension": 61_450}


def _pmf(std: float, reach: int) -> np.ndarray:
    """N_Z(0, std²) on [-reach, reach]; the tail beyond is below 1e-30 where reach ≥ 12 std."""
    z = np.arange(-reach, reach + 1)
    mass = np.exp(-(z**2) / (2 * std**2))
    return mass / mass.sum()


def _sum_of(law: np.ndarray, count: int) -> np.ndarray:
    """Law of the sum of so many draws."""
    return functools.reduce(np.convolve, [law] * count)


@settings(derandomize=True, deadline=None, max_examples=25)
@given(
    epsilon=st.floats(0.05, 10),
    log_delta=st.floats(-12, -4),
    w=st.integers(1, 20_000_000),
    corrupt=st.floats(0, 0.99),
    d=st.integers(1, 1_000_000),
    sensitivity=st.floats(1e-6, 1e6),
    users=st.integers(1, 4),
)
def test_planned_release_is_at_most_a_thousandth_above_the_float_path(
    epsilon: float, log_delta: float, w: int, corrupt: float, d: int, sensitivity: float, users: int
) -> None:
    delta, honest = 10**log_delta, max(1, w - math.floor(corrupt * w))
    release = for_promise(
        epsilon, delta, sensitivity=sensitivity, honest=honest, dimension=d, rounded_users=users
    )
    multiplier = accounting.noise_multiplier(epsilon, delta)
    real = multiplier * sensitivity / math.sqrt(honest)
    assert real <= release.local_std <= real * 1.001
    # The stated target is met, and the float path's curve at the same noise lies below.
    assert release.delta(epsilon) <= delta * (1 + 1e-9)
    same_noise = release.local_std * math.sqrt(honest) / sensitivity
    floating = accounting.epsilon(delta, same_noise)
    assert floating < release.epsilon(delta) <= floating * 1.001
    assert release.log10_zeta < -100


@settings(derandomize=True, deadline=None, max_examples=100)
@given(
    shrink=st.integers(0, 8),
    h=st.integers(1, 300),
    d=st.integers(1, 100_000),
    epsilon=st.floats(0.05, 5),
)
def test_any_admitted_step_is_charged_more_than_the_float_path(shrink, h, d, epsilon) -> None:
    real = accounting.noise_multiplier(epsilon, 1e-5) / math.sqrt(h)
    step = 2.0**shrink * default_step(real, 1.0, d)
    release = for_promise(epsilon, 1e-5, sensitivity=1.0, honest=h, dimension=d, step=step)
    assert release.local_std >= real
    assert release.delta(epsilon) <= 1e-5 * (1 + 1e-9)


def test_the_theorems_terms_at_coarse_noise_by_hand() -> None:
    """Noise of one step: e^ζ shows in delta and 2 ζ in epsilon, so that no term is dropped."""
    release = DiscreteGaussian(
        local_std=1.0, step=1.0, sensitivity=3.0, honest=20, dimension=4, rounded_users=2
    )
    with mpmath.workdps(60):
        terms = sum(mpmath.exp(-2 * mpmath.pi**2 * mpmath.mpf(k) / (k + 1)) for k in range(1, 20))
        zeta = 4 * (5 * terms + 5 * mpmath.exp(-2 * mpmath.pi**2 * 16))
        assert release.log_zeta == pytest.approx(float(mpmath.log(zeta)), rel=1e-12)
    assert release.noise_multiplier == pytest.approx(math.sqrt(20 - 16) / (3 + 2 * 2))
    z = float(zeta)
    assert 1e-5 < z < 1e-1
    continuous = accounting.delta(1 - 2 * z, release.noise_multiplier)
    assert release.delta(1.0) == pytest.approx(math.exp(z) * continuous, rel=1e-12)
    spent = accounting.epsilon(math.exp(-z) * 1e-5, release.noise_multiplier)
    assert release.epsilon(1e-5) == pytest.approx(spent + 2 * z, rel=1e-9)
    many = {"honest": 100_000, "dimension": 1, "rounded_users": 0}
    local = accounting.noise_multiplier(1.0, 1e-5) / math.sqrt(100_000)
    planned = for_promise(1.0, 1e-5, sensitivity=1.0, step=local / 1.1, **many)
    assert 1e-6 < math.exp(planned.log_zeta) < 1e-4  # more would hide in its own slack
    assert planned.epsilon(1e-5) <= 1.0


@pytest.mark.parametrize("std", [0.75, 1.0, 1.25])
@pytest.mark.parametrize("parties", [2, 3, 8])
def test_a_sum_of_discrete_gaussians_is_within_its_share_of_zeta(std: float, parties: int) -> None:
    """Step 2 of the proof, checked on the exact laws, and not vacuously."""
    total = _sum_of(_pmf(std, 60), parties)
    middle = len(total) // 2
    near = slice(middle - 2 * parties, middle + 2 * parties + 1)
    ratio = np.abs(np.log(total[near] / _pmf(math.sqrt(parties) * std, middle)[near])).max()
    bound = 5 * sum(math.exp(-2 * (math.pi * std) ** 2 * k / (k + 1)) for k in range(1, parties))
    assert ratio <= bound + 1e-13
    if parties == 2:  # later additions smooth the difference
        assert ratio >= bound / 10


@pytest.mark.parametrize("shift", [5, 15])
def test_the_claimed_delta_covers_the_exact_one_of_the_integer_sum(shift: int) -> None:
    """d = 1, noise of 6 steps, integer inputs `shift` apart: the hockey-stick sum is exact."""
    std, honest = 6.0, 6
    total = _sum_of(_pmf(std, 100), honest)
    p = np.pad(total, (shift, 0))
    q = np.pad(total, (0, shift))
    release = DiscreteGaussian(
        local_std=std, step=1.0, sensitivity=shift, honest=honest, dimension=1, rounded_users=0
    )
    for epsilon in (0.1, 0.5, 1.0):
        exact = float(np.maximum(p - math.exp(epsilon) * q, 0).sum())
        assert exact <= release.delta(epsilon)
        assert exact >= 0.5 * release.delta(epsilon)  # the claim is not vacuous either


def test_steps_that_differ_by_coordinate_are_charged_together() -> None:
    g = np.array([0.25, 0.25, 0.5])
    release = DiscreteGaussian(local_std=8.0, step=g, sensitivity=3.0, honest=4, dimension=3)
    variance = 4 * 64 - (TAU * 0.5) ** 2
    assert release.noise_multiplier == pytest.approx(
        math.sqrt(variance) / (3 + math.sqrt(0.25**2 * 2 + 0.25))
    )
    assert np.array_equal(release.stds_in_steps, [32.0, 32.0, 16.0])
    uniform = DiscreteGaussian(local_std=8.0, step=0.5, sensitivity=3.0, honest=4, dimension=3)
    assert release.log_zeta == uniform.log_zeta
    assert release.delta(1.0) < uniform.delta(1.0)


def test_rows_rounded_towards_zero_are_not_charged_for_rounding() -> None:
    charged, free = (for_promise(1, 1e-5, **SPEC), for_promise(1, 1e-5, **SPEC, rounded_users=0))
    assert free.local_std < charged.local_std
    assert free.noise_multiplier == pytest.approx(
        math.sqrt(500 * free.local_std**2 - (4 * free.step) ** 2) / 2.8, rel=1e-14
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"local_std": 0.0}, "local_std must be finite and > 0, got 0.0"),
        ({"local_std": 0.5}, "local_std must be >= the step"),
        ({"honest": 1, "local_std": 3.9}, r"> 4 steps / sqrt\(honest\), got 3.9"),
        ({"sensitivity": math.inf}, "sensitivity must be finite and > 0, got inf"),
        ({"honest": 0}, "honest must be >= 1, got 0"),
        ({"dimension": 0}, "dimension must be >= 1, got 0"),
        ({"step": 0.3}, "step must be a power of two where vectors are rounded, got 0.3"),
        ({"step": np.ones(3)}, r"step must be one finite number > 0 or \(5,\) of them"),
    ],
)
def test_impossible_fields_are_named(change: dict[str, float], message: str) -> None:
    fields = {"local_std": 9.0, "step": 1.0, "sensitivity": 1.0, "honest": 3, "dimension": 5}
    with pytest.raises(ValueError, match=message):
        DiscreteGaussian(**(fields | change))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="step must leave 2 zeta < epsilon"):
        for_promise(0.1, 1e-5, sensitivity=1.0, honest=10, dimension=10, step=128.0)
