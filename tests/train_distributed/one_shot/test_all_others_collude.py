"""What is left of a promise where every other user tells a server what it sent."""

import math
from typing import Any

import pytest
import torch

from embed import PublicTransform
from train_distributed import accounting
from train_distributed.one_shot.registry import build_method
from train_distributed.one_shot.summation import Plan
from train_distributed.privacy.promise import Privacy

DELTA = 1e-5
METHOD = build_method("discriminant", PublicTransform.identity(3), 2, {}).statistic


def _plan(users: int, fewest: int | None = None, *, discrete: bool = True, **promise: Any) -> Plan:
    privacy = Privacy(promise.pop("epsilon", 1.0), DELTA, **promise)
    return Plan.of(METHOD, torch.full((users,), 6), privacy, fewest, discrete=discrete)


@pytest.mark.parametrize("discrete", [False, True])
@pytest.mark.parametrize(("users", "stated"), [(5, 1.47), (20, 2.7), (100, 6.9), (1000, 30)])
def test_one_users_own_noise_is_what_is_left(discrete: bool, users: int, stated: float) -> None:
    plan = _plan(users, -(-4 * users // 5), discrete=discrete)  # as a federation's
    found, guarantee = plan.report()["epsilon_if_all_others_collude"], plan.main.guarantee
    alone = plan.main.mechanism.local_std / (
        guarantee.sensitivity * math.sqrt(guarantee.compositions)
    )
    exact = accounting.epsilon(DELTA, alone)
    assert exact <= found <= exact * 1.001
    assert found == pytest.approx(stated, rel=0.02)


@pytest.mark.parametrize("promise", [{"unit": "user"}, {"group_size": 3}, {"honest_fraction": 1}])
def test_it_is_never_below_the_promise(promise: dict[str, Any]) -> None:
    once, twice = map(_plan(5, **promise).epsilon_if_all_others_collude, (1, 2))
    assert 1.0 < once < twice


def test_a_single_user_has_nobody_beside_it() -> None:
    alone = _plan(1).epsilon_if_all_others_collude()
    assert alone == pytest.approx(1.0, rel=1e-4)


def test_without_noise_there_is_nothing_to_state() -> None:
    assert "epsilon_if_all_others_collude" not in _plan(5, epsilon=math.inf).report()


def test_where_servers_add_the_noise_nothing_is_stated() -> None:
    """Two servers that collude see all that was sent: no ε is left, whatever the noise."""
    report = _plan(5, noise_by="servers").report()
    assert "epsilon_if_all_others_collude" not in report
    assert (report["noise_by"], report["honest_servers"], report["noise_servers"]) == (
        "servers",
        1,
        2,
    )
