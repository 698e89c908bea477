"""A record that is taken out while all sizes stay: how far sums move, and what ε that leaves.

A row of zeros adds nothing to any sum and has no gradient: it stands for the record that is gone.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch

from embed import EmbeddingSet, PublicTransform
from heads import least_squares_norm
from tests.train_distributed.one_shot.fitting import METHODS_OF_CLASSES
from train_distributed import Privacy, accounting, release
from train_distributed.one_shot.blind_averaging import HEADS
from train_distributed.one_shot.registry import build_method
from train_distributed.one_shot.statistic import Chunk, Statistic
from train_distributed.one_shot.summation import Plan

K, FEATURES = 3, 4
TRANSFORM = PublicTransform.identity(FEATURES)
ROUNDING = 1 + 1e-12  # of these rows; `Guarantee` charges it
CASES: list[tuple[str, dict[str, Any]]] = [
    ("discriminant", {}),
    ("discriminant", {"moments": False}),
    ("discriminant", {"alpha": 3.0}),
    *((name, {"l2_reg": 30.0}) for name in ("softmax", "svm", "logistic")),
    ("softmax", {"l2_reg": 30.0, "solver": "sgd", "epochs": 3, "batch_size": 4}),
    ("softmax", {"l2_reg": 0.05}),
    ("softmax", {"l2_reg": 0.05, "radius": 0.5}),
]


def made(name: str, options: dict[str, Any]) -> Statistic:
    return build_method(
        name, TRANSFORM, K, {"l2_reg": 1.0} | options if name in HEADS else options
    ).statistic


def pair(n: int, taken: int) -> Chunk:
    """Two users alike, all rows of full length and one class; the second lacks one of them."""
    row = torch.zeros(FEATURES + 1, dtype=torch.float64)
    row[0], reach = TRANSFORM.constant, math.sqrt(TRANSFORM.clip_norm**2 - TRANSFORM.constant**2)
    row[1] = reach
    x = row.expand(2, n, FEATURES + 1).clone()
    x[1, taken] = 0
    y = torch.zeros(2, n, dtype=torch.int64)
    return Chunk(torch.arange(2), x, y, torch.tensor([n, n]))


def moved(method: Statistic, chunk: Chunk) -> float:
    """L2, of all compositions together."""
    first, second = method.submit(chunk) * method.scale
    return float((first - second).norm()) / math.sqrt(method.compositions)


@pytest.mark.parametrize(("name", "options"), CASES)
@pytest.mark.parametrize(("n", "taken"), [(1, 0), (4, 0), (9, 8)])
def test_a_record_that_is_gone_moves_a_submission_by_no_more(
    name: str, options: dict[str, Any], n: int, taken: int
) -> None:
    method = made(name, options)
    sizes = torch.tensor([n, n])
    stated = method.zero_out_sensitivity(sizes)
    found = moved(method, pair(n, taken))
    assert found <= stated * ROUNDING <= method.record_sensitivity(sizes)
    if "l2_reg" not in options:  # sums attain it
        assert found == pytest.approx(stated, rel=1e-9)
    elif options["l2_reg"] == 30.0:  # gradients are longest where the weights are zero
        assert found > 0.4 * stated


@pytest.mark.parametrize(("name", "options"), CASES)
def test_a_user_that_is_gone_moves_the_sum_by_no_more(name: str, options: dict[str, Any]) -> None:
    method = made(name, options)
    chunk = pair(5, 0)
    chunk.x[1] = 0
    sizes = torch.tensor([5, 5])
    assert moved(method, chunk) <= float(method.user_zero_out(sizes)[0]) * ROUNDING
    assert (method.user_zero_out(sizes) <= method.user_sensitivity(sizes)).all()


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
    privacy = Privacy(epsilon, 1e-5, unit=unit, group_size=group)
    sizes, method = torch.tensor([7, 3, 5, 5]), made(name, {})
    for discrete in (False, True):
        plan = Plan.of(method, sizes, privacy, discrete=discrete)
        found, (planned,) = plan.report(), plan.sums
        assert found["zero_out_epsilon"] <= epsilon * (1 + 1e-9)
        std = planned.mechanism.local_std * math.sqrt(planned.guarantee.honest)
        distance = found["zero_out_sensitivity"] * math.sqrt(method.compositions)
        exact = accounting.epsilon(1e-5, std / distance)
        assert exact <= found["zero_out_epsilon"] <= exact * 1.01


def test_a_report_says_it_and_one_without_noise_does_not() -> None:
    rows = EmbeddingSet(
        embeddings=np.eye(4, dtype=np.float32)[np.arange(12) % 4],
        labels=np.arange(12) % 2,
        users=np.arange(12) // 3,
        meta={"class_names": ["a", "b"]},
    )
    report = release(rows, "discriminant", Privacy(1.0, 1e-5)).report
    # √2, the length of a row that begins with 1, instead of 2, from one feature to its opposite
    assert report["zero_out_sensitivity"] == pytest.approx(report["sensitivity"] / math.sqrt(2))
    exact = accounting.epsilon(1e-5, report["noise_multiplier"] * math.sqrt(2))
    assert report["zero_out_epsilon"] == pytest.approx(exact, rel=1e-3)
    assert report["zero_out_epsilon"] < 0.69
    bare = release(rows, "discriminant", Privacy(math.inf, 1e-5), noise="float").report
    assert not {"zero_out_epsilon", "zero_out_sensitivity"} & bare.keys()
