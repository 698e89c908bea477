"""Refusals of a user and the server of `secagg`: contradictory, early, dishonest messages."""

from collections.abc import Callable

import numpy as np
import pytest

from train_distributed.secure_sum import errors
from train_distributed.secure_sum.secagg import SERVER
from train_distributed.secure_sum.wire import OVERHEAD, Kind


def test_a_peer_named_alive_and_dropped_is_refused(make_secagg: Callable) -> None:
    parties = make_secagg(np.zeros((5, 3), np.uint64))
    question = parties.questions(Kind.UNMASK)[0]
    session, size = parties.setup.session, len(question) - OVERHEAD
    payload = question[54 : 54 + size]
    assert payload[:2] == session.bitmap(range(5)) + session.bitmap([])
    both = payload[:1] + session.bitmap([3]) + payload[2:]
    fewer = session.bitmap([0, 1, 2, 3]) + session.bitmap([4]) + payload[2:]
    silent = session.bitmap([0, 1, 2, 3]) + session.bitmap([]) + payload[2:]
    for forged, error in [
        (both, errors.ContradictoryRequest),
        (fewer, errors.SetMismatch),
        (silent, errors.SetMismatch),
        (payload[:2] + b"\1" + payload[3:], errors.TooFewUsers),  # one signature is not enough
        (payload[:2] + b"\x0f\x10" + payload[4:], errors.TooFewUsers),  # nor one per user shown
        (payload[:4] + payload[68:132] + payload[68:], errors.BadSignature),  # user 1's as user 0's
        (payload[:4] + bytes(len(payload) - 4), errors.BadSignature),
        (payload[:-1], errors.MalformedMessage),
        (payload[:1], errors.MalformedMessage),
    ]:
        with pytest.raises(error):
            parties.users[0].receive(parties.sign(Kind.UNMASK, SERVER, 0, forged))
    reveal = parties.users[0].receive(question)  # refusals changed nothing
    parties.server.receive(reveal)
    with pytest.raises(errors.OutOfOrder, match="outside a session"):
        parties.users[0].receive(question)  # not even the same request twice
    with pytest.raises(errors.OutOfOrder):
        parties.users[0].receive(parties.sign(Kind.UNMASK, SERVER, 0, fewer))


def test_users_take_orders_from_the_server_alone(make_secagg: Callable) -> None:
    parties = make_secagg(np.zeros((5, 3), np.uint64))
    adverts = [user.start() for user in parties.users]
    with pytest.raises(errors.WrongSender, match="sender must be the server"):
        parties.users[0].receive(parties.sign(Kind.NEIGHBOURS, 1, 0, b"".join(adverts[1:])))
    for joined, error in [
        (adverts[1] + adverts[1], errors.ReplayedMessage),
        (adverts[1], errors.TooFewUsers),
        (adverts[0] + adverts[1], errors.WrongSender),  # a user is not its own neighbour
        (adverts[1][:-1], errors.MalformedMessage),
        (adverts[1] + adverts[2][:-1] + bytes([adverts[2][-1] ^ 1]), errors.BadSignature),
    ]:
        with pytest.raises(error):
            parties.users[0].receive(parties.sign(Kind.NEIGHBOURS, SERVER, 0, joined))
