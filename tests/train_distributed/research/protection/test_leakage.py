"""The closed forms against the constraint they solve, C1, C2, measured leakage and its error."""

import math

import mpmath
import numpy as np
import pytest

from train_distributed.research.protection import leakage
from train_distributed.research.protection.leakage import Constants, Recoveries, mean_interval
from train_distributed.research.protection.mechanisms import (
    FormulaInputs,
    Paillier,
    Randomisation,
    Shares,
    Sparsification,
)

POWERS = (Paillier, Shares, Sparsification)
EVERY = (Randomisation, *POWERS)
FACTS = FormulaInputs(7690, 1e-3, 100.0)
TAUS = (1e-12, 1e-4, 0.01, 0.3, 0.5, 0.9, 1 - 1e-9)
C1 = 0.5  # exact in binary, so that every border below is exact


def constants(tau, budget=0.4, c1=0.6):
    return Constants(c1, (2 * c1 - budget) / tau)


def tv(m, excess):
    return -math.expm1(-m * excess)


@pytest.mark.parametrize("m", [1, 7690, 10**6])
@pytest.mark.parametrize("tau", TAUS)
@pytest.mark.parametrize("delta", [1e-12, 1e-3, 5e8])
def test_each_power_solves_its_own_constraint(m, tau, delta):
    mpmath.mp.dps = 60
    for mechanism in POWERS:
        optimum = constants(tau).solve(0.4, mechanism, FormulaInputs(m, delta))
        assert optimum.log_parameter is not None
        asked = mpmath.log(1 - mpmath.mpf(optimum.tau))  # ln of what TV leaves
        excess = mpmath.mpf(FormulaInputs(m).excess(optimum.tau))
        assert abs(-m * excess - asked) <= 1e-9 * max(1, abs(asked))
        exact = {
            "paillier": (mpmath.log(2 * mpmath.mpf(delta)) - asked / m) / 2,
            "shares": mpmath.log(mpmath.mpf(delta)) - asked / m,
            "compression": asked / m,
        }[mechanism.name]
        assert abs(optimum.log_parameter - exact) <= 1e-9
        assert tv(m, float(excess)) == pytest.approx(optimum.tau, rel=1e-9)


@pytest.mark.parametrize("tau", [1e-12, 1e-4, 0.01])
def test_randomisation_solves_its_constraint(tau):
    optimum = constants(tau).solve(0.4, Randomisation, FormulaInputs(1, inverse_variances=8769.0))
    assert optimum.parameter is not None
    lhs = math.log(optimum.parameter) + math.log(8769.0) - math.log(100)
    assert lhs == pytest.approx(math.log(optimum.tau), abs=1e-9)


def test_the_leakage_at_the_optimum_is_the_budget_and_weaker_ones_exceed_it():
    optimum = Constants(0.6, 3.0).solve(0.4, Sparsification, FACTS)
    assert optimum.log_parameter is not None
    for scale, sign in ((1, 0), (0.99, 1), (1.01, -1)):
        leakage = 2 * 0.6 - 3.0 * tv(7690, -scale * optimum.log_parameter)
        assert (leakage > 0.4 + 1e-12) - (leakage < 0.4 - 1e-12) == sign


@pytest.mark.parametrize(
    ("budget", "c2", "labels"),
    [
        (1.0, 1.0, ["unconstrained"] * 4),  # budget = 2 C1
        (1.25, 1.0, ["unconstrained"] * 4),
        (1.0, 0.0, ["unconstrained"] * 4),
        (0.875, 1.0, ["infeasible"] + ["within proof"] * 3),  # τ = 1/8
        (0.75, 1.0, ["infeasible"] + ["within proof"] * 3),  # budget = 1.5 C1
        (math.nextafter(0.75, 0), 1.0, ["infeasible"] + ["heuristic"] * 3),
        (0.75, 25.0, ["within proof"] * 4),  # τ = .01
        (0.75, math.nextafter(25, 0), ["infeasible"] + ["within proof"] * 3),
        (0.5, 50.0, ["heuristic"] * 4),  # τ = .01
        (0.5, 49.9, ["infeasible"] + ["heuristic"] * 3),
        (0.5, 0.5, ["infeasible"] * 3 + ["heuristic"]),  # τ = 1: only compression, sending nothing
        (0.75, 0.25, ["infeasible"] * 3 + ["within proof"]),  # τ = 1 and budget = 1.5 C1
        (0.5, math.nextafter(0.5, 0), ["infeasible"] * 4),
        (0.5, 0.0, ["infeasible"] * 4),
        (0.0, 1e6, ["heuristic"] * 4),
    ],
)
def test_labels_on_both_sides_of_every_border(budget, c2, labels):
    assert [Constants(C1, c2).label(budget, mechanism) for mechanism in EVERY] == labels


