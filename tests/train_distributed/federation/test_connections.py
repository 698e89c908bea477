"""Who is present is proven, nothing is spent before, and nobody takes another's name."""

import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from tests.train_distributed.federation import fake_relay as fake
from train_distributed.federation.connections import Connections
from train_distributed.federation.documents.federation import Deadlines, Federation
from train_distributed.federation.documents.sessions import spend_session
from train_distributed.federation.endpoint import UserEndpoint
from train_distributed.federation.orders import DONE, Request, join, write_order
from train_distributed.federation.progress import Log
from train_distributed.secure_sum.errors import TooFewUsers
from train_distributed.secure_sum.journal import DurableJournal
from train_distributed.secure_sum.keys import FIRST_SERVER
from train_distributed.secure_sum.secagg_server import SecAggServer


def _order(federation: Federation, kind: Request, body: bytes, signer: int):
    return write_order(federation, kind, body, fake.KEYS[signer])


def test_orders_of_anyone_but_the_operator_do_nothing(tmp_path: Path) -> None:
    federation = fake.agreement()
    other = structs.replace(federation, minimum=4)
    everyone = federation.session(bytes(32)).bitmap(range(fake.W))
    start, present = bytes(32) + everyone, bytes(72)
    journal = DurableJournal(tmp_path / "journal")
    endpoint = UserEndpoint(federation, 0, fake.KEYS[0], lambda: fake.VECTORS[0], journal)
    good = _order(federation, Request.START, start, FIRST_SERVER)
    forged = [
        b"\0" + bytes(32),  # what began a session, and spent it, when nobody had to sign
        b"\0" + start + bytes(64),
        _order(federation, Request.START, start, 1),
        _order(other, Request.START, start, FIRST_SERVER),
        good[:-1] + bytes([good[-1] ^ 1]),
        bytes([Request.START]) + _order(federation, Request.END, start, FIRST_SERVER)[1:],
        bytes([Request.PRESENT]) + present + bytes(64),
        _order(federation, Request.PRESENT, present, 1),
        _order(federation, Request.END, bytes(33), 1),
    ]
    for request in forged:
        assert endpoint.answer(request)[:1] != DONE
    few = bytes(32) + federation.session(bytes(32)).bitmap([0, 1])
    refused = endpoint.answer(_order(federation, Request.START, few, FIRST_SERVER))
    assert b"users present must be >= 3, got 2" in refused
    without = bytes(32) + federation.session(bytes(32)).bitmap([1, 2, 3])
    refused = endpoint.answer(_order(federation, Request.START, without, FIRST_SERVER))
    assert b"users present must include user 0" in refused
    assert not (tmp_path / "journal").exists()


def test_a_session_is_spent_at_the_first_message_that_reveals() -> None:
    """Not by a start: one that ends before masked vectors leaves every user its session."""
    federation = fake.agreement()
    relay = fake.volatile(federation)
    relay.after = lambda node, request, answer: None
    silenced = {12, 13, 14}
    ask_each = relay.ask_each

    def without_shares(requests: Mapping[int, bytes], seconds: float | None = None):
        for node, answer in ask_each(requests, seconds):
            if requests[node][0] != Request.DELIVER or node not in silenced:
                yield node, answer

    relay.ask_each = without_shares
    with pytest.raises(TooFewUsers):
        fake.operate(relay)
    assert set(relay.drawn.values()) == {0}
    relay.ask_each = ask_each
    assert np.array_equal(fake.operate(relay).total, fake.VECTORS.sum(0))


def test_with_too_few_present_nobody_spends_anything() -> None:
    relay = fake.volatile(fake.agreement(minimum=4))
    kept = {node: relay.endpoints.pop(node) for node in (10, 11)}
    log, asked = Log(), []
    relay.before = lambda node, request: asked.append(request[0])
    with pytest.raises(TooFewUsers, match="users present must be >= 4, got 3"):
        fake.operate(relay, log)
    assert set(asked) <= {Request.PRESENT, Request.END}
    assert log.missing == {0: "be present", 1: "be present"}
    relay.endpoints |= kept
    assert np.array_equal(fake.operate(relay).total, fake.VECTORS.sum(0))


