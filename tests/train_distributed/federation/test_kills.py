"""Kills, stops and doubles at every stage: the exact sum, or a clean named refusal; and its time.

Every process's start is included in the seconds.
"""

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.train_distributed.federation.kill_matrix import BLOWS, OTHERS, STAGES, TIMEOUT, struck

pytestmark = pytest.mark.slow
LOSES = {"user 3 killed", "user 3 killed and restarted"}  # one user at most


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("what", BLOWS)
def test_whatever_is_struck_one_user_is_lost_at_most(
    what: str, stage: str, make_field: Callable[..., Any]
) -> None:
    """Nobody is where the operator is killed, or who was stopped comes back in time."""
    field = make_field(seconds=TIMEOUT)
    outcome = struck(field, stage, BLOWS[what])
    assert outcome.users is not None, (outcome, field.logs())
    assert set(outcome.users) | ({3} if what in LOSES else set()) == set(range(5)), field.logs()
    assert what not in LOSES or field.status()["missing"].keys() <= {"user 3"}


@pytest.mark.parametrize("scene", OTHERS)
def test_doubles_and_ages(scene: str, make_field: Callable[..., Any]) -> None:
    field = make_field(seconds=TIMEOUT)
    outcome = OTHERS[scene](field)
    if "younger" in scene and outcome.users is None:  # too slow a machine to start them in time
        assert "users present must be >= 4" in outcome.words
        return
    left = [0, 1, 2, 4] if "copies" in scene else list(range(5))  # only one of them was started
    assert outcome.users in (left, list(range(5))), (outcome, field.logs())


def test_nodes_end_when_their_patience_does(make_field: Callable[..., Any]) -> None:
    field = make_field(seconds=60)
    nodes, operator = field.nodes(patience=5), field.operator()
    field.wait_for(lambda: "present" in field.status())
    operator.kill()
    operator.wait()
    assert [node.wait(60) for node in nodes] == [1] * len(nodes)
    assert not field.left()


def test_a_session_of_five_ends_by_itself_within_half_a_minute(
    make_field: Callable[..., Any],
) -> None:
    """All agreed sessions are over: every node ends with exit code 0."""
    field, start = make_field(seconds=60, dimension=61_450), time.monotonic()
    nodes = field.nodes()
    assert field.operator().wait(120) == 0, field.logs()
    seconds = time.monotonic() - start
    assert field.opened() == list(range(5))
    assert [node.wait(60) for node in nodes] == [0] * len(nodes)
    assert not field.left()
    assert (field.status()["missing"], field.status()["refused"]) == ({}, [])
    print(f"5 users, d = 61,450: {seconds:.1f} s\n{field.logs()}")
    assert seconds < 30


def test_a_hundred_users_take_less_than_two_minutes(make_field: Callable[..., Any]) -> None:
    field = make_field(users=100, seconds=120, dimension=61_450)
    start, operator, crowd = time.monotonic(), field.operator(), field.node("crowd")
    assert operator.wait(300) == 0, field.logs()
    seconds = time.monotonic() - start
    assert crowd.wait(60) == 0
    assert field.opened() == list(range(100))
    print(f"secagg, 100 users, d = 61,450: {seconds:.1f} s\n{field.logs()}")
    assert seconds < 120
