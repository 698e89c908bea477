"""A user by whose fault a session fails is left out of the next; no noise is in two sums."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.train_distributed.federation import fake_relay as fake
from tests.train_distributed.federation.centre_relay import Killed
from train_distributed.federation import operation
from train_distributed.federation.endpoint import UserEndpoint
from train_distributed.federation.operation import run_session
from train_distributed.federation.orders import DONE, REFUSED, Request, join, split, write_order
from train_distributed.federation.progress import Log
from train_distributed.federation.record import SessionLog, settle
from train_distributed.secure_sum.errors import Misbehaviour, ProtocolError
from train_distributed.secure_sum.graph import STARTS
from train_distributed.secure_sum.journal import DurableJournal
from train_distributed.secure_sum.keys import EVERYONE, FIRST_SERVER
from train_distributed.secure_sum.packets import Link
from train_distributed.secure_sum.prg import new_seed
from train_distributed.secure_sum.secagg import SERVER, Advert
from train_distributed.secure_sum.secagg_server import SecAggServer
from train_distributed.secure_sum.wire import Kind, kind_of, payload_of, write

INSIDER = 2


def _killed(*_: Any) -> None:
    raise Killed


Change = Callable[[Any, bytes], bytes]


class Insider:
    """A user's endpoint whose messages of one kind are changed and signed again."""

    def __init__(self, endpoint: UserEndpoint, signing: bytes, kind: Kind, change: Change) -> None:
        self.endpoint, self.signing, self.kind, self.change = endpoint, signing, kind, change
        self.started = 0

    def answer(self, request: bytes) -> bytes:
        answer = self.endpoint.answer(request)
        if answer[:1] != DONE:
            return answer
        messages = split(answer[1:])
        if not messages or len(messages[0]) < 100 or kind_of(messages[0]) != self.kind.name.lower():
            return answer
        self.started += 1
        machine: Any = self.endpoint._user
        receiver = EVERYONE if self.kind is Kind.ADVERTISE else SERVER
        payload = self.change(machine, payload_of(messages[0]))
        session = machine._session
        return DONE + join([write(session, self.kind, INSIDER, receiver, payload, self.signing)])


def _garbage_for_everyone(machine: Any, payload: bytes) -> bytes:
    """Packets whose ciphertexts nobody can open."""
    return _garbage(machine, set(machine._sent))


def _garbage_for_one(machine: Any, payload: bytes) -> bytes:
    return _garbage(machine, {0})


def _garbage(machine: Any, victims: set[int]) -> bytes:
    bad = dict(machine._sent)
    for peer in victims:
        packet = bad[peer]
        body = packet[:40] + bytes([packet[40] ^ 1]) + packet[41:-64]
        link = _link(machine, peer)
        bad[peer] = body + machine._signing.sign(link.context + body)
    return b"".join(bad[peer] for peer in sorted(bad))


def _link(machine: Any, peer: int) -> Any:
    adverts = machine._advert, machine._peers[peer]
    return Link(machine._setup, INSIDER, peer, adverts)


def _wrong_commitment(machine: Any, payload: bytes) -> bytes:
    wrong = payload[:64] + bytes(32) + payload[96:]
    machine._advert = Advert(wrong)
    return wrong


def _run(relay: Any, state: Path, log: Log):
    with fake.operator(relay, log, state, DurableJournal(state / "journal")) as operator:
        return run_session(operator)


def _with_insider(kind: Kind, change: Change, **changes: Any) -> Any:
    relay: Any = fake.volatile(fake.agreement(dropout_fraction=0.2, **changes))
    insider = Insider(relay.endpoints[10 + INSIDER], fake.KEYS[INSIDER].signing, kind, change)
    relay.endpoints[10 + INSIDER] = insider
    return relay


@pytest.mark.parametrize(
    ("kind", "change", "missing"),
    [
        (Kind.KEY_SHARES, _garbage_for_everyone, None),
        (Kind.ADVERTISE, _wrong_commitment, {INSIDER: "unmask"}),
    ],
    ids=["garbage", "false shares"],
)
def test_a_dealer_is_named_and_costs_the_others_nothing(
    kind: Kind, change: Change, missing: Any, tmp_path: Path
) -> None:
    """Also where it shows only when the sum is opened: the others sum the vectors they drew."""
    relay = _with_insider(kind, change)
    log = Log()
    opened = _run(relay, tmp_path, log)
    honest = [user for user in range(fake.W) if user != INSIDER]
    assert opened.users == frozenset(honest)
    assert np.array_equal(opened.total, fake.VECTORS[honest].sum(0))
    assert all(relay.drawn[user] == 1 for user in honest)
    assert relay.endpoints[10 + INSIDER].started == 1
    assert any(f"user {INSIDER}: left out" in line for line in log.refused)
    assert missing is None or log.missing == missing


