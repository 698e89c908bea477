"""Two sums over a relay: exact, each answered once and paid for, whoever is killed or lies."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.train_distributed.federation import fake_relay as fake
from tests.train_distributed.federation.centre_relay import CentreRelay, D, publish, vector_at
from tests.train_distributed.federation.fake_relay import Killed
from tests.train_distributed.secure_sum.simulate import VolatileJournal
from train_distributed.federation.centre import FILE, CentreEndpoint, OpenedSums, forget
from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.endpoint import UserEndpoint
from train_distributed.federation.orders import DONE, REFUSED, Request
from train_distributed.federation.progress import Log
from train_distributed.federation.record import SessionLog
from train_distributed.secure_sum.errors import TooFewUsers
from train_distributed.secure_sum.journal import Journal
from train_distributed.secure_sum.keys import FIRST_SERVER
from train_distributed.secure_sum.opening import Opened

AGREED = fake.agreement(second_dimension=D)
FIRST = Opened(fake.VECTORS[0], frozenset({0, 2, 4}))


@pytest.fixture
def relay(tmp_path: Path) -> CentreRelay:
    return CentreRelay(tmp_path)


def centre(value: float) -> bytes:
    return np.full(fake.D, value, "<f8").tobytes()


def shown(agreed: Federation, value: float, signer: int = FIRST_SERVER) -> bytes:
    return fake.order(agreed, Request.CENTRE, centre(value), signer)


def test_the_second_sum_is_at_the_centre_of_the_first(relay: CentreRelay) -> None:
    log = Log()
    relay.operate(log)
    assert log.refused == []
    assert set(relay.drawn.values()) == {1}
    assert len(relay.drawn) == fake.W * 2
    assert all(endpoint.over for endpoint in relay.endpoints.values())
    asked, session = relay.count, log.session
    relay.operate(log)  # nothing is asked again: it is all on the disk
    assert (relay.count, log.session) == (asked, session)


def killed_and_started_again(relay: CentreRelay, at: int, restarted: tuple[int, ...] = ()) -> bool:
    relay.dies = at
    try:
        relay.operate()
        return False
    except Killed:
        relay.dies = -1
    for user in restarted:
        relay.endpoints[10 + user] = relay.user(user)
    assert len(relay.operate().users) >= fake.W - len(restarted)
    assert set(relay.drawn.values()) == {1}
    return True


@pytest.mark.parametrize(("at", "restarted"), [(17, ()), (48, ()), (56, (1,))])
def test_an_operator_that_was_killed_goes_on_and_nobody_answers_twice(
    at: int, restarted: tuple[int, ...], relay: CentreRelay
) -> None:
    """Not even a user that was started again in the second sum."""
    assert killed_and_started_again(relay, at, restarted)


@pytest.mark.slow
def test_killed_at_every_question_it_goes_on(tmp_path: Path) -> None:
    at = 0
    while killed_and_started_again(CentreRelay(tmp_path / str(at)), at):
        at += 1
    assert at > 50


def test_a_second_sum_that_fails_is_taken_again_at_the_same_centre(relay: CentreRelay) -> None:
    users = dict(relay.endpoints)
    for node in (10, 11, 12):  # two are left, and three are the fewest
        away = fake.refusing(users[node], lambda asked: asked[0] == Request.CENTRE)
        relay.endpoints[node] = away
    with pytest.raises(TooFewUsers):
        relay.operate()
    assert {which for _, which in relay.drawn} == {"first"}
    relay.endpoints = users
    relay.operate()
    (order,) = relay.centres
    assert publish(Opened(fake.VECTORS.sum(0), fake.ALL)) in order
    assert set(relay.drawn.values()) == {1}


def test_two_sessions_have_two_centres(tmp_path: Path) -> None:
    relay = CentreRelay(tmp_path, sessions=2)
    relay.operate()
    assert not any(endpoint.over for endpoint in relay.endpoints.values())
    with SessionLog(relay.state) as record:
        record.forget()
    forget(relay.state)
    relay.number = 1  # as fresh noise would have it
    relay.operate()
    assert all(endpoint.over for endpoint in relay.endpoints.values())
    assert set(relay.drawn.values()) == {2}


def test_what_an_operator_keeps_is_what_was_opened(tmp_path: Path) -> None:
    sums = OpenedSums(tmp_path, AGREED)
    sums.keep(0, FIRST)
    published = sums.centre(publish)
    sums.keep(1, Opened(np.array([5, 2**64 - 1], np.uint64), frozenset({1, 3})))
    again = OpenedSums(tmp_path, AGREED)
    assert [each.users for each in again.opened] == [FIRST.users, {1, 3}]
    assert np.array_equal(again.opened[0].total, FIRST.total)
    assert again.opened[1].total.tolist() == [5, 2**64 - 1]
    assert again.centre(lambda opened: b"other") == published
    forget(tmp_path)
    assert OpenedSums(tmp_path, AGREED).opened == []


def test_sums_that_are_being_forgotten_are_no_part_of_the_next(tmp_path: Path, monkeypatch) -> None:
    """Killed after the first file is gone, an operator would take old sums for new ones."""

    def killed(path: Path, **_: bool) -> None:
        if path.exists():
            (path / FILE).unlink()
            raise Killed

    OpenedSums(tmp_path, AGREED).keep(0, FIRST)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", killed)
        with pytest.raises(Killed):
            forget(tmp_path)
    assert OpenedSums(tmp_path, AGREED).opened == []
    forget(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_user_answers_at_no_more_centres_than_sessions(relay: CentreRelay) -> None:
    endpoint, again = relay.endpoints[10], relay.user(0)  # another process of the same user
    more = "sessions must be <= 1, got the centre of one more"
    for asking, order, refusal in (
        (endpoint, shown(AGREED, 0, signer=1), "BadSignature"),
        (endpoint, fake.order(AGREED, Request.CENTRE, 2 * centre(0)), "MalformedMessage"),
        (endpoint, shown(AGREED, np.nan), "must be finite"),
        (endpoint, shown(AGREED, 0), None),
        (endpoint, shown(AGREED, 0), None),
        (endpoint, shown(AGREED, 1), more),
        (again, shown(AGREED, 1), more),
        (again, shown(AGREED, 0), None),
    ):
        answer = asking.answer(order)
        assert answer[:1] == (DONE if refusal is None else REFUSED)
        assert (refusal or "") in answer[1:].decode()
    assert not relay.drawn


def test_no_message_at_a_centre_means_anything_at_another() -> None:
    digests = {AGREED.digest, *(AGREED.at(centre(value)).digest for value in (0, 0, 1))}
    assert len(digests) == 3


class Spending(VolatileJournal):
    """A journal that notes the steps in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[bytes, str]] = []

    def claim(self, session: bytes, step: str, detail: bytes) -> None:
        super().claim(session, step, detail)
        self.steps.append((session, step))


