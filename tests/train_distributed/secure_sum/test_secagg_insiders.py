"""One registered user breaks `secagg` in every way it can: it is named, the sum is exact."""

import contextlib
import hashlib
import struct
from collections.abc import Callable

import numpy as np
import pytest

from tests.train_distributed.secure_sum.simulate import Drive, false_shares, make_secagg
from train_distributed.secure_sum import errors
from train_distributed.secure_sum.keys import EVERYONE
from train_distributed.secure_sum.opening import Opened
from train_distributed.secure_sum.packets import (
    DEAL_BYTES,
    KEY,
    SEED,
    Link,
    hash_shares,
)
from train_distributed.secure_sum.secagg import SERVER
from train_distributed.secure_sum.shamir import SHARE_BYTES
from train_distributed.secure_sum.wire import Kind, payload_of

W, D, INSIDER = 7, 5, 2
VECTORS = np.random.default_rng(0).integers(0, 2**64, (W, D), np.uint64)
SMALL = bytes([1]) + bytes(31)  # a point of order 1 on the curve


class Insider:
    """User 2's keys and machine, in the hands of somebody else."""

    def __init__(self, parties) -> None:
        self.inbox: dict[int, bytes] = {}
        self.parties, self.setup = parties, parties.setup
        self.machine = parties.users[INSIDER]

    def sign(self, kind: Kind, payload: bytes) -> bytes:
        to = EVERYONE if kind in (Kind.ADVERTISE, Kind.AGREED, Kind.COMPLAINT) else SERVER
        return self.parties.sign(kind, INSIDER, to, payload)

    def packets(self, change: Callable[[bytes], bytes], to: range, signed: bool) -> bytes:
        """KEY_SHARES with changed packets for some; all users are on its list."""
        machine, sent = self.machine, dict(self.machine._sent)
        for peer in set(to) & sent.keys():
            sent[peer] = change(sent[peer])
            if signed:
                link = Link(self.setup, INSIDER, peer, (machine._advert, machine._peers[peer]))
                body = sent[peer][:-64]
                sent[peer] = body + machine._signing.sign(link.context + body)
        machine._sent = sent
        return self.sign(Kind.KEY_SHARES, b"".join(sent[p] for p in sorted(sent)))


def _small(place: int):
    def change(insider: Insider, message: bytes) -> bytes:
        payload = payload_of(message)
        keys = [payload[i : i + 32] for i in range(0, len(payload), 32)]
        keys[place] = SMALL
        return insider.sign(Kind.ADVERTISE, b"".join(keys))

    return change


def _other_commitment(insider: Insider, message: bytes) -> bytes:
    payload = payload_of(message)
    wrong = insider.machine._advert = type(insider.machine._advert)(
        payload[:64] + bytes(32) + payload[96:]
    )
    return insider.sign(Kind.ADVERTISE, wrong.payload)


def _packets(change: Callable[[bytes], bytes], to: range = range(W), *, signed: bool = True):
    return lambda insider, message: insider.packets(change, to, signed)


_undecryptable = _packets(lambda p: p[:40] + bytes([p[40] ^ 1]) + p[41:])


def _false_opening(insider: Insider, message: bytes) -> bytes:
    payload = payload_of(message)
    return insider.sign(Kind.REVEAL, payload[:20] + bytes([payload[20] ^ 1]) + payload[21:])


def _payload(change: Callable[[bytes], bytes]):
    return lambda insider, message: insider.sign(Kind(message[5]), change(payload_of(message)))


def _cut(payload: bytes) -> bytes:
    return payload[:-1]


def _flipped(packet: bytes) -> bytes:
    return packet[:-1] + bytes([packet[-1] ^ 1])


def _other_hashes(packet: bytes) -> bytes:
    return packet[:114] + bytes(64) + packet[178:]


def _no_secret(insider: Insider, message: bytes) -> bytes:
    return false_shares(insider.parties, INSIDER)


