"""Noise has the law that it claims; integers add up to the real sum, plus exactly its draws."""

import math
import os
import subprocess
import sys
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from train_distributed.privacy import discrete_gaussian as module
from train_distributed.privacy import float_noise
from train_distributed.privacy.discrete_gaussian import add_noise, discrete_gaussian
from train_distributed.privacy.fixed_point import FixedPoint, is_power_of_two

EDGE = math.nextafter(1 / module.BLOCK_PER_STD, 0)  # the largest s whose blocks are one integer
STDS = [5e-324, 1e-3, 0.3, EDGE, 0.85, 1.0, 3.7, 1e4 / 3, 2.0**40 / 3, 2.0**53]


def _block(std: float) -> int:
    return max(0, math.frexp(module.BLOCK_PER_STD * std)[1])


def _p(v: int, x: int, std: float) -> Any:
    """p of the module's docstring, to the precision that mpmath is set to."""
    return mpmath.ldexp(mpmath.exp(-(mpmath.mpf(x) ** 2) / (2 * mpmath.mpf(std) ** 2)), v)


def _is_plausible(seen: NDArray, mass: NDArray) -> bool:
    """Pearson's statistic of counts against probabilities that sum to 1, at a level of 1e-9."""
    expected = seen.sum() * mass
    assert expected.min() > 10
    statistic = float(((seen - expected) ** 2 / expected).sum())
    degrees = len(expected) - 1
    # Laurent and Massart 2000: P[χ² ≥ n + 2 sqrt(n t) + 2 t] ≤ exp(-t), and room for finite counts.
    t = 2 * math.log(1e9)
    return statistic < degrees + 2 * math.sqrt(degrees * t) + 2 * t


def _follows(draws: NDArray[np.int64], std: float) -> bool:
    """Whether small draws have the law; what is seldom is counted together."""
    support = np.arange(-60, 61)
    mass = np.exp(-(support**2) / (2 * std**2))
    mass /= mass.sum()
    often = mass * len(draws) > 30
    seen = np.array([(draws == z).sum() for z in support[often]])
    if (rest := mass[~often].sum()) * len(draws) > 10:
        return _is_plausible(np.append(seen, len(draws) - seen.sum()), np.append(mass[often], rest))
    return _is_plausible(seen, mass[often] / mass[often].sum())


@pytest.mark.parametrize("std", [0.3, 0.7, EDGE, 1.0, 2.5])
def test_the_sampler_follows_the_discrete_gaussian(std: float) -> None:
    draws = discrete_gaussian(std, 200_000)
    assert _follows(draws, std)
    assert not _follows(draws, 1.05 * std)  # the test can fail


@pytest.mark.parametrize("std", [2.0**12 / 3, 2.0**40 / 3, 2.0**53])
def test_large_noise_is_gaussian_in_its_size_and_uniform_in_its_bits(std: float) -> None:
    draws = discrete_gaussian(std, 200_000)
    cuts = np.linspace(-2.5, 2.5, 21)
    cumulative = np.array([0, *(0.5 * math.erfc(-c / math.sqrt(2)) for c in cuts), 1])
    size = np.searchsorted(np.ceil(cuts * std), draws, side="right")
    assert _is_plausible(np.bincount(size, minlength=22), np.diff(cumulative))
    for shift in range(0, int(math.log2(std)) - 6, 4):  # more bits would not be uniform
        bits = np.bincount((draws >> shift) & 15, minlength=16)
        assert _is_plausible(bits, np.full(16, 1 / 16))
    assert not np.array_equal(draws, discrete_gaussian(std, 200_000))


