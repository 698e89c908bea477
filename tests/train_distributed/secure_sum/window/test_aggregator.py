"""Two aggregators of one window: exact sums, one report a user, one set, one noise."""

import contextlib
import hashlib
from pathlib import Path

import numpy as np
import pytest

from tests.train_distributed.secure_sum.window.conftest import BOUND, CLOSES, OPENS
from train_distributed.proofs.field import InvalidShare
from train_distributed.proofs.pine import Pine
from train_distributed.secure_sum import report_store, reports
from train_distributed.secure_sum.aggregator import COMMIT, OPEN, STATUS, write_order
from train_distributed.secure_sum.errors import (
    AlreadyOpened,
    BadSignature,
    NotYet,
    OutOfOrder,
    ReplayedMessage,
    SetMismatch,
    TooFewUsers,
    WrongSender,
)
from train_distributed.secure_sum.keys import EVERYONE, PrivateKeys
from train_distributed.secure_sum.opening import combine
from train_distributed.secure_sum.report_store import ADDED, REFUSED, ReportStore
from train_distributed.secure_sum.reports import HELPER_MESSAGE_BYTES, check_acknowledgement
from train_distributed.secure_sum.window import HELPER, LEADER
from train_distributed.secure_sum.wire import Kind, payload_of, write
from train_distributed.store.sql import Sqlite


def signed(service, kind: Kind, payload: bytes, by: int = LEADER) -> bytes:
    """What an aggregator could say to everybody."""
    return write(service.window, kind, by, EVERYONE, payload, service.keys[by].signing)


@pytest.mark.parametrize("d", [1, 5, 300])
def test_the_opened_sum_is_the_plain_sum_and_both_noises(make_service, d) -> None:
    service = make_service(4, d)
    service.noise = lambda std, d: np.arange(d) - 3
    service.send(3, 0, 1)
    opened = service.opened()
    expected = sum(map(service.vector, (3, 0, 1))) + 2 * (np.arange(d) - 3)
    np.testing.assert_array_equal(opened.total.view(np.int64), expected)
    assert opened.users == {0, 1, 3}


def test_a_vector_of_just_the_bound_is_taken_and_one_beyond_is_refused_by_name(make_service):
    service = make_service(3)
    edge = np.array([BOUND, 0, 0, 0, 0])
    service.taken(0, service.report(0, edge))
    service.taken(1, service.report(1, np.array([0, BOUND + 7, 0, 0, 0])))
    with pytest.raises(ValueError, match="squared_norm must be <="):
        service.report(2, 10 * edge)
    service.taken(2, service.report(2, np.array([BOUND + 15, 0, 0, 0, 0]), bound=BOUND + 15))
    service.work()
    assert service.stores[LEADER].refused().keys() == {2}
    assert "2: " in service.ordered(LEADER, STATUS).decode()
    assert service.opened().users == {0, 1}


