"""Kills, stops and doubles at every stage: the exact sum, or a clean named refusal."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.train_distributed.federation import kill_matrix

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("stage", range(6))
def test_a_killed_operator_opens_the_sum_of_all(stage: int, make_field: Callable[..., Any]) -> None:
    """With one session agreed: every user submits once, and nobody is lost."""
    field = make_field(seconds=kill_matrix.TIMEOUT)
    outcome = kill_matrix.struck(field, kill_matrix.STAGES[stage], kill_matrix.kill_operator)
    assert outcome.users == list(range(5)), (outcome, field.logs())


@pytest.mark.parametrize("stage", range(6))
@pytest.mark.parametrize("blow", ["kill_node", "restart_node"])
def test_a_killed_node_is_one_user_less_at_most(
    blow: str, stage: int, make_field: Callable[..., Any]
) -> None:
    field = make_field(seconds=kill_matrix.TIMEOUT)
    name = kill_matrix.STAGES[stage]
    outcome = kill_matrix.struck(field, name, getattr(kill_matrix, blow))
    assert outcome.users is not None, field.logs()
    assert set(outcome.users) >= {0, 1, 2, 4}
    assert field.status()["missing"].keys() <= {"user 3"}


@pytest.mark.parametrize("stage", range(6))
@pytest.mark.parametrize("blow", ["stop_node", "stop_operator"])
def test_what_comes_back_in_time_loses_nobody(
    blow: str, stage: int, make_field: Callable[..., Any]
) -> None:
    field = make_field(seconds=kill_matrix.TIMEOUT)
    name = kill_matrix.STAGES[stage]
    outcome = kill_matrix.struck(field, name, getattr(kill_matrix, blow))
    assert outcome.users == list(range(5)), (outcome, field.logs())


@pytest.mark.parametrize("scene", ["copies", "same_key", "older", "younger"])
def test_doubles_and_ages(scene: str, make_field: Callable[..., Any]) -> None:
    field = make_field(seconds=kill_matrix.TIMEOUT)
    outcome = getattr(kill_matrix, scene)(field)
    if scene == "younger" and outcome.users is None:  # too slow a machine to start them in time
        assert "users present must be >= 4" in outcome.words
        return
    left = [0, 1, 2, 4] if scene == "copies" else list(range(5))  # only one of them was started
    assert outcome.users in (left, list(range(5))), (outcome, field.logs())


def test_nodes_end_when_their_patience_does(make_field: Callable[..., Any]) -> None:
    field = make_field(seconds=60)
    nodes = [field.node(party, patience=5) for party in field.parties]
    operator = field.operator()
    field.wait_for(lambda: "present" in field.status())
    operator.kill()
    operator.wait()
    for node in nodes:
        assert node.wait(60) == 1
    assert not field.left()


def test_a_finished_federation_ends_by_itself(make_field: Callable[..., Any]) -> None:
    """All agreed sessions are over: every node ends with exit code 0."""
    field = make_field(seconds=60)
    nodes = [field.node(party) for party in field.parties]
    assert field.operator().wait(120) == 0
    assert field.opened() == list(range(5))
    assert [node.wait(60) for node in nodes] == [0] * len(nodes)
    assert not field.left()
    assert (field.status()["missing"], field.status()["refused"]) == ({}, [])
