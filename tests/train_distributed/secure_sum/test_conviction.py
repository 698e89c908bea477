"""A dealer of false shares is left out of the very session; an honest one cannot be convicted."""

from typing import Any

import numpy as np
import pytest

from tests.train_distributed.secure_sum.simulate import Drive, false_shares, make_secagg
from train_distributed.secure_sum import errors
from train_distributed.secure_sum.conviction import MOST_CONVICTED, proof_bytes
from train_distributed.secure_sum.packets import DEAL_BYTES
from train_distributed.secure_sum.secagg import ADVERTISE_BYTES, SERVER, pack_entries
from train_distributed.secure_sum.shamir import SHARE_BYTES
from train_distributed.secure_sum.wire import Kind, payload_of

W, D = 9, 5
VECTORS = np.random.default_rng(3).integers(0, 2**64, (W, D), np.uint64)
GRAPH: dict[str, Any] = {"corrupt_fraction": 0.2, "dropout_fraction": 0.3}
_SHOWN = ADVERTISE_BYTES + DEAL_BYTES + SHARE_BYTES


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
    parties = make_secagg(VECTORS, **GRAPH)
    driven = _driven(parties, liars, silent)
    opened = driven.run()
    gone = {user for user, kind in silent.items() if kind <= Kind.MASKED}
    assert opened.users == frozenset(range(W)) - liars - gone
    assert np.array_equal(opened.total, VECTORS[sorted(opened.users)].sum(0))
    assert parties.server.culprits.keys() == liars
    assert driven.refused == []


def test_without_a_partners_seed_nothing_is_released() -> None:
    parties = make_secagg(VECTORS, **GRAPH)
    with pytest.raises(errors.Misbehaviour, match="2: "):
        _driven(parties, {2}, {4: Kind.EXPOSED}).run()
    with pytest.raises(errors.OutOfOrder):
        parties.server.finish()


@pytest.mark.parametrize(
    ("users", "liars", "minimum", "recalls"),
    [
        (W, 1, 2, False),  # the server kept no messages
        (20, MOST_CONVICTED + 1, 2, True),  # too many liars
        (W, 1, W, True),  # fewer than the minimum would be left
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
    parties = make_secagg(VECTORS, **GRAPH)
    driven = _driven(parties, {2})

    def ask(kind: Kind, user: int, message: bytes) -> bytes:
        if kind is Kind.CONVICTED and user == 0:
            payload = payload_of(driven.sent[2, Kind.MASKED])
            other = payload[:32] + bytes([payload[32] ^ 1]) + payload[33:]
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
    parties = make_secagg(VECTORS, **GRAPH)
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
    size = 4 + _SHOWN
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
        framer.ask(framer.proof(), dealer=W + 5)


def test_nothing_is_exposed_before_shares_are_revealed() -> None:
    parties = make_secagg(VECTORS, **GRAPH)
    refused: list[type] = []

    def ask(kind: Kind, user: int, message: bytes) -> bytes:
        if user == 3:
            empty = parties.sign(Kind.CONVICTED, SERVER, 3, b"")
            with pytest.raises(errors.OutOfOrder) as caught:
                parties.users[3].receive(empty)
            refused.append(caught.type)
        return message

    assert len(Drive(parties, ask=ask).run().users) == W
    assert len(refused) == 4
