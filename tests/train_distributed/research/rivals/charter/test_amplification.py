"""Charter's noise: the paper's constants, and the tight account against direct integration."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation, SampledWithoutReplacementDpEvent
from dp_accounting.rdp import RdpAccountant

from train_distributed import accounting
from train_distributed.research.rivals.charter import amplification, renyi
from train_distributed.research.rivals.charter.plan import CharterTask, make_plan


def plan(*, rounds, epsilon, delta=1e-5, constants="tight"):
    size = {"clients": 10, "rows": 3000, "dimension": 30, "diameter": 1.0}
    task = CharterTask(epsilon=epsilon, delta=delta, **size)
    return make_plan(task, rounds=rounds, gradient_clip=1.0, loss_clip=1.0, constants=constants)


def test_the_paper_constants():
    # √(1080 · 100) ln(2.5e5) / 300 and √(40 · 100) ln(2.5e7) / 300
    paper = plan(rounds=100, epsilon=0.1, constants="paper")
    assert paper.gradient_std == pytest.approx(13.6155, abs=1e-4)
    assert paper.loss_std == pytest.approx(3.5912, abs=1e-4)


def test_tight_noise_meets_its_epsilon():
    tight = plan(rounds=30, epsilon=0.25)
    multiplier = tight.gradient_std / (2 / tight.batch)
    assert amplification.composed_epsilon(multiplier, 1e-5, tight.rates) <= 0.25
    assert amplification.composed_epsilon(0.98 * multiplier, 1e-5, tight.rates) > 0.25
    moved = 1 / tight.verification_rows
    assert accounting.epsilon(1e-5, tight.loss_std / moved, 30) <= 0.25 * (1 + 1e-12)


def test_no_amplification_where_a_record_used_once_is_cheaper():
    rates = (0.5, 1.0)  # half the rows in the first round, the others in the second
    found = amplification.sampled_noise_multiplier(1.0, 1e-5, rates)
    assert found == accounting.noise_multiplier(1.0, 1e-5)


def exact_log_moment(power, s):
    """ln T_j of an even j: the two ends of the proof, summed with 400 digits."""
    with mpmath.workdps(400):
        s = mpmath.mpf(s)
        ways = [mpmath.binomial(power, i) * (-1) ** i for i in range(power + 1)]
        line = [n * mpmath.exp(s / 2 * i * (i - 1)) for i, n in enumerate(ways)]
        triangle = [
            n * mpmath.exp(s / 2 * (power**2 - power - i * (power - i))) for i, n in enumerate(ways)
        ]
        return float(mpmath.log(max(mpmath.fsum(line), mpmath.fsum(triangle))))


@pytest.mark.parametrize("multiplier", [0.4, 1.0, 3.0, 40.0])
def test_even_moments_are_the_exact_sums_and_never_below(multiplier):
    largest = renyi.largest_order(multiplier, 200)
    found = renyi.log_moments(multiplier, largest)
    for power in {2, 4, 6, 12, 40, largest // 2 * 2}:
        excess = found[power] - exact_log_moment(power, multiplier**-2)
        assert 0 <= excess <= 2e-9


def absolute_moment(power, u, v):
    """E_r |(p - p')/r|^j by a Riemann sum, for Gaussians of variance 1 in the plane."""
    step = 0.15
    axis = np.arange(-12, 12, step)
    x = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1)
    ratio = [np.exp(x @ shift - shift @ shift / 2) for shift in (u, v)]
    base = np.exp(-(x**2).sum(-1) / 2) / (2 * math.pi) * step**2
    return float((np.abs(ratio[0] - ratio[1]) ** power * base).sum())


@pytest.mark.parametrize("power", [2, 3, 4, 5, 6])
def test_no_shifts_within_the_sensitivity_have_a_larger_moment(power):
    reach, draw = 0.8, np.random.default_rng(power)
    bound = math.exp(renyi.log_moments(1 / reach, power)[power])
    corner = reach * np.array([math.cos(math.pi / 3), math.sin(math.pi / 3)])
    tried = [(np.array([reach, 0.0]), corner), (np.array([reach, 0.0]), np.zeros(2))]
    while len(tried) < 60:
        u, v = draw.uniform(-reach, reach, size=(2, 2))
        lengths = [np.linalg.norm(w) for w in (u, v, u - v)]
        if max(lengths) > 0:  # scaled until one of the three lengths is the sensitivity
            scale = reach / max(lengths)
            tried.append((scale * u, scale * v))
    worst = max(absolute_moment(power, u, v) for u, v in tried)
    assert worst <= bound * (1 + 1e-6)
    if power % 2 == 0:
        assert worst >= bound * (1 - 1e-6)  # one of the two ends attains it


