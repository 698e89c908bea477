"""What is left of a promise where every other user tells a server what it sent."""

import math
from typing import Any

import pytest
import torch

from embed import PublicTransform
from train_distributed import accounting
from train_distributed.one_shot.registry import build_method
from train_distributed.one_shot.rounds import epsilon_if_all_others_collude, promise_report
from train_distributed.one_shot.summation import FloatSum, IntegerSum
from train_distributed.privacy.guarantee import Guarantee
from train_distributed.privacy.promise import Privacy

DELTA = 1e-5
METHOD = build_method("discriminant", PublicTransform.identity(3), 2, {}).statistic


def _sum(
    users: int, kind: type, fewest: int | None = None, **promise: Any
) -> tuple[Guarantee, Any]:
    sizes = torch.full((users,), 6)
    guarantee = Guarantee.of(sizes, METHOD, Privacy(1.0, DELTA, **promise), fewest)
    if kind is FloatSum:
        return guarantee, FloatSum(METHOD.dimension, guarantee.float_std, torch.Generator())
    return guarantee, IntegerSum.of(METHOD, guarantee, sizes)


@pytest.mark.parametrize("kind", [FloatSum, IntegerSum])
@pytest.mark.parametrize(("users", "stated"), [(5, 1.47), (20, 2.7), (100, 6.9), (1000, 30)])
def test_one_users_own_noise_is_what_is_left(kind: type, users: int, stated: float) -> None:
    guarantee, summation = _sum(users, kind, -(-4 * users // 5))  # as a federation's
    found = promise_report([(guarantee, summation)])["epsilon_if_all_others_collude"]
    alone = summation.local_std / (guarantee.sensitivity * math.sqrt(guarantee.compositions))
    exact = accounting.epsilon(DELTA, alone)
    assert exact <= found <= exact * 1.001
    assert found == pytest.approx(stated, rel=0.02)


@pytest.mark.parametrize("promise", [{"unit": "user"}, {"group_size": 3}, {"honest_fraction": 1}])
def test_it_is_never_below_the_promise(promise: dict[str, Any]) -> None:
    guarantee, summation = _sum(5, IntegerSum, **promise)
    once, twice = (
        epsilon_if_all_others_collude([(guarantee, summation)] * sums, DELTA) for sums in (1, 2)
    )
    assert 1.0 < once < twice


def test_a_single_user_has_nobody_beside_it() -> None:
    guarantee, summation = _sum(1, IntegerSum)
    alone = epsilon_if_all_others_collude([(guarantee, summation)], DELTA)
    assert alone == pytest.approx(1.0, rel=1e-4)


def test_without_noise_there_is_nothing_to_state() -> None:
    _, summation = _sum(5, FloatSum)
    bare = Guarantee.of(torch.full((5,), 6), METHOD, Privacy(math.inf, DELTA))
    assert "epsilon_if_all_others_collude" not in promise_report([(bare, summation)])


def test_where_servers_add_the_noise_nothing_is_stated() -> None:
    """Two servers that collude see all that was sent: no ε is left, whatever the noise."""
    guarantee, summation = _sum(5, IntegerSum, noise_by="servers")
    report = promise_report([(guarantee, summation)])
    assert "epsilon_if_all_others_collude" not in report
    assert (report["noise_by"], report["honest_servers"], report["noise_servers"]) == (
        "servers",
        1,
        2,
    )
