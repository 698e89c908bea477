"""A party that was put back to an earlier state, memory or disk, signs nothing a second time."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.train_distributed.federation import fake_relay as fake
from train_distributed.federation.endpoint import UserEndpoint
from train_distributed.federation.orders import DONE, REFUSED, Request, join, split, write_order
from train_distributed.federation.progress import Log
from train_distributed.secure_sum.journal import DurableJournal, Journal, VolatileJournal
from train_distributed.secure_sum.keys import FIRST_SERVER
from train_distributed.secure_sum.secagg import SERVER
from train_distributed.secure_sum.wire import Kind, kind_of, write

NODE, USER = 12, 2


def _kind(request: bytes) -> str:
    if request[0] != Request.DELIVER:
        return Request(request[0]).name.lower()
    return kind_of(split(request[1:])[0])


class Session:
    """A session of five, with a copy of user 2's memory from before it signs the survivors."""

    def __init__(self, tmp_path: Path) -> None:
        self.journal = DurableJournal(tmp_path / "journal")
        federation = fake.agreement()
        others: dict[int, Journal] = {}

        def journal(user: int) -> Journal:
            return self.journal if user == USER else others.setdefault(user, VolatileJournal())

        self.relay = fake.FakeRelay(federation, journal)
        self.copies: list[UserEndpoint] = []
        self.asked: dict[str, bytes] = {}
        self.answered: dict[str, bytes] = {}
        self.relay.before, self.relay.after = self.before, self.after

    def before(self, node: int, request: bytes) -> None:
        if node == NODE:
            self.asked[_kind(request)] = request
            if _kind(request) == "survivors":
                endpoint: Any = self.relay.endpoints[NODE]
                self.copies = [fake.snapshot(endpoint) for _ in range(3)]

    def after(self, node: int, request: bytes, answer: bytes) -> None:
        if node == NODE:
            self.answered[_kind(request)] = answer

    def other_survivors(self) -> bytes:
        """The operator asks for another set of survivors, all it needs from user 2."""
        copy_: Any = self.copies[0]
        session, federation = copy_._user._session, self.relay.federation
        payload = federation.session(copy_._nonce).bitmap([0, 1, 2, 3])
        signing = fake.KEYS[FIRST_SERVER].signing
        message = write(session, Kind.SURVIVORS, SERVER, USER, payload, signing)
        return bytes([Request.DELIVER]) + join([message])


@pytest.fixture
def session(tmp_path: Path) -> Session:
    made = Session(tmp_path)
    assert np.array_equal(fake.operate(made.relay).total, fake.VECTORS.sum(0))
    assert made.answered["survivors"][:1] == made.answered["unmask"][:1] == DONE
    return made


def test_memory_that_is_put_back_signs_no_other_survivors(session: Session) -> None:
    first, second, _ = session.copies
    for request in (session.asked["survivors"], session.other_survivors()):
        refused = first.answer(request)
        assert refused[:1] == REFUSED
        assert b"AlreadyOpened: agree must happen once per session" in refused
    assert second.answer(session.asked["unmask"])[:1] == REFUSED  # it has agreed on nothing


def test_memory_that_is_put_back_masks_its_vector_in_no_other_session(session: Session) -> None:
    (*_, endpoint) = session.copies
    assert endpoint._drawn is not None
    federation, nonce = session.relay.federation, b"n" * 32
    operator = fake.KEYS[FIRST_SERVER]
    end = write_order(federation, Request.END, (endpoint._nonce or b"") + b"\0", operator)
    assert endpoint.answer(end)[:1] == DONE
    body = nonce + federation.session(nonce).bitmap(range(fake.W))
    refused = endpoint.answer(write_order(federation, Request.START, body, operator))
    assert b"sessions must be <= 1, got one more" in refused


@pytest.mark.parametrize("step", ["survivors", "unmask"])
def test_a_party_whose_journal_is_put_back_refuses_its_session(step: str, tmp_path: Path) -> None:
    session = Session(tmp_path)

    def back(node: int, request: bytes) -> None:
        if node == NODE and _kind(request) == step:
            (tmp_path / "journal" / "journal.sqlite").unlink()

    session.relay.before = back
    log = Log()
    opened = fake.operate(session.relay, log)
    left = [0, 1, 2, 3, 4] if step == "unmask" else [0, 1, 3, 4]
    assert sorted(opened.users) in (left, [0, 1, 2, 3, 4])
    assert np.array_equal(opened.total, fake.VECTORS[sorted(opened.users)].sum(0))
    name = "submit" if step == "survivors" else "agree"
    words = f"OutOfOrder: journal must hold {name} of this session: it was put back"
    assert [words in line for line in log.refused] == [True]


def test_a_start_that_was_answered_is_answered_no_other_way_after_a_restart(
    tmp_path: Path,
) -> None:
    session = Session(tmp_path)
    fake.operate(session.relay)
    endpoint: Any = session.relay.endpoints[NODE]
    assert endpoint.over
    fresh = fake.FakeRelay(session.relay.federation, lambda _: DurableJournal(tmp_path / "two"))
    first, again = fresh.user(USER), fresh.user(USER)
    answer = first.answer(session.asked["start"])
    assert answer[:1] == DONE
    assert first.answer(session.asked["start"]) == answer  # bit for bit
    refused = again.answer(session.asked["start"])
    assert b"AlreadyOpened: session must be a new one, got one this user has started" in refused