def mixture_divergence(order, thetas, shifts, sigma):
    """∫ P^α P'^(1-α) of the two mixtures in the plane, and the other way round, the larger."""
    step = sigma / 8
    axis = np.arange(-12 * sigma, 12 * sigma, step)
    x = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1)

    def log_ratio(shift):
        return (2 * x @ shift - shift @ shift) / (2 * sigma**2)

    base = -(x**2).sum(-1) / (2 * sigma**2) - math.log(2 * math.pi * sigma**2)
    with np.errstate(divide="ignore"):
        p, q = (
            np.logaddexp(np.log(1 - theta), np.log(theta) + log_ratio(shift))
            for theta, shift in zip(thetas, shifts, strict=True)
        )
    integrals = [np.exp(order * a + (1 - order) * b + base).sum() for a, b in ((p, q), (q, p))]
    return max(float(integral) for integral in integrals) * step**2


@pytest.mark.parametrize("order", [2, 3, 6])
@pytest.mark.parametrize("rate", [0.05, 0.4])
def test_no_posterior_and_no_shift_diverges_more_than_the_bound(order, rate):
    sigma = 1.2
    table = renyi.log_moments(sigma, 6)
    bound = math.exp(renyi.log_divergence(order, rate, table))
    turned = [(math.cos(angle), math.sin(angle)) for angle in (math.pi / 3, math.pi / 6, 0.0)]
    pairs = [np.array([(1.0, 0.0), one]) for one in turned] + [np.array([(0.5, 0), (-0.5, 0)])]
    rates = itertools.product((0.0, rate / 2, rate), repeat=2)
    tried = itertools.product(rates, pairs)
    worst = max(mixture_divergence(order, thetas, pair, sigma) for thetas, pair in tried)
    assert worst <= bound
    assert math.log(worst) > 0.3 * math.log(bound)  # the search comes near


@pytest.mark.parametrize("order", [2, 5])
def test_whole_runs_over_all_assignments_stay_below_the_product_of_the_rounds(order):
    """Four rows, two rounds of one row each: every assignment, every value of the other rows."""
    sigma, step = 1.0, 0.1
    axis = np.arange(-8, 8, step)

    def transcript(values):
        total = np.zeros((len(axis), len(axis)))
        for first, second in itertools.permutations(values, 2):
            one = np.exp(-((axis - first) ** 2) / 2)
            two = np.exp(-((axis - second) ** 2) / 2)
            total += one[:, None] * two[None, :]
        return total / (12 * 2 * math.pi)

    rates = (1 / 4, 1 / 3)
    table = renyi.log_moments(sigma, order)
    bound = sum(renyi.log_divergence(order, rate, table) for rate in rates)
    worst = 0.0
    for others in itertools.combinations_with_replacement((-0.5, 0.0, 0.5), 3):
        for target, instead in ((0.5, -0.5), (-0.5, 0.5)):
            p, q = transcript((target, *others)), transcript((instead, *others))
            worst = max(worst, math.log(float((p**order * q ** (1 - order)).sum()) * step**2))
    assert 0.05 * bound < worst <= bound


@pytest.mark.parametrize(("multiplier", "order"), [(0.7, 4), (1.0, 8), (3.0, 32)])
def test_never_above_the_general_theorem(multiplier, order):
    """Wang et al.'s Theorem 27 bounds the same from above, as dp-accounting computes it."""
    accountant = RdpAccountant([order], NeighboringRelation.REPLACE_ONE)
    event = SampledWithoutReplacementDpEvent(100, 1, GaussianDpEvent(multiplier))
    general = accountant.compose(event)._rdp[0]
    table = renyi.log_moments(multiplier, order)
    assert renyi.log_divergence(order, 0.01, table) / (order - 1) <= general * (1 + 1e-6)


def test_orders_stop_where_the_rule_is_not_exact():
    assert renyi.largest_order(1.0, 1024) == 202
    assert renyi.largest_order(40.0, 1024) == 1024
    assert renyi.largest_order(0.01, 1024) < 5


def test_rates_beyond_one_are_named():
    with pytest.raises(ValueError, match=r"largest_rate must be in \(0, 1\)"):
        amplification.composed_epsilon(1.0, 1e-5, (0.5, 1.0))
