"""Two sums, and users left out: exact, paid for once, whoever is killed or lies."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.train_distributed.federation import fake_relay as fake
from tests.train_distributed.federation.fake_relay import Killed
from tests.train_distributed.secure_sum.simulate import VolatileJournal
from train_distributed.federation import operation
from train_distributed.federation.centre import FILE, CentreEndpoint, OpenedSums, forget
from train_distributed.federation.endpoint import UserEndpoint
from train_distributed.federation.operation import run_session, run_sums
from train_distributed.federation.orders import DONE, REFUSED, Request, join, split
from train_distributed.federation.progress import Log
from train_distributed.federation.record import SessionLog, settle
from train_distributed.secure_sum.errors import Misbehaviour, ProtocolError, TooFewUsers
from train_distributed.secure_sum.graph import STARTS
from train_distributed.secure_sum.journal import Journal
from train_distributed.secure_sum.keys import EVERYONE, FIRST_SERVER
from train_distributed.secure_sum.opening import Opened
from train_distributed.secure_sum.packets import Link
from train_distributed.secure_sum.prg import new_seed
from train_distributed.secure_sum.secagg import SERVER, Advert
from train_distributed.secure_sum.secagg_server import SecAggServer
from train_distributed.secure_sum.wire import Kind, kind_of, payload_of, write

D = 2  # numbers of the second sum
AGREED = fake.agreement(second_dimension=D)
FIRST = Opened(fake.VECTORS[0], frozenset({0, 2, 4}))


def vector_at(user: int, centre: np.ndarray) -> np.ndarray:
    """What a user submits at a centre; as whole as it is."""
    return (centre[:D].astype(np.int64) * (user + 1) + user).astype(np.uint64)


def publish(opened: Opened, number: int = 0) -> bytes:
    """A centre that depends on the first sum, and on the session as its noise would."""
    return (opened.total % np.uint64(1000) + np.uint64(number)).astype("<f8").tobytes()


class CentreRelay(fake.FakeRelay):
    """`drawn` counts vectors by user and sum; the operator dies at question `dies`."""

    def __init__(self, home: Path, **changes: Any) -> None:
        super().__init__(fake.agreement(second_dimension=D, **changes))
        self.state, self.count, self.dies, self.number = home / "operator", 0, -1, 0
        self.centres: set[bytes] = set()  # orders that were sent
        self.before = self.noted

    def noted(self, node: int, request: bytes) -> None:
        if self.count == self.dies:
            raise Killed
        self.count += 1
        if request[:1] == bytes([Request.CENTRE]):
            self.centres.add(request)

    def user(self, user: int) -> CentreEndpoint:
        def drawn(which: str, vector: np.ndarray) -> np.ndarray:
            self.drawn[user, which] += 1
            return vector

        def second(published: bytes) -> Callable[[], np.ndarray]:
            centre = np.frombuffer(published, "<f8")
            if not np.isfinite(centre).all():
                raise ValueError("centre must be finite, got others")
            return lambda: drawn("second", vector_at(user, centre))

        keys, journal = fake.KEYS[user], self.journals(user)
        first = lambda: drawn("first", fake.VECTORS[user])  # noqa: E731
        return CentreEndpoint(self.federation, user, keys, journal, first, second)

    def operate(self, log: Log | None = None) -> Opened:
        """Both sums, which must be exact; the second one."""
        with fake.operator(self, log or Log(), self.state) as operator:
            made = lambda opened: publish(opened, self.number)  # noqa: E731
            first, second = run_sums(operator, self.state, made)
        assert np.array_equal(first.total, fake.VECTORS.sum(0))
        centre = np.frombuffer(publish(first, self.number), "<f8")
        assert np.array_equal(second.total, sum(vector_at(user, centre) for user in second.users))
        return second


@pytest.fixture
def relay(tmp_path) -> CentreRelay:
    return CentreRelay(tmp_path)


def centre(value: float) -> bytes:
    return np.full(fake.D, value, "<f8").tobytes()


def shown(value: float, signer: int = FIRST_SERVER) -> bytes:
    return fake.order(AGREED, Request.CENTRE, centre(value), signer)


def test_the_second_sum_is_at_the_centre_of_the_first(relay) -> None:
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
def test_an_operator_that_was_killed_goes_on_and_nobody_answers_twice(at, restarted, relay) -> None:
    assert killed_and_started_again(relay, at, restarted)


@pytest.mark.slow
def test_killed_at_every_question_it_goes_on(tmp_path: Path) -> None:
    at = 0
    while killed_and_started_again(CentreRelay(tmp_path / str(at)), at):
        at += 1
    assert at > 50


def test_a_second_sum_that_fails_is_taken_again_at_the_same_centre(relay) -> None:
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


def test_a_user_answers_at_no_more_centres_than_sessions(relay) -> None:
    endpoint, again = relay.endpoints[10], relay.user(0)  # another process of the same user
    more = "sessions must be <= 1, got the centre of one more"
    for asking, order, refusal in (
        (endpoint, shown(0, signer=1), "BadSignature"),
        (endpoint, fake.order(AGREED, Request.CENTRE, 2 * centre(0)), "MalformedMessage"),
        (endpoint, shown(np.nan), "must be finite"),
        (endpoint, shown(0), None),
        (endpoint, shown(0), None),
        (endpoint, shown(1), more),
        (again, shown(1), more),
        (again, shown(0), None),
    ):
        answer = asking.answer(order)
        assert answer[:1] == (DONE if refusal is None else REFUSED)
        assert (refusal or "") in answer[1:].decode()
    assert not relay.drawn
    digests = {AGREED.digest, *(AGREED.at(centre(value)).digest for value in (0, 0, 1))}
    assert len(digests) == 3  # no message at a centre means anything at another


class Noting(VolatileJournal):
    """A journal that notes the steps in their order; its ledger may allow no session."""

    def __init__(self, *, empty: bool = False) -> None:
        super().__init__()
        self.empty, self.steps = empty, list[tuple[bytes, str]]()

    def claim(self, session: bytes, step: str, detail: bytes) -> None:
        if self.empty and session == AGREED.digest and step.startswith("session"):
            raise ValueError("budget must be >= 2, got 1")
        super().claim(session, step, detail)
        self.steps.append((session, step))


def test_a_user_that_comes_late_spends_its_session_before_it_draws() -> None:
    """And one whose ledger allows no session draws no vector."""
    drawn = []

    def asked(journal: Journal) -> None:
        def second(centre: bytes) -> Callable[[], np.ndarray]:
            return lambda: drawn.append(1) or vector_at(0, np.frombuffer(centre, "<f8"))

        endpoint = CentreEndpoint(AGREED, 0, fake.KEYS[0], journal, lambda: fake.VECTORS[0], second)
        endpoint.answer(shown(0))
        nonce = bytes(32)
        assert endpoint.answer(fake.start(AGREED.at(centre(0)), nonce))[:1] == DONE
        now: Any = endpoint._now
        assert isinstance(now, UserEndpoint)
        now._vector(nonce)

    journal = Noting()
    asked(journal)
    assert (AGREED.digest, "session0") in journal.steps
    assert drawn == [1]
    with pytest.raises(ValueError, match="budget must be"):
        asked(Noting(empty=True))
    assert drawn == [1]


INSIDER = 2
HONEST = set(fake.ALL) - {INSIDER}
Change = Callable[[Any, bytes], bytes]
run = partial(fake.operate, run=run_session)


def killed(*_: Any) -> None:
    raise Killed


class Insider:
    """A user's endpoint whose messages of one kind are changed and signed again."""

    def __init__(self, endpoint: Any, kind: Kind, change: Change) -> None:
        self.endpoint, self.kind, self.change, self.started = endpoint, kind, change, 0

    def answer(self, request: bytes) -> bytes:
        answer = self.endpoint.answer(request)
        messages = split(answer[1:]) if answer[:1] == DONE else []
        if not messages or len(messages[0]) < 100 or kind_of(messages[0]) != self.kind.name.lower():
            return answer
        self.started += 1
        machine = self.endpoint._user
        receiver = EVERYONE if self.kind is Kind.ADVERTISE else SERVER
        payload = self.change(machine, payload_of(messages[0]))
        given = machine._session, self.kind, INSIDER, receiver, payload, fake.KEYS[INSIDER].signing
        return DONE + join([write(*given)])