def test_a_proof_that_lies_is_refused_and_the_sum_is_that_of_the_others(make_service, monkeypatch):
    """Ten times too long, with the bits of a short vector's norm."""
    service = make_service(4)
    service.send(0, 1)
    bits = Pine._norm_bits
    with monkeypatch.context() as patched:
        patched.setattr(Pine, "_norm_bits", lambda self, v: bits(self, v // 100))
        service.taken(2, service.report(2, 10 * np.array([BOUND, 0, 0, 0, 0])))
    service.work()
    (why,) = service.stores[HELPER].refused().values()
    assert "proof of Norm" in why
    service.check_sum(0, 1)


def test_a_report_that_is_sent_again_counts_once(make_service) -> None:
    service = make_service()
    report = service.report(0)
    for _ in range(2):
        service.taken(0, report)
    first, second = service.leader.take([report, report])
    assert first == second
    service.work()
    service.taken(0, report)
    service.send(1)
    service.check_sum(0, 1)
    service.taken(0, report)  # also when it is over


def test_another_report_of_the_same_user_is_refused(make_service) -> None:
    service = make_service()
    service.send(0)
    other = service.report(0, service.vector(5))
    assert service.refused(other).startswith("ReplayedMessage: user 0")
    two = [service.report(1), service.report(1, service.vector(6))]
    assert [isinstance(answer, bytes) for answer in service.leader.take(two)] == [True, False]
    service.work()
    assert service.refused(other).startswith("ReplayedMessage: user 0")
    service.check_sum(0, 1)


def test_a_job_is_answered_again_as_before_and_adds_nothing(make_service) -> None:
    service = make_service()
    jobs = []

    def lost(message: bytes) -> bytes:
        jobs.append((message, service.helper.prepare(message)))
        raise OSError("the answer is lost")

    service.send(0, 1)
    for _ in range(2):
        with pytest.raises(OSError, match="lost"):
            service.leader.work(lost)
        service.start(HELPER)
    assert len({answer for _, answer in jobs}) == 1
    service.work()
    service.check_sum(0, 1)


def test_a_report_that_the_leader_alone_refuses_is_taken_back(make_service, monkeypatch) -> None:
    """As where a user names other randomness to the helper than its share to the leader gives."""
    service = make_service()
    service.send(0, 1, 2)
    finish, shares = reports.Prepared.finish, []

    def refuse(self: reports.Prepared, message: bytes):
        if not self.seed and (self.state.out_share == shares[0]).all():
            raise InvalidShare("a test")
        return finish(self, message)

    report = service.stores[LEADER].lines([1])[1].content
    own = reports.check_report(service.enrolled, report)[1]
    shares.append(service.leader._preparer.prepare(1, own).state.out_share)
    monkeypatch.setattr(reports.Prepared, "finish", refuse)
    service.work()
    assert service.stores[HELPER].counts()[ADDED] == 3
    assert service.stores[LEADER].counts()[ADDED] == 2
    service.check_sum(0, 2)


def test_an_altered_answer_of_the_helper_is_not_believed(make_service) -> None:
    service = make_service()
    service.send(0)
    before: list[bytes] = []
    with pytest.raises(BadSignature):  # no signature ends in 0xff
        service.leader.work(lambda job: service.helper.prepare(job)[:-1] + b"\xff")
    service.send(1)
    service.leader.work(lambda job: before.append(service.helper.prepare(job)) or before[0])
    for user in (2, 3):  # as many as before
        service.send(user)
    with pytest.raises(ValueError, match="verdicts must be of this job"):
        service.leader.work(lambda job: before[0])


def test_noise_is_drawn_once_whatever_is_killed(make_service) -> None:
    service = make_service()
    drawn = []

    def noise(std: float, d: int):
        assert std == 100.0
        drawn.append(np.random.default_rng(len(drawn)).integers(-500, 500, d))
        return drawn[-1]

    service.noise = noise
    service.send(0, 1)
    first = service.opened()
    for number in (LEADER, HELPER):
        service.start(number)
    second = service.opened()
    assert len(drawn) == 2
    np.testing.assert_array_equal(first.total, second.total)
    noise_of_both = first.total.view(np.int64) - service.vector(0) - service.vector(1)
    np.testing.assert_array_equal(noise_of_both, drawn[0] + drawn[1])


def test_fewer_than_the_minimum_are_never_opened(make_service) -> None:
    """A report whose proof is refused does not make up the minimum."""
    service = make_service(4, minimum=3)
    service.send(0, 1)
    service.taken(2, service.report(2, np.array([BOUND + 15, 0, 0, 0, 0]), bound=BOUND + 15))
    with pytest.raises(NotYet, match="3 reports must be decided first"):
        service.ordered(LEADER, COMMIT)
    service.work()
    with pytest.raises(TooFewUsers, match="must be >= 3, got 2"):
        service.ordered(LEADER, COMMIT)
    small = signed(service, Kind.COMMIT, b"\3")
    with pytest.raises(TooFewUsers):
        service.ordered(HELPER, COMMIT, [small])
    service.send(3)  # the window goes on
    service.check_sum(0, 1, 3)


def test_after_the_commitment_nothing_is_taken_and_no_other_set_is_opened(make_service) -> None:
    service = make_service()
    service.send(0, 1, 2)
    service.work()
    late = service.report(3)
    commits = service.commits()
    assert service.refused(late).startswith("OutOfOrder")
    assert service.commits() == commits
    other = signed(service, Kind.COMMIT, b"\3")
    with pytest.raises(AlreadyOpened):
        service.ordered(HELPER, COMMIT, [other])
    with pytest.raises(SetMismatch):
        service.ordered(HELPER, OPEN, [other, commits[1]])
    service.start(HELPER)
    with pytest.raises(AlreadyOpened):
        service.ordered(HELPER, COMMIT, [other])
    openings = [service.ordered(number, OPEN, commits) for number in (LEADER, HELPER)]
    assert combine(service.window, commits[0], openings).users == {0, 1, 2}


def test_the_helper_signs_no_set_of_users_it_does_not_hold(make_service) -> None:
    service = make_service()
    service.send(0, 1)
    service.work()
    more = signed(service, Kind.COMMIT, b"\7")
    with pytest.raises(SetMismatch, match=r"got 1 others, \[2\]"):
        service.ordered(HELPER, COMMIT, [more])


def test_nothing_is_opened_before_both_have_committed(make_service) -> None:
    service = make_service()
    service.send(0, 1)
    service.work()
    first = service.ordered(LEADER, COMMIT)
    for number in (LEADER, HELPER):
        with pytest.raises(OutOfOrder):
            service.ordered(number, OPEN, [first])
    both = [first, service.ordered(HELPER, COMMIT, [first])]
    with pytest.raises(ReplayedMessage):
        service.ordered(HELPER, OPEN, [first, first])
    assert service.ordered(LEADER, OPEN, both)


def test_orders_are_the_operators_and_jobs_the_leaders_alone(make_service) -> None:
    service = make_service()
    forged = signed(service, Kind.ORDER, STATUS, by=HELPER)
    with pytest.raises(WrongSender, match="ORDER must come from the operator"):
        service.leader.order(forged)
    with pytest.raises(BadSignature):
        service.leader.order(write_order(service.window, STATUS, [], PrivateKeys.generate()))
    assert service.ordered(HELPER, STATUS) == b"0 reports, 0 refused, open"
    service.send(0)
    sent: list[bytes] = []
    service.leader.work(lambda job: sent.append(job) or service.helper.prepare(job))
    signing = service.users[1].signing
    forged = write(service.window, Kind.JOB, 1, HELPER, payload_of(sent[0]), signing)
    with pytest.raises(WrongSender, match="JOB must come from the leader"):
        service.helper.prepare(forged)
    assert service.stores[HELPER].counts()[ADDED] == 1


def test_what_is_not_a_report_of_this_window_is_refused_by_name(make_service) -> None:
    service, other = make_service(), make_service(folder="1")
    report = service.report(0)
    mixed = report[:-HELPER_MESSAGE_BYTES] + service.report(1)[-HELPER_MESSAGE_BYTES:]
    for wrong, name in (
        (b"", "TruncatedMessage"),
        (report[:-1], "ProtocolError"),
        (other.report(0), "WrongSession"),
        (mixed, "WrongSender: report must be of one user, got 0 and 1"),
        (report[:100] + bytes([report[100] ^ 1]) + report[101:], "BadSignature"),
    ):
        found = service.refused(wrong)
        assert name in found or name == "ProtocolError", found
    service.users[2] = PrivateKeys.generate()
    assert service.refused(service.report(2)).startswith("BadSignature")
    assert sum(service.stores[LEADER].counts().values()) == 0


def test_a_signed_report_that_is_nonsense_is_refused_when_it_is_decided(make_service) -> None:
    """Only its user can make one; it costs the aggregators a job and that user its report."""
    service = make_service()
    message = {}
    for number, size in ((LEADER, 200), (HELPER, HELPER_MESSAGE_BYTES - 118)):
        signing = service.users[0].signing
        message[number] = write(service.window, Kind.SHARE, 0, number, bytes(size), signing)
    service.taken(0, message[LEADER] + message[HELPER])
    service.send(1, 2)
    service.work()
    assert service.stores[LEADER].counts() == {0: 0, ADDED: 2, REFUSED: 1}
    service.check_sum(1, 2)


def test_reports_are_taken_from_opening_to_closing_whatever_the_clock_said(make_service) -> None:
    service = make_service()
    for now in (OPENS - 1, CLOSES, 10 * CLOSES):
        service.now = now
        assert "report must come from 1000 to 2000" in service.refused(service.report(0))
    service.now = OPENS
    service.send(0)
    service.now = CLOSES - 1
    service.send(1)
    service.now = CLOSES + 5
    service.check_sum(0, 1)


def test_an_acknowledgement_is_of_this_leader_user_and_report(make_service) -> None:
    service = make_service()
    report = service.report(0)
    (answer,) = service.leader.take([report])
    assert isinstance(answer, bytes)
    for user, given, signed in ((1, report, answer), (0, report + b"0", answer), (0, report, b"")):
        with pytest.raises(BadSignature):
            check_acknowledgement(service.window, user, given, signed)
    digest = hashlib.sha256(report).digest()
    forged = reports.acknowledge(service.window, 0, digest, service.keys[HELPER])
    with pytest.raises(BadSignature):
        check_acknowledgement(service.window, 0, report, forged)


def test_keys_of_another_aggregator_are_refused(make_service) -> None:
    service = make_service()
    service.keys[LEADER], service.keys[HELPER] = service.keys[HELPER], service.keys[LEADER]
    with pytest.raises(ValueError, match="keys must be those of aggregator 0"):
        service.start(LEADER)


class Shared(Sqlite):
    """SQLite that says it is shared by processes; the statement is the same."""

    skip = " "


@pytest.fixture
def store(make_service, tmp_path: Path):
    sql = Shared(tmp_path / "store.sqlite", "reports")
    with contextlib.closing(ReportStore(sql, make_service(9).window, LEADER)) as opened:
        yield opened


def test_all_that_are_held_are_read_however_many(store: ReportStore, monkeypatch) -> None:
    monkeypatch.setattr(report_store, "PIECE", 2)
    assert not store.held().any()
    users = [0, 1, 2, 4, 5, 7, 8]
    store.keep([(user, bytes(32), b"report") for user in users])
    store.decide({user: "too long" * (user == 4) for user in users}, np.zeros(5, np.uint64))
    assert np.flatnonzero(store.held()).tolist() == [0, 1, 2, 5, 7, 8]


def test_processes_begin_at_numbers_of_their_own_and_leave_none(store, monkeypatch) -> None:
    store.keep([(user, bytes(32), b"%d" % user) for user in (0, 1, 6, 8)])
    monkeypatch.setattr(report_store.secrets, "randbelow", lambda most: 3 if most == 9 else 0)
    seen = []
    for _ in range(4):
        with store.waiting(1) as reports:
            seen += reports.items()
            store.decide(dict.fromkeys(reports, ""), np.zeros(5, np.uint64))
    assert seen == [(6, b"6"), (8, b"8"), (0, b"0"), (1, b"1")]
    with store.waiting(1) as reports:
        assert reports == {}
