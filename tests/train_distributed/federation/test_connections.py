"""A session over a relay that loses, garbles and invents: the exact sum, or nothing."""

import hashlib
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

from tests.train_distributed.federation import fake_relay as fake
from tests.train_distributed.federation.fake_relay import ALL, Wrapped
from tests.train_distributed.secure_sum.simulate import VolatileJournal
from train_distributed.federation.connections import Connections
from train_distributed.federation.documents.federation import Deadlines, Federation
from train_distributed.federation.documents.party import Keys
from train_distributed.federation.documents.sessions import spend_session
from train_distributed.federation.endpoint import UserEndpoint
from train_distributed.federation.orders import DONE, Request, join, split
from train_distributed.federation.progress import MOST_SHOWN, Log
from train_distributed.secure_sum.errors import MalformedMessage, OutOfOrder, TooFewUsers
from train_distributed.secure_sum.journal import DurableJournal
from train_distributed.secure_sum.keys import FIRST_SERVER, PrivateKeys
from train_distributed.secure_sum.secagg_server import SecAggServer

WITHOUT_2 = ALL - {2}
NONSENSE = [
    *(b"", DONE, DONE + b"\0\0\0\1"),
    *(DONE + join([b"\0\0\0\2", *more]) for more in ([], [b"x"])),
]
TOO_LONG = "user 2: MalformedMessage: answer must be <= "
STEPS = [
    *("be present", "advertise keys", "share keys"),
    *("masked input", "agree on survivors", "unmask"),
]


def test_orders_of_anyone_but_the_operator_do_nothing(tmp_path: Path) -> None:
    federation = fake.agreement()
    other = structs.replace(federation, minimum=4)
    start, present = fake.start(federation)[1:-64], bytes(72)
    journal = DurableJournal(tmp_path / "journal")
    endpoint = UserEndpoint(federation, 0, fake.KEYS[0], lambda: fake.VECTORS[0], journal)
    good, deliver = fake.start(federation), bytes([Request.DELIVER]) + join([b"x"])
    for forged, words in [
        *((nonsense, b"") for nonsense in (b"", b"\xff", b"\0short", b"\2", deliver)),
        (b"\0" + bytes(32), b""),  # what began a session, and spent it, when nobody had to sign
        (b"\0" + start + bytes(64), b""),
        (fake.start(federation, signer=1), b""),
        (fake.order(other, Request.START, start), b""),
        (good[:-1] + bytes([good[-1] ^ 1]), b""),
        (bytes([Request.START]) + fake.order(federation, Request.END, start)[1:], b""),
        (bytes([Request.PRESENT]) + present + bytes(64), b""),
        (fake.order(federation, Request.PRESENT, present, 1), b""),
        (fake.order(federation, Request.END, bytes(33), 1), b""),
        (fake.start(federation, users=[0, 1]), b"users present must be >= 3, got 2"),
        (fake.start(federation, users=[1, 2, 3]), b"users present must include user 0"),
    ]:
        answer = endpoint.answer(forged)
        assert answer[:1] != DONE
        assert words in answer
    assert not (tmp_path / "journal").exists()
    assert endpoint.answer(good)[:1] == DONE
    assert b"TruncatedMessage" in endpoint.answer(deliver)
    with pytest.raises(ValueError, match="keys must be those that the federation lists"):
        UserEndpoint(federation, 1, fake.KEYS[0], lambda: fake.VECTORS[0], journal)


def test_a_session_is_spent_at_the_first_message_that_reveals() -> None:
    """Not by a start: one that ends before masked vectors leaves every user its session."""
    relay = fake.FakeRelay()
    relay.garble = lambda node, asked, answer: (
        None if asked[0] == Request.DELIVER and node in {12, 13, 14} else answer
    )
    with pytest.raises(TooFewUsers):
        fake.operate(relay)
    assert not relay.drawn
    relay.spare()
    assert fake.operate(relay) == ALL


