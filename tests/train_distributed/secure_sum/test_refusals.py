"""Every malformed, misplaced or dishonest message is refused by name, and nothing changes."""

from collections.abc import Callable

import numpy as np
import pytest

from train_distributed.secure_sum import errors
from train_distributed.secure_sum.journal import VolatileJournal
from train_distributed.secure_sum.keys import PrivateKeys, seal
from train_distributed.secure_sum.opening import combine
from train_distributed.secure_sum.parties import EVERYONE, FIRST_SERVER
from train_distributed.secure_sum.secagg_user import SecAggUser
from train_distributed.secure_sum.shares import SeedServer, share_context
from train_distributed.secure_sum.wire import Kind

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


@pytest.mark.parametrize("how", MANGLED)
def test_a_mangled_share_is_refused_and_forgotten(how: str, make_shares: Callable) -> None:
    mangle, error = MANGLED[how]
    parties = make_shares(3, 4, servers=2)
    messages = [dict(user.submit(np.full(4, 7, np.uint64))) for user in parties.users]
    server = parties.seed_servers[FIRST_SERVER]
    with pytest.raises(error):
        server.receive(mangle(messages[0][FIRST_SERVER]))
    for parts in messages:  # the good ones are taken as if nothing had happened
        server.receive(parts[FIRST_SERVER])
    parties.vector_server.receive(server.close())
    with pytest.raises(error):
        parties.vector_server.receive(mangle(messages[0][parties.last]))
    for parts in messages:
        parties.vector_server.receive(parts[parties.last])
    commit = parties.vector_server.commit()
    server.receive(commit)
    parties.vector_server.receive(server.commit())
    openings = [parties.vector_server.open(), server.open()]
    with pytest.raises(error):
        combine(parties.session, commit, [openings[0], mangle(openings[1])])
    assert combine(parties.session, commit, openings).total.tolist() == [21] * 4


@pytest.mark.parametrize("how", MANGLED)
@pytest.mark.parametrize("stage", range(5))
def test_a_mangled_secagg_message_is_refused_and_forgotten(
    how: str, stage: int, make_secagg: Callable
) -> None:
    mangle, error = MANGLED[how]
    vectors = np.full((3, 4), 7, np.uint64)
    parties = make_secagg(vectors)
    answers = {i: user.start() for i, user in enumerate(parties.users)}
    for current in range(5):
        if current == stage:
            with pytest.raises(error):
                parties.server.receive(mangle(answers[0]))
        for answer in answers.values():
            parties.server.receive(answer)
        if current < 4:
            questions = parties.server.advance()
            if current == stage:
                with pytest.raises(error):
                    parties.users[2].receive(mangle(questions[2]))
            answers = {i: parties.users[i].receive(q) for i, q in questions.items()}
    assert parties.server.finish().total.tolist() == [21] * 4


def test_a_share_must_be_sealed_for_this_user_server_and_size(make_shares: Callable) -> None:
    parties = make_shares(3, 4)
    session, server = parties.session, parties.seed_servers[FIRST_SERVER]
    parts = dict(parties.users[0].submit(np.zeros(4, np.uint64)))
    stolen = parts[FIRST_SERVER][54:-64]
    for payload, error in [
        (stolen, errors.BadSeal),  # user 1 passes user 0's share off as its own
        (b"", errors.BadSeal),
        (_sealed(session, 1, b"k" * 31), errors.MalformedMessage),
        (_sealed(session, 1, b"k" * 33), errors.OversizedMessage),
    ]:
        with pytest.raises(error):
            server.receive(parties.sign(Kind.SHARE, 1, FIRST_SERVER, payload))
    server.receive(parties.sign(Kind.SHARE, 1, FIRST_SERVER, _sealed(session, 1, b"k" * 32)))


def _sealed(session, user: int, plaintext: bytes) -> bytes:
    context = share_context(session, user, FIRST_SERVER)
    return seal(session.servers[FIRST_SERVER].sealing, plaintext, context)


def test_shares_in_the_wrong_order_are_refused(make_shares: Callable) -> None:
    parties = make_shares(3, 4, minimum=2)
    messages = [dict(user.submit(np.zeros(4, np.uint64))) for user in parties.users]
    first, second = parties.seed_servers
    adder, last = parties.vector_server, parties.last
    with pytest.raises(errors.OutOfOrder, match="all other servers must send HOLDING"):
        adder.receive(messages[0][last])
    with pytest.raises(errors.OutOfOrder):
        adder.commit()
    parties.seed_servers[first].receive(messages[0][first])
    with pytest.raises(errors.ReplayedMessage, match="SHARE must come once"):
        parties.seed_servers[first].receive(messages[0][first])
    parties.seed_servers[first].receive(messages[1][first])
    for parts in messages:
        parties.seed_servers[second].receive(parts[second])
    holding = parties.seed_servers[first].close()
    with pytest.raises(errors.OutOfOrder, match="must come before HOLDING"):
        parties.seed_servers[first].receive(messages[2][first])
    adder.receive(holding)
    with pytest.raises(errors.ReplayedMessage, match="HOLDING must come once"):
        adder.receive(holding)
    adder.receive(parties.seed_servers[second].close())
    with pytest.raises(errors.SetMismatch, match="user 2 must be held by all other servers"):
        adder.receive(messages[2][last])
    for user in (0, 1):
        adder.receive(messages[user][last])
    with pytest.raises(errors.ReplayedMessage):
        adder.receive(messages[0][last])
    with pytest.raises(errors.OutOfOrder):
        parties.seed_servers[first].commit()
    commit = adder.commit()
    with pytest.raises(errors.OutOfOrder):
        adder.receive(messages[2][last])
    with pytest.raises(errors.OutOfOrder, match="all servers must commit first"):
        adder.open()
    parties.seed_servers[first].receive(commit)
    with pytest.raises(errors.ReplayedMessage, match="COMMIT must come once"):
        parties.seed_servers[first].receive(commit)


