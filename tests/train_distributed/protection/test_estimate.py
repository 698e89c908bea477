"""C1, C2, the measured leakage and its error."""

import math

import numpy as np
import pytest

from train_distributed.protection import estimate
from train_distributed.protection.estimate import Recoveries


def recoveries(rate_per_record, *, clients=3, models=4, attacks=10):
    """Exactly that many of the attacks recover each record."""
    found = np.array(
        [[t < round(rate * attacks) for rate in rate_per_record] for t in range(attacks)]
    )
    hits = np.broadcast_to(found, (clients, models, *found.shape)).copy()
    return Recoveries(hits, clients * models)


NEVER, ALWAYS = recoveries([0.0]), recoveries([1.0])


def test_beliefs_are_smoothed_counts_with_a_dummy_for_failures():
    found = recoveries([1.0, 0.5], attacks=10).beliefs
    assert found.shape == (3, 4, 3)
    assert np.allclose(found[0, 0], np.array([10.5, 5.5, 5.5]) / 21.5)
    assert np.allclose(found.sum(-1), 1)


def test_constants_by_hand():
    held = estimate.constants(ALWAYS, NEVER)
    p, q = np.array([10.5, 0.5]) / 11, np.array([0.5, 10.5]) / 11
    js = sum(0.5 * a * math.log(a / 0.5) for a in (*p, *q))  # the middle is (1/2, 1/2)
    assert held.c1 == pytest.approx(math.sqrt(js))
    assert held.c2 == pytest.approx((21.0**2 - 1) / 2)  # ξ = ln(10.5/.5)


def test_a_uniform_prior_would_make_success_look_private():
    """Why κ2 is a blind attack: against (1/2, 1/2) a sure recovery leaks far less."""
    uniform = np.array([0.5, 0.5])
    sure = ALWAYS.beliefs.mean(1)
    assert estimate.root_js(sure, uniform[None])[0] < 0.6 < estimate.constants(ALWAYS, NEVER).c1


def test_leakage_lies_in_its_interval_and_grows_with_success():
    values = []
    for rate in (0.0, 0.1, 0.3, 0.5, 0.8, 1.0):
        found = estimate.leakage(recoveries([rate]), NEVER)
        assert found.low <= found.value <= found.high <= estimate.constants(ALWAYS, NEVER).c1 + 0.3
        assert found.rate_low <= rate <= found.rate_high
        values.append(found.value)
    assert values == sorted(values)
    assert values[0] == 0
    assert estimate.leakage(NEVER, NEVER).low == 0


def test_no_success_in_few_trials_does_not_certify_a_small_budget():
    few, many = (recoveries([0.0], clients=k) for k in (1, 200))
    assert estimate.leakage(few, few).meets(0.1) == "open"
    assert estimate.leakage(many, many).meets(0.1) == "yes"
    assert estimate.leakage(ALWAYS, NEVER).meets(0.2) == "no"


def test_the_interval_covers_the_rate_it_was_drawn_from():
    """95 % Clopper-Pearson over 400 draws: at most 5 % miss, three standard errors allowed."""
    generator, missed = np.random.default_rng(0), 0
    for _ in range(400):
        hits = generator.random((6, 5, 1, 1)) < 0.3
        low, high = Recoveries(hits, 30).interval
        missed += not low <= 0.3 <= high
    assert missed <= 400 * 0.05 + 3 * math.sqrt(400 * 0.05 * 0.95)


def test_repeated_attacks_on_one_model_do_not_narrow_the_interval():
    once, often = recoveries([0.5], attacks=2), recoveries([0.5], attacks=200)
    assert once.interval == often.interval


def test_root_js_against_its_definition():
    from scipy.spatial.distance import jensenshannon

    generator = np.random.default_rng(0)
    p, q = generator.dirichlet(np.ones(5), 20), generator.dirichlet(np.ones(5), 20)
    expected = [jensenshannon(a, b) for a, b in zip(p, q, strict=True)]
    assert np.allclose(estimate.root_js(p, q), expected)
    apart = estimate.root_js(np.array([1.0, 0]), np.array([0, 1.0]))
    assert apart == pytest.approx(math.sqrt(math.log(2)))


def test_theorem_7_1():
    e = 0.1
    expected = math.sqrt(1.1 * math.log(1.1 / 0.9) / 2 + (e + math.log(1 / 0.9)) / 2)
    assert estimate.theorem_7_1(e) == pytest.approx(expected)
    few = recoveries([0.5], attacks=2)
    assert math.isinf(estimate.c1_error(few))  # 8 attacks: vacuous
    many = recoveries([0.5], models=200, attacks=200)
    relative = math.sqrt(3 * math.log(4 / 0.05) / (40_000 * 0.5))
    assert estimate.c1_error(many) == pytest.approx(estimate.theorem_7_1(relative), rel=1e-3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Recoveries(np.zeros((1, 1, 1), bool), 1), "hits must be non-empty boolean"),
        (lambda: Recoveries(np.zeros((1, 1, 0, 1), bool), 1), "hits must be non-empty boolean"),
        (lambda: Recoveries(np.zeros((1, 1, 1, 1), bool), 0), "independent must be >= 1, got 0"),
        (lambda: estimate.theorem_7_1(1.0), r"relative must be in \[0, 1\), got 1"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