def test_with_too_few_present_nobody_spends_anything() -> None:
    relay, log, asked = fake.FakeRelay(fake.agreement(minimum=4)), Log(), list[int]()
    kept = {node: relay.endpoints.pop(node) for node in (10, 11)}
    relay.before = lambda node, request: asked.append(request[0])
    with pytest.raises(TooFewUsers, match="users present must be >= 4, got 3"):
        fake.operate(relay, log)
    assert set(asked) <= {Request.PRESENT, Request.END}
    assert log.missing == {0: "be present", 1: "be present"}
    relay.endpoints |= kept
    assert fake.operate(relay) == ALL


def test_nobody_is_waited_for_where_too_many_have_used_up_their_sessions() -> None:
    minute = Deadlines(come=60.0, again=0.0)
    relay = fake.FakeRelay(fake.agreement(minimum=4, deadlines=minute))
    for user in (0, 1):
        spend_session(relay.journals(user), relay.federation, b"another")
    del relay.endpoints[14]
    start = time.monotonic()
    with pytest.raises(TooFewUsers, match="users present must be >= 4, got 2"):
        fake.operate(relay)
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("victim", [3, FIRST_SERVER, FIRST_SERVER + 1, 99])
def test_a_name_is_bound_to_its_key_not_to_who_comes_first(victim: int) -> None:
    """An insider at a lower node, with its own good keys, claims another's name."""
    relay, log = fake.FakeRelay(), Log()

    def in_anothers_name(request: bytes, plain: Callable[[], bytes]) -> bytes:
        if request[0] == Request.PRESENT:
            honest, name = plain(), struct.pack(">I", victim)
            return honest[:9] + honest[9:].replace(struct.pack(">I", 2), name)
        return DONE + join([struct.pack(">I", victim)])

    insider = Wrapped(relay.endpoints.pop(12), in_anothers_name)
    relay.endpoints = {5: insider, **relay.endpoints}
    assert fake.operate(relay, log) == WITHOUT_2
    assert log.missing == {2: "be present"}
    assert any(text.startswith("node 5: ") for text in log.refused)


def test_an_answer_to_another_node_is_no_proof() -> None:
    """The insider shows what user 3 has answered, at another node or to an earlier order."""
    relay, log, replayed = fake.FakeRelay(), Log(), list[bytes]()
    earlier = fake.FakeRelay(relay.federation)
    earlier.after = lambda node, request, answer: (
        replayed.append(answer) if node == 13 and request[0] == Request.PRESENT else None
    )
    fake.operate(earlier)
    relay.endpoints = {5: Wrapped(None, lambda *_: replayed[0]), **relay.endpoints}
    assert fake.operate(relay, log) == ALL
    assert any("node 5: BadSignature" in text for text in log.refused)


def test_an_answer_that_comes_late_counts_when_it_is_asked_for_again() -> None:
    """A carrier may need longer than a party has to answer PRESENT."""
    relay, late = fake.FakeRelay(), list[bytes]()

    def first_late(node: int, asked: bytes, answer: bytes) -> bytes | None:
        if node != 13:
            return answer
        late.append(answer)
        return late[0] if len(late) > 1 else None

    relay.garble = first_late
    with fake.operator(relay, Log()) as operator:
        connections = Connections(operator, bytes(32))
        connections.gather(ALL, 5.0)
        assert connections.here == ALL


def test_of_two_nodes_with_one_identity_the_first_proven_stays() -> None:
    """And words of the network are shown escaped."""
    relay, log = fake.FakeRelay(), Log()
    relay.endpoints[30] = relay.user(3)
    shouted = b"\x1b[2J\x07\n\xff" + "\u202e".encode() + b"x" * 10**5
    relay.endpoints[31] = Wrapped(None, lambda *_: b"\1" + shouted)
    assert fake.operate(relay, log) == ALL
    taken, text = log.refused
    assert taken == "node 30: WrongSender: user 3 is at another node already"
    assert relay.drawn[3] == 1
    assert text.isascii()
    assert text.isprintable()
    assert len(text) < 400
    assert "\\x1b[2J" in text


