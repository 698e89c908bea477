"""An insider that breaks `secagg` is named or left out, no honest user is, and the sum is exact."""

import contextlib
import hashlib
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.train_distributed.secure_sum.simulate import Drive, false_shares, make_secagg
from train_distributed.secure_sum import errors
from train_distributed.secure_sum.conviction import MOST_CONVICTED, proof_bytes
from train_distributed.secure_sum.keys import EVERYONE
from train_distributed.secure_sum.opening import Opened
from train_distributed.secure_sum.packets import DEAL_BYTES, KEY, SEED, Link, hash_shares
from train_distributed.secure_sum.secagg import ADVERTISE_BYTES, SERVER, Advert, pack_entries
from train_distributed.secure_sum.shamir import SHARE_BYTES
from train_distributed.secure_sum.wire import Kind, payload_of

W, D, INSIDER = 7, 5, 2
VECTORS = np.random.default_rng(0).integers(0, 2**64, (W, D), np.uint64)
FRACTIONS: dict[str, Any] = {"corrupt_fraction": 0.2, "dropout_fraction": 0.2}
GRAPH: dict[str, Any] = FRACTIONS | {"dropout_fraction": 0.3}
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
    insider.machine._advert = Advert(payload[:64] + bytes(32) + payload[96:])
    return insider.sign(Kind.ADVERTISE, insider.machine._advert.payload)


def _packets(change: Callable[[bytes], bytes], to: range = range(W), *, signed: bool = True):
    return lambda insider, message: insider.packets(change, to, signed)


def _payload(change: Callable[[bytes], bytes]):
    return lambda insider, message: insider.sign(Kind(message[5]), change(payload_of(message)))


def _flipped(place: int) -> Callable[[bytes], bytes]:
    """Changes the lowest bit of one byte."""
    return lambda octets: octets[:place] + bytes([octets[place] ^ 1]) + octets[place:][1:]


_undecryptable = _packets(_flipped(40))
_other_hashes = _packets(lambda p: p[:114] + bytes(64) + p[178:])
_short = _payload(lambda p: p[:-1])
ONE = range(4, 5)
NAMED = {  # at which message, what; whether the session goes on without a second one
    "small sealing key": (Kind.ADVERTISE, _small(0), True),
    "small masking key": (Kind.ADVERTISE, _small(1), True),
    "short advert": (Kind.ADVERTISE, _short, True),
    "wrong commitment": (Kind.ADVERTISE, _other_commitment, True),
    "short key shares": (Kind.KEY_SHARES, _short, True),
    "no key shares": (Kind.KEY_SHARES, _payload(lambda p: b""), True),
    "packets nobody opens": (Kind.KEY_SHARES, _undecryptable, False),
    "one packet of small order": (Kind.KEY_SHARES, _packets(lambda p: SMALL + p[32:], ONE), False),
    "one packet unsigned": (Kind.KEY_SHARES, _packets(_flipped(-1), ONE, signed=False), False),
    "shares that are not as shown": (Kind.KEY_SHARES, _other_hashes, False),
    "shares of no secret": (Kind.KEY_SHARES, lambda i, m: false_shares(i.parties, INSIDER), True),
    "short vector": (Kind.MASKED, _short, True),
    "masked with others": (Kind.MASKED, _payload(lambda p: p[:3] + b"\0\0" + p[5:]), True),
    "signs other survivors": (Kind.AGREED, _payload(lambda p: bytes(32)), True),
    "short signature": (Kind.AGREED, _short, True),
    "false opening": (Kind.REVEAL, _payload(_flipped(20)), True),
    "no opening": (Kind.REVEAL, _payload(lambda p: b""), True),
    "opening cut": (Kind.REVEAL, _short, True),
    "openings of a stranger": (Kind.REVEAL, _payload(lambda p: b"\0\1\0\0" + p[4:]), True),
}