def test_nobody_is_waited_for_where_too_many_have_used_up_their_sessions() -> None:
    """A minute is agreed on for users to come; of five, two cannot take part, and four must."""
    minute = Deadlines(come=60.0, again=0.0)
    relay = fake.volatile(fake.agreement(minimum=4, deadlines=minute))
    for user in (0, 1):
        spend_session(relay.journals(user), relay.federation, b"another")
    del relay.endpoints[14]
    start = time.monotonic()
    with pytest.raises(TooFewUsers, match="users present must be >= 4, got 2"):
        fake.operate(relay)
    assert time.monotonic() - start < 10


class Impostor:
    """Answers PRESENT in another's name, in the ways that it can."""

    over, largest_frame = False, 10**6

    def __init__(self, answer: Any) -> None:
        self.answer = answer


@pytest.mark.parametrize("victim", [3, FIRST_SERVER, FIRST_SERVER + 1, 99])
def test_a_name_is_bound_to_its_key_not_to_who_comes_first(victim: int) -> None:
    """An insider at a lower node, with its own good keys, claims another's name."""
    federation = fake.agreement()
    relay = fake.volatile(federation)
    insider = relay.endpoints.pop(12)

    def in_anothers_name(request: bytes) -> bytes:
        if request[0] == Request.PRESENT:
            honest = insider.answer(request)
            return honest[:9] + honest[9:].replace(struct.pack(">I", 2), struct.pack(">I", victim))
        return DONE + join([struct.pack(">I", victim)])

    relay.endpoints = {5: Impostor(in_anothers_name), **relay.endpoints}
    log = Log()
    opened = fake.operate(relay, log)
    left = [0, 1, 3, 4]
    assert sorted(opened.users) == left
    assert np.array_equal(opened.total, fake.VECTORS[left].sum(0))
    assert log.missing == {2: "be present"}
    assert any(text.startswith("node 5: ") for text in log.refused)


def test_an_answer_to_another_node_is_no_proof() -> None:
    """The insider shows what user 3 has answered, at another node or to an earlier order."""
    relay = fake.volatile(fake.agreement())
    earlier = fake.volatile(relay.federation)
    replayed_answer: list[bytes] = []

    def keep(node: int, request: bytes, answer: bytes) -> None:
        if node == 13 and request[0] == Request.PRESENT:
            replayed_answer.append(answer)

    earlier.after = keep
    fake.operate(earlier)
    relay.endpoints = {5: Impostor(lambda request: replayed_answer[0]), **relay.endpoints}
    log = Log()
    opened = fake.operate(relay, log)
    assert len(opened.users) == fake.W
    assert any("node 5: BadSignature" in text for text in log.refused)


def test_an_answer_that_comes_late_counts_when_it_is_asked_for_again() -> None:
    """A carrier may need longer than a party has to answer PRESENT."""
    relay = fake.volatile(fake.agreement())
    slow, late = 13, list[bytes]()

    class Slow:
        federation, nodes = relay.federation, relay.nodes

        def ask_each(self, requests: Mapping[int, bytes], seconds: float | None = None) -> Any:
            for node, answer in relay.ask_each(requests, seconds):
                if node != slow or late:
                    yield node, late.pop() if node == slow else answer
                else:
                    late.append(answer)

    with fake.operator(Slow(), Log()) as operator:
        connections = Connections(operator, bytes(32))
        connections.gather(frozenset(range(fake.W)), 5.0)
        assert connections.here == frozenset(range(fake.W))


def test_of_two_nodes_with_one_identity_the_first_proven_stays() -> None:
    relay = fake.volatile(fake.agreement())
    relay.endpoints[30] = relay.user(3)
    log = Log()
    opened = fake.operate(relay, log)
    assert np.array_equal(opened.total, fake.VECTORS.sum(0))
    assert log.refused == ["node 30: WrongSender: user 3 is at another node already"]
    assert relay.drawn[3] == 1


