"""Closed forms against their constraint, measured leakage and its error, the recommendation."""

import json
import math
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon
from scipy.stats import spearmanr

from embed import PublicTransform
from train_distributed.research.protection import leakage, mechanisms, study
from train_distributed.research.protection.leakage import Constants, Leakage, Recoveries
from train_distributed.research.protection.mechanisms import FormulaInputs, StudySettings
from train_distributed.research.protection.study import Candidate, Measurement, Preference
from train_distributed.research.protection.training import FederationOptions, head_federation
from train_distributed.simulation.digits import pixel_digits

POWERS = (mechanisms.Paillier, mechanisms.Shares, mechanisms.Sparsification)
EVERY = (mechanisms.Randomisation, *POWERS)
C1 = 0.5  # exact in binary, so that every border below is exact


def constants(tau, budget=0.4, c1=0.6):
    return Constants(c1, (2 * c1 - budget) / tau)


@pytest.mark.parametrize("m", [1, 7690, 10**6])
@pytest.mark.parametrize("tau", [1e-12, 1e-4, 0.01, 0.3, 0.5, 0.9, 1 - 1e-9])
@pytest.mark.parametrize("delta", [1e-12, 1e-3, 5e8])
def test_each_mechanism_solves_its_own_constraint(m, tau, delta):
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
        assert -math.expm1(-m * float(excess)) == pytest.approx(optimum.tau, rel=1e-9)
    if tau <= 0.01:
        given = FormulaInputs(1, inverse_variances=8769.0)
        optimum = constants(tau).solve(0.4, mechanisms.Randomisation, given)
        assert optimum.parameter == pytest.approx(100 * optimum.tau / 8769.0, rel=1e-9)


@pytest.mark.parametrize(
    ("budget", "c2", "labels"),
    [
        (1.0, 1.0, ["unconstrained"] * 4),  # budget = 2 C1
        (1.0, 0.0, ["unconstrained"] * 4),
        (0.875, 1.0, ["infeasible"] + ["within proof"] * 3),  # τ = 1/8
        (0.75, 1.0, ["infeasible"] + ["within proof"] * 3),  # budget = 1.5 C1
        (math.nextafter(0.75, 0), 1.0, ["infeasible"] + ["heuristic"] * 3),
        (0.75, 25.0, ["within proof"] * 4),  # τ = .01
        (0.75, math.nextafter(25, 0), ["infeasible"] + ["within proof"] * 3),
        (0.5, 0.5, ["infeasible"] * 3 + ["heuristic"]),  # τ = 1: only compression, sending nothing
        (0.5, math.nextafter(0.5, 0), ["infeasible"] * 4),
        (0.5, 0.0, ["infeasible"] * 4),
        (0.0, 1e6, ["heuristic"] * 4),
    ],
)
def test_labels_on_both_sides_of_every_border(budget, c2, labels):
    assert [Constants(C1, c2).label(budget, mechanism) for mechanism in EVERY] == labels


