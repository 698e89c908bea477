"""Numbers on a card: no promise is smaller than the one shown, and intervals cover the truth."""

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
from train_distributed.released.card import balanced, bootstrap, card, exact
from train_distributed.released.numbers import percent_range, rounded_up


def stated(epsilon: float = 1.0, delta: float = 1e-5, **more: Any) -> dict[str, Any]:
    multiplier = accounting.noise_multiplier(epsilon, delta)
    curve = {"privacy_curve": "gaussian", "noise_multiplier": multiplier, "compositions": 1}
    return Privacy(epsilon, delta).report() | curve | more


def guess(report: dict[str, Any]) -> float:
    return best_guess(Report.of(report))


def section(title: str, report: dict[str, Any]) -> str:
    """Of a card, as Markdown."""
    whole = Report.of({"users": 3, "suitable_for_release": True} | report)
    made = Release(torch.zeros(3, 2).double(), PublicTransform.identity(2), ("a", "b"), whole)
    return card(made, markup="markdown").partition(f"## {title}")[2].partition("\n## ")[0]


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


def test_odds_are_of_all_compositions_and_general_where_noise_is_far_from_gaussian() -> None:
    assert guess(stated(log10_zeta=-100.0)) == guess(stated())
    assert guess(stated(log10_zeta=-2.0)) == guess(Privacy(1.0, 1e-5).report())
    four = accounting.noise_multiplier(1.0, 1e-5, 4)
    assert guess(stated(noise_multiplier=four, compositions=4)) == guess(stated())


def test_numbers_are_never_rounded_to_less() -> None:
    rng = np.random.default_rng(0)
    for value in 10 ** rng.uniform(-12, 6, 2000):
        for digits in (1, 3, 6):
            shown = float(rounded_up(float(value), digits))
            assert value <= shown <= value * (1 + 10.0 ** (1 - digits)) * (1 + 1e-12)
    ends = [percent_range(*each) for each in ((0.12349, 0.56701), (0.1, 0.9), (0.0, 1.0))]
    assert ends == ["12.3 to 56.8 %", "10.0 to 90.0 %", "0.0 to 100.0 %"]


BY_USER = Privacy(1.0, 1e-5, unit="user")
ZERO_OUT = stated(sensitivity=2.0, zero_out_sensitivity=1.25, zero_out_epsilon=0.60012)
ROUNDS = stated(epsilon_per_iteration=0.12344, epsilon_of_all_sessions=2.5)


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (stated(), ["Take any one record (a picture with its class) out of the training data"]),
        (BY_USER.report(), ["Take all records of any one user out"]),
        (Privacy(1.0, 1e-5, group_size=3).report(), ["Take any 3 records out"]),
        (Privacy(1.0, 1e-5, unit="user", group_size=2).report(), ["Take any 2 users out"]),
        (ZERO_OUT, ["| replace one record (promised) | 1 | 1e-05 | 2 |", "second row"]),
        (ZERO_OUT, ["| take out one record, all counts stay | 0.601 | 1e-05 | 1.25 |"]),
        (stated(), ["no figure of that kind is proven", "(2ε, (1 + e^ε) δ)"]),
        (ROUNDS, ["one iteration: ε = 0.124", "all sessions that the users agreed to: ε = 2.5"]),
        (stated(40.0), ["protects hardly anybody"]),
    ],
)
def test_a_card_says_what_is_promised(report: dict[str, Any], words: list[str]) -> None:
    said = section("The promise", report)
    assert all(each in said for each in words)


def test_a_card_promises_nothing_that_does_not_hold() -> None:
    text = section("The promise", Privacy(math.inf, 1e-5).report())
    assert text.startswith("\n\n**Nothing is promised.")
    assert "|" not in text
    assert "protects hardly anybody" not in section("The promise", stated(3.0))


def metrics(confusion: list[list[int]], **more: object) -> dict[str, Any]:
    counts = np.array(confusion)
    rows, names = int(counts.sum()), [chr(ord("a") + k) for k in range(len(counts))]
    recall, f1 = balanced(counts).tolist()
    per_class = {
        name: {
            "rows": int(of := counts[k].sum()),
            "recall": float(counts[k, k] / of) if of else None,
            "precision": float(counts[k, k] / up) if (up := counts[:, k].sum()) else None,
            "f1": None,
            "auroc": None,
        }
        for k, name in enumerate(names)
    }
    of_all = {
        "rows": rows,
        "accuracy": float(counts.trace() / rows),
        "majority_baseline": float(counts.sum(1).max() / rows),
        "majority_class": names[int(counts.sum(1).argmax())],
        "balanced_accuracy": recall,
        "macro_f1": f1,
        "auroc": 0.75,
        "auroc_of": "macro",
        "expected_calibration_error": 0.1,
        "per_class": per_class,
        "confusion": confusion,
        "warnings": [],
    }
    return {"test_metrics": of_all | more}


def test_the_interval_of_a_share_covers_it() -> None:
    """Of 40 rows, at every tenth of a share: at least as often as it says."""
    rng = np.random.default_rng(0)
    for share in np.arange(0, 1.01, 0.1):
        ends = [exact(hits, 40) for hits in range(41)]
        covers = np.array([each.low <= share <= each.high for each in ends])
        assert covers[rng.binomial(40, share, 4000)].mean() >= 0.94


def test_intervals_of_counts_cover_what_drew_them() -> None:
    rng = np.random.default_rng(1)
    truth = np.array([[0.3, 0.05, 0.05], [0.1, 0.2, 0.0], [0.06, 0.04, 0.2]])
    right = balanced(1e6 * truth)
    covered = np.zeros(2)
    for _ in range(60):
        drawn = rng.multinomial(300, truth.ravel()).reshape(3, 3)
        ends = bootstrap(drawn)
        covered += [low <= of <= high for of, (low, high) in zip(right, ends.values(), strict=True)]
    assert (covered >= 53).all()


ONE_SIDED = metrics([[5, 0, 0], [5, 0, 0], [0, 0, 0]], warnings=["one class only"])
MANY = metrics([[5, 1], [2, 8]])
del MANY["test_metrics"]["confusion"]  # of many classes
OLDER = {"test_accuracy": 0.5, "test_accuracy_per_class": {"a": 0.25}}


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (metrics([[40, 10], [5, 45]]), ["| accuracy | 85.0 % | 76.4 to 91.4 % |"]),
        (metrics([[40, 10], [5, 45]]), ["| always answering 'a' | 50.0 % |  |"]),
        (ONE_SIDED, ["\n\n**Warning: one class only.**", "| a | 5 | 100.0 % |"]),
        (ONE_SIDED, ["| b | 5 | 0.0 % | 0.0 to 52.2 % | – |  |", "| c | 0 | – |  | – |  |"]),
        (MANY, ["| a | 6 | 83.3 % | 35.8 to 99.6 % | 71.4 % |  |"]),
        (MANY, ["| balanced accuracy: mean recall of the classes | 81.7 % |  |"]),
        ({}, ["Nothing is known"]),
        ({"test_accuracy": None}, ["Nothing is known"]),
        (OLDER, ["there is no interval", "| a | 25.0 % |"]),
    ],
)
def test_a_card_says_how_good_a_model_is(report: dict[str, Any], words: list[str]) -> None:
    said = section("How good it is", Privacy(1.0, 1e-5).report() | report)
    assert all(each in said for each in words)
    assert "Warning" not in said or said.startswith("\n\n**Warning")  # first of all
