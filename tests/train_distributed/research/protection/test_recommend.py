"""The meta-algorithm, the Pareto front, the federation and the command."""

import json
import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from embed import PublicTransform
from train_distributed.research.protection import mechanisms as protect
from train_distributed.research.protection.leakage import Constants, Leakage
from train_distributed.research.protection.mechanisms import FormulaInputs, StudySettings
from train_distributed.research.protection.study import (
    AttackBenchmark,
    Candidate,
    Measurement,
    Preference,
    by_formula,
    by_measurement,
    pareto,
)
from train_distributed.research.protection.training import FederationOptions, head_federation
from train_distributed.simulation.digits import pixel_digits


def point(mechanism, parameter, leaked, loss, megabits, high=None):
    held = Leakage(leaked, leaked, leaked if high is None else high, 0.0, 0.0, 0.0)
    return Measurement(
        mechanism, parameter, held, 1 - loss, loss, 0.0, 1e6, 1.0, megabits, 10 * megabits
    )


def test_the_cheapest_point_wins_and_compression_may_go_below_rho_star():
    held = Constants(0.5, 1.0)
    optimum = held.solve(0.5, protect.Sparsification, FormulaInputs(100))
    others = tuple(point("compression", r, 0.1, 1 - r, -10 * (1 - r)) for r in (0.995, 0.5, 0.1))
    compression = Candidate(optimum, point("compression", 0.99, 0.5, 0.01, -0.1), others)
    paillier = Candidate(
        held.solve(0.5, protect.Paillier, FormulaInputs(100)), point("paillier", 2048, 0, 0, 9), ()
    )
    both = (compression, paillier)
    chosen = [by_formula(both, Preference(*p)) for p in ((1, 0), (1, 0.01), (0.1, 1))]
    found = [(p.mechanism, p.parameter) for p in chosen if p]
    assert found == [("paillier", 2048), ("compression", 0.99), ("compression", 0.1)]
    assert 0.995 not in [p.parameter for p in compression.eligible()]  # weaker than ρ*
    assert by_formula([], Preference(1, 1)) is None


def test_measurement_may_overrule_the_formula():
    leaks = point("compression", 0.9999, 0.8, 0.0, 0.0)
    hides = point("randomisation", 1.0, 0.1, 0.3, 0.0)
    unsure = point("paillier", 2048.0, 0.1, 0.0, 5.0, high=0.6)
    points = [leaks, hides, unsure]
    assert by_measurement(points, Preference(1, 1), 0.5) is hides
    assert by_measurement(points, Preference(1, 0.01), 0.7) is unsure
    assert by_measurement(points, Preference(1, 1), 0.05) is None


def test_the_pareto_front_against_its_definition():
    generator = np.random.default_rng(0)
    points = [point("none", i, *generator.integers(0, 4, 3).astype(float)) for i in range(60)]

    def axes(p):
        return np.array([p.leakage.value, p.utility_loss, p.extra_megabits])

    front = pareto(points)
    for p in points:
        beaten = any((axes(q) <= axes(p)).all() and (axes(q) < axes(p)).any() for q in points)
        assert (p in front) == (not beaten)
    assert 0 < len(front) < 60


def test_what_is_deployed_for_a_degenerate_optimum():
    settings = StudySettings()
    tiny = Constants(0.5, 1.0).solve(0.5, protect.Paillier, FormulaInputs(7690, 8e-4))
    assert tiny.parameter is not None
    assert tiny.parameter < 0.05
    for chosen, bits in ((None, 2048), (tiny.log_parameter, 2048), (2100 * math.log(2), 2112)):
        assert protect.Paillier.deploy(chosen, settings).parameter == bits
    with pytest.raises(ValueError, match=r"r\* must be <= .* 64-bit word"):
        protect.Shares.deploy(100.0, settings)


@pytest.fixture(scope="module")
def digits():
    public, private = pixel_digits()
    transform = PublicTransform.fit(public, components=32)
    return head_federation(
        private, public, transform, FederationOptions(clients=10, rows=250, step=2.0, rounds=60)
    )


def test_leakage_and_accuracy_both_fall_with_noise(digits):
    """8 levels that span both transitions, Spearman <= −.9."""
    models = tuple(digits.models(8, 5, 0))
    benchmark = AttackBenchmark(digits, 0.9, models, 1, 8, 5, 0)
    levels = np.geomspace(0.2, 6.0, 8) * benchmark.update_size
    points = [benchmark.measure(protect.Randomisation(float(level**2))) for level in levels]
    leaked = [p.leakage.value for p in points]
    accuracy = [p.accuracy for p in points]
    assert max(leaked) > 0.3
    for fell in (leaked, accuracy):
        found: Any = spearmanr(levels, fell)
        assert found.statistic <= -0.9


def test_exact_mechanisms_cost_no_accuracy_and_share_one_attack(digits):
    benchmark = AttackBenchmark(digits, 0.9, tuple(digits.models(1, 5, 0)), 1, 10, 1, 0)
    exact = benchmark.measure(protect.Shares())
    plain = benchmark.measure(protect.Unprotected())
    assert plain.leakage.rate == 1
    assert exact.leakage.rate < 1
    assert abs(exact.utility_loss) < 0.01
    assert exact.bytes_per_client > plain.bytes_per_client
    two, three = (benchmark.attack(protect.Shares(servers=count)) for count in (2, 3))
    assert two.hits.tolist() == three.hits.tolist()


SMALL = ["protect", "--rounds", "3", "--seeds", "1", "--attacks", "1", "--clients", "3"]
SMALL += ["--settings", "small.json"]
SETTINGS = {"models": 2, "steps": 1, "components": 3, "noise_levels": 1, "variance_models": 8}


def test_the_command_recommends_and_draws(call, tmp_path):
    pytest.importorskip("phe")
    (tmp_path / "small.json").write_text(json.dumps(SETTINGS))
    code, printed, error = call(
        *SMALL, "--budget", ".3", "--prefer-utility", "1", "--prefer-efficiency", ".1", "--out", "o"
    )
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
