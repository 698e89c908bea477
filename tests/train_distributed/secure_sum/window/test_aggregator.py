"""Adders of a window: each report counts once, one set is opened once, whatever is sent."""

import itertools

import numpy as np
import pytest

from train_distributed.secure_sum import reports as reports_module
from train_distributed.secure_sum.aggregator import COMMIT, OPEN, REFUSED, STATUS, write_order
from train_distributed.secure_sum.errors import BadSignature, SetMismatch
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.opening import combine
from train_distributed.secure_sum.parties import FIRST_SERVER
from train_distributed.secure_sum.reports import check_acknowledgement, make_report


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("adders", [2, 3, 5])
@pytest.mark.parametrize("d", [1, 5, 2**14 + 3])  # a stream of several chunks, half a word left
def test_the_opened_sum_is_the_plain_sum(make_service, vector, bits, adders, d) -> None:
    service = make_service(4, d, adders=adders, bits=bits)
    for user in (3, 0, 2):
        service.send(user, vector(user, d))
    opened = service.opened()
    assert opened.users == {0, 2, 3}
    expected = sum((vector(u, d) for u in (0, 2, 3)), np.zeros(d, np.uint64))
    assert opened.total.dtype == np.uint64
    assert opened.total.tolist() == expected.tolist()


def test_the_border_of_32_bits(make_service) -> None:
    """2^31 - 1 and -2^31 come back as they are; one beyond wraps around."""
    for shift, expected in ((0, [2**31 - 1, -(2**31)]), (1, [-(2**31), 2**31 - 1])):
        service = make_service(2, 2, folder=str(shift))
        service.send(0, np.array([2**30, -(2**30)], np.int64).view(np.uint64))
        service.send(1, np.array([2**30 - 1 + shift, -(2**30) - shift], np.int64).view(np.uint64))
        assert service.opened().total.view(np.int64).tolist() == expected


def test_a_report_that_is_sent_again_counts_once(make_service, vector) -> None:
    service = make_service()
    for _ in range(3):
        for user in (1, 2):
            service.send(user, vector(user))
        for adder in service.adders:
            service.start(adder)
    first = service.adders[FIRST_SERVER]
    twice = [service.report(3, vector(3))[FIRST_SERVER]] * 2
    one, other = first.take(twice)  # in one batch
    assert one == other
    assert one[:1] != REFUSED
    opened = service.opened()
    assert opened.users == {1, 2}
    assert opened.total.tolist() == (vector(1) + vector(2)).tolist()


def test_another_report_of_the_same_user_is_refused_everywhere(make_service, vector) -> None:
    service = make_service()
    service.send(1, vector(1))
    service.send(2, vector(2))
    again = make_report(service.window, 1, service.users[1], vector(9))
    for adder, message in again.items():
        assert service.refused(adder, message + bytes(64)).startswith("ReplayedMessage: user 1")
    one, other = (make_report(service.window, 3, service.users[3], vector(3)) for _ in range(2))
    answers = service.adders[FIRST_SERVER].take([one[FIRST_SERVER], other[FIRST_SERVER]])
    assert [answer[:1] == REFUSED for answer in answers] == [False, True]
    assert service.opened().total.tolist() == (vector(1) + vector(2)).tolist()


def test_parts_of_two_reports_never_meet(make_service, vector) -> None:
    """A user that forgot its first report sends the vector of a second one."""
    service = make_service()
    service.report(1, vector(1))
    receipts = service.seeds(1)
    other = make_report(service.window, 1, service.users[1], vector(1))
    last = service.window.last
    assert "receipts" in service.refused(last, other[last] + receipts)
    assert service.sent(last, service.reports[1][last] + receipts) == b""


@pytest.mark.parametrize(
    "forge",
    [
        lambda receipts: receipts[:32] + bytes(32),
        lambda receipts: receipts[:32] * 2,
        lambda receipts: receipts[32:] + receipts[:32],
        lambda receipts: receipts[:32],
        lambda receipts: b"",
        lambda receipts: receipts + b"0",
    ],
)
def test_a_vector_needs_the_receipts_of_all_other_adders(make_service, vector, forge) -> None:
    service = make_service()
    service.report(1, vector(1))
    receipts, last = service.seeds(1), service.window.last
    service.refused(last, service.reports[1][last] + forge(receipts))
    service.report(2, vector(2))
    assert "receipts" in service.refused(last, service.reports[2][last] + receipts)
    assert service.sent(last, service.reports[1][last] + receipts) == b""


