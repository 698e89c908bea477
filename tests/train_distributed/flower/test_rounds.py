"""Further rounds over a relay: exact sums, one answer a round, whoever is killed or lies."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from train_distributed.flower.blobs import split
from train_distributed.flower.chain import Chain, forget
from train_distributed.flower.clerk import DONE, REFUSED, Request
from train_distributed.flower.documents.federation import Federation
from train_distributed.flower.orders import write_order
from train_distributed.flower.progress import Log, Progress
from train_distributed.flower.record import Record
from train_distributed.flower.round_desk import RoundsDesk, round_order
from train_distributed.flower.superlink import Operation, run_rounds
from train_distributed.secure_sum.journal import DurableJournal, Journal, VolatileJournal
from train_distributed.secure_sum.opening import Opened
from train_distributed.secure_sum.prg import new_seed
from train_distributed.secure_sum.session import FIRST_SERVER

T, D = 3, 2  # further rounds, numbers in one of them
PROTOCOLS = ["secagg", "shares"]


class Killed(BaseException):
    """Like the end of the process: nobody catches it."""


def vector_at(user: int, weights: np.ndarray) -> np.ndarray:
    """What a user submits at some weights; as whole as they are."""
    return (weights.astype(np.int64) * (user + 1) + user).astype(np.uint64)


def publish(opened: Sequence[Opened]) -> bytes:
    """Weights that depend on everything so far."""
    told = sum(int(each.total.sum() % np.uint64(1000)) for each in opened)
    return np.array([told, len(opened)], "<f8").tobytes()


class Desks:
    """A relay with the desks of rounds at its nodes."""

    def __init__(self, fake: ModuleType, federation: Federation, home: Path) -> None:
        self.fake, self.federation, self.home = fake, federation, home
        self.drawn: dict[tuple[int, Any], int] = {}
        self.desks = {10 + i: self.user(i) for i in range(fake.W)}
        if federation.protocol == "shares":
            server = FIRST_SERVER + 1
            self.desks[20] = RoundsDesk(federation, server, fake.KEYS[server], self.journal(server))
        self.asked, self.dies = 0, -1

    def journal(self, party: int) -> Journal:
        return DurableJournal(self.home / f"party{party}")

    def user(self, user: int) -> RoundsDesk:
        def count(what: Any) -> None:
            self.drawn[user, what] = self.drawn.get((user, what), 0) + 1

        def first() -> np.ndarray:
            count("first")
            return self.fake.VECTORS[user]

        def rounds(weights: np.ndarray) -> Callable[[], np.ndarray]:
            if not np.isfinite(weights).all():
                raise ValueError("weights must be finite, got others")

            def draw() -> np.ndarray:
                count(int(weights[1]))
                return vector_at(user, weights)

            return draw

        keys = self.fake.KEYS[user]
        return RoundsDesk(self.federation, user, keys, self.journal(user), first, rounds)

    def nodes(self) -> dict[int, str]:
        return {node: f"{node:064x}" for node in self.desks}

    def ask_each(self, requests: Any, seconds: float | None = None) -> Any:
        for node, request in requests.items():
            if self.asked == self.dies:
                raise Killed
            self.asked += 1
            yield node, self.desks[node].answer(request)


def operate(desks: Desks, log: Log | None = None) -> list[Opened]:
    state = desks.home / "operator"
    operation = Operation(
        federation=desks.federation,
        keys=desks.fake.KEYS[FIRST_SERVER],
        nodes=(),
        certificates=state,
        host="",
        port=1,
        seconds=0.0,
        state=state,
        run=state,
        say=lambda line: None,
        publish=publish,
    )
    told = Log() if log is None else log
    with Record(state) as record:
        journal = DurableJournal(state / "journal")
        return run_rounds(operation, desks, record, journal, told, Progress(told))


def check(opened: list[Opened], fake: ModuleType) -> None:
    assert np.array_equal(opened[0].total, fake.VECTORS.sum(0))
    for number in range(1, T + 1):
        weights = np.frombuffer(publish(opened[:number]), "<f8")
        total = sum(vector_at(user, weights) for user in range(fake.W))
        assert np.array_equal(opened[number].total, total)


@pytest.fixture
def make(fake: ModuleType, tmp_path: Path) -> Callable[..., Desks]:
    def desks(protocol: str, **changes: Any) -> Desks:
        agreed = fake.agreement(protocol, rounds=T, round_dimension=D, **changes)
        return Desks(fake, agreed, tmp_path)

    return desks


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_round_sums_what_users_submit_at_the_weights_before(
    protocol: str, make: Callable[..., Desks], fake: ModuleType
) -> None:
    desks, log = make(protocol), Log()
    opened = operate(desks, log)
    assert len(opened) == 1 + T
    check(opened, fake)
    assert log.refused == []
    assert len(log.sent_after) == 1 + T
    assert set(desks.drawn.values()) == {1}
    assert len(desks.drawn) == fake.W * (1 + T)
    assert all(desk.over for desk in desks.desks.values())
    assert operate(desks) is not None  # nothing is asked again: it is all on the disk
    assert set(desks.drawn.values()) == {1}


def killed_and_started_again(desks: Desks, fake: ModuleType, at: int) -> bool:
    desks.dies = at
    try:
        opened = operate(desks)
        return False
    except Killed:
        desks.dies = -1
        opened = operate(desks)
    assert len(opened) == 1 + T
    check(opened, fake)
    assert set(desks.drawn.values()) == {1}
    return True


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("at", [17, 62])
def test_an_operator_that_was_killed_goes_on_and_nobody_answers_twice(
    protocol: str, at: int, make: Callable[..., Desks], fake: ModuleType
) -> None:
    assert killed_and_started_again(make(protocol), fake, at)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_killed_at_every_question_it_goes_on(
    protocol: str, fake: ModuleType, tmp_path: Path
) -> None:
    agreed, at = fake.agreement(protocol, rounds=T, round_dimension=D), 0
    while True:
        home = tmp_path / str(at)
        home.mkdir()
        if not killed_and_started_again(Desks(fake, agreed, home), fake, at):
            break
        at += 1
    assert at > 80


def test_a_user_that_was_started_again_answers_no_round_twice(
    make: Callable[..., Desks], fake: ModuleType
) -> None:
    desks = make("shares")
    desks.dies = 60  # somewhere in the rounds
    with pytest.raises(Killed):
        operate(desks)
    desks.desks[11] = desks.user(1)
    desks.dies = -1
    opened = operate(desks)
    assert set(desks.drawn.values()) == {1}
    assert np.array_equal(opened[0].total, fake.VECTORS.sum(0))
    for number in range(1, len(opened)):
        weights = np.frombuffer(publish(opened[:number]), "<f8")
        total = sum(vector_at(user, weights) for user in opened[number].users)
        assert np.array_equal(opened[number].total, total)


def words_of(answer: bytes) -> str:
    assert answer[:1] == REFUSED
    return answer[1:].decode()


def test_a_user_refuses_rounds_that_were_not_agreed_on(
    make: Callable[..., Desks], fake: ModuleType
) -> None:
    desks = make("shares")
    desk, agreed, keys = desks.desks[10], desks.federation, fake.KEYS[FIRST_SERVER]
    chain, weights = new_seed(), np.zeros(D, "<f8").tobytes()
    for number in (0, T + 1, 2**31):
        order = round_order(agreed, chain, number, weights, keys)
        assert f"round must be from 1 to {T} as agreed" in words_of(desk.answer(order))
    order = round_order(agreed, chain, 1, weights, fake.KEYS[1])
    assert "BadSignature" in words_of(desk.answer(order))
    order = round_order(agreed, chain, 1, weights + weights, keys)
    assert "MalformedMessage" in words_of(desk.answer(order))
    order = round_order(agreed, chain, 1, np.full(D, np.nan, "<f8").tobytes(), keys)
    assert "weights must be finite" in words_of(desk.answer(order))
    assert desks.drawn == {}
    order = round_order(agreed, chain, 1, weights, keys)
    assert desk.answer(order)[:1] == DONE
    assert desk.answer(order)[:1] == DONE
    others = round_order(agreed, chain, 1, np.ones(D, "<f8").tobytes(), keys)
    assert "round 1 must be at the weights published for it" in words_of(desk.answer(others))
    another = round_order(agreed, new_seed(), 1, weights, keys)
    assert "sessions must be <= 1, got round 1 of one more" in words_of(desk.answer(another))
    again = desks.user(0)  # another process of the same user knows it too
    assert "must be at the weights" in words_of(again.answer(others))
    assert again.answer(order)[:1] == DONE


def test_no_message_of_a_round_means_anything_in_another(fake: ModuleType) -> None:
    agreed = fake.agreement("shares", rounds=T, round_dimension=D)
    chain, zeros, ones = new_seed(), bytes(16), np.ones(D, "<f8").tobytes()
    digests = {
        agreed.digest,
        *(
            agreed.at(n, c, w).digest
            for n in (1, 2)
            for c in (chain, new_seed())
            for w in (zeros, ones)
        ),
    }
    assert len(digests) == 9
    assert agreed.at(1, chain, zeros).digest == agreed.at(1, chain, zeros).digest


class Spending(VolatileJournal):
    """A journal that tells the steps in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[str] = []

    def claim(self, session: bytes, step: str, detail: bytes) -> None:
        super().claim(session, step, detail)
        self.steps.append(step)


