"""A federation with `shares-replicated`: three servers or more, and the report says what holds."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from train_distributed.flower.endpoint import ComputationEndpoint
from train_distributed.flower.model_task import ModelTask
from train_distributed.secure_sum.journal import VolatileJournal
from train_distributed.secure_sum.parties import FIRST_SERVER
from train_distributed.secure_sum.prg import new_seed


def _holds_against(federation: Any) -> str:
    told: Any = ModelTask.holds_against
    return told.fget(SimpleNamespace(federation=federation))


def test_two_servers_are_too_few(make_trial: Callable) -> None:
    with pytest.raises(ValueError, match=">= 3 for shares-replicated"):
        make_trial("shares-replicated", 2)


def test_every_session_of_it_is_replicated(make_trial: Callable) -> None:
    federation, nonce = make_trial("shares-replicated", 3).federation, new_seed()
    assert federation.session(nonce).digest == federation.replicated(nonce).session.digest
    assert federation.may_be_absent == 1
    assert make_trial("shares", 3).federation.may_be_absent == 0


def test_the_report_says_against_whom_it_holds(make_trial: Callable) -> None:
    assert _holds_against(make_trial("shares-replicated", 3).federation) == (
        "any one computation server, colluding with at most 0.1 of the users; "
        "two see every submission"
    )
    assert _holds_against(make_trial("shares-replicated", 4).federation) == (
        "any one computation server; two see every submission"
    )
    assert _holds_against(make_trial("shares", 3).federation).startswith("all computation servers")


def test_servers_look_for_questions_as_often_however_many_users_there_are(
    make_trial: Callable,
) -> None:
    trial = make_trial("shares", 3)
    federation = trial.federation
    users = {i: new_seed().hex() for i in range(1000)}
    crowd = replace(federation, users=users)
    server = FIRST_SERVER + 1
    assert crowd.poll_seconds(0) == 20.0
    assert crowd.poll_seconds(server) == federation.poll_seconds(server) == 0.2
    assert crowd.longest_poll == 20.0
    endpoint = ComputationEndpoint(crowd, server, trial.keys[server], VolatileJournal())
    assert endpoint.poll_seconds == 0.2


def test_a_session_starts_without_one_server(make_trial: Callable) -> None:
    trial = make_trial("shares-replicated", 3)
    del trial.endpoints[21]
    assert len(trial.run().users) == 5
    assert any("computation server 1: left out" in text for text in trial.log.refused)
