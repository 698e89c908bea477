"""A party that was put back to an earlier state, memory or disk, signs nothing a second time."""

from pathlib import Path
from typing import Any

import pytest

from tests.train_distributed.federation import fake_relay as fake
from train_distributed.federation.endpoint import UserEndpoint
from train_distributed.federation.orders import DONE, REFUSED, Request, join, split
from train_distributed.federation.progress import Log
from train_distributed.secure_sum.journal import DurableJournal, Journal, VolatileJournal
from train_distributed.secure_sum.keys import FIRST_SERVER
from train_distributed.secure_sum.secagg import SERVER
from train_distributed.secure_sum.wire import Kind, kind_of, write

NODE, USER = 12, 2


def kind(request: bytes) -> str:
    if request[0] != Request.DELIVER:
        return Request(request[0]).name.lower()
    return kind_of(split(request[1:])[0])


class Session(fake.FakeRelay):
    """A session of five, with copies of user 2's memory from before it signs the survivors."""

    def __init__(self, folder: Path) -> None:
        own, others = DurableJournal(folder / "journal"), dict[int, Journal]()

        def journal(user: int) -> Journal:
            return own if user == USER else others.setdefault(user, VolatileJournal())

        super().__init__(journals=journal)
        self.copies: list[UserEndpoint] = []
        self.questions: dict[str, bytes] = {}
        self.answers: dict[str, bytes] = {}
        self.before, self.after = self.copied, self.answered

    def copied(self, node: int, request: bytes) -> None:
        if node == NODE:
            self.questions[kind(request)] = request
            if kind(request) == "survivors":
                self.copies = [fake.snapshot(self.endpoints[NODE]) for _ in range(3)]

    def answered(self, node: int, request: bytes, answer: bytes) -> None:
        if node == NODE:
            self.answers[kind(request)] = answer

    def other_survivors(self) -> bytes:
        """The operator asks for another set of survivors, all it needs from user 2."""
        copied: Any = self.copies[0]
        payload = self.federation.session(copied._nonce).bitmap([0, 1, 2, 3])
        signing = fake.KEYS[FIRST_SERVER].signing
        given = copied._user._session, Kind.SURVIVORS, SERVER, USER, payload, signing
        return bytes([Request.DELIVER]) + join([write(*given)])


@pytest.fixture
def session(tmp_path: Path) -> Session:
    made = Session(tmp_path)
    assert fake.operate(made) == fake.ALL
    assert made.answers["survivors"][:1] == made.answers["unmask"][:1] == DONE
    return made


def test_memory_that_is_put_back_signs_no_other_survivors(session: Session) -> None:
    first, second, _ = session.copies
    for request in (session.questions["survivors"], session.other_survivors()):
        refused = first.answer(request)
        assert refused[:1] == REFUSED
        assert b"AlreadyOpened: agree must happen once per session" in refused
    assert second.answer(session.questions["unmask"])[:1] == REFUSED  # it has agreed on nothing


def test_memory_that_is_put_back_masks_its_vector_in_no_other_session(session: Session) -> None:
    (*_, endpoint) = session.copies
    assert endpoint._drawn is not None
    end = fake.order(session.federation, Request.END, (endpoint._nonce or b"") + b"\0")
    assert endpoint.answer(end)[:1] == DONE
    refused = endpoint.answer(fake.start(session.federation))
    assert b"sessions must be <= 1, got one more" in refused


@pytest.mark.parametrize(
    ("step", "name", "left"), [("survivors", "submit", {0, 1, 3, 4}), ("unmask", "agree", fake.ALL)]
)
def test_a_party_whose_journal_is_put_back_refuses_its_session(
    step: str, name: str, left: set[int], tmp_path: Path
) -> None:
    session, log = Session(tmp_path), Log()

    def back(node: int, request: bytes) -> None:
        if node == NODE and kind(request) == step:
            (tmp_path / "journal" / "journal.sqlite").unlink()

    session.before = back
    assert left <= fake.operate(session, log)
    words = f"OutOfOrder: journal must hold {name} of this session: it was put back"
    assert [words in line for line in log.refused] == [True]


def test_a_start_that_was_answered_is_answered_no_other_way_after_a_restart(
    session: Session, tmp_path: Path
) -> None:
    assert session.endpoints[NODE].over
    fresh = fake.FakeRelay(session.federation, lambda _: DurableJournal(tmp_path / "two"))
    first, again = fresh.user(USER), fresh.user(USER)
    answer = first.answer(session.questions["start"])
    assert answer[:1] == DONE
    assert first.answer(session.questions["start"]) == answer  # bit for bit
    refused = again.answer(session.questions["start"])
    assert b"AlreadyOpened: session must be a new one, got one this user has started" in refused