def test_a_user_that_comes_late_spends_its_session_before_a_round(fake: ModuleType) -> None:
    """And one whose ledger allows no session draws no vector."""
    agreed = fake.agreement("shares", rounds=T, round_dimension=D)
    keys, chain, drawn = fake.KEYS[FIRST_SERVER], new_seed(), []

    def at_desk(journal: Journal) -> bytes:
        def rounds(weights: np.ndarray) -> Callable[[], np.ndarray]:
            return lambda: drawn.append(1) or vector_at(0, weights)

        desk = RoundsDesk(agreed, 0, fake.KEYS[0], journal, lambda: fake.VECTORS[0], rounds)
        weights = np.zeros(D, "<f8").tobytes()
        desk.answer(round_order(agreed, chain, 2, weights, keys))
        of_round, nonce = agreed.at(2, chain, weights), new_seed()
        bitmap = of_round.session(nonce).bitmap(range(fake.W))
        started = desk.answer(write_order(of_round, Request.START, nonce + bitmap, keys))
        assert started[:1] == DONE
        return desk.answer(bytes([Request.NEXT, 0]))

    journal = Spending()
    assert len(split(at_desk(journal)[1:])) == 1
    assert journal.steps.index("session0") < len(journal.steps)
    assert "session0" in journal.steps
    assert drawn == [1]

    class Empty(Spending):
        def claim(self, session: bytes, step: str, detail: bytes) -> None:
            if session == agreed.digest and step.startswith("session"):
                raise ValueError("budget must be >= 2, got 1")
            super().claim(session, step, detail)

    assert "budget must be" in words_of(at_desk(Empty()))
    assert drawn == [1]


