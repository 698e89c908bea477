"""Promises for a record that is taken out, where all others collude, and against an attacker."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from embed import PublicTransform
from heads import least_squares_norm
from tests.train_distributed.one_shot.builders import METHODS_OF_CLASSES, embedded, made
from train_distributed import Privacy, accounting, release
from train_distributed.one_shot.attacker import best_guess, gaussian_mu, true_positives
from train_distributed.one_shot.report_file import Report
from train_distributed.one_shot.summation import Plan

DELTA = 1e-5
RATES = np.array([0.0, 1e-5, 1e-3, 0.02, 0.3, 0.9, 1.0])


def plan_of(
    sizes: Any, fewest: int | None = None, *, name: str = "discriminant", **promise: Any
) -> Plan:
    discrete = promise.pop("discrete", True)
    privacy = Privacy(promise.pop("epsilon", 1.0), DELTA, **promise)
    statistic = made(name, PublicTransform.identity(4), 3).statistic
    return Plan.of(statistic, torch.as_tensor(sizes), privacy, fewest, discrete=discrete)


# All others collude


@pytest.mark.parametrize("discrete", [False, True])
@pytest.mark.parametrize(("users", "stated"), [(5, 1.47), (20, 2.7), (100, 6.9), (1000, 30)])
def test_one_users_own_noise_is_what_is_left(discrete: bool, users: int, stated: float) -> None:
    plan = plan_of([6] * users, -(-4 * users // 5), discrete=discrete)  # as a federation's
    found, guarantee = plan.report()["epsilon_if_all_others_collude"], plan.main.guarantee
    alone = plan.main.mechanism.local_std / (
        guarantee.sensitivity * math.sqrt(guarantee.compositions)
    )
    exact = accounting.epsilon(DELTA, alone)
    assert exact <= found <= exact * 1.001
    assert found == pytest.approx(stated, rel=0.02)


@pytest.mark.parametrize("promise", [{"unit": "user"}, {"group_size": 3}, {"honest_fraction": 1}])
def test_it_is_never_below_the_promise(promise: dict[str, Any]) -> None:
    once, twice = map(plan_of([6] * 5, **promise).epsilon_if_all_others_collude, (1, 2))
    assert 1.0 < once < twice


def test_a_single_user_has_nobody_beside_it() -> None:
    assert plan_of([6]).epsilon_if_all_others_collude() == pytest.approx(1.0, rel=1e-4)


def test_without_noise_or_with_that_of_servers_nothing_is_stated() -> None:
    """Two servers that collude see all that was sent: no ε is left, whatever the noise."""
    assert "epsilon_if_all_others_collude" not in plan_of([6] * 5, epsilon=math.inf).report()
    report = plan_of([6] * 5, noise_by="servers").report()
    assert "epsilon_if_all_others_collude" not in report
    said = report["noise_by"], report["honest_servers"], report["noise_servers"]
    assert said == ("servers", 1, 2)


# A record that is taken out


def test_the_norm_of_what_a_record_adds() -> None:
    features = 1.25**2 - 0.75**2
    whole = math.sqrt(1.25**2 + 0.7**2 * features**2)
    assert least_squares_norm(1.25, 0.7, 0.75) == pytest.approx(whole)
    with pytest.raises(ValueError, match=r"constant must lie in \(0, clip_norm"):
        least_squares_norm(1.0, 0.7, 1.0)


@pytest.mark.parametrize("name", METHODS_OF_CLASSES)
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
@pytest.mark.parametrize("unit", ["record", "user"])
@pytest.mark.parametrize("group", [1, 2])
def test_the_same_noise_promises_no_less(name: str, epsilon: float, unit: Any, group: int) -> None:
    """ε follows the exact curve at the distance that is left; never above what is promised."""
    promise: dict[str, Any] = {"epsilon": epsilon, "unit": unit, "group_size": group}
    for discrete in (False, True):
        plan = plan_of([7, 3, 5, 5], name=name, discrete=discrete, **promise)
        found, (planned,) = plan.report(), plan.sums
        assert found["zero_out_epsilon"] <= epsilon * (1 + 1e-9)
        std = planned.mechanism.local_std * math.sqrt(planned.guarantee.honest)
        distance = found["zero_out_sensitivity"] * math.sqrt(planned.guarantee.compositions)
        exact = accounting.epsilon(DELTA, std / distance)
        assert exact <= found["zero_out_epsilon"] <= exact * 1.01


def test_a_report_says_it_and_one_without_noise_does_not() -> None:
    every = np.arange(12)
    rows = embedded(np.eye(4)[every % 4], every % 2, 2, users=every // 3)
    report = release(rows, "discriminant", Privacy(1.0, DELTA)).report
    # √2, the length of a row that begins with 1, instead of 2, from one feature to its opposite
    assert report["zero_out_sensitivity"] == pytest.approx(report["sensitivity"] / math.sqrt(2))
    exact = accounting.epsilon(DELTA, report["noise_multiplier"] * math.sqrt(2))
    assert report["zero_out_epsilon"] == pytest.approx(exact, rel=1e-3)
    assert report["zero_out_epsilon"] < 0.69
    bare = release(rows, "discriminant", Privacy(math.inf, DELTA), noise="float").report
    assert not {"zero_out_epsilon", "zero_out_sensitivity"} & bare.keys()


# An attacker


def report_of(epsilon: float, delta: float, **more: object) -> Report:
    multiplier = accounting.noise_multiplier(epsilon, delta, 2)
    curve = {"privacy_curve": "gaussian", "noise_multiplier": multiplier, "compositions": 2}
    return Report.of({"private": True, "epsilon": epsilon, "delta": delta, **curve, **more})


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
def test_the_best_test_of_two_gaussians_is_on_the_curve_and_none_is_above(epsilon: float) -> None:
    report = report_of(epsilon, DELTA)
    mu = gaussian_mu(report)
    assert mu is not None
    draws = np.random.default_rng(0).standard_normal(400_000)
    for rate in (0.001, 0.05, 0.5):
        threshold = np.quantile(draws, 1 - rate)
        found = (draws + mu > threshold).mean()
        claimed = float(true_positives(report, np.array([rate]))[0])
        assert found == pytest.approx(claimed, abs=0.004)
        worse = (np.abs(draws + mu) > np.quantile(np.abs(draws), 1 - rate)).mean()
        assert worse < claimed + 0.004


@pytest.mark.parametrize("curve", ["gaussian", None])
def test_no_promise_is_exceeded_and_chance_is_always_reached(curve: str | None) -> None:
    report = report_of(2.0, 1e-3, privacy_curve=curve)
    found = true_positives(report, RATES)
    assert (found >= RATES).all()
    assert (found <= np.minimum(math.exp(2.0) * RATES + 1e-3, 1) + 1e-12).all()
    assert (np.diff(found) >= 0).all()
    assert found[-1] == 1
    assert 2 * best_guess(report) - 1 >= (found - RATES).max() - 1e-9


def test_without_a_gaussian_curve_there_is_no_mu_and_the_bound_is_looser() -> None:
    gaussian, other = report_of(1.0, DELTA), report_of(1.0, DELTA, privacy_curve=None)
    rounded = report_of(1.0, DELTA, log10_zeta=-3.0)  # discreteness that the curve would miss
    assert gaussian_mu(other) is None is gaussian_mu(rounded)
    assert (true_positives(other, RATES) >= true_positives(gaussian, RATES)).all()
    assert (true_positives(rounded, RATES) == true_positives(other, RATES)).all()