def garbage(machine: Any, payload: bytes, victims: set[int] | None = None) -> bytes:
    """Packets whose ciphertexts the victims cannot open; all of them if left out."""
    bad = dict(machine._sent)
    for peer in victims or bad:
        packet = bad[peer]
        body = packet[:40] + bytes([packet[40] ^ 1]) + packet[41:-64]
        link = Link(machine._setup, INSIDER, peer, (machine._advert, machine._peers[peer]))
        bad[peer] = body + machine._signing.sign(link.context + body)
    return b"".join(bad[peer] for peer in sorted(bad))


def wrong_commitment(machine: Any, payload: bytes) -> bytes:
    wrong = payload[:64] + bytes(32) + payload[96:]
    machine._advert = Advert(wrong)
    return wrong


def with_insider(kind: Kind, change: Change, **changes: Any) -> fake.FakeRelay:
    relay = fake.FakeRelay(fake.agreement(dropout_fraction=0.2, **changes))
    relay.endpoints[10 + INSIDER] = Insider(relay.endpoints[10 + INSIDER], kind, change)
    return relay


def without_verdicts(endpoint: Any) -> fake.Wrapped:
    """An endpoint that is away when dealers are convicted."""

    def verdict(asked: bytes) -> bool:
        told = split(asked[1:]) if asked[:1] == bytes([Request.DELIVER]) else []
        return bool(told) and kind_of(told[0]) == Kind.CONVICTED.name.lower()

    return fake.refusing(endpoint, verdict)