def test_a_budget_below_the_reachable_minimum_is_refused():
    held = Constants(0.5, 0.75)
    held.require_reachable(0.25, EVERY)
    with pytest.raises(ValueError, match=r"budget must be >= 0.25,"):
        held.require_reachable(0.24, EVERY)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Constants(0.9, 1.0), r"c1 must be in \[0, 0.83"),
        (lambda: Constants(0.5, math.inf), "c2 must be in"),
        (lambda: Constants(0.5, 1.0).solve(-0.1, Shares, FACTS), "budget must be in"),
        (lambda: Constants(0.5, 1.0).solve(math.nan, Shares, FACTS), "budget must be in"),
        (lambda: FormulaInputs(0), "parameters must be >= 1"),
        (lambda: FormulaInputs(10, 0.0), "half_width must be finite and > 0"),
        (lambda: FormulaInputs(10, 1.0, 0.0), "inverse_variances must be finite and > 0"),
        (lambda: Recoveries(np.zeros((1, 1, 1), bool)), "hits must be non-empty boolean"),
        (lambda: Recoveries(np.zeros((1, 1, 0, 1), bool)), "hits must be non-empty boolean"),
        (lambda: mean_interval(np.zeros(0), 0.95), r"values must be in \[0, 1\], at least one"),
        (lambda: mean_interval(np.array([1.1]), 0.95), r"values must be in \[0, 1\]"),
        (lambda: mean_interval(np.zeros(2), 1.0), r"confidence must be in \(0, 1\)"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def recoveries(rate_per_record, *, clients=3, models=4, attacks=10):
    """Exactly that many of the attacks recover each record."""
    found = np.array(
        [[t < round(rate * attacks) for rate in rate_per_record] for t in range(attacks)]
    )
    hits = np.broadcast_to(found, (clients, models, *found.shape)).copy()
    return Recoveries(hits)


NEVER, ALWAYS = recoveries([0.0]), recoveries([1.0])


def test_beliefs_are_smoothed_counts_with_a_dummy_for_failures():
    found = recoveries([1.0, 0.5], attacks=10).beliefs
    assert found.shape == (3, 4, 3)
    assert np.allclose(found[0, 0], np.array([10.5, 5.5, 5.5]) / 21.5)
    assert np.allclose(found.sum(-1), 1)


def test_constants_by_hand():
    held = leakage.constants(recoveries([0.5]), NEVER)
    p, q = np.array([0.5, 0.5]), np.array([0.0, 1.0])
    middle = (p + q) / 2
    js = 0.5 * sum(a * math.log(a / m) for a, m in zip((*p, 1.0), (*middle, 0.75), strict=True))
    assert held.c1 == pytest.approx(math.sqrt(js))
    assert held.c2 == pytest.approx((11.0**2 - 1) / 2)  # ξ = ln((5.5/11)/(.5/11)), smoothed
    assert leakage.constants(ALWAYS, NEVER).c1 == pytest.approx(math.sqrt(math.log(2)))


def test_leakage_lies_in_its_interval_and_grows_with_success():
    values = []
    for rate in (0.0, 0.1, 0.3, 0.5, 0.8, 1.0):
        found = leakage.leakage(recoveries([rate]), NEVER)
        assert 0 <= found.low <= found.value <= found.high <= math.sqrt(math.log(2)) + 1e-12
        assert found.rate_low <= rate <= found.rate_high
        values.append(found.value)
    assert values == sorted(values)
    assert values[0] == 0
    assert leakage.leakage(NEVER, NEVER).low == 0


def test_the_bounds_of_leakage_hold_however_clients_and_records_differ():
    """|p - q|/√2 <= mean √JS <= g(p + q) at exact rates; g cannot be the coins' own curve."""
    draw, bends = np.random.default_rng(0), 0
    for _ in range(500):
        clients, records = draw.integers(1, 5, size=2)
        shape = draw.choice([0.05, 0.3, 1.0, 5.0], size=records + 1)
        p = draw.dirichlet(shape, clients)
        q = draw.dirichlet([0.05] * records + [draw.choice([0.1, 3.0])], clients)
        value = leakage.root_js(p, q).mean()
        attack, blind = 1 - p[:, -1].mean(), 1 - q[:, -1].mean()
        assert abs(attack - blind) / math.sqrt(2) <= value + 1e-12
        assert value <= leakage._concave(min(1.0, attack + blind)) + 1e-12
        coin = leakage.root_js(np.array([attack, 1 - attack]), np.array([blind, 1 - blind]))
        bends += value > coin + 1e-3
    assert bends > 10


def test_no_success_on_few_models_does_not_certify_a_small_budget():
    few, many = (recoveries([0.0], models=m) for m in (2, 400))
    assert leakage.leakage(few, few).meets(0.2) == "open"
    assert leakage.leakage(many, many).meets(0.2) == "yes"
    assert leakage.leakage(recoveries([1.0], models=20), many).meets(0.2) == "no"


@pytest.mark.parametrize("kind", ["coins", "rare", "narrow", "wide"])
def test_the_interval_covers_the_mean_it_was_drawn_from(kind):
    """95 %, so at most 5 % of 100 miss, three standard errors allowed."""
    draw, missed, widths = np.random.default_rng(0), 0, []
    for _ in range(100):
        values, mean = {
            "coins": (draw.random(30) < 0.3, 0.3),
            "rare": (draw.random(30) < 0.02, 0.02),
            "narrow": (draw.beta(30, 70, size=30), 0.3),
            "wide": (draw.beta(0.1, 0.9, size=30), 0.1),
        }[kind]
        low, high = mean_interval(values.astype(float), 0.95)
        missed += not low <= mean <= high
        widths.append(high - low)
    assert missed <= 100 * 0.05 + 3 * math.sqrt(100 * 0.05 * 0.95)
    assert np.mean(widths) < {"coins": 0.5, "rare": 0.3, "narrow": 0.2, "wide": 0.4}[kind]


def test_the_interval_at_its_ends():
    for n in (1, 5, 60):
        low, high = mean_interval(np.zeros(n), 0.95)
        exact = 1 - 0.025 ** (1 / n)  # Clopper and Pearson's, the shortest there is
        assert low == 0
        assert exact <= high < exact + 0.15
        assert mean_interval(np.ones(n), 0.95) == pytest.approx((1 - high, 1.0))


def test_repeated_attacks_on_one_model_do_not_narrow_the_interval():
    once, often = recoveries([0.5], attacks=2), recoveries([0.5], attacks=200)
    assert once.interval() == often.interval()
    blind = Recoveries(often.hits, shared=False)
    assert np.ptp(blind.interval()) < np.ptp(often.interval())


def test_root_js_against_its_definition():
    from scipy.spatial.distance import jensenshannon

    generator = np.random.default_rng(0)
    p, q = generator.dirichlet(np.ones(5), 20), generator.dirichlet(np.ones(5), 20)
    expected = [jensenshannon(a, b) for a, b in zip(p, q, strict=True)]
    assert np.allclose(leakage.root_js(p, q), expected)
    apart = leakage.root_js(np.array([1.0, 0]), np.array([0, 1.0]))
    assert apart == pytest.approx(math.sqrt(math.log(2)))
