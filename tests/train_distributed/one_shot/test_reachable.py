"""Sums that honest users can make pass, whatever their pictures; longer ones are named."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from tests.train_distributed.one_shot.fitting import METHODS_OF_CLASSES

from embed import PublicTransform
from train_distributed.one_shot.reachable import unreachable
from train_distributed.one_shot.registry import build_method
from train_distributed.one_shot.statistic import Chunk, Statistic
from train_distributed.privacy import Guarantee
from train_distributed.privacy.mechanism import DiscreteGaussian
from train_distributed.privacy.promise import Privacy

K, FEATURES, ROWS = 3, 4, 40
WEIGHTS = ("softmax", "svm", "logistic")
TRANSFORM = PublicTransform.identity(FEATURES)


def _case(
    name: str, users: int, epsilon: float, **options: Any
) -> tuple[Statistic, DiscreteGaussian, Any]:
    if name in WEIGHTS:
        options = {"l2_reg": 1.0, **options}
    method = build_method(name, TRANSFORM, K, options).statistic
    sizes = torch.full((users,), ROWS)
    guarantee = Guarantee.of(sizes, method, Privacy(epsilon, 1e-5))
    return method, DiscreteGaussian.calibrated(method, guarantee, sizes), sizes


def _alike(method: Statistic, integers: DiscreteGaussian, users: int) -> np.ndarray:
    """(users, D) uint64: every row the same and of full length: the longest that there is."""
    row = torch.zeros(FEATURES + 1, dtype=torch.float64)
    row[0] = TRANSFORM.constant
    row[1] = math.sqrt(TRANSFORM.clip_norm**2 - TRANSFORM.constant**2)
    row = row if integers.grid is None else (row / integers.grid).trunc() * integers.grid
    x, y = row.expand(1, ROWS, -1).clone(), torch.zeros(1, ROWS, dtype=torch.int64)
    chunk = Chunk(torch.zeros(1, dtype=torch.int64), x, y, torch.tensor([ROWS]), integers.grid)
    words = integers.encode((method.submit(chunk) * method.scale)[0].numpy())
    return np.stack([integers.noised(words) for _ in range(users)])


@pytest.mark.parametrize("name", METHODS_OF_CLASSES)
@pytest.mark.parametrize("epsilon", [1e-3, 1.0, 1e4])
def test_honest_users_reach_every_sum_of_theirs(name: str, epsilon: float) -> None:
    method, integers, sizes = _case(name, 5, epsilon)
    total = integers.decode(_alike(method, integers, 5).sum(0, dtype=np.uint64))
    assert unreachable(total, method, integers, sizes) is None


@pytest.mark.parametrize("name", METHODS_OF_CLASSES)
@pytest.mark.parametrize("times", [10, 2**20])
def test_one_vector_ten_times_too_long_is_named(name: str, times: int) -> None:
    strong = {"l2_reg": 30.0} if name in WEIGHTS else {}  # as long as heads can be
    method, integers, sizes = _case(name, 5, 1e3, **strong)
    sent = _alike(method, integers, 5)
    sent[0] *= np.uint64(times)
    total = integers.decode(sent.sum(0, dtype=np.uint64))
    found = unreachable(total, method, integers, sizes)
    assert found is not None
    assert "honest users and their noise reach" in found


def test_words_at_random_are_named() -> None:
    method, integers, sizes = _case("discriminant", 5, 0.1)
    words = np.random.default_rng(0).integers(0, 2**64, method.dimension, np.uint64)
    assert "an entry" in str(unreachable(integers.decode(words), method, integers, sizes))


def test_the_bound_is_that_of_the_users_in_the_sum() -> None:
    """Three users' longest sum is out of reach for two."""
    method, integers, sizes = _case("discriminant", 3, 1e5)
    total = integers.decode(_alike(method, integers, 3).sum(0, dtype=np.uint64))
    assert unreachable(total, method, integers, sizes) is None
    assert unreachable(total, method, integers, sizes[:2]) is not None


def test_noise_alone_stays_within_its_tails() -> None:
    """At most 2^-40 of sums are beyond, so none of 2,000; and the bounds are not idle."""
    method, integers, sizes = _case("discriminant", 2, 1e-3)
    words = np.zeros(method.dimension, np.uint64)
    totals = [integers.decode(integers.noised(words) + integers.noised(words)) for _ in range(2000)]
    assert all(unreachable(total, method, integers, sizes) is None for total in totals)
    longest = max(totals, key=torch.linalg.vector_norm)
    assert unreachable(12 * longest, method, integers, sizes) is not None


def test_entries_that_are_each_in_reach_are_too_long_together() -> None:
    method, integers, sizes = _case("discriminant", 3, 1e5)
    entry = 0.9 * sum(method.entry_bound(int(n)) for n in sizes)
    total = torch.full((method.dimension,), entry, dtype=torch.float64)
    assert "the length" in str(unreachable(total, method, integers, sizes))
