"""The promise in words: no number on a card is smaller than the one it shows."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import ndtr

from embed import PublicTransform
from train_distributed import Privacy, Release, accounting
from train_distributed.one_shot.attacker import best_guess
from train_distributed.one_shot.report_file import Report
from train_distributed.released.card import card
from train_distributed.released.numbers import rounded_up


def stated(epsilon: float = 1.0, delta: float = 1e-5, **more: Any) -> dict[str, Any]:
    multiplier = accounting.noise_multiplier(epsilon, delta)
    curve = {"privacy_curve": "gaussian", "noise_multiplier": multiplier, "compositions": 1}
    return Privacy(epsilon, delta).report() | curve | more


def guess(report: dict[str, Any]) -> float:
    return best_guess(Report.of(report))


def words(report: dict[str, Any]) -> str:
    whole = Report.of({"users": 3, "suitable_for_release": True} | report)
    made = Release(torch.zeros(3, 2).double(), PublicTransform.identity(2), ("a", "b"), whole)
    return card(made, markup="markdown").partition("## The promise")[2].partition("\n## ")[0]


@pytest.mark.parametrize("epsilon", [1e-6, 0.01, 0.1, 1.0, 8.0, 40.0, 1e4])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.3])
def test_odds_are_those_of_the_best_attacker_rounded_up(epsilon: float, delta: float) -> None:
    """A Gaussian of sensitivity over noise μ is told from its shift with probability Φ(μ/2)."""
    report = stated(epsilon, delta)
    exact = float(ndtr(1 / report["noise_multiplier"] / 2))
    assert exact <= guess(report) <= min(1.0, exact + 0.0011)
    general = guess(Privacy(epsilon, delta).report())
    bound = (math.exp(min(epsilon, 700.0)) + delta) / (1 + math.exp(min(epsilon, 700.0)))
    assert bound - 1e-12 <= general <= min(1.0, bound + 0.0011)
    assert guess(report) <= general + 1e-9


def test_odds_of_discrete_noise_that_is_far_from_gaussian_are_the_general_ones() -> None:
    assert guess(stated(log10_zeta=-100.0)) == guess(stated())
    assert guess(stated(log10_zeta=-2.0)) == guess(Privacy(1.0, 1e-5).report())


def test_several_compositions_are_told_apart_by_all_of_them() -> None:
    four = accounting.noise_multiplier(1.0, 1e-5, 4)
    assert guess(stated(noise_multiplier=four, compositions=4)) == guess(stated())


def test_numbers_are_never_rounded_to_less() -> None:
    rng = np.random.default_rng(0)
    for value in 10 ** rng.uniform(-12, 6, 2000):
        for digits in (1, 3, 6):
            shown = float(rounded_up(float(value), digits))
            assert value <= shown <= value * (1 + 10.0 ** (1 - digits)) * (1 + 1e-12)


@pytest.mark.parametrize(
    ("privacy", "one"),
    [
        (Privacy(1.0, 1e-5), "any one record (a picture with its class)"),
        (Privacy(1.0, 1e-5, unit="user"), "all records of any one user"),
        (Privacy(1.0, 1e-5, group_size=3), "any 3 records"),
        (Privacy(1.0, 1e-5, unit="user", group_size=2), "any 2 users"),
    ],
)
def test_it_says_what_is_protected(privacy: Privacy, one: str) -> None:
    assert f"Take {one} out of the training data" in words(privacy.report())


def test_both_relations_are_in_one_table() -> None:
    text = words(stated(sensitivity=2.0, zero_out_sensitivity=1.25, zero_out_epsilon=0.60012))
    assert "| replace one record (promised) | 1 | 1e-05 | 2 |" in text
    assert "| take out one record, all counts stay | 0.601 | 1e-05 | 1.25 |" in text
    assert "second row" in text


def test_where_none_is_proven_it_says_how_to_compare() -> None:
    text = words(stated())
    assert "no figure of that kind is proven" in text
    assert "(2ε, (1 + e^ε) δ)" in text


def test_without_noise_nothing_is_promised() -> None:
    text = words(Privacy(math.inf, 1e-5).report())
    assert text.startswith("\n\n**Nothing is promised.")
    assert "|" not in text


def test_rounds_and_sessions_are_listed() -> None:
    text = words(stated(epsilon_per_iteration=0.12344, epsilon_of_all_sessions=2.5))
    assert "one iteration: ε = 0.124" in text
    assert "all sessions that the users agreed to: ε = 2.5" in text


@pytest.mark.parametrize(("epsilon", "weak"), [(0.1, False), (3.0, False), (40.0, True)])
def test_a_promise_that_protects_hardly_anybody_is_called_so(epsilon: float, weak: bool) -> None:
    assert ("protects hardly anybody" in words(stated(epsilon))) is weak
