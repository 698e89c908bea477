"""The closed forms against the constraint they solve, in exact arithmetic, and every border."""

import math

import mpmath
import pytest

from train_distributed.research.protection.closed_forms import Constants
from train_distributed.research.protection.exact_sums import Paillier, Shares
from train_distributed.research.protection.mechanisms import Facts, Randomisation, Sparsification

POWERS = (Paillier, Shares, Sparsification)
EVERY = (Randomisation, *POWERS)
FACTS = Facts(7690, 1e-3, 100.0)
TAUS = (1e-12, 1e-4, 0.01, 0.3, 0.5, 0.9, 1 - 1e-9)


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
        optimum = constants(tau).solve(0.4, mechanism, Facts(m, delta))
        assert optimum.log_parameter is not None
        asked = mpmath.log(1 - mpmath.mpf(optimum.tau))  # ln of what TV leaves
        excess = mpmath.mpf(Facts(m).excess(optimum.tau))
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
    optimum = constants(tau).solve(0.4, Randomisation, Facts(1, inverse_variances=8769.0))
    assert optimum.parameter is not None
    lhs = math.log(optimum.parameter) + math.log(8769.0) - math.log(100)
    assert lhs == pytest.approx(math.log(optimum.tau), abs=1e-9)


def test_the_leakage_at_the_optimum_is_the_budget_and_weaker_ones_exceed_it():
    optimum = Constants(0.6, 3.0).solve(0.4, Sparsification, FACTS)
    assert optimum.log_parameter is not None
    for scale, sign in ((1, 0), (0.99, 1), (1.01, -1)):
        leakage = 2 * 0.6 - 3.0 * tv(7690, -scale * optimum.log_parameter)
        assert (leakage > 0.4 + 1e-12) - (leakage < 0.4 - 1e-12) == sign


C1 = 0.5  # exact in binary, so that every border below is exact


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


def test_compression_at_its_border_sends_nothing():
    optimum = Constants(0.5, 0.5).solve(0.5, Sparsification, FACTS)
    assert optimum.parameter == 0
    assert Constants(0.5, 1.0).solve(1.0, Sparsification, FACTS).parameter is None


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
        (lambda: Facts(0), "parameters must be >= 1"),
        (lambda: Facts(10, 0.0), "half_width must be finite and > 0"),
        (lambda: Facts(10, 1.0, 0.0), "inverse_variances must be finite and > 0"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
