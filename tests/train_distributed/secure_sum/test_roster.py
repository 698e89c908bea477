"""Packets come out of the mail as they were put in, whoever else has dropped out; w = 30."""

import hashlib

import numpy as np
import pytest

from train_distributed.secure_sum.errors import MalformedMessage
from train_distributed.secure_sum.packets import HASHES, packet_bytes
from train_distributed.secure_sum.roster import Mail, Roster
from train_distributed.secure_sum.secagg import Advert

W, DEGREE = 30, 7
LATE, SILENT = 3, (4, 17)  # never advertised; shared no keys


class _Setup:
    """What a roster reads of a session: identities are not places, lists shorter than all."""

    def __init__(self) -> None:
        self.session, self.graph = self, self
        self.order = tuple(range(100, 100 + 2 * W, 2))
        self.place = {user: place for place, user in enumerate(self.order)}
        self.degree, self.threshold = DEGREE, 2

    def places_of(self, user: int, seed: bytes) -> np.ndarray:
        others = np.delete(np.arange(W), self.place[user])
        return np.random.default_rng(user).permutation(others)[:DEGREE]


@pytest.fixture
def roster() -> Roster:
    made = Roster(_Setup())  # pyright: ignore[reportArgumentType]
    present = [user for user in made.setup.session.order if made.setup.session.place[user] != LATE]
    for user in present:
        made.add(user, Advert(bytes(128)), b"")
    made.pair(made.connected(present))
    return made


def _list(roster: Roster, user: int) -> list[int]:
    order = roster.setup.session.order
    return [order[place] for place in roster.setup.places_of(user, b"")]


def _partners(roster: Roster, user: int) -> list[int]:
    """By the definition: on either's list, neither of them late."""
    order = roster.setup.session.order
    if user == order[LATE]:
        return []
    others = [v for v in order if v not in (user, order[LATE])]
    return [v for v in others if v in _list(roster, user) or user in _list(roster, v)]


def _packet(roster: Roster, sender: int, receiver: int) -> bytes:
    size = packet_bytes(receiver in _list(roster, sender))
    return hashlib.shake_128(b"%d to %d" % (sender, receiver)).digest(size)


def _payload(roster: Roster, user: int) -> bytes:
    return b"".join(_packet(roster, user, peer) for peer in _partners(roster, user))


def test_partners_are_on_either_list(roster: Roster) -> None:
    for user in roster.setup.session.order:
        partners = roster.identities[roster.partners(user)].tolist()
        assert partners == _partners(roster, user)


@pytest.mark.parametrize("silent", [(), SILENT])
def test_every_inbox_holds_what_was_packed_for_it(roster: Roster, silent: tuple[int, ...]) -> None:
    order, mail = roster.setup.session.order, Mail(roster)
    sharing = [u for place, u in enumerate(order) if place not in (LATE, *silent)]
    posted = [u for place, u in enumerate(order) if place != LATE]
    for user in reversed(posted):  # those who are left out later have posted, too
        mail.post(user, _payload(roster, user))
    roster.share(sharing)
    for user in sharing:
        senders = [p for p in _partners(roster, user) if p in sharing]
        expected = b"".join(_packet(roster, p, user) for p in senders)
        assert mail.inbox(user, roster.among(sharing)) == expected
        for sender in order:
            found = mail.packet(sender, user)
            assert (found is not None) == (sender in senders)
            if found is not None:
                link, packet = found
                assert packet == _packet(roster, sender, user)
                ends = (roster.adverts[sender], roster.adverts[user])
                assert (link.sender, link.receiver, link.adverts) == (sender, user, ends)
        dealers = [p for p in senders if user in _list(roster, p)]
        shown = mail.hashes[roster.held[roster.holding(user)]]
        assert shown.tobytes() == b"".join(_packet(roster, p, user)[HASHES] for p in dealers)
    mail.clear()
    assert mail.packet(sharing[0], _partners(roster, sharing[0])[0]) is None


def test_a_payload_of_another_length_changes_nothing(roster: Roster) -> None:
    mail, user = Mail(roster), roster.setup.session.order[0]
    for payload in (b"", _payload(roster, user)[:-1], _payload(roster, user) + b"\0"):
        with pytest.raises(MalformedMessage, match=r"parts must be \d+ bytes"):
            mail.post(user, payload)
    assert not any(mail.hashes.tobytes())
