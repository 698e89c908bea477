"""A user by whose fault a session fails is left out of the next; no noise is in two sums."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.train_distributed.federation import fake_relay as fake
from tests.train_distributed.federation.fake_relay import Killed
from train_distributed.federation import operation
from train_distributed.federation.operation import run_session
from train_distributed.federation.orders import DONE, REFUSED, Request, join, split
from train_distributed.federation.progress import Log
from train_distributed.federation.record import SessionLog, settle
from train_distributed.secure_sum.errors import Misbehaviour, ProtocolError
from train_distributed.secure_sum.graph import STARTS
from train_distributed.secure_sum.keys import EVERYONE
from train_distributed.secure_sum.packets import Link
from train_distributed.secure_sum.prg import new_seed
from train_distributed.secure_sum.secagg import SERVER, Advert
from train_distributed.secure_sum.secagg_server import SecAggServer
from train_distributed.secure_sum.wire import Kind, kind_of, payload_of, write

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
    ids=["garbage", "false shares"],
)
def test_a_dealer_is_named_and_costs_the_others_nothing(
    kind: Kind, change: Change, missing: dict[int, str], tmp_path: Path
) -> None:
    """Also where it shows only when the sum is opened: the others sum the vectors they drew."""
    relay, log = with_insider(kind, change), Log()
    assert run(relay, log, tmp_path) == HONEST
    assert all(relay.drawn[user] == 1 for user in HONEST)
    assert relay.endpoints[10 + INSIDER].started == 1
    assert any(f"user {INSIDER}: left out" in line for line in log.refused)
    assert log.missing.items() >= missing.items()


@pytest.mark.parametrize("sessions", [1, 2])
def test_where_a_partner_is_gone_too_it_costs_an_agreed_session(
    sessions: int, tmp_path: Path
) -> None:
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


def test_an_operator_killed_before_it_takes_the_masks_off_opens_the_same_sum(
    tmp_path: Path, monkeypatch
) -> None:
    relay, log = with_insider(Kind.ADVERTISE, wrong_commitment), Log()
    with monkeypatch.context() as patched:
        patched.setattr(SecAggServer, "finish", killed)
        with pytest.raises(Killed):
            run(relay, Log(), tmp_path)
    relay.endpoints.clear()  # what was answered is written down
    assert run(relay, log, tmp_path) == HONEST
    assert log.missing == {INSIDER: "unmask"}


@pytest.mark.parametrize("sessions", [1, 2])
def test_where_several_sessions_are_agreed_no_noise_is_in_two_of_them(
    sessions: int, tmp_path: Path
) -> None:
    """Where one is, a vector is masked again by users that have signed nothing before."""
    relay = with_insider(Kind.KEY_SHARES, partial(garbage, victims={0}), sessions=sessions)
    assert INSIDER not in run(relay, Log(), tmp_path)
    assert relay.drawn[0] == 1  # it complained in place of masking
    assert [relay.drawn[user] for user in HONEST - {0}] == [sessions] * 3


def test_a_session_that_fails_by_the_fault_of_users_left_out_is_not_tried_again(
    tmp_path: Path, monkeypatch
) -> None:
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
def test_an_operator_killed_between_two_sessions_still_knows_whom_it_leaves_out(
    step: str, at: int, done: bool, tmp_path: Path, monkeypatch
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


def test_who_is_left_out_is_read_strictly(tmp_path: Path) -> None:
    with SessionLog(tmp_path) as record:
        record.leave_out({3: "complained\n" * 100, 1: "lied"})
    with SessionLog(tmp_path) as record:
        assert record.left_out.keys() == {1, 3}
    for bad in ("", "[]", '{"left_out": {"x": "lied"}}', '{"left_out": {"3": 4}}', "{"):
        (tmp_path / "left-out.json").write_text(bad)
        with pytest.raises(ValueError, match=r"left-out\.json"), SessionLog(tmp_path):
            pass


def test_an_operator_cannot_start_sessions_until_it_likes_the_graph() -> None:
    relay = fake.FakeRelay()
    starts = [fake.start(relay.federation, new_seed()) for _ in range(STARTS + 1)]
    *answers, refused = map(relay.endpoints[10].answer, starts)
    assert {answer[:1] for answer in answers} == {DONE}
    assert refused[:1] == REFUSED
    assert f"sessions started must be <= {STARTS}, got one more".encode() in refused
    assert not relay.drawn
