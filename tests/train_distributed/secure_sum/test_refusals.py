"""Every malformed, misplaced or dishonest message is refused by name, and nothing changes."""

import numpy as np
import pytest

from tests.train_distributed.secure_sum.simulate import VolatileJournal, make_secagg
from train_distributed.secure_sum import errors
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.secagg import SERVER
from train_distributed.secure_sum.secagg_server import SecAggServer
from train_distributed.secure_sum.secagg_user import SecAggUser
from train_distributed.secure_sum.wire import OVERHEAD, Kind

RECEIVER = 42  # offset of the receiver's identity
SENDER = 38
MANGLED = {
    "empty": (lambda m: b"", errors.TruncatedMessage),
    "header only": (lambda m: m[:54], errors.TruncatedMessage),
    "last byte cut": (lambda m: m[:-1], errors.TruncatedMessage),
    "a byte more": (lambda m: m + b"\0", errors.OversizedMessage),
    "length too large": (lambda m: m[:46] + b"\1" + m[47:], errors.TruncatedMessage),
    "length too small": (lambda m: m[:53] + b"\0" + m[54:], errors.OversizedMessage),
    "other magic": (lambda m: b"X" + m[1:], errors.MalformedMessage),
    "other version": (lambda m: m[:4] + b"\2" + m[5:], errors.MalformedMessage),
    "unknown kind": (lambda m: m[:5] + b"\xff" + m[6:], errors.MalformedMessage),
    "other session": (lambda m: m[:6] + bytes(32) + m[38:], errors.WrongSession),
    "stranger": (lambda m: m[:SENDER] + b"\0\0\1\1" + m[SENDER + 4 :], errors.WrongSender),
    "another's name": (lambda m: m[:SENDER] + b"\0\0\0\1" + m[SENDER + 4 :], errors.BadSignature),
    "for another": (lambda m: m[:RECEIVER] + b"\0\0\1\1" + m[RECEIVER + 4 :], errors.WrongReceiver),
    "payload bit": (lambda m: m[:60] + bytes([m[60] ^ 1]) + m[61:], errors.BadSignature),
    "signature bit": (lambda m: m[:-1] + bytes([m[-1] ^ 1]), errors.BadSignature),
}


@pytest.mark.parametrize("stage", range(5))
def test_a_message_that_is_mangled_misdelivered_or_repeated_is_refused_and_forgotten(
    stage: int,
) -> None:
    parties = make_secagg(np.full((3, 4), 7, np.uint64))
    again = (errors.ReplayedMessage, errors.OutOfOrder)
    answers = {i: user.start() for i, user in enumerate(parties.users)}
    for current in range(5):
        for mangle, error in MANGLED.values() if current == stage else ():
            with pytest.raises(error):
                parties.server.receive(mangle(answers[0]))
        for answer in answers.values():
            parties.server.receive(answer)
        with pytest.raises(again):
            parties.server.receive(answers[1])
        if current < 4:
            questions = parties.server.advance()
            for mangle, error in MANGLED.values() if current == stage else ():
                with pytest.raises(error):
                    parties.users[2].receive(mangle(questions[2]))
            with pytest.raises(errors.WrongReceiver):
                parties.users[1].receive(questions[2])
            answers = {i: parties.users[i].receive(q) for i, q in questions.items()}
            with pytest.raises(again):
                parties.users[1].receive(questions[1])
    assert parties.server.finish().total.tolist() == [21] * 4
    with pytest.raises(errors.OutOfOrder):
        parties.server.receive(answers[1])


def test_a_party_takes_part_once_per_session() -> None:
    vector, journal = np.zeros(3, np.uint64), VolatileJournal()
    parties = make_secagg(np.zeros((3, 3), np.uint64))
    same = {"keys": parties.keys, "nonce": parties.session.nonce}
    for attempt in range(2):  # a restarted user, the same journal
        again = make_secagg(np.zeros((3, 3), np.uint64), **same)
        again.users[0] = SecAggUser(again.setup, 0, again.keys[0], vector, journal)
        question = again.questions(Kind.INBOX)[0]
        if attempt:
            with pytest.raises(errors.AlreadyOpened, match="submit must happen once"):
                again.users[0].receive(question)
        else:
            again.users[0].receive(question)


def test_pinned_keys_and_vectors_are_checked() -> None:
    setup = make_secagg(np.zeros((2, 3), np.uint64)).setup
    with pytest.raises(ValueError, match="keys must be those that the session pins"):
        SecAggServer(setup, PrivateKeys.generate(), VolatileJournal())
    for bad in (np.zeros(2, np.uint64), np.zeros(4, np.uint64), np.zeros(3, np.int64)):
        with pytest.raises(ValueError, match=r"vector must be \(3,\) uint64"):
            SecAggUser(setup, 0, PrivateKeys.generate(), bad, VolatileJournal())  # pyright: ignore[reportArgumentType]


def test_a_peer_named_alive_and_dropped_is_refused() -> None:
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


def test_users_take_orders_from_the_server_alone() -> None:
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