HELD = Constants(0.5, 1.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Constants(0.9, 1.0), r"c1 must be in \[0, 0.83"),
        (lambda: Constants(0.5, math.inf), "c2 must be in"),
        (lambda: HELD.solve(-0.1, mechanisms.Shares, FormulaInputs(7)), "budget must be in"),
        (lambda: Constants(0.5, 0.75).require_reachable(0.24, EVERY), "budget must be >= 0.25,"),
        (lambda: FormulaInputs(0), "parameters must be >= 1"),
        (lambda: FormulaInputs(10, 0.0), "half_width must be finite and > 0"),
        (lambda: Recoveries(np.zeros((1, 1, 1), bool)), "hits must be non-empty boolean"),
        (lambda: Recoveries(np.zeros((1, 1, 0, 1), bool)), "hits must be non-empty boolean"),
        (lambda: leakage.mean_interval(np.zeros(0), 0.95), "at least one"),
        (lambda: leakage.mean_interval(np.array([1.1]), 0.95), r"values must be in \[0, 1\]"),
        (lambda: leakage.mean_interval(np.zeros(2), 1.0), r"confidence must be in \(0, 1\)"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def recoveries(rate_per_record, *, models=4, attacks=10):
    """Exactly that many of the attacks on each of three clients recover each record."""
    found = np.arange(attacks)[:, None] < np.round(np.array(rate_per_record) * attacks)
    return Recoveries(np.broadcast_to(found, (3, models, *found.shape)).copy())


NEVER, ALWAYS = recoveries([0.0]), recoveries([1.0])


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
        found = leakage.root_js(p, q)
        assert np.allclose(found, jensenshannon(p.T, q.T))
        value = found.mean()
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
        low, high = leakage.mean_interval(values.astype(float), 0.95)
        missed += not low <= mean <= high
        widths.append(high - low)
    assert missed <= 100 * 0.05 + 3 * math.sqrt(100 * 0.05 * 0.95)
    assert np.mean(widths) < {"coins": 0.5, "rare": 0.3, "narrow": 0.2, "wide": 0.4}[kind]


def test_the_interval_at_its_ends():
    for n in (1, 5, 60):
        low, high = leakage.mean_interval(np.zeros(n), 0.95)
        exact = 1 - 0.025 ** (1 / n)  # Clopper and Pearson's, the shortest there is
        assert low == 0
        assert exact <= high < exact + 0.15
        assert leakage.mean_interval(np.ones(n), 0.95) == pytest.approx((1 - high, 1.0))


def test_repeated_attacks_on_one_model_do_not_narrow_the_interval():
    once, often = recoveries([0.5], attacks=2), recoveries([0.5], attacks=200)
    assert once.interval() == often.interval()
    blind = Recoveries(often.hits, shared=False)
    assert np.ptp(blind.interval()) < np.ptp(often.interval())


def point(mechanism, parameter, leaked, loss, megabits, high=None):
    held = Leakage(leaked, leaked, leaked if high is None else high, 0.0, 0.0, 0.0)
    return Measurement(
        mechanism, parameter, held, 1 - loss, loss, 0.0, 1e6, 1.0, megabits, 10 * megabits
    )


def test_the_cheapest_point_wins_and_compression_may_go_below_rho_star():
    optimum = HELD.solve(0.5, mechanisms.Sparsification, FormulaInputs(100))
    others = tuple(point("compression", r, 0.1, 1 - r, -10 * (1 - r)) for r in (0.995, 0.5, 0.1))
    compression = Candidate(optimum, point("compression", 0.99, 0.5, 0.01, -0.1), others)
    solved = HELD.solve(0.5, mechanisms.Paillier, FormulaInputs(100))
    paillier = Candidate(solved, point("paillier", 2048, 0, 0, 9), ())
    both = (compression, paillier)
    chosen = [study.by_formula(both, Preference(*p)) for p in ((1, 0), (1, 0.01), (0.1, 1))]
    found = [(p.mechanism, p.parameter) for p in chosen if p]
    assert found == [("paillier", 2048), ("compression", 0.99), ("compression", 0.1)]
    assert 0.995 not in [p.parameter for p in compression.eligible()]  # weaker than ρ*
    assert study.by_formula([], Preference(1, 1)) is None


def test_measurement_may_overrule_the_formula():
    leaks = point("compression", 0.9999, 0.8, 0.0, 0.0)
    hides = point("randomisation", 1.0, 0.1, 0.3, 0.0)
    unsure = point("paillier", 2048.0, 0.1, 0.0, 5.0, high=0.6)
    points = [leaks, hides, unsure]
    assert study.by_measurement(points, Preference(1, 1), 0.5) is hides
    assert study.by_measurement(points, Preference(1, 0.01), 0.7) is unsure
    assert study.by_measurement(points, Preference(1, 1), 0.05) is None


def test_the_pareto_front_against_its_definition():
    generator = np.random.default_rng(0)
    points = [point("none", i, *generator.integers(0, 4, 3).astype(float)) for i in range(60)]

    def axes(p):
        return np.array([p.leakage.value, p.utility_loss, p.extra_megabits])

    front = study.pareto(points)
    for p in points:
        beaten = any((axes(q) <= axes(p)).all() and (axes(q) < axes(p)).any() for q in points)
        assert (p in front) == (not beaten)
    assert 0 < len(front) < 60


def test_what_is_deployed_for_a_degenerate_optimum():
    settings = StudySettings()
    tiny = HELD.solve(0.5, mechanisms.Paillier, FormulaInputs(7690, 8e-4))
    assert tiny.parameter is not None
    assert tiny.parameter < 0.05
    for chosen, bits in ((None, 2048), (tiny.log_parameter, 2048), (2100 * math.log(2), 2112)):
        assert mechanisms.Paillier.deploy(chosen, settings).parameter == bits
    with pytest.raises(ValueError, match=r"r\* must be <= .* 64-bit word"):
        mechanisms.Shares.deploy(100.0, settings)


def test_leakage_and_accuracy_both_fall_with_noise():
    """8 levels that span both transitions, Spearman <= −.9."""
    public, private = pixel_digits()
    options = FederationOptions(clients=10, rows=250, step=2.0, rounds=60)
    digits = head_federation(private, public, PublicTransform.fit(public, components=32), options)
    models = tuple(digits.models(8, 5, 0))
    benchmark = study.AttackBenchmark(digits, 0.9, models, 1, 8, 5, 0)
    levels = np.geomspace(0.2, 6.0, 8) * benchmark.update_size
    points = [benchmark.measure(mechanisms.Randomisation(float(level**2))) for level in levels]
    leaked = [p.leakage.value for p in points]
    accuracy = [p.accuracy for p in points]
    assert max(leaked) > 0.3
    for fell in (leaked, accuracy):
        found: Any = spearmanr(levels, fell)
        assert found.statistic <= -0.9


def test_the_command_recommends_and_draws(call, tmp_path):
    pytest.importorskip("phe")
    small = {"models": 2, "steps": 1, "components": 3, "noise_levels": 1, "variance_models": 8}
    (tmp_path / "small.json").write_text(json.dumps(small))
    words = "--rounds 3 --seeds 1 --attacks 1 --clients 3 --settings small.json --budget .3"
    words += " --prefer-utility 1 --prefer-efficiency .1 --out o"
    code, printed, error = call("protect", *words.split())
    assert (code, error) == (0, "")
    for words in ("heuristic", "recommended by the formula", "recommended by measurement", "n* ="):
        assert words in printed
    written = sorted(path.name for path in (tmp_path / "o").iterdir())
    assert written == ["report.json", "table.txt", "tradeoff.png"]
    report = json.loads((tmp_path / "o" / "report.json").read_text())
    solved = [optimum["mechanism"] for optimum in report["optima"]]
    assert solved == ["randomisation", "paillier", "shares", "compression"]
    assert report["parameters"] == 40
    assert any(p["pareto"] for p in report["points"])
