"""What an attacker can find: against simulated tests, and against the definition of (ε, δ)."""

import math

import numpy as np
import pytest

from train_distributed import accounting
from train_distributed.one_shot.attacker import best_guess, gaussian_mu, true_positives
from train_distributed.one_shot.report_file import Report

RATES = np.array([0.0, 1e-5, 1e-3, 0.02, 0.3, 0.9, 1.0])


def report_of(epsilon: float, delta: float, **more: object) -> Report:
    multiplier = accounting.noise_multiplier(epsilon, delta, 2)
    curve = {"privacy_curve": "gaussian", "noise_multiplier": multiplier, "compositions": 2}
    return Report.of({"private": True, "epsilon": epsilon, "delta": delta, **curve, **more})


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
def test_the_best_test_of_two_gaussians_is_on_the_curve_and_none_is_above(epsilon: float) -> None:
    report = report_of(epsilon, 1e-5)
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
    gaussian, other = report_of(1.0, 1e-5), report_of(1.0, 1e-5, privacy_curve=None)
    rounded = report_of(1.0, 1e-5, log10_zeta=-3.0)  # discreteness that the curve would miss
    assert gaussian_mu(other) is None is gaussian_mu(rounded)
    assert (true_positives(other, RATES) >= true_positives(gaussian, RATES)).all()
    assert (true_positives(rounded, RATES) == true_positives(other, RATES)).all()