def test_where_a_partner_is_gone_too_it_costs_an_agreed_session(tmp_path: Path) -> None:
    """Nobody but the partner knows the mask that it shares with the dealer."""
    relay = _with_insider(Kind.ADVERTISE, _wrong_commitment, sessions=2)
    relay.endpoints[10] = Gone(relay.endpoints[10])
    opened = _run(relay, tmp_path, Log())
    honest = [user for user in range(fake.W) if user != INSIDER]
    assert opened.users <= frozenset(honest)
    assert all(relay.drawn[user] == 2 for user in opened.users)


def test_an_operator_killed_before_it_takes_the_masks_off_opens_the_same_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = _with_insider(Kind.ADVERTISE, _wrong_commitment)
    with monkeypatch.context() as patched:
        patched.setattr(SecAggServer, "finish", _killed)
        with pytest.raises(Killed):
            _run(relay, tmp_path, Log())
    relay.endpoints.clear()  # what was answered is written down
    log = Log()
    opened = _run(relay, tmp_path, log)
    honest = [user for user in range(fake.W) if user != INSIDER]
    assert np.array_equal(opened.total, fake.VECTORS[honest].sum(0))
    assert log.missing == {INSIDER: "unmask"}


class Gone:
    """An endpoint that is away when dealers are convicted."""

    def __init__(self, endpoint: UserEndpoint) -> None:
        self.endpoint = endpoint

    def answer(self, request: bytes) -> bytes:
        told = split(request[1:]) if request[:1] == bytes([Request.DELIVER]) else []
        if told and kind_of(told[0]) == Kind.CONVICTED.name.lower():
            return REFUSED + b"away"
        return self.endpoint.answer(request)


def test_where_several_sessions_are_agreed_no_noise_is_in_two_of_them(tmp_path: Path) -> None:
    relay = _with_insider(Kind.KEY_SHARES, _garbage_for_one, sessions=2)
    masked = [user for user in range(fake.W) if user not in (INSIDER, 0)]
    _run(relay, tmp_path, Log())
    assert [relay.drawn[user] for user in masked] == [2] * len(masked)
    assert relay.drawn[0] == 1  # it complained in place of masking


def test_a_user_whose_vector_is_masked_again_has_signed_nothing_before(tmp_path: Path) -> None:
    relay = _with_insider(Kind.KEY_SHARES, _garbage_for_one)
    opened = _run(relay, tmp_path, Log())
    assert INSIDER not in opened.users
    assert all(relay.drawn[user] == 1 for user in opened.users)


def test_a_session_that_fails_by_the_fault_of_users_left_out_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []

    def always(_: Any, exclude: frozenset[int]):
        tries.append(exclude)
        raise Misbehaviour({INSIDER: "broke it"})

    monkeypatch.setattr(operation, "coordinate", always)
    with pytest.raises(Misbehaviour):
        _run(fake.volatile(fake.agreement()), tmp_path, Log())
    assert tries == [frozenset(), frozenset({INSIDER})]


@pytest.mark.parametrize("step", ["leave_out", "forget", "begin"])
@pytest.mark.parametrize("done", [False, True])
def test_an_operator_killed_between_two_sessions_still_knows_whom_it_leaves_out(
    step: str, done: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = _with_insider(Kind.KEY_SHARES, _garbage_for_everyone)
    with monkeypatch.context() as patched:
        plain, calls = getattr(SessionLog, step), []

        def killing(self: SessionLog, *arguments: Any) -> None:
            calls.append(step)
            last = len(calls) == {"leave_out": 1, "forget": 2, "begin": 2}[step]
            if done or not last:
                plain(self, *arguments)
            if last:
                raise Killed

        patched.setattr(SessionLog, step, killing)
        with pytest.raises(Killed):
            _run(relay, tmp_path, Log())
    log = Log()
    opened = _run(relay, tmp_path, log)
    assert INSIDER not in opened.users
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


def test_an_operator_that_gives_up_begins_anew(tmp_path: Path) -> None:
    """Too few are left: whoever starts it again decides for himself."""
    relay = _with_insider(Kind.ADVERTISE, _wrong_commitment)
    relay.endpoints[10] = Gone(relay.endpoints[10])
    with pytest.raises(ProtocolError, match="users present must be >= 3"):
        _run(relay, tmp_path, Log())
    with SessionLog(tmp_path) as record:
        assert record.left_out == {}


def test_an_operator_cannot_start_sessions_until_it_likes_the_graph() -> None:
    relay = fake.volatile(fake.agreement())
    endpoint, federation = relay.endpoints[10], relay.federation

    def start() -> bytes:
        nonce = new_seed()
        body = nonce + federation.session(nonce).bitmap(federation.users)
        keys = fake.KEYS[FIRST_SERVER]
        return endpoint.answer(write_order(federation, Request.START, body, keys))

    assert all(start()[:1] == DONE for _ in range(STARTS))
    refused = start()
    assert refused[:1] == REFUSED
    assert f"sessions started must be <= {STARTS}, got one more".encode() in refused
    assert set(relay.drawn.values()) == {0}