def test_a_server_signs_only_sets_it_holds_and_that_are_large_enough(make_shares: Callable) -> None:
    parties = make_shares(4, 2, servers=2, minimum=3)
    server = parties.seed_servers[FIRST_SERVER]
    for user in parties.users[:3]:
        server.receive(dict(user.submit(np.zeros(2, np.uint64)))[FIRST_SERVER])
    server.close()
    same = {"keys": parties.keys, "nonce": parties.session.nonce}
    cases = [((0, 1, 3), errors.SetMismatch), ((0, 1), errors.TooFewUsers)]
    for users, error in cases:
        other = make_shares(4, 2, servers=2, minimum=3, **same)
        machine = other.seed_servers[FIRST_SERVER]
        machine._seeds, machine._closed = dict(server._seeds), True
        bitmap = parties.session.bitmap(users)
        machine.receive(parties.sign(Kind.COMMIT, parties.last, EVERYONE, bitmap))
        with pytest.raises(error):
            machine.commit()
    for bitmap in (b"", b"\1\0", b"\xf0"):
        with pytest.raises((errors.MalformedMessage, errors.OversizedMessage)):
            server.receive(parties.sign(Kind.COMMIT, parties.last, EVERYONE, bitmap))


def test_servers_that_commit_to_different_sets_open_nothing(make_shares: Callable) -> None:
    parties = make_shares(4, 2, servers=3, minimum=2)
    for user in parties.users:
        parts = dict(user.submit(np.zeros(2, np.uint64)))
        for server, machine in parties.seed_servers.items():
            machine.receive(parts[server])
    first, second = parties.seed_servers
    for machine in parties.seed_servers.values():
        machine.close()
    honest = parties.seed_servers[first]
    for sender, users in ((parties.last, (0, 1, 2)), (second, (0, 1))):
        bitmap = parties.session.bitmap(users)
        honest.receive(parties.sign(Kind.COMMIT, sender, EVERYONE, bitmap))
    honest.commit()
    with pytest.raises(errors.SetMismatch, match="same users"):
        honest.open()


def test_users_cannot_speak_for_servers_nor_servers_for_users(make_shares: Callable) -> None:
    parties = make_shares(3, 2, servers=2)
    bitmap = parties.session.bitmap((0, 1))
    server = parties.seed_servers[FIRST_SERVER]
    with pytest.raises(errors.WrongSender, match="COMMIT must come from a server"):
        server.receive(parties.sign(Kind.COMMIT, 0, EVERYONE, bitmap))
    with pytest.raises(errors.WrongSender, match="HOLDING must come from a server"):
        parties.vector_server.receive(parties.sign(Kind.HOLDING, 0, EVERYONE, bitmap))
    with pytest.raises(errors.WrongSender, match="SHARE must come from a user"):
        server.receive(parties.sign(Kind.SHARE, parties.last, FIRST_SERVER, bytes(80)))
    commit = parties.sign(Kind.COMMIT, parties.last, EVERYONE, bitmap)
    opening = parties.sign(Kind.OPENING, 0, EVERYONE, bytes(32 + 16))
    with pytest.raises(errors.WrongSender, match="OPENING must come from a server"):
        combine(parties.session, commit, [opening])
    with pytest.raises(errors.OutOfOrder, match="all servers must open, missing"):
        combine(parties.session, commit, [])


def test_a_party_takes_part_once_per_session(make_secagg: Callable, make_shares: Callable) -> None:
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
    user = make_shares(2, 3).users[0]
    user.submit(vector)
    with pytest.raises(errors.AlreadyOpened):
        user.submit(vector)


def test_pinned_keys_and_vectors_are_checked(make_shares: Callable, make_secagg: Callable) -> None:
    parties = make_shares(2, 3)
    with pytest.raises(ValueError, match="keys must be those that the session pins"):
        SeedServer(parties.session, FIRST_SERVER, PrivateKeys.generate(), VolatileJournal())
    for bad in (np.zeros(4, np.uint64), np.zeros(3, np.int64)):
        with pytest.raises(ValueError, match=r"vector must be \(3,\) uint64"):
            parties.users[0].submit(bad)
    with pytest.raises(ValueError, match=r"vector must be \(3,\) uint64"):
        SecAggUser(
            make_secagg(np.zeros((2, 3), np.uint64)).setup,
            0,
            PrivateKeys.generate(),
            np.zeros(2, np.uint64),
            VolatileJournal(),
        )