def _run(stage: Kind, attack) -> tuple:
    """A session, and one more without whom it named if it could not be completed."""
    named: dict[int, str] = {}
    for sessions in (1, 2):
        parties = make_secagg(VECTORS, **FRACTIONS, exclude=named.keys())
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


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(
    ("change", "refusals"),
    [
        (lambda insider, message: None, []),
        (lambda i, m: m[:38] + struct.pack(">I", 4) + m[42:], ["BadSignature"]),
    ],
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
    parties = make_secagg(VECTORS, **GRAPH)
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
    parties = make_secagg(VECTORS, **FRACTIONS)
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
    parties = make_secagg(VECTORS, **FRACTIONS)
    complaints: list[bytes] = []

    def ask(kind: Kind, user: int, message: bytes) -> bytes | None:
        if (kind, user) == (Kind.INBOX, 0):
            return parties.sign(Kind.INBOX, SERVER, 0, _flipped(40)(payload_of(message)))
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


NINE = np.random.default_rng(3).integers(0, 2**64, (9, D), np.uint64)


def _driven(parties: Any, liars: set[int], silent: dict[int, Kind] | None = None):
    def answer(kind: Kind, user: int, message: bytes) -> bytes | None:
        if user in (silent or {}) and kind >= (silent or {})[user]:
            return None
        return false_shares(parties, user) if kind is Kind.KEY_SHARES and user in liars else message

    return Drive(parties, answer)


@pytest.mark.parametrize(
    ("liars", "silent"),
    [
        ({2}, {}),
        ({2, 5}, {}),
        ({0, 8}, {}),
        ({2}, {2: Kind.MASKED}),  # its key is opened, not its seed
        ({2}, {4: Kind.MASKED}),
        ({2, 5}, {2: Kind.MASKED}),
        ({2}, {2: Kind.AGREED}),
    ],
)
def test_the_others_are_summed_in_the_same_session(liars, silent) -> None:
    parties = make_secagg(NINE, **GRAPH)
    driven = _driven(parties, liars, silent)
    opened = driven.run()
    gone = {user for user, kind in silent.items() if kind <= Kind.MASKED}
    assert opened.users == frozenset(range(9)) - liars - gone
    assert np.array_equal(opened.total, NINE[sorted(opened.users)].sum(0))
    assert parties.server.culprits.keys() == liars
    assert driven.refused == []


def test_without_a_partners_seed_nothing_is_released() -> None:
    parties = make_secagg(NINE, **GRAPH)
    with pytest.raises(errors.Misbehaviour, match="2: "):
        _driven(parties, {2}, {4: Kind.EXPOSED}).run()
    with pytest.raises(errors.OutOfOrder):
        parties.server.finish()


@pytest.mark.parametrize(
    ("users", "liars", "minimum", "recalls"),
    [
        (9, 1, 2, False),  # the server kept no messages
        (20, MOST_CONVICTED + 1, 2, True),  # too many liars
        (9, 1, 9, True),  # fewer than the minimum would be left
    ],
)
def test_nothing_is_released_where_the_others_cannot_be_summed(
    users: int, liars: int, minimum: int, recalls: bool
) -> None:
    parties = make_secagg(np.zeros((users, 1), np.uint64), minimum=minimum, **GRAPH)
    driven = _driven(parties, set(range(2, 2 + liars)))
    driven.recalls = recalls
    with pytest.raises(errors.Misbehaviour, match="2: "):
        driven.run()


def test_only_the_vector_that_is_in_the_sum_is_taken_off() -> None:
    parties = make_secagg(NINE, **GRAPH)
    driven = _driven(parties, {2})

    def ask(kind: Kind, user: int, message: bytes) -> bytes:
        if kind is Kind.CONVICTED and user == 0:
            other = _flipped(32)(payload_of(driven.sent[2, Kind.MASKED]))
            driven.sent[2, Kind.MASKED] = parties.sign(Kind.MASKED, 2, SERVER, other)
        return message

    driven.ask = ask
    with pytest.raises(errors.SetMismatch, match="vector of user 2 must be the one in the sum"):
        driven.run()


class Framer:
    """A server that has all shares of honest user 2, and tries to have user 3 strip it bare."""

    def __init__(self, parties: Any) -> None:
        self.parties, self.setup = parties, parties.setup
        self.dealer, self.victim = parties.users[2], parties.users[3]
        self.deals = dict(self.dealer._sent)
        self.adverts = {peer: advert.payload for peer, advert in self.dealer._peers.items()}
        holders = [u for u in self.dealer._list if u in self.deals]
        self.holders = sorted(holders[: self.setup.graph.threshold])
        self.shares = {u: parties.users[u]._shares[2] for u in self.holders}

    def proof(self, which: int = 0, **changed: Any) -> dict[int, bytes]:
        return {
            u: changed.get("adverts", self.adverts)[u]
            + changed.get("deals", self.deals)[u]
            + changed.get("shares", self.shares)[u][which]
            for u in self.holders
        }

    def ask(self, proof: dict[int, bytes] | bytes, dealer: int = 2) -> bytes:
        body = proof if isinstance(proof, bytes) else pack_entries(proof)
        payload = dealer.to_bytes(4, "big") + body
        return self.victim.receive(self.parties.sign(Kind.CONVICTED, SERVER, 3, payload))


@pytest.fixture
def framer() -> Framer:
    """After REVEAL of an honest session, by a server that has looked at everything."""
    parties = make_secagg(NINE, **GRAPH)
    kept: list[Framer] = []

    def ask(kind: Kind, user: int, message: bytes) -> bytes:
        if kind is Kind.UNMASK and not kept:
            kept.append(Framer(parties))
        return message

    Drive(parties, ask=ask).run()
    return kept[0]


def test_an_honest_dealer_is_not_convicted_by_its_own_shares(framer: Framer) -> None:
    with pytest.raises(errors.SetMismatch, match="those of user 2 are true"):
        framer.ask(framer.proof())


def test_nor_by_any_other_evidence(framer: Framer) -> None:
    """Other shares, the other secret's, other holders', another dealer's packets, fewer, twice."""
    one, two = framer.holders[:2]
    flipped = {u: (bytes([0, *b[0][1:-1], b[0][-1] ^ 1]), b[1]) for u, b in framer.shares.items()}
    swapped = framer.shares | {one: framer.shares[two], two: framer.shares[one]}
    moved = framer.deals | {one: framer.deals[two]}
    strange = framer.adverts | {one: framer.adverts[two]}
    others = {u: framer.parties.users[4]._sent.get(u, bytes(DEAL_BYTES)) for u in framer.holders}
    whole = pack_entries(framer.proof())
    size = 4 + ADVERTISE_BYTES + DEAL_BYTES + SHARE_BYTES
    tried: list[dict[int, bytes] | bytes] = [
        framer.proof(which=1),
        framer.proof(shares=flipped),
        framer.proof(shares=swapped),
        framer.proof(deals=moved),
        framer.proof(adverts=strange),
        framer.proof(deals=others) if all(len(d) == DEAL_BYTES for d in others.values()) else b"",
        whole[:-size],
        whole[:size] * framer.setup.graph.threshold,
        bytes(proof_bytes(framer.setup)),
        b"",
    ]
    for proof in tried:
        with pytest.raises(errors.ProtocolError):
            framer.ask(proof)
    with pytest.raises(errors.ProtocolError):
        framer.ask(framer.proof(), dealer=3)
    with pytest.raises(errors.ProtocolError):
        framer.ask(framer.proof(), dealer=14)


def test_nothing_is_exposed_before_shares_are_revealed() -> None:
    parties = make_secagg(NINE, **GRAPH)
    refused: list[type] = []

    def ask(kind: Kind, user: int, message: bytes) -> bytes:
        if user == 3:
            empty = parties.sign(Kind.CONVICTED, SERVER, 3, b"")
            with pytest.raises(errors.OutOfOrder) as caught:
                parties.users[3].receive(empty)
            refused.append(caught.type)
        return message

    assert len(Drive(parties, ask=ask).run().users) == 9
    assert len(refused) == 4
