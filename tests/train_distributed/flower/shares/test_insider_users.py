"""One user that leaves the shares protocols: it is named, and the others' sum is exact."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from train_distributed.flower.endpoint import Request
from train_distributed.flower.share_endpoint import Submitter
from train_distributed.secure_sum.errors import TooFewUsers
from train_distributed.secure_sum.journal import VolatileJournal
from train_distributed.secure_sum.parties import FIRST_SERVER
from train_distributed.secure_sum.wire import payload_of, receiver_of

BAD = 2  # the user that leaves the protocol
HONEST = [0, 1, 3, 4]
Messages = list[bytes]


def _small_order(trial: Any, messages: Messages) -> Messages:
    """The seal's own public key is the neutral element: anyone would know the secret."""

    def spoil(message: bytes) -> bytes:
        payload, servers = bytearray(payload_of(message)), len(trial.federation.servers)
        head = 32 * servers * (trial.federation.protocol == "shares-replicated")
        payload[head : head + 32] = bytes(32)
        return trial.sign(BAD, message, bytes(payload))

    return [*map(spoil, messages)]


def _garbage(trial: Any, messages: Messages) -> Messages:
    return [trial.sign(BAD, m, bytes(len(payload_of(m)))) for m in messages]


def _long(trial: Any, messages: Messages) -> Messages:
    return [trial.sign(BAD, m, payload_of(m) + b"\0") for m in messages]


def _short(trial: Any, messages: Messages) -> Messages:
    return [*messages[1:], trial.sign(BAD, messages[0], payload_of(messages[0])[:-1])]


def _forged(trial: Any, messages: Messages) -> Messages:
    return [m[:-1] + bytes([m[-1] ^ 1]) for m in messages]


def _twice(trial: Any, messages: Messages) -> Messages:
    return [messages[0]] * len(messages) if len(messages) > 1 else messages * 2


def _other_session(trial: Any, messages: Messages) -> Messages:
    return [trial.sign(BAD, m, payload_of(m), nonce=b"m" * 32) for m in messages]


def _another_name(trial: Any, messages: Messages) -> Messages:
    """User 1's name over user 2's signature."""
    return [trial.sign(BAD, m, payload_of(m), sender=1) for m in messages]


def _another_position(trial: Any, messages: Messages) -> Messages:
    """Every share for the server after its own, the last one's for the first."""
    count = len(trial.federation.servers)
    targets = [FIRST_SERVER + (receiver_of(m) - FIRST_SERVER + 1) % count for m in messages]
    pairs = zip(messages, targets, strict=True)
    return [trial.sign(BAD, m, payload_of(m), receiver=target) for m, target in pairs]


def _nothing(trial: Any, messages: Messages) -> Messages:
    return []


def _stale(trial: Any, messages: Messages) -> Messages:
    """Well signed, of another set or another share."""
    return [
        trial.sign(BAD, m, payload_of(m)[:-1] + bytes([payload_of(m)[-1] ^ 1])) for m in messages
    ]


ATTACKS = [
    _stale,
    _small_order,
    _garbage,
    _long,
    _short,
    _forged,
    _twice,
    _other_session,
    _another_name,
    _another_position,
    _nothing,
]
STAGES = [("shares", 2, 0), ("shares", 3, 0), ("shares", 3, 1)]
STAGES += [("shares-replicated", 3, 0), ("shares-replicated", 4, 0)]


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize(("protocol", "servers", "portion"), STAGES)
def test_a_user_that_leaves_the_protocol_is_named_and_the_others_are_summed(
    attack: Callable, protocol: str, servers: int, portion: int, make_trial: Callable
) -> None:
    trial, asked = make_trial(protocol, servers), []

    def hook(request: Request, messages: Messages) -> Messages:
        if request == Request.NEXT:
            asked.append(request)
            if len(asked) == portion + 1:
                return attack(trial, messages)
        return messages

    trial.hooks[10 + BAD] = hook
    opened = trial.run()
    assert sorted(opened.users) == HONEST
    assert np.array_equal(opened.total, trial.vectors[HONEST].sum(0))
    assert trial.log.refused
    assert all(re.match(f"(user|party) {BAD}: ", text) for text in trial.log.refused)
    assert trial.log.missing == {BAD: "shares"}


@pytest.mark.parametrize("attack", [a for a in ATTACKS if a is not _small_order])
def test_a_false_witness_is_named_and_the_others_suffice(
    attack: Callable, make_trial: Callable
) -> None:
    """Three of five users are needed where one of three servers is lost."""
    trial = make_trial("shares-replicated", 3)

    def spoil(request: Request, messages: Messages) -> Messages:
        return attack(trial, messages) if request == Request.DELIVER else messages

    trial.hooks[10 + BAD] = spoil
    trial.hooks[21] = lambda request, messages: None if request == Request.COMMIT else messages
    opened = trial.run()
    assert np.array_equal(opened.total, trial.vectors.sum(0))
    named = [text for text in trial.log.refused if re.match(f"(user|party) {BAD}: ", text)]
    assert len(named) == 1


def test_without_enough_witnesses_nothing_is_released(make_trial: Callable) -> None:
    trial = make_trial("shares-replicated", 3)
    for user in range(3):
        trial.hooks[10 + user] = lambda r, m: None if r == Request.DELIVER else m
    trial.hooks[21] = lambda request, messages: None if request == Request.COMMIT else messages
    with pytest.raises(TooFewUsers, match="witnesses must be >= 3 without computation server 1"):
        trial.run()


@pytest.mark.parametrize("servers", [3, 4, 5])
@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("how", ["other hashes", "other parts"])
def test_inconsistent_parts_name_the_user_and_no_server(
    servers: int, place: int, how: str, make_trial: Callable
) -> None:
    """Seed s to one server and s' to another, once under two lists of hashes, once under one."""
    trial = make_trial("shares-replicated", servers)
    keys, nonce = trial.keys[BAD], trial.session.nonce
    twin = Submitter(
        trial.federation, nonce, BAD, keys, VolatileJournal(), lambda: trial.vectors[0]
    )
    other = twin.portion(b"\0")

    def hook(request: Request, messages: Messages) -> Messages:
        if request == Request.NEXT:
            payload, head = payload_of(other[place]), 32 * servers
            if how == "other parts":
                payload = payload_of(messages[place])[:head] + payload[head:]
            messages[place] = trial.sign(BAD, messages[place], payload)
        return messages

    trial.hooks[10 + BAD] = hook
    assert np.array_equal(trial.run().total, trial.vectors[HONEST].sum(0))
    assert len(trial.log.refused) == 1
    assert trial.log.refused[0].startswith(f"user {BAD}: ")