@pytest.mark.parametrize("std", STDS)
def test_the_double_is_as_near_to_the_probability_as_is_claimed(std: float) -> None:
    k = _block(std)
    places = sorted({0, min(1, 2**k - 1), 2**k // 3, 2**k - 1})
    points = [(v, u) for v in (0, 1, 2, 3, 4, 9, 63, 64, 200, 511) for u in places]
    v, u = (np.array(of, np.int64) for of in zip(*points, strict=True))
    near = module._acceptance(v, u, k, std)
    with mpmath.workdps(60):
        for (block, place), double in zip(points, near.tolist(), strict=True):
            p = _p(block, (block << k) + place, std)
            assert p <= 1
            assert abs(p - double) < 2**-42


def test_a_block_is_wide_enough_for_every_acceptance_to_be_a_probability() -> None:
    """t >= s sqrt(2 ln 2), where a power of two is just large enough and just too small."""
    with mpmath.workdps(60):
        for power in range(54):
            for std in (2.0**power / module.BLOCK_PER_STD, EDGE * 2**power):
                for near in (std, math.nextafter(std, 0), math.nextafter(std, math.inf)):
                    t = 2 ** _block(near)
                    assert t >= near * mpmath.sqrt(2 * mpmath.log(2))
                    assert t == 1 or t < 2.3551 * near


@pytest.mark.parametrize("gamma", ["0", "1e-30", "1/3", "1/2", "1", "40", "12345.678", "1e40"])
@pytest.mark.parametrize("bits", [53, 117, 1000])
def test_the_integers_are_on_both_sides_of_the_exponential(gamma: str, bits: int) -> None:
    low, high = module._between(Fraction(gamma), bits)
    with mpmath.workdps(400):
        exact = mpmath.ldexp(mpmath.exp(-mpmath.mpf(Fraction(gamma).numerator)
                             / Fraction(gamma).denominator), bits)  # fmt: skip
        assert low <= exact <= high
    assert high - low <= 3


@pytest.mark.parametrize("std", STDS)
def test_what_doubles_decide_integers_decide_alike(std, monkeypatch) -> None:
    """The same bits, once with the margin as it is, once so wide that all is settled exactly."""
    asked = []

    def drawn() -> NDArray[np.int64]:
        generator, more = np.random.default_rng(5), np.random.default_rng(6)

        def words(count: int) -> NDArray[np.uint64]:
            source = more if count == 1 else generator
            return source.integers(0, 2**64, count, np.uint64)

        monkeypatch.setattr(module, "_words", words)
        return discrete_gaussian(std, 150)

    doubles = drawn()
    decide = module._decide
    monkeypatch.setattr(module, "UNDECIDED", 2.0)
    monkeypatch.setattr(module, "_decide", lambda *of: asked.append(of) or decide(*of))
    assert np.array_equal(drawn(), doubles)
    assert len(asked) >= 250


@pytest.mark.parametrize(("v", "x", "std"), [(0, 1, 1.0), (1, 9, 6.5), (2, 2**54 + 1, 2.0**53)])
@pytest.mark.parametrize("words", [0, 1, 3])
def test_a_uniform_that_agrees_with_p_for_long_is_still_decided_by_the_bit_that_differs(
    v: int, x: int, std: float, words: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bits = 53 + 64 * words
    with mpmath.workdps(200):
        exact = int(mpmath.floor(mpmath.ldexp(_p(v, x, std), bits)))
    for difference in (-2, 2):
        number = exact + difference
        tail = [(number >> 64 * i) % 2**64 for i in reversed(range(words))]
        given = iter(tail)
        monkeypatch.setattr(module, "_words", lambda _, given=given: [next(given)])
        assert module._decide(number >> 64 * words, v, x, std) == (difference < 0)
        assert not list(given)  # all were needed


def test_a_word_of_zeros_is_counted_on(monkeypatch: pytest.MonkeyPatch) -> None:
    given = iter([np.array([0, 5, 0], np.uint64), *([w] for w in (0, 0, 2**63 + 8))])
    monkeypatch.setattr(module, "_words", lambda _: next(given))
    asked = []
    monkeypatch.setattr(module, "_decide", lambda *of: asked.append(of) or True)
    v = 64 + 64 + 64 + 3
    assert module._accepted(10.0, 4, 1).tolist() == [v * 16 + 5]
    assert asked == [(0, v, v * 16 + 5, 10.0)]


def test_forked_processes_draw_different_noise() -> None:
    program = """
import os
from train_distributed.privacy.discrete_gaussian import discrete_gaussian
discrete_gaussian(2.0**40, 10)
for _ in range(2):
    if not (child := os.fork()):
        print(*discrete_gaussian(2.0**40, 3), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
print(*discrete_gaussian(2.0**40, 3))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert len(set(done.stdout.split())) == 9, done.stderr


def test_noise_far_below_a_step_is_none() -> None:
    assert not discrete_gaussian(5e-324, 1000).any()
    assert discrete_gaussian(3.0, 0).shape == (0,)


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
def test_what_cannot_be_drawn_is_refused(std: float) -> None:
    with pytest.raises(ValueError, match=r"std must be in \(0, 2\^53\], got"):
        discrete_gaussian(std, 1)
    with pytest.raises(ValueError, match=r"encoded must be \(d,\) uint64"):
        add_noise(np.zeros((2, 2), np.uint64), 1.0)
    with pytest.raises(ValueError, match="count must be >= 0, got -1"):
        discrete_gaussian(1.0, -1)


GENERATORS = {"seeded": lambda: torch.Generator().manual_seed(4), "system": lambda: None}
LEVEL = 1e-6  # the system's numbers differ every time: one false alarm in a million runs


@pytest.mark.parametrize("make", GENERATORS.values(), ids=GENERATORS)
def test_uniform_and_normal(make):
    uniform = float_noise.uniform((20_000,), make())
    assert 0 < uniform.min() < uniform.max() < 1
    assert scipy.stats.kstest(uniform.numpy(), "uniform").pvalue > LEVEL
    normal = float_noise.normal((2, 10_000), make())
    assert scipy.stats.kstest(normal.flatten().numpy(), "norm").pvalue > LEVEL


@pytest.mark.parametrize("make", GENERATORS.values(), ids=GENERATORS)
@pytest.mark.parametrize("dimension", [1, 2, 3, 50])
def test_exponential_norm_has_gamma_length_and_uniform_direction(make, dimension):
    vectors = float_noise.exponential_norm((20_000, dimension), make())
    length = vectors.norm(dim=-1)
    assert scipy.stats.kstest(length.numpy(), "gamma", args=(dimension,)).pvalue > LEVEL
    if dimension == 1:
        assert abs(float((vectors > 0).double().mean()) - 0.5) < 0.02
        return
    # On the sphere in R^d, (1 + u_1)/2 is Beta((d-1)/2, (d-1)/2); along any fixed axis too.
    half = (dimension - 1) / 2
    for axis in (torch.eye(dimension)[-1], torch.ones(dimension) / math.sqrt(dimension)):
        cosine = (vectors / length[:, None]) @ axis.double()
        shares = ((1 + cosine) / 2).numpy()
        assert scipy.stats.kstest(shares, "beta", args=(half, half)).pvalue > LEVEL
    # Length and direction are independent.
    assert abs(float(torch.corrcoef(torch.stack([length, vectors[:, 0] / length]))[0, 1])) < 0.05


def test_half_the_noise_fails_the_same_test():
    halved = 0.5 * float_noise.exponential_norm((20_000, 5), torch.Generator().manual_seed(4))
    length = halved.norm(dim=-1).numpy()
    assert scipy.stats.kstest(length, "gamma", args=(5,)).pvalue < LEVEL


def test_a_generator_is_reproducible_and_the_system_is_not():
    seeded = [float_noise.normal((5,), GENERATORS["seeded"]()) for _ in range(2)]
    assert torch.equal(*seeded)
    assert not torch.equal(float_noise.normal((5,), None), float_noise.normal((5,), None))


@pytest.mark.parametrize("byte", [b"\x00", b"\xff"])
def test_the_rarest_words_stay_inside_the_open_interval(monkeypatch, byte) -> None:
    monkeypatch.setattr(os, "urandom", lambda count: byte * count)
    assert 0 < float_noise.uniform((3,), None)[0] < 1
    assert float_noise.normal((3,), None).isfinite().all()


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
