"""An operator or relay that asks for what no session needs: refused, no crash, memory bounded."""

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from train_distributed.flower.blobs import join
from train_distributed.flower.coordinator import coordinate
from train_distributed.flower.endpoint import DONE, ComputationEndpoint, Request, UserEndpoint
from train_distributed.flower.orders import write_order
from train_distributed.flower.record import Record
from train_distributed.secure_sum import shares
from train_distributed.secure_sum.errors import BadSeal
from train_distributed.secure_sum.journal import VolatileJournal
from train_distributed.secure_sum.parties import FIRST_SERVER


def _start(trial: Any) -> bytes:
    body = trial.session.nonce + trial.session.bitmap(trial.session.users)
    return write_order(trial.federation, Request.START, body, trial.keys[FIRST_SERVER])


@pytest.mark.parametrize("protocol", ["shares", "shares-replicated"])
def test_a_key_with_which_anyone_could_open_a_seal_is_no_server_s(
    protocol: str, make_trial: Callable
) -> None:
    federation = make_trial(protocol, 3).federation
    first, second, third = federation.servers
    second = second | {"sealing": bytes(32).hex()}
    with pytest.raises(ValueError, match=r"key of computation server 1 must .* small order"):
        replace(federation, servers=(first, second, third))


def test_messages_that_could_not_be_made_are_not_asked_for_twice(
    make_trial: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A portion that fails half-way leaves a user that still answers."""
    trial = make_trial("shares", 3)
    user = UserEndpoint(
        trial.federation, 0, trial.keys[0], lambda: trial.vectors[0], VolatileJournal()
    )
    assert user.answer(_start(trial))[:1] == DONE
    seal = shares.seal

    def failing(receiver: bytes, *rest: bytes) -> bytes:
        if receiver == trial.session.servers[FIRST_SERVER + 1].sealing:
            raise BadSeal("public key must not be of small order")
        return seal(receiver, *rest)

    monkeypatch.setattr(shares, "seal", failing)
    assert b"BadSeal" in user.answer(bytes([Request.NEXT, 0]))
    monkeypatch.undo()
    assert b"NEXT must be of portion 1" in user.answer(bytes([Request.NEXT, 0]))
    assert b"portion must be made as a whole" in user.answer(bytes([Request.NEXT, 1]))


@pytest.mark.parametrize("protocol", ["shares", "shares-replicated"])
def test_a_list_of_empty_messages_is_not_answered_one_by_one(
    protocol: str, make_trial: Callable
) -> None:
    trial = make_trial(protocol, 3)
    server = FIRST_SERVER + 1
    endpoint = ComputationEndpoint(trial.federation, server, trial.keys[server], VolatileJournal())
    assert endpoint.answer(_start(trial))[:1] == DONE
    request = bytes([Request.DELIVER]) + join([b""] * 100_000)
    answer = endpoint.answer(request)
    assert b"messages must be <= 1000, got 100000" in answer


def test_the_answers_that_are_kept_have_a_limit(make_trial: Callable) -> None:
    """Whoever repeats a request gets the same answer; who makes up requests is refused in time."""
    trial = make_trial("shares", 3, dimension=1)
    server = FIRST_SERVER + 1
    endpoint = ComputationEndpoint(trial.federation, server, trial.keys[server], VolatileJournal())
    start = _start(trial)
    assert endpoint.answer(start)[:1] == DONE
    endpoint.largest_frame = 10_000
    tracemalloc.start()
    refused = 0
    for number in range(1000):
        body = join([number.to_bytes(4, "big")] * 10)
        refused += b"answers of a session" in endpoint.answer(bytes([Request.DELIVER]) + body)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert refused > 500
    assert peak < 20 * endpoint.largest_frame
    assert endpoint.answer(start)[:1] == DONE  # what was answered is answered again


def test_a_user_that_answers_a_start_with_a_long_list_is_left_out(make_trial: Callable) -> None:
    """What users say first is kept until the end: it has its size and no other."""
    trial = make_trial("shares", 3)
    trial.hooks[12] = lambda request, m: [bytes(9)] if request == Request.START else m
    opened = trial.run()
    assert opened.users == frozenset({0, 1, 3, 4})
    assert trial.log.refused == ["user 2: MalformedMessage: answer must be <= 5 bytes, got 22"]


def test_in_secagg_it_is_one_advertisement(make_trial: Callable) -> None:
    trial = make_trial("secagg", 1)
    trial.hooks[12] = lambda request, m: m * 2 if request == Request.START else m
    assert trial.run().users == frozenset({0, 1, 3, 4})
    (refused,) = trial.log.refused
    assert refused.startswith("user 2: MalformedMessage: answer must be <= ")


def test_of_an_answer_that_is_too_long_little_is_written_down(
    make_trial: Callable, tmp_path: Path
) -> None:
    trial = make_trial("shares", 3)
    trial.hooks[12] = lambda request, m: [bytes(10**6)] if request == Request.START else m
    with Record(tmp_path) as record:
        keys, journal = trial.keys[FIRST_SERVER], VolatileJournal()
        nonce = trial.session.nonce
        opened = coordinate(trial.federation, nonce, keys, journal, trial, trial.log, record=record)
    assert 2 not in opened.users
    assert (tmp_path / "session").stat().st_size < 50_000
