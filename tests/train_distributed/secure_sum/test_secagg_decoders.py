"""Every decoder of protocol `secagg` under mutated messages: refused by name, memory flat.

A mutation is made by an outsider (the bytes change, the signature does not) or by the party itself
(its payload changes, and it signs that): the second reaches every inner decoder.
"""

import gc
import hashlib
import random
import tracemalloc

import numpy as np
import pytest

from tests.changed_bytes import changed
from tests.train_distributed.secure_sum.simulate import Drive, make_secagg
from train_distributed.secure_sum.errors import ProtocolError
from train_distributed.secure_sum.keys import EVERYONE
from train_distributed.secure_sum.packets import DEAL_BYTES
from train_distributed.secure_sum.secagg import ADVERTISE_BYTES, COMPLAINT_BYTES, SERVER, Advert
from train_distributed.secure_sum.wire import OVERHEAD, Kind, payload_of

W, D, LIAR = 7, 3, 0
VECTORS = np.arange(W * D, dtype=np.uint64).reshape(W, D)
# Whatever has the right length is a statement that its sender may make.
OPAQUE = (
    *(Kind.ADVERTISE, Kind.KEY_SHARES, Kind.MASKED, Kind.SURVIVORS),
    *(Kind.COMPLAINT, Kind.DEFENCE, Kind.EXPOSED),  # see the insiders' tests
)
PUBLIC = (Kind.ADVERTISE, Kind.AGREED, Kind.COMPLAINT)
QUESTIONS = (
    *(Kind.NEIGHBOURS, Kind.INBOX, Kind.SURVIVORS, Kind.UNMASK, Kind.ACCUSED),
    Kind.CONVICTED,
)
# So are whole messages of others in another order, or fewer of them; bytes of their payloads.
PASSED_ON = {Kind.NEIGHBOURS: ADVERTISE_BYTES, Kind.ACCUSED: COMPLAINT_BYTES}
FALSE = (Kind.CONVICTED, Kind.EXPOSED)  # there if user 0 advertises another commitment
TARGETS = [kind for kind in Kind if kind >= Kind.ADVERTISE]


class Fuzzer:
    """Sends mutations of one message of a session to whoever takes it, `count` of either sort."""

    def __init__(self, parties, target: Kind, count: int) -> None:
        self.parties, self.target, self.count = parties, target, count
        self.victim = LIAR if target is Kind.COMPLAINT else 2
        self.packet = b""  # user 2's for the liar
        self.draw = random.Random(int(target))
        self.refused = self.peak = 0
        self.names: set[str] = set()

    def attack(self, kind: Kind, user: int, message: bytes) -> bytes:
        """Where the session has no complaint and there should be one, user 0 invents it."""
        if kind is Kind.INBOX and user == LIAR:
            self.packet = payload_of(message)[1 + DEAL_BYTES : 1 + 2 * DEAL_BYTES]
        invented = self.target in (Kind.COMPLAINT, Kind.ACCUSED, Kind.DEFENCE)
        if kind is Kind.MASKED and user == LIAR and invented:
            named = (2).to_bytes(4, "big") + hashlib.sha256(self.packet).digest()
            kind = Kind.COMPLAINT
            message = self.parties.sign(kind, LIAR, EVERYONE, named)
        if kind is Kind.ADVERTISE and user == LIAR and self.target in FALSE:
            machine, payload = self.parties.users[LIAR], payload_of(message)
            machine._advert = Advert(payload[:64] + bytes(32) + payload[96:])
            message = self.parties.sign(kind, LIAR, EVERYONE, machine._advert.payload)
        if (kind, user) == (self.target, self.victim):
            self._send(message, kind in QUESTIONS)
        return message

    def _send(self, message: bytes, question: bool) -> None:
        kind = Kind(message[5])
        sender = SERVER if question else self.victim
        to = self.victim if question else EVERYONE if kind in PUBLIC else SERVER
        payload = payload_of(message)
        machine = self.parties.users[self.victim] if question else self.parties.server
        before = 0
        gc.freeze()  # so that to collect takes no longer in a large process
        tracemalloc.start()
        for turn in range(2 * self.count):
            if turn % 2:
                found = changed(payload, self.draw)
                true = may_say(kind, payload, found)
                copy = self.parties.sign(kind, sender, to, found)
            else:
                copy, true = changed(message, self.draw), False
            if not true:
                self._refuse(machine, copy)
            if turn == self.count // 2:
                gc.collect()  # errors hold their frames until then
                tracemalloc.reset_peak()
                before, _ = tracemalloc.get_traced_memory()
        gc.collect()
        after, self.peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        gc.unfreeze()
        assert after - before < 20_000
        assert self.peak - before < 200_000

    def _refuse(self, machine, copy: bytes) -> None:
        if machine is self.parties.server:  # an insider is out at once; here it may go on trying
            machine._invited |= {self.victim}
        try:
            answer = machine.receive(copy)
        except ProtocolError as error:
            self.refused += 1
            self.names.add(type(error).__name__)
            if machine is self.parties.server:
                machine._invited |= {self.victim}
                machine.culprits.clear()
        else:
            self._complained(machine, answer)

    def _complained(self, machine, answer: bytes | None) -> None:
        """A damaged packet in a well-formed INBOX is what complaints are for: no vector is sent."""
        assert answer is not None
        assert answer[5] == Kind.COMPLAINT
        machine._expected = Kind.INBOX
        self.refused += 1


def may_say(kind: Kind, payload: bytes, found: bytes) -> bool:
    """Whether a changed payload is another statement that its sender may make."""
    if kind in PASSED_ON:
        size = OVERHEAD + PASSED_ON[kind]
        said, known = (
            [each[i : i + size] for i in range(0, len(each), size)] for each in (found, payload)
        )
        return len(said) == len(set(said)) and set(said) <= set(known)
    return kind in OPAQUE and len(found) == len(payload)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("count", [30, pytest.param(5_000, marks=pytest.mark.slow)])
def test_mutated_messages_are_refused_by_name(target, count) -> None:
    parties = make_secagg(VECTORS, corrupt_fraction=0.2, dropout_fraction=0.2)
    fuzzer = Fuzzer(parties, target, count)
    opened = Drive(parties, fuzzer.attack, fuzzer.attack).run()
    assert np.array_equal(opened.total, VECTORS[sorted(opened.users)].sum(0))
    assert len(opened.users) == W - (target >= Kind.COMPLAINT)  # as if nothing had been sent
    assert fuzzer.refused >= count
    assert len(fuzzer.names) >= 4