def test_a_round_that_fails_is_the_last_and_what_was_opened_is_kept(
    make: Callable[..., Desks], fake: ModuleType
) -> None:
    desks, log = make("shares"), Log()
    server = desks.desks[20]

    class Deaf:
        largest_frame, poll_seconds, over = server.largest_frame, server.poll_seconds, False

        def answer(self, request: bytes) -> bytes:
            if request[:1] == bytes([Request.ROUND]) and request[36] == 2:
                return REFUSED + b"no"
            return server.answer(request)

    desks.desks[20] = Deaf()  # pyright: ignore[reportArgumentType]
    opened = operate(desks, log)
    assert len(opened) == 2
    assert any("round 2 was the last" in line for line in log.refused)


def test_two_sessions_are_two_chains(make: Callable[..., Desks], fake: ModuleType) -> None:
    desks = make("shares", sessions=2)
    check(operate(desks), fake)
    assert not any(desk.over for desk in desks.desks.values())
    with Record(desks.home / "operator") as record:
        record.forget()
    forget(desks.home / "operator")
    check(operate(desks), fake)
    assert all(desk.over for desk in desks.desks.values())
    assert set(desks.drawn.values()) == {2}


def test_what_a_chain_keeps_is_what_was_opened(fake: ModuleType, tmp_path: Path) -> None:
    agreed = fake.agreement("secagg", rounds=T, round_dimension=D)
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


@pytest.mark.parametrize("changes", [{"rounds": 2}, {"round_dimension": 2}, {"rounds": -1}])
def test_rounds_without_their_dimension_are_refused(
    changes: dict[str, int], fake: ModuleType
) -> None:
    with pytest.raises(ValueError, match="rounds and round_dimension must be > 0 together"):
        fake.agreement("shares", **changes)


def test_a_federation_without_rounds_is_what_it_was(fake: ModuleType, tmp_path: Path) -> None:
    for agreed in (
        fake.agreement("shares"),
        fake.agreement("shares", rounds=T, round_dimension=D),
    ):
        agreed.save(tmp_path / "federation.json")
        assert ("rounds" in (tmp_path / "federation.json").read_text()) == (agreed.rounds > 0)
        assert Federation.load(tmp_path / "federation.json").digest == agreed.digest