@pytest.mark.parametrize(
    ("kind", "change", "refused"),
    [
        *((None, lambda _, given=given: given, "node 12: ") for given in NONSENSE),
        (Request.DELIVER, lambda _: DONE + join([bytes(10**5)]), TOO_LONG),
        (Request.START, lambda got: DONE + join(split(got[1:]) * 2), TOO_LONG),
        (Request.START, lambda _: DONE + join([bytes(10**6)]), TOO_LONG),
    ],
)
def test_a_user_that_talks_nonsense_or_too_much_is_out(kind, change, refused, tmp_path) -> None:
    """What users say first is kept until the end: it has its size, and no more is written down."""
    relay, log = fake.FakeRelay(), Log()
    relay.garble = lambda node, asked, got: (
        change(got) if node == 12 and kind in (None, asked[0]) else got
    )
    assert fake.operate(relay, log, tmp_path) == WITHOUT_2
    assert set(log.missing) == {2}
    assert log.refused[0].startswith(refused)
    assert kind is Request.DELIVER or (tmp_path / "session").stat().st_size < 50_000


class Echo(UserEndpoint):
    """Answers whatever is delivered, whoever made it up."""

    def _deliver(self, body: bytes) -> list[bytes]:
        return split(body)


def test_the_answers_that_are_kept_have_a_limit() -> None:
    federation = fake.agreement(dimension=1)
    keys, vector = fake.KEYS[0], fake.VECTORS[0][:1]
    endpoint = Echo(federation, 0, keys, lambda: vector, VolatileJournal())
    start = fake.start(federation)
    started = endpoint.answer(start)
    assert started[:1] == DONE
    endpoint.largest_frame = 10_000
    tracemalloc.start()
    answered = refused = 0
    for number in range(1000):
        made_up = bytes([Request.DELIVER]) + join([number.to_bytes(40, "big")] * 10)
        answer = endpoint.answer(made_up)
        answered += answer[:1] == DONE
        refused += b"answers of a session must be fewer" in answer
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert answered > 100
    assert refused == 1000 - answered > 500
    assert peak < 20 * endpoint.largest_frame
    assert endpoint.answer(start) == started  # what was answered is answered again


def test_a_full_disk_of_a_user_is_said_at_both_ends(monkeypatch, tmp_path: Path) -> None:
    relay, log, journal = fake.FakeRelay(), Log(), DurableJournal(tmp_path)

    def full() -> None:
        raise OSError(28, "journal cannot be written: No space left on device", str(tmp_path))

    monkeypatch.setattr(journal, "_open", full)
    relay.journals = lambda user: journal
    relay.endpoints[12] = relay.user(2)
    assert fake.operate(relay, log) == WITHOUT_2
    assert relay.drawn[2] == 0
    assert any("user 2: refused: OSError" in t and "No space left" in t for t in log.refused)


def test_a_replayed_session_spends_and_reveals_nothing() -> None:
    """All that was asked of user 2, asked again when the session is over; two were agreed."""
    relay, asked = fake.FakeRelay(fake.agreement(sessions=2)), list[bytes]()
    relay.after = lambda node, request, answer: asked.append(request) if node == 12 else None
    fake.operate(relay)
    for endpoint in (relay.endpoints[12], relay.user(2)):  # as it is, and started again
        for request in asked:
            answer = endpoint.answer(request)
            assert request[0] == Request.PRESENT or answer[:1] != DONE
    assert relay.drawn[2] == 1
    relay.spare()
    assert fake.operate(relay) == ALL
    assert relay.drawn[2] == 2


