"""The integers add up to the real sum, or the values are refused."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from train_distributed.privacy.fixed_point import FixedPoint, is_power_of_two


@settings(derandomize=True, deadline=None)
@given(st.integers(1, 200), st.integers(-30, 10), st.floats(0, 1e6), st.integers(0, 2**32 - 1))
def test_the_modular_sum_is_the_sum_of_the_rounded_values(parties, exponent, bound, seed) -> None:
    step = 2.0**exponent
    x = np.random.default_rng(seed).uniform(-bound, bound, (parties, 3))
    x[:, 0], x[:, 1] = bound, -bound  # the extremes, all at once
    code = FixedPoint(step, bound, parties)
    total = np.zeros(3, np.uint64)
    for row in x:
        total += code.encode(row)
    exact = [sum(round(v / step) for v in column) for column in x.T.tolist()]
    assert total.view(np.int64).tolist() == exact
    assert code.decode(total) == pytest.approx(x.sum(0), abs=parties * step / 2 + 1e-9 * bound)


def test_the_largest_admitted_sum_does_not_wrap() -> None:
    step, parties = 1.0, 2**10
    bound = 2.0**53 - 16
    code = FixedPoint(step, bound, parties)
    total = np.full(1, np.uint64(0))
    for _ in range(parties):
        total += code.encode([bound])
    assert int(total.view(np.int64)[0]) == parties * int(bound)
    FixedPoint(1.0, 0.0, 10, noise_std=2.0**55)


@pytest.mark.parametrize("value", [1.0 + 1e-9, -2.0, math.nan, math.inf, -math.inf])
def test_a_value_beyond_the_bound_is_refused_not_clipped(value: float) -> None:
    with pytest.raises(ValueError, match=r"\|x\| <= bound=1"):
        FixedPoint(2.0**-20, 1.0, 3).encode([0.0, value])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((0.0, 1.0, 3), "step must be finite and > 0, got 0.0"),
        ((math.nan, 1.0, 3), "step must be finite and > 0, got nan"),
        ((1.0, -1.0, 3), r"bound must be in \[0, inf\), got -1.0"),
        ((1.0, math.inf, 3), r"bound must be in \[0, inf\), got inf"),
        ((1.0, 1.0, 0), "parties must be >= 1, got 0"),
        ((1.0, 1.0, 1, -2.0), r"noise_std must be in \[0, inf\), got -2.0"),
        ((1.0, 2.0**53, 2**10), r"must be < 2\^63, got"),
        ((1.0, 0.0, 22, 2.0**56), r"noise_std=7\.2"),
    ],
)
def test_impossible_fields_are_named(fields: tuple[float, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FixedPoint(*fields)  # pyright: ignore[reportArgumentType]


def test_only_uint64_is_decoded() -> None:
    with pytest.raises(ValueError, match="total must be uint64, got int64"):
        FixedPoint(1.0, 1.0, 1).decode(np.zeros(2, np.int64))


def test_powers_of_two_are_known_as_others_round_when_they_divide() -> None:
    assert all(map(is_power_of_two, [2.0**-1022, 2.0**-20, 0.5, 1.0, 2.0**1023]))
    others = [0.3, 3.0, 0.0, -2.0, math.nextafter(1.0, 2), math.inf, math.nan]
    assert not any(map(is_power_of_two, others))