def test_a_report_that_reached_some_adders_only_is_left_out(make_service, vector) -> None:
    service = make_service()
    for user in (1, 2, 3):
        service.send(user, vector(user))
    service.report(4, vector(4))
    service.seeds(4)
    service.report(5, vector(5))
    service.sent(FIRST_SERVER, service.reports[5][FIRST_SERVER])
    opened = service.opened()
    assert opened.users == {1, 2, 3}
    assert opened.total.tolist() == (vector(1) + vector(2) + vector(3)).tolist()


def test_fewer_than_the_minimum_are_never_opened(make_service, vector) -> None:
    service = make_service(minimum=3)
    for user in (1, 2):
        service.send(user, vector(user))
    last = service.window.last
    answer = service.ordered(last, COMMIT)
    assert answer[1:].startswith(b"TooFewUsers: users must be >= 3 to be opened")
    service.send(3, vector(3))  # it was not closed by that
    assert service.opened().users == {1, 2, 3}


def test_an_adder_of_seeds_refuses_a_small_set_of_the_last_one(make_service, vector) -> None:
    """The last adder lies: it signs fewer than the minimum, or users that nobody holds."""
    service = make_service(minimum=3)
    for user in range(4):
        service.send(user, vector(user))
    for users, words in ((b"\x03", b"TooFewUsers"), (b"\x3f", b"SetMismatch"), (b"\x80", b"Malf")):
        signed = service.signed_set(users)
        assert service.ordered(FIRST_SERVER, COMMIT, [signed])[1:].startswith(words)
    assert service.opened().users == {0, 1, 2, 3}


def test_after_the_commitment_nothing_is_taken_and_no_other_set_is_opened(
    make_service, vector
) -> None:
    service = make_service()
    for user in (1, 2, 3):
        service.send(user, vector(user))
    commits = service.commits()
    service.report(4, vector(4))
    for adder in service.adders:
        service.start(adder)
        assert "closed" in service.refused(adder, service.reports[4][adder] + bytes(64))
    assert service.commits() == commits  # ordered again: the same
    last = service.window.last
    smaller = service.signed_set(b"\x06")
    assert service.ordered(FIRST_SERVER, COMMIT, [smaller])[1:].startswith(b"AlreadyOpened")
    others = [smaller if adder == last else commit for adder, commit in commits.items()]
    for adder in service.adders:
        assert service.ordered(adder, OPEN, others)[:1] == REFUSED
    opened = service.opened()
    for adder in service.adders:
        service.start(adder)
    assert service.opened().total.tolist() == opened.total.tolist()
    assert service.ordered(FIRST_SERVER, OPEN, others)[:1] == REFUSED


def test_nothing_is_opened_before_all_have_committed(make_service, vector) -> None:
    service = make_service()
    for user in (1, 2):
        service.send(user, vector(user))
    last = service.window.last
    first = service.done(last, COMMIT)
    assert service.ordered(FIRST_SERVER, COMMIT)[1:].startswith(b"OutOfOrder: the last aggregator")
    assert service.ordered(FIRST_SERVER, OPEN, [first])[1:].startswith(b"OutOfOrder")
    second = service.done(FIRST_SERVER, COMMIT, [first])
    for adder in (FIRST_SERVER, last):
        assert service.ordered(adder, OPEN, [first, second])[1:].startswith(b"OutOfOrder: all serv")
    third = service.done(FIRST_SERVER + 1, COMMIT, [first])
    assert service.ordered(last, OPEN, [first, second, second])[1:].startswith(b"WrongSender")
    openings = [service.done(adder, OPEN, [third, first, second]) for adder in service.adders]
    with pytest.raises(ValueError, match="missing"):
        combine(service.window, first, openings[:2])


def test_orders_are_the_operators_alone(make_service, vector) -> None:
    service, other = make_service(), make_service(folder="1")
    service.send(1, vector(1))
    service.send(2, vector(2))
    last, stranger = service.window.last, PrivateKeys.generate()
    for keys in (stranger, service.keys[last], service.users[1]):
        order = write_order(service.window, COMMIT, [], keys)
        assert service.adders[last].order(order)[1:].startswith(b"BadSignature")
    order = write_order(other.window, COMMIT, [], other.keys[FIRST_SERVER])
    assert service.adders[last].order(order)[1:].startswith(b"WrongSession")
    assert service.ordered(last, b"x")[:1] == REFUSED
    assert service.ordered(last, COMMIT, [bytes(7)])[:1] == REFUSED
    assert service.done(last, STATUS) == b"2 reports, open"