ONE = range(4, 5)
NAMED = {  # at which message, what; whether the session goes on without a second one
    "small sealing key": (Kind.ADVERTISE, _small(0), True),
    "small masking key": (Kind.ADVERTISE, _small(1), True),
    "short advert": (Kind.ADVERTISE, _payload(_cut), True),
    "wrong commitment": (Kind.ADVERTISE, _other_commitment, True),
    "short key shares": (Kind.KEY_SHARES, _payload(_cut), True),
    "no key shares": (Kind.KEY_SHARES, _payload(lambda p: b""), True),
    "packets nobody opens": (Kind.KEY_SHARES, _undecryptable, False),
    "one packet of small order": (Kind.KEY_SHARES, _packets(lambda p: SMALL + p[32:], ONE), False),
    "one packet unsigned": (Kind.KEY_SHARES, _packets(_flipped, ONE, signed=False), False),
    "shares that are not as shown": (Kind.KEY_SHARES, _packets(_other_hashes), False),
    "shares of no secret": (Kind.KEY_SHARES, _no_secret, True),
    "short vector": (Kind.MASKED, _payload(_cut), True),
    "masked with others": (Kind.MASKED, _payload(lambda p: p[:3] + b"\0\0" + p[5:]), True),
    "signs other survivors": (Kind.AGREED, _payload(lambda p: bytes(32)), True),
    "short signature": (Kind.AGREED, _payload(_cut), True),
    "false opening": (Kind.REVEAL, _false_opening, True),
    "no opening": (Kind.REVEAL, _payload(lambda p: b""), True),
    "opening cut": (Kind.REVEAL, _payload(_cut), True),
    "openings of a stranger": (Kind.REVEAL, _payload(lambda p: b"\0\1\0\0" + p[4:]), True),
}


def _run(stage: Kind, attack) -> tuple:
    """A session, and one more without whom it named if it could not be completed."""
    named: dict[int, str] = {}
    for sessions in (1, 2):
        parties = make_secagg(
            VECTORS, corrupt_fraction=0.2, dropout_fraction=0.2, exclude=named.keys()
        )
        insider = Insider(parties)

        def answer(kind: Kind, user: int, message: bytes, insider=insider) -> bytes | None:
            if user == INSIDER and kind is stage:
                return attack(insider, message)
            return message

        driven, opened = Drive(parties, answer), None
        with contextlib.suppress(errors.Misbehaviour):
            opened = driven.run()
        named |= parties.server.culprits
        if opened:
            return opened, named, sessions, driven.refused
    raise AssertionError("one session more was not enough")


def _check_sum(opened: Opened, stage: Kind) -> None:
    """It is exact, and the insider's vector is in it after the survivors were named."""
    late = stage in (Kind.AGREED, Kind.REVEAL)
    assert opened.users == frozenset(range(W)) - (set() if late else {INSIDER})
    assert np.array_equal(opened.total, VECTORS[sorted(opened.users)].sum(0))


@pytest.mark.parametrize("attack", NAMED)
def test_the_insider_is_named_and_the_rest_of_the_sum_exact(attack) -> None:
    stage, change, goes_on = NAMED[attack]
    opened, named, sessions, refused = _run(stage, change)
    assert set(named) == {INSIDER}
    assert sessions == (1 if goes_on else 2)
    assert all(party == SERVER for party, _ in refused)  # no honest user refused the server
    _check_sum(opened, stage)


STAGES = [Kind.ADVERTISE, Kind.KEY_SHARES, Kind.MASKED, Kind.AGREED, Kind.REVEAL]


def _as_another(insider: Insider, message: bytes) -> bytes:
    return message[:38] + struct.pack(">I", 4) + message[42:]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(
    ("change", "refusals"), [(lambda insider, message: None, []), (_as_another, ["BadSignature"])]
)
def test_silence_and_another_s_name_cost_the_insider_alone(change, refusals, stage) -> None:
    opened, named, sessions, refused = _run(stage, change)
    assert (named, sessions) == ({}, 1)
    assert [type(error).__name__ for _, error in refused] == refusals
    _check_sum(opened, stage)