def test_the_coordinator_holds_one_vector_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next answer is fetched only when the last one has been added."""
    relay = fake.FakeRelay()
    taken, yielded, receive = 0, 0, SecAggServer.receive

    def counted(self: SecAggServer, message: bytes) -> None:
        nonlocal taken
        taken += 1
        receive(self, message)

    def count(node: int, request: bytes, answer: bytes) -> None:
        nonlocal yielded
        if request[0] == Request.DELIVER:
            assert taken == fake.W + yielded
            yielded += 1

    monkeypatch.setattr(SecAggServer, "receive", counted)
    relay.after = count
    fake.operate(relay)
    assert yielded >= 4 * fake.W


@pytest.mark.parametrize("stage", range(len(STEPS) + 1))
def test_secagg_completes_without_a_user_that_dies(stage: int) -> None:
    relay, log = fake.FakeRelay(), Log()
    relay.dies_at[12] = stage
    assert fake.operate(relay, log) == (ALL if stage >= 4 else WITHOUT_2)
    assert log.missing == dict.fromkeys([2] * (stage < len(STEPS)), (*STEPS, "")[stage])
    assert log.refused == []


@pytest.mark.parametrize("sessions", [1, 2])
def test_a_restarted_user_submits_no_second_time(sessions: int, tmp_path: Path) -> None:
    def again(log: Log) -> set[int]:
        relay = fake.FakeRelay(federation, lambda user: DurableJournal(tmp_path / str(user)))
        return fake.operate(relay, log, None, DurableJournal(tmp_path / "operator"))

    federation, log = fake.agreement(sessions=sessions), Log()
    for _ in range(sessions):
        assert again(Log()) == ALL
    with pytest.raises((TooFewUsers, OutOfOrder)):
        again(log)
    assert sum("all agreed sessions are used up" in text for text in log.refused) == fake.W


def test_lists_of_bytes_are_read_strictly() -> None:
    joined = join(blobs := [b"", b"ab", b"\0" * 9])
    assert split(joined) == blobs
    for bad in (b"", joined[:-1], joined + b"\0", struct.pack(">I", 9) + joined[4:]):
        with pytest.raises(MalformedMessage):
            split(bad)


def test_the_digest_of_a_federation_stays(tmp_path: Path) -> None:
    def public(number: int):
        seeds = [hashlib.sha256(b"%s%d" % (label, number)).digest() for label in (b"", b"s")]
        return PrivateKeys(*seeds).public

    fixed = {"names": {0: "hospital-a"}, "task": {"method": "x", "sizes": {"0": 3}}}
    users = {i: public(i).verifying.hex() for i in range(3)}
    servers = (Keys.of(public(9)),)
    given = {"minimum": 2, "deadlines": Deadlines(), "users": users, "servers": servers}
    federation = fake.agreement(**fixed, **given)
    federation.save(tmp_path / "federation.json")
    assert Federation.load(tmp_path / "federation.json").digest.hex() == (
        "cee3accd2673663e20c4c60d20fdf68a8f94ff9b7946364714ab5087646f86c4"
    )


def test_an_operator_that_waits_is_told_for_whom_and_why() -> None:
    """Once each, and no crowd fills the line."""
    said = list[str]()
    log = Log(say=lambda line: said.append(line.partition(" s  ")[2]))
    for _ in range(2):
        log.present([], 3, ["a", "b", "c"])
    log.refuse("user 1 (b)", b"refused: \x1b")
    log.present([0], 3, map(str, range(9)))
    log.stage("start", [0, 2])
    log.refuse("user 2 (c)", "refused")
    log.answered(1, 2)
    for number in range(50):
        log.refuse(f"user {number}", "refused")
    log.answered(1, 2)
    crowd = said.pop()
    assert crowd.count("refused") == MOST_SHOWN
    assert said == [
        "0 of 3 present; waiting for a, b, c",
        "1 of 3 present; user 1 (b): refused: \\x1b; waiting for 0, 1, 2, 3, 4, ...",
        "start: 1 of 2; user 2 (c): refused",
    ]