def test_what_is_not_a_report_of_this_window_is_refused_by_name(make_service, vector) -> None:
    service, other = make_service(), make_service(folder="1")
    report = service.report(1, vector(1))
    foreign = other.report(1, vector(1))
    good, first = report[FIRST_SERVER], FIRST_SERVER
    for request, words in (
        (b"", "TruncatedMessage"),
        (good[:-1], "TruncatedMessage"),
        (good + b"0", "OversizedMessage"),
        (foreign[first], "WrongSession"),
        (report[first + 1], "WrongReceiver"),
        (report[service.window.last], "WrongReceiver"),
        (good[:60] + bytes([good[60] ^ 1]) + good[61:], "BadSignature"),
        (make_report(service.window, 2, service.users[1], vector(1))[first], "BadSignature"),
        (make_report(service.window, 1, PrivateKeys.generate(), vector(1))[first], "BadSignature"),
    ):
        assert service.refused(first, request).startswith(words), words
        assert service.holdings[first].count == 0
    batch = [b"", good[:-1], foreign[first], good, b"x" * 200, good]
    answers = service.adders[first].take(batch)
    assert [answer[:1] == REFUSED for answer in answers] == [True, True, True, False, True, False]
    assert service.holdings[first].count == 1


def test_reports_are_taken_from_opening_to_closing(make_service, vector) -> None:
    service = make_service()
    report = service.report(1, vector(1))[FIRST_SERVER]
    for now in (0.0, 999.9, 2000.0, 1e10):
        service.now = now
        assert "must come from 1000 to 2000" in service.refused(FIRST_SERVER, report)
    service.now = 1999.9
    receipt = service.sent(FIRST_SERVER, report)
    service.now = 3000.0
    assert service.sent(FIRST_SERVER, report) == receipt  # it is held


def test_a_wrong_clock_refuses_reports_and_no_later_ones(make_service, vector) -> None:
    service = make_service()
    report = service.report(1, vector(1))[FIRST_SERVER]
    for wrong in (3000.0, 0.0):
        service.now = wrong
        assert service.refused(FIRST_SERVER, report).startswith("OutOfOrder")
    service.now = 1999.0  # ahead, but inside the window
    service.sent(FIRST_SERVER, report)
    service.now = 1500.0
    service.sent(FIRST_SERVER, service.report(2, vector(2))[FIRST_SERVER])
    service.start(FIRST_SERVER)


def test_an_acknowledgement_is_of_this_aggregator_user_and_message(make_service, vector) -> None:
    service = make_service()
    last, message = service.window.last, service.report(1, vector(1))[FIRST_SERVER]
    (answer,) = service.adders[FIRST_SERVER].take([message])
    check_acknowledgement(service.window, FIRST_SERVER, 1, message, answer[1:])
    other = service.report(2, vector(2))[FIRST_SERVER]
    for adder, user, of, given in (
        (last, 1, message, answer[1:]),
        (FIRST_SERVER, 2, message, answer[1:]),
        (FIRST_SERVER, 1, other, answer[1:]),
        (FIRST_SERVER, 1, message, b""),
        (FIRST_SERVER, 1, message, bytes(len(answer) - 1)),
    ):
        with pytest.raises(BadSignature, match="acknowledgement"):
            check_acknowledgement(service.window, adder, user, of, given)


def test_any_order_of_arrival_gives_the_same_sum(make_service, vector) -> None:
    expected = (vector(0) + vector(1) + vector(2)).tolist()
    for number, order in enumerate(itertools.permutations(range(3))):
        service = make_service(3, folder=str(number))
        receipts: dict[int, bytes] = {}
        for user in order:
            service.report(user, vector(user))
            receipts[user] = service.seeds(user)
        last = service.window.last
        for user in sorted(order, reverse=True):
            service.sent(last, service.reports[user][last] + receipts[user])
        assert service.opened().total.tolist() == expected


def test_the_planted_faults_are_seen(make_service, vector, monkeypatch) -> None:
    """Without the check of a receipt, a report that one adder lacks ends the window: no sum."""
    service = make_service()
    service.send(1, vector(1))
    service.send(2, vector(2))
    last, report = service.window.last, service.report(3, vector(3))
    monkeypatch.setattr(reports_module.Receipts, "check", lambda *given: None)
    service.sent(last, report[last] + bytes(64))
    with pytest.raises(AssertionError, match=SetMismatch.__name__):
        service.opened()