def test_a_question_asked_again_gets_the_same_answer() -> None:
    relay = fake.volatile(fake.agreement())
    given: list[tuple[int, bytes, bytes]] = []
    relay.after = lambda *exchange: given.append(exchange)

    def again(node: int, request: bytes) -> None:
        for before, asked, answer in given if request[0] != Request.END else []:
            if asked[0] not in (Request.PRESENT, Request.END):
                assert relay.endpoints[before].answer(asked) == answer

    relay.before = again
    fake.operate(relay)
    assert set(relay.drawn.values()) == {1}


def test_words_of_the_network_are_shown_escaped() -> None:
    relay = fake.volatile(fake.agreement())
    shouted = b"\x1b[2J\x07\n\xff" + "\u202e".encode() + b"x" * 10**5
    relay.endpoints[9] = Impostor(lambda request: b"\1" + shouted)
    log = Log()
    fake.operate(relay, log)
    (text,) = log.refused
    assert text.isascii()
    assert text.isprintable()
    assert len(text) < 400
    assert "\\x1b[2J" in text


def test_a_long_answer_is_a_refusal() -> None:
    relay = fake.volatile(fake.agreement())
    ask_each, most = relay.ask_each, relay.federation.largest_frame

    def longer(requests: Mapping[int, bytes], seconds: float | None = None):
        for node, answer in ask_each(requests, seconds):
            first = requests[node][0] == Request.DELIVER and node == 12
            yield node, DONE + join([bytes(most)]) if first else answer

    relay.ask_each = longer
    log = Log()
    opened = fake.operate(relay, log)
    assert sorted(opened.users) == [0, 1, 3, 4]
    assert any(
        f"user 2: MalformedMessage: answer must be <= {most} bytes" in t for t in log.refused
    )


def test_a_full_disk_of_a_user_is_said_at_both_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    federation = fake.agreement()
    relay = fake.volatile(federation)
    journal = DurableJournal(tmp_path)

    def full() -> None:
        raise OSError(28, "journal cannot be written: No space left on device", str(tmp_path))

    monkeypatch.setattr(journal, "_open", full)
    relay.journals = lambda party: journal
    relay.endpoints[12] = relay.user(2)
    log = Log()
    opened = fake.operate(relay, log)
    assert sorted(opened.users) == [0, 1, 3, 4]
    assert relay.drawn[2] == 0
    assert any("user 2: refused: OSError" in t and "No space left" in t for t in log.refused)


def test_a_replayed_session_spends_and_reveals_nothing() -> None:
    """All that was asked of user 2, asked again when the session is over; two were agreed."""
    relay = fake.volatile(fake.agreement(sessions=2))
    asked: list[bytes] = []
    relay.after = lambda node, request, answer: asked.append(request) if node == 12 else None
    fake.operate(relay)
    for endpoint in (relay.endpoints[12], relay.user(2)):  # as it is, and started again
        for request in asked:
            answer = endpoint.answer(request)
            assert request[0] == Request.PRESENT or answer[:1] != DONE
    assert relay.drawn[2] == 1
    relay.after = lambda node, request, answer: None
    assert np.array_equal(fake.operate(relay).total, fake.VECTORS.sum(0))
    assert relay.drawn[2] == 2


def test_the_coordinator_holds_one_vector_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next answer is fetched only when the last one has been added."""
    relay = fake.volatile(fake.agreement())
    taken, yielded, receive = 0, 0, SecAggServer.receive

    def counted(self: SecAggServer, message: bytes) -> None:
        nonlocal taken
        taken += 1
        receive(self, message)

    def count(node: int, request: bytes, answer: bytes) -> None:
        nonlocal yielded
        if request[0] == Request.DELIVER:
            assert taken == fake.W + yielded
            yielded += 1

    monkeypatch.setattr(SecAggServer, "receive", counted)
    relay.after = count
    fake.operate(relay)
    assert yielded >= 4 * fake.W
