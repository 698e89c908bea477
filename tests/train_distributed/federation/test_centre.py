"""Two sums over a relay: exact, each answered once and paid for, whoever is killed or lies."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.train_distributed.federation import fake_relay as fake
from tests.train_distributed.federation.centre_relay import (
    D,
    Endpoints,
    Killed,
    check,
    operate,
    publish,
    vector_at,
)
from train_distributed.federation.centre import FILE, CentreEndpoint, OpenedSums, forget
from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.endpoint import UserEndpoint
from train_distributed.federation.orders import DONE, REFUSED, Request, write_order
from train_distributed.federation.progress import Log
from train_distributed.federation.record import SessionLog
from train_distributed.secure_sum.errors import TooFewUsers
from train_distributed.secure_sum.journal import Journal, VolatileJournal
from train_distributed.secure_sum.keys import FIRST_SERVER, PrivateKeys
from train_distributed.secure_sum.opening import Opened
from train_distributed.secure_sum.prg import new_seed

OPERATOR = fake.KEYS[FIRST_SERVER]


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Endpoints]:
    def endpoints(home: str = ".", **changes: Any) -> Endpoints:
        (tmp_path / home).mkdir(exist_ok=True)
        return Endpoints(fake.agreement(second_dimension=D, **changes), tmp_path / home)

    return endpoints


def centre_order(agreed: Federation, value: float, keys: PrivateKeys = OPERATOR) -> bytes:
    return write_order(agreed, Request.CENTRE, _centre(agreed, value), keys)


def _centre(agreed: Federation, value: float) -> bytes:
    return np.full(agreed.dimension, value, "<f8").tobytes()


def words_of(answer: bytes) -> str:
    assert answer[:1] == REFUSED
    return answer[1:].decode()


def test_the_second_sum_is_at_the_centre_of_the_first(make: Callable[..., Endpoints]) -> None:
    endpoints, log = make(), Log()
    check(operate(endpoints, log))
    assert log.refused == []
    assert set(endpoints.drawn.values()) == {1}
    assert len(endpoints.drawn) == fake.W * 2
    assert all(endpoint.over for endpoint in endpoints.endpoints.values())
    asked, session = endpoints.asked, log.session
    check(operate(endpoints, log))  # nothing is asked again: it is all on the disk
    assert (endpoints.asked, log.session) == (asked, session)


def killed_and_started_again(endpoints: Endpoints, at: int) -> bool:
    endpoints.dies = at
    try:
        operate(endpoints)
        return False
    except Killed:
        endpoints.dies = -1
        opened = operate(endpoints)
    check(opened)
    assert len(opened[1].users) == fake.W
    assert set(endpoints.drawn.values()) == {1}
    return True


@pytest.mark.parametrize("at", [17, 48])
def test_an_operator_that_was_killed_goes_on_and_nobody_answers_twice(
    at: int, make: Callable[..., Endpoints]
) -> None:
    assert killed_and_started_again(make(), at)


@pytest.mark.slow
def test_killed_at_every_question_it_goes_on(make: Callable[..., Endpoints]) -> None:
    at = 0
    while killed_and_started_again(make(str(at)), at):
        at += 1
    assert at > 50


def test_a_user_that_was_started_again_answers_no_centre_twice(
    make: Callable[..., Endpoints],
) -> None:
    endpoints = make()
    endpoints.dies = 56  # somewhere in the second sum
    with pytest.raises(Killed):
        operate(endpoints)
    endpoints.endpoints[11] = endpoints.user(1)
    endpoints.dies = -1
    check(operate(endpoints))
    assert set(endpoints.drawn.values()) == {1}


def test_a_second_sum_that_fails_is_taken_again_at_the_same_centre(
    make: Callable[..., Endpoints],
) -> None:
    endpoints = make()
    endpoints.deaf = {10, 11, 12}  # two are left, and three are the fewest
    with pytest.raises(TooFewUsers):
        operate(endpoints)
    assert {which for _, which in endpoints.drawn} == {"first"}
    endpoints.deaf = set()
    opened = operate(endpoints)
    check(opened)
    (order,) = endpoints.centres
    assert publish(opened[0]) in order
    assert set(endpoints.drawn.values()) == {1}


def test_two_sessions_have_two_centres(make: Callable[..., Endpoints]) -> None:
    endpoints = make(sessions=2)
    check(operate(endpoints))
    assert not any(endpoint.over for endpoint in endpoints.endpoints.values())
    with SessionLog(endpoints.home / "operator") as record:
        record.forget()
    forget(endpoints.home / "operator")
    endpoints.number = 1  # as fresh noise would have it
    check(operate(endpoints), 1)
    assert all(endpoint.over for endpoint in endpoints.endpoints.values())
    assert set(endpoints.drawn.values()) == {2}


def test_what_an_operator_keeps_is_what_was_opened(tmp_path: Path) -> None:
    agreed = fake.agreement(second_dimension=D)
    sums, first = OpenedSums(tmp_path, agreed), Opened(fake.VECTORS[0], frozenset({0, 2, 4}))
    sums.keep(0, first)
    centre = sums.centre(publish)
    sums.keep(1, Opened(np.array([5, 2**64 - 1], np.uint64), frozenset({1, 3})))
    again = OpenedSums(tmp_path, agreed)
    assert [each.users for each in again.opened] == [{0, 2, 4}, {1, 3}]
    assert np.array_equal(again.opened[0].total, first.total)
    assert again.opened[1].total.tolist() == [5, 2**64 - 1]
    assert again.centre(lambda opened: b"other") == centre
    forget(tmp_path)
    assert OpenedSums(tmp_path, agreed).opened == []


def test_sums_that_are_being_forgotten_are_no_part_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the first file is gone, an operator would take old sums for new ones."""
    agreed = fake.agreement(second_dimension=D)

    def killed(path: Path, **_: bool) -> None:
        if path.exists():
            (path / FILE).unlink()
            raise Killed

    OpenedSums(tmp_path, agreed).keep(0, Opened(fake.VECTORS[0], frozenset({0, 2, 4})))
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", killed)
        with pytest.raises(Killed):
            forget(tmp_path)
    assert OpenedSums(tmp_path, agreed).opened == []
    forget(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_user_answers_at_no_more_centres_than_sessions(make: Callable[..., Endpoints]) -> None:
    endpoints = make()
    endpoint, agreed = endpoints.endpoints[10], endpoints.federation
    assert "BadSignature" in words_of(endpoint.answer(centre_order(agreed, 0, fake.KEYS[1])))
    long = write_order(agreed, Request.CENTRE, 2 * _centre(agreed, 0), OPERATOR)
    assert "MalformedMessage" in words_of(endpoint.answer(long))
    assert "must be finite" in words_of(endpoint.answer(centre_order(agreed, np.nan)))
    assert endpoints.drawn == {}
    order, another = centre_order(agreed, 0), centre_order(agreed, 1)
    assert endpoint.answer(order)[:1] == DONE
    assert endpoint.answer(order)[:1] == DONE
    refusal = "sessions must be <= 1, got the centre of one more"
    assert refusal in words_of(endpoint.answer(another))
    again = endpoints.user(0)  # another process of the same user knows it too
    assert refusal in words_of(again.answer(another))
    assert again.answer(order)[:1] == DONE


def test_no_message_at_a_centre_means_anything_at_another() -> None:
    agreed = fake.agreement(second_dimension=D)
    digests = {agreed.digest, *(agreed.at(_centre(agreed, value)).digest for value in (0, 0, 1))}
    assert len(digests) == 3


class Spending(VolatileJournal):
    """A journal that notes the steps in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[bytes, str]] = []

    def claim(self, session: bytes, step: str, detail: bytes) -> None:
        super().claim(session, step, detail)
        self.steps.append((session, step))


def test_a_user_that_comes_late_spends_its_session_before_it_draws() -> None:
    """And one whose ledger allows no session draws no vector."""
    agreed, drawn = fake.agreement(second_dimension=D), []

    def asked(journal: Journal) -> None:
        def second(centre: bytes) -> Callable[[], np.ndarray]:
            return lambda: drawn.append(1) or vector_at(0, np.frombuffer(centre, "<f8"))

        endpoint = CentreEndpoint(agreed, 0, fake.KEYS[0], journal, lambda: fake.VECTORS[0], second)
        endpoint.answer(centre_order(agreed, 0))
        at, nonce = agreed.at(_centre(agreed, 0)), new_seed()
        bitmap = at.session(nonce).bitmap(range(fake.W))
        started = endpoint.answer(write_order(at, Request.START, nonce + bitmap, OPERATOR))
        assert started[:1] == DONE
        assert isinstance(endpoint._now, UserEndpoint)
        endpoint._now._vector(nonce)

    journal = Spending()
    asked(journal)
    assert (agreed.digest, "session0") in journal.steps
    assert drawn == [1]

    class Empty(Spending):
        def claim(self, session: bytes, step: str, detail: bytes) -> None:
            if session == agreed.digest and step.startswith("session"):
                raise ValueError("budget must be >= 2, got 1")
            super().claim(session, step, detail)

    with pytest.raises(ValueError, match="budget must be"):
        asked(Empty())
    assert drawn == [1]


def test_a_federation_of_rounds_is_refused(tmp_path: Path) -> None:
    """As former versions wrote them."""
    path = tmp_path / "federation.json"
    fake.agreement().save(path)
    path.write_text(path.read_text().replace("{", '{"rounds": 8, "round_dimension": 5, ', 1))
    with pytest.raises(ValueError, match=r"federation\.json: rounds must be left out"):
        Federation.load(path)
