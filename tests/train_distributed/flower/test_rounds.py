"""Further rounds over a relay: exact sums, one answer a round, whoever is killed or lies."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.train_distributed.flower import fake_relay as fake
from tests.train_distributed.flower.rounds_relay import (
    D,
    Endpoints,
    Killed,
    T,
    check,
    operate,
    publish,
    vector_at,
)
from train_distributed.flower.chain import FILE, Chain, forget
from train_distributed.flower.orders import REFUSED, Request
from train_distributed.flower.progress import Log
from train_distributed.flower.record import Record
from train_distributed.secure_sum.opening import Opened
from train_distributed.secure_sum.prg import new_seed
from train_distributed.secure_sum.wire import words_to_bytes


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Endpoints]:
    def endpoints(**changes: Any) -> Endpoints:
        agreed = fake.agreement(rounds=T, round_dimension=D, **changes)
        return Endpoints(agreed, tmp_path)

    return endpoints


def test_every_round_sums_what_users_submit_at_the_weights_before(
    make: Callable[..., Endpoints],
) -> None:
    endpoints, log = make(), Log()
    opened = operate(endpoints, log)
    assert len(opened) == 1 + T
    check(opened)
    assert log.refused == []
    assert len(log.sent_after) == 1 + T
    assert set(endpoints.drawn.values()) == {1}
    assert len(endpoints.drawn) == fake.W * (1 + T)
    assert all(endpoint.over for endpoint in endpoints.endpoints.values())
    assert operate(endpoints) is not None  # nothing is asked again: it is all on the disk
    assert set(endpoints.drawn.values()) == {1}


def killed_and_started_again(endpoints: Endpoints, at: int) -> bool:
    endpoints.dies = at
    try:
        opened = operate(endpoints)
        return False
    except Killed:
        endpoints.dies = -1
        opened = operate(endpoints)
    assert len(opened) == 1 + T
    check(opened)
    assert set(endpoints.drawn.values()) == {1}
    return True


@pytest.mark.parametrize("at", [17, 62])
def test_an_operator_that_was_killed_goes_on_and_nobody_answers_twice(
    at: int, make: Callable[..., Endpoints]
) -> None:
    assert killed_and_started_again(make(), at)


@pytest.mark.slow
def test_killed_at_every_question_it_goes_on(tmp_path: Path) -> None:
    agreed, at = fake.agreement(rounds=T, round_dimension=D), 0
    while True:
        home = tmp_path / str(at)
        home.mkdir()
        if not killed_and_started_again(Endpoints(agreed, home), at):
            break
        at += 1
    assert at > 80


def test_a_user_that_was_started_again_answers_no_round_twice(
    make: Callable[..., Endpoints],
) -> None:
    endpoints = make()
    endpoints.dies = 60  # somewhere in the rounds
    with pytest.raises(Killed):
        operate(endpoints)
    endpoints.endpoints[11] = endpoints.user(1)
    endpoints.dies = -1
    opened = operate(endpoints)
    assert set(endpoints.drawn.values()) == {1}
    assert np.array_equal(opened[0].total, fake.VECTORS.sum(0))
    for number in range(1, len(opened)):
        weights = np.frombuffer(publish(opened[:number]), "<f8")
        total = sum(vector_at(user, weights) for user in opened[number].users)
        assert np.array_equal(opened[number].total, total)


def test_a_round_that_fails_is_the_last_and_what_was_opened_is_kept(
    make: Callable[..., Endpoints],
) -> None:
    endpoints, log = make(), Log()
    agreed = endpoints.endpoints[10]

    class Deaf:
        largest_frame, poll_seconds, over = agreed.largest_frame, agreed.poll_seconds, False

        def __init__(self, node: int) -> None:
            self._user = endpoints.endpoints[node]

        def answer(self, request: bytes) -> bytes:
            if request[:1] == bytes([Request.ROUND]) and request[36] == 2:
                return REFUSED + b"no"
            return self._user.answer(request)

    for node in (10, 11, 12):  # two are left, and three are the fewest
        endpoints.endpoints[node] = Deaf(node)  # pyright: ignore[reportArgumentType]
    opened = operate(endpoints, log)
    assert len(opened) == 2
    assert any("round 2 was the last" in line for line in log.refused)


def test_two_sessions_are_two_chains(make: Callable[..., Endpoints]) -> None:
    endpoints = make(sessions=2)
    check(operate(endpoints))
    assert not any(endpoint.over for endpoint in endpoints.endpoints.values())
    with Record(endpoints.home / "operator") as record:
        record.forget()
    forget(endpoints.home / "operator")
    check(operate(endpoints))
    assert all(endpoint.over for endpoint in endpoints.endpoints.values())
    assert set(endpoints.drawn.values()) == {2}


def test_what_a_chain_keeps_is_what_was_opened(tmp_path: Path) -> None:
    agreed = fake.agreement(rounds=T, round_dimension=D)
    chain = Chain(tmp_path, agreed)
    first = Opened(fake.VECTORS[0], frozenset({0, 2, 4}))
    chain.keep(0, first)
    chain.keep(1, Opened(np.array([5, 2**64 - 1], np.uint64), frozenset({1, 3})))
    again = Chain(tmp_path, agreed)
    assert again.identity == chain.identity
    assert [each.users for each in again.opened] == [{0, 2, 4}, {1, 3}]
    assert np.array_equal(again.opened[0].total, first.total)
    assert again.opened[1].total.tolist() == [5, 2**64 - 1]
    assert chain.weights(2, publish) == again.weights(2, lambda opened: b"other")
    forget(tmp_path)
    assert Chain(tmp_path, agreed).identity != chain.identity


def test_a_chain_that_is_being_forgotten_is_no_part_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the first file is gone, an operator would take old sums for new ones."""
    agreed = fake.agreement(rounds=T, round_dimension=D)

    def killed(path: Path, **_: bool) -> None:
        if path.exists():
            (path / FILE).unlink()
            raise Killed

    Chain(tmp_path, agreed).keep(0, Opened(fake.VECTORS[0], frozenset({0, 2, 4})))
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", killed)
        with pytest.raises(Killed):
            forget(tmp_path)
    assert Chain(tmp_path, agreed).opened == []
    forget(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_chain_of_before_goes_on(tmp_path: Path) -> None:
    """Version 0.1 wrote a file for each of its parts."""
    agreed = fake.agreement(rounds=T, round_dimension=D)
    bitmap = agreed.session(bytes(32)).bitmap(frozenset({0, 2, 4}))
    (tmp_path / "rounds" / "round1").mkdir(parents=True)
    identity, total = new_seed(), fake.VECTORS[0]
    for name, content in (("chain", identity), ("opened0", bitmap + words_to_bytes(total))):
        (tmp_path / "rounds" / name).write_bytes(content)
    chain = Chain(tmp_path, agreed)
    assert chain.identity == identity
    (opened,) = chain.opened
    assert np.array_equal(opened.total, total)
    chain.keep(1, Opened(vector_at(0, np.zeros(D)), frozenset({0, 2, 4})))
    assert len(Chain(tmp_path, agreed).opened) == 2