@pytest.mark.parametrize(
    ("kind", "change", "missing"),
    [(Kind.KEY_SHARES, garbage, {}), (Kind.ADVERTISE, wrong_commitment, {INSIDER: "unmask"})],
)
def test_a_dealer_is_named_and_costs_the_others_nothing(kind, change, missing, tmp_path) -> None:
    """Also where it shows only when the sum is opened: the others sum the vectors they drew."""
    relay, log = with_insider(kind, change), Log()
    assert run(relay, log, tmp_path) == HONEST
    assert all(relay.drawn[user] == 1 for user in HONEST)
    assert relay.endpoints[10 + INSIDER].started == 1
    assert any(f"user {INSIDER}: left out" in line for line in log.refused)
    assert log.missing.items() >= missing.items()


@pytest.mark.parametrize("sessions", [1, 2])
def test_where_a_partner_is_gone_too_it_costs_an_agreed_session(sessions, tmp_path) -> None:
    """Nobody but the partner knows the mask that it shares with the dealer."""
    relay = with_insider(Kind.ADVERTISE, wrong_commitment, sessions=sessions)
    relay.endpoints[10] = without_verdicts(relay.endpoints[10])
    if sessions == 2:
        users = run(relay, Log(), tmp_path)
        assert users <= HONEST
        assert all(relay.drawn[user] == 2 for user in users)
        return
    with pytest.raises(ProtocolError, match="users present must be >= 3"):
        run(relay, Log(), tmp_path)
    with SessionLog(tmp_path) as record:
        assert record.left_out == {}  # whoever starts it again decides for himself


def test_an_operator_killed_before_unmasking_opens_the_same_sum(tmp_path, monkeypatch) -> None:
    relay, log = with_insider(Kind.ADVERTISE, wrong_commitment), Log()
    with monkeypatch.context() as patched:
        patched.setattr(SecAggServer, "finish", killed)
        with pytest.raises(Killed):
            run(relay, Log(), tmp_path)
    relay.endpoints.clear()  # what was answered is written down
    assert run(relay, log, tmp_path) == HONEST
    assert log.missing == {INSIDER: "unmask"}


@pytest.mark.parametrize("sessions", [1, 2])
def test_where_several_sessions_are_agreed_no_noise_is_in_two_of_them(sessions, tmp_path) -> None:
    """Where one is, a vector is masked again by users that have signed nothing before."""
    relay = with_insider(Kind.KEY_SHARES, partial(garbage, victims={0}), sessions=sessions)
    assert INSIDER not in run(relay, Log(), tmp_path)
    assert relay.drawn[0] == 1  # it complained in place of masking
    assert [relay.drawn[user] for user in HONEST - {0}] == [sessions] * 3


def test_a_session_that_users_left_out_break_is_not_tried_again(tmp_path, monkeypatch) -> None:
    tries = []

    def always(_: Any, exclude: frozenset[int]):
        tries.append(exclude)
        raise Misbehaviour({INSIDER: "broke it"})

    monkeypatch.setattr(operation, "coordinate", always)
    with pytest.raises(Misbehaviour):
        run(fake.FakeRelay(), Log(), tmp_path)
    assert tries == [frozenset(), frozenset({INSIDER})]


@pytest.mark.parametrize(("step", "at"), [("leave_out", 1), ("forget", 2), ("begin", 2)])
@pytest.mark.parametrize("done", [False, True])
def test_killed_between_sessions_it_knows_whom_it_leaves_out(
    step, at, done, tmp_path, monkeypatch
) -> None:
    relay, log = with_insider(Kind.KEY_SHARES, garbage), Log()
    with monkeypatch.context() as patched:
        plain, calls = getattr(SessionLog, step), []

        def killing(self: SessionLog, *arguments: Any) -> None:
            calls.append(step)
            if done or len(calls) != at:
                plain(self, *arguments)
            if len(calls) == at:
                raise Killed

        patched.setattr(SessionLog, step, killing)
        with pytest.raises(Killed):
            run(relay, Log(), tmp_path)
    assert INSIDER not in run(relay, log, tmp_path)
    assert relay.endpoints[10 + INSIDER].started == 1  # it was not asked again
    assert any(f"user {INSIDER}: left out: " in line for line in log.refused)
    settle(tmp_path)
    with SessionLog(tmp_path) as record:
        assert (record.left_out, record.session) == ({}, None)


def test_an_operator_cannot_start_sessions_until_it_likes_the_graph() -> None:
    relay = fake.FakeRelay()
    starts = [fake.start(relay.federation, new_seed()) for _ in range(STARTS + 1)]
    *answers, refused = map(relay.endpoints[10].answer, starts)
    assert {answer[:1] for answer in answers} == {DONE}
    assert refused[:1] == REFUSED
    assert f"sessions started must be <= {STARTS}, got one more".encode() in refused
    assert not relay.drawn