class Empty(VolatileJournal):
    """A journal whose ledger allows no session."""

    def claim(self, session: bytes, step: str, detail: bytes) -> None:
        if session == AGREED.digest and step.startswith("session"):
            raise ValueError("budget must be >= 2, got 1")
        super().claim(session, step, detail)


def test_a_user_that_comes_late_spends_its_session_before_it_draws() -> None:
    """And one whose ledger allows no session draws no vector."""
    drawn = []

    def asked(journal: Journal) -> None:
        def second(centre: bytes) -> Callable[[], np.ndarray]:
            return lambda: drawn.append(1) or vector_at(0, np.frombuffer(centre, "<f8"))

        endpoint = CentreEndpoint(AGREED, 0, fake.KEYS[0], journal, lambda: fake.VECTORS[0], second)
        endpoint.answer(shown(AGREED, 0))
        nonce = bytes(32)
        assert endpoint.answer(fake.start(AGREED.at(centre(0)), nonce))[:1] == DONE
        now: Any = endpoint._now
        assert isinstance(now, UserEndpoint)
        now._vector(nonce)

    journal = Spending()
    asked(journal)
    assert (AGREED.digest, "session0") in journal.steps
    assert drawn == [1]
    with pytest.raises(ValueError, match="budget must be"):
        asked(Empty())
    assert drawn == [1]