@pytest.mark.parametrize(
    ("dealer", "digest"),
    [
        (4, lambda p: hashlib.sha256(p).digest()),  # a sound packet, which its dealer opens
        (4, lambda p: bytes(32)),  # one that was never sent on
        (INSIDER, lambda p: bytes(32)),
        (6, lambda p: bytes(32)),  # of a user that shared no keys
    ],
)
def test_an_invented_complaint_names_who_invented_it(dealer, digest) -> None:
    parties = make_secagg(VECTORS, corrupt_fraction=0.2, dropout_fraction=0.3)
    insider, silent = Insider(parties), {6} & {dealer}

    def ask(kind: Kind, user: int, message: bytes) -> bytes:
        if (kind, user) == (Kind.INBOX, INSIDER) and not silent:
            body = payload_of(message)[1:]
            for place, peer in enumerate(p for p in range(W) if p != INSIDER):
                insider.inbox[peer] = body[place * DEAL_BYTES : (place + 1) * DEAL_BYTES]
        return message

    def answer(kind: Kind, user: int, message: bytes) -> bytes | None:
        if (kind, user) != (Kind.MASKED, INSIDER):
            return None if kind is Kind.KEY_SHARES and user in silent else message
        named = struct.pack(">I", dealer) + digest(insider.inbox.get(dealer, b""))
        return insider.sign(Kind.COMPLAINT, named)

    driven = Drive(parties, answer, ask)
    opened = driven.run()
    assert set(parties.server.culprits) == {INSIDER}
    assert opened.users == frozenset(range(W)) - {INSIDER} - silent
    assert np.array_equal(opened.total, VECTORS[sorted(opened.users)].sum(0))
    assert all(party == SERVER for party, _ in driven.refused)


def test_a_dealer_that_does_not_answer_a_complaint_is_named() -> None:
    parties = make_secagg(VECTORS, corrupt_fraction=0.2, dropout_fraction=0.2)
    insider = Insider(parties)

    def answer(kind: Kind, user: int, message: bytes) -> bytes | None:
        if user == INSIDER and kind is Kind.KEY_SHARES:
            return _undecryptable(insider, message)
        return None if user == INSIDER and kind is Kind.DEFENCE else message

    with pytest.raises(errors.Misbehaviour, match="did not answer the complaints") as caught:
        Drive(parties, answer).run()
    assert set(caught.value.culprits) == {INSIDER}


def test_a_defence_opens_what_this_user_sent_and_nothing_else() -> None:
    """A server that garbles a packet gets an honest complaint, and no defence."""
    parties = make_secagg(VECTORS, corrupt_fraction=0.2, dropout_fraction=0.2)
    complaints: list[bytes] = []

    def ask(kind: Kind, user: int, message: bytes) -> bytes | None:
        if (kind, user) == (Kind.INBOX, 0):
            body = payload_of(message)
            body = body[:40] + bytes([body[40] ^ 1]) + body[41:]
            return parties.sign(Kind.INBOX, SERVER, 0, body)
        return None if kind is Kind.SURVIVORS else message

    def answer(kind: Kind, user: int, message: bytes) -> bytes | None:
        if kind is not Kind.COMPLAINT:
            return message
        complaints.append(message)
        return None

    with pytest.raises(errors.TooFewUsers):
        Drive(parties, answer, ask).run()
    (complaint,) = complaints
    assert struct.unpack(">I", payload_of(complaint)[:4]) == (1,)
    accused = parties.sign(Kind.ACCUSED, SERVER, 1, complaint)
    with pytest.raises(errors.WrongReceiver, match="must complain about a deal of this user's"):
        parties.users[1].receive(accused)


def test_a_share_s_hash_is_of_its_place_too_alone_and_with_others() -> None:
    setup = make_secagg(VECTORS).setup
    places = [(a, b, c) for a in (0, 2**31 - 1) for b in (2, 3) for c in (SEED, KEY)]
    for share in (bytes(SHARE_BYTES), b"\1" * (SHARE_BYTES - 1) + b"\0"):
        alone = [hash_shares(setup, *place, [share]) for place in places]
        assert len(set(alone)) == 8
        dealers, holders, secrets = zip(*places, strict=True)
        together = hash_shares(setup, dealers, holders, secrets, [share] * 8)
        assert together == b"".join(alone)
        dealer, holder, which = (
            n.to_bytes(size, "big") for n, size in zip(places[5], (4, 4, 1), strict=True)
        )
        named = b"share" + setup.session.digest + dealer + holder + which + share
        assert alone[5] == hashlib.sha256(named).digest()
