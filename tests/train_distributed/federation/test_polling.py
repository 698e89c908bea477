"""Polls, at both ends.

The service: who is let in, what it reads, questions, answers, presence. The party: fetches
questions, brings answers, and waits for its operator as long as it was told.
"""

import base64
import contextlib
import hashlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.train_distributed.federation import fake_relay as fake
from tests.train_distributed.federation.fake_relay import in_thread
from train_distributed.federation import aggregator_server, polling
from train_distributed.federation import attendance as attending
from train_distributed.federation.aggregator_limits import SUMMARY
from train_distributed.federation.attendance import alone, attend
from train_distributed.federation.documents.certificates import write_certificate
from train_distributed.federation.orders import NO_QUESTION, Poll, name_of_question, write_poll
from train_distributed.federation.polling import Polls, open_relay
from train_distributed.secure_sum.keys import FIRST_SERVER

SECONDS, PATIENCE = 20.0, 1.5


class Service(fake.Site):
    """A relay that listens, and lines to it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        tls = ssl.create_default_context(cafile=str(folder / "server.pem"))
        self.http = httpx.Client(base_url=f"https://127.0.0.1:{self.port}", verify=tls, timeout=30)
        self.path = f"/relay/{self.federation.digest.hex()}"
        self.listening: Any = None

    def poll(
        self, party: int, name: bytes = NO_QUESTION, answer: bytes = b"", **changes: Any
    ) -> httpx.Response:
        federation = changes.get("federation", self.federation)
        keys = fake.KEYS[changes.get("signer", party)]
        body, header = write_poll(federation, Poll(party, name, answer), keys)
        return self.post(body, header if changes.get("shown", True) else b"")

    def post(self, body: Any, header: bytes = b"") -> httpx.Response:
        headers = {SUMMARY: base64.b64encode(header).decode()} if header else {}
        return self.http.post(self.path, content=body, headers=headers)

    def asked(self, requests: dict[int, bytes], **more: Any) -> tuple[threading.Thread, list]:
        """Asks in a thread; what came."""
        found: list[tuple[int, bytes]] = []

        def ask() -> None:
            with contextlib.suppress(ConnectionError):  # the service may end before
                found.extend(self.listening.ask_each(requests, **more))

        thread = in_thread(ask)
        while not requests.keys() <= self.listening._asked.keys():
            time.sleep(0.001)
        return thread, found

    def polled(self, party: int) -> tuple[threading.Thread, list[int]]:
        """Polls in a thread; the status."""
        found: list[int] = []
        return in_thread(lambda: found.append(self.poll(party).status_code)), found


def wait_for(relay: Polls, *parties: int) -> None:
    deadline = time.monotonic() + SECONDS
    while relay.nodes() != [*parties]:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Service]:
    made = Service(folder)
    with made.relay() as made.listening, made.http:
        yield made


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setattr(polling, "POLL_SECONDS", 0.1)
    with serving(tmp_path) as made:
        yield made


@pytest.mark.parametrize("shown", [True, False])
def test_an_answer_counts_for_the_question_that_it_names(shown: bool, service: Service) -> None:
    """Once: neither early nor late, nor again. Asking consumes nothing."""
    first, second = name_of_question(b"first"), hashlib.sha256(b"second").digest()
    poll = partial(service.poll, 2, shown=shown)
    assert poll(first, b"early").status_code == 204
    assert service.listening.nodes() == [2]
    thread, found = service.asked({2: b"first"})
    for _ in range(2):
        fetched = poll()
        assert (fetched.status_code, fetched.content) == (200, first + b"first")
    poll(second, b"of another")
    assert poll(first, b"answer").status_code == 204
    thread.join(SECONDS)
    poll(first, b"again")
    thread, more = service.asked({2: b"second"})
    assert poll().content == second + b"second"
    poll(first, b"late")
    poll(second, b"")
    thread.join(SECONDS)
    assert (found, more) == ([(2, b"answer")], [(2, b"")])


def test_whoever_polls_is_proven(service: Service) -> None:
    other = fake.agreement(minimum=4)
    thread, found = service.asked({2: b"question"}, seconds=1.0)
    name = name_of_question(b"question")
    body, header = write_poll(service.federation, Poll(2, name, b"x"), fake.KEYS[2])
    refused = [service.post(body[:-1] + b"y", header)]
    for shown in (True, False):
        refused += [
            service.poll(2, name, b"x", signer=3, shown=shown),
            service.poll(2, name, b"x", federation=other, shown=shown),
            service.poll(99, name, b"x", signer=3, shown=shown),
            service.poll(FIRST_SERVER, name, b"x", shown=shown),
            service.post(b""),
            service.post(bytes(99)),
        ]
    assert [each.status_code for each in refused] == [401] * len(refused)
    assert service.http.post("/relay/" + "0" * 64, content=b"").status_code == 404
    assert service.http.get(service.path).status_code == 405
    thread.join(SECONDS)
    assert (found, service.listening.nodes()) == ([], [])
    assert service.http.get("/healthz").status_code == 204


def test_sizes_are_judged_before_a_body_is_read(service: Service) -> None:
    largest = service.federation.largest_frame
    assert service.poll(0, answer=bytes(largest)).status_code == 204
    assert service.poll(0, answer=bytes(largest + 1)).status_code == 413
    assert service.post(iter([b"x"])).status_code == 411
    with pytest.raises(ValueError, match=f"request must be <= {largest} bytes, got {largest + 1}"):
        dict(service.listening.ask_each({0: bytes(largest + 1)}))


def test_polls_of_one_party_that_wait_are_few(service: Service, monkeypatch) -> None:
    monkeypatch.setattr(polling, "POLL_SECONDS", 60.0)
    monkeypatch.setattr(polling, "MOST_POLLS", 2)
    polls = [service.polled(0) for _ in range(4)]
    while sum(map(len, (found for _, found in polls))) < 2:
        time.sleep(0.01)
    service.asked({0: b"wakes both", 1: b"has a place"})
    assert service.poll(1).status_code == 200
    for thread, _ in polls:
        thread.join(SECONDS)
    assert sorted(found for _, found in polls) == [[200], [200], [429], [429]]


def test_who_does_not_poll_is_away(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    service.poll(0)
    monkeypatch.setattr(polling, "AWAY_SECONDS", 0.05)
    time.sleep(0.1)
    assert service.listening.nodes() == []


def test_silence_costs_its_own_time_and_others_are_asked_meanwhile(service: Service) -> None:
    start = time.monotonic()
    thread, found = service.asked({0: b"a", 1: b"b"}, seconds=1.0)
    service.poll(1, service.poll(1).content[:32], b"of b")
    while not found:
        time.sleep(0.01)
    inner, more = service.asked({1: b"c"})
    service.poll(1, service.poll(1).content[:32], b"of c")
    inner.join(SECONDS)
    thread.join(SECONDS)
    assert (found, more) == ([(1, b"of b")], [(1, b"of c")])
    assert time.monotonic() - start >= 1
    assert service.poll(0).status_code == 204  # what was not answered in time is taken back


def test_no_more_than_a_window_is_under_way(service: Service, monkeypatch) -> None:
    monkeypatch.setattr(polling, "UNDER_WAY", 0)
    requests = {party: b"%d" % party for party in range(40)}
    asked: list[int] = []

    class Counting(Polls):
        def _ask(self, party: int, question: bytes) -> None:
            asked.append(party)

        def _wait(self, deadlines: dict[int, float]) -> Iterator[tuple[int, bytes]]:
            assert len(deadlines) <= 16
            party = next(iter(deadlines))
            del deadlines[party]
            yield party, b"answer"

    relay = Counting(service.federation, service.listening._watch)
    assert dict(relay.ask_each(requests)) == dict.fromkeys(requests, b"answer")
    assert asked == list(requests)


def test_a_service_that_ends_answers_whoever_waits(service: Service, monkeypatch) -> None:
    monkeypatch.setattr(polling, "POLL_SECONDS", 60.0)
    waiting, found = service.polled(0)
    wait_for(service.listening, 0)
    service.listening.end("the disk is full")
    with pytest.raises(ConnectionError, match="service must listen, ended: the disk is full"):
        dict(service.listening.ask_each({0: b"x"}))
    waiting.join(SECONDS)
    assert found == [204]


def test_a_port_that_is_taken_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with (
            pytest.raises(OSError, match=f"listen must be a free port .* 127.0.0.1:{port}"),
            open_relay(fake.agreement(), None, "127.0.0.1", port),
        ):
            pass


def test_a_party_keeps_its_line_where_strangers_take_all_others(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(aggregator_server, "MOST_TLS_LINES", 4)
    monkeypatch.setattr(polling, "POLL_SECONDS", 60.0)
    with serving(tmp_path) as service, contextlib.ExitStack() as stack:
        waiting, status = service.polled(0)
        wait_for(service.listening, 0)
        for _ in range(40):
            stack.enter_context(socket.create_connection(("127.0.0.1", service.port)))
        monkeypatch.setattr(polling, "POLL_SECONDS", 0.1)
        assert service.poll(1).status_code == 204  # who comes now finds a place
        service.asked({0: b"question"})
        waiting.join(SECONDS)
        assert status == [200]


@dataclass
class Parrot:
    largest_frame: int = 1000
    over: bool = False
    heard: list[bytes] = field(default_factory=list)
    answers: Callable[[bytes], bytes] = lambda request: b"re: " + request

    def answer(self, request: bytes) -> bytes:
        self.heard.append(request)
        self.over = request == b"end"
        return self.answers(request)


class World(fake.Site):
    """A party, its operator's certificate, and what it says."""

    @property
    def heard(self) -> list[str]:
        """What it has said since the operator was there."""
        return [line for line in self.said if "nobody listens" not in line]

    def attends(self, endpoint: Parrot, **changes: Any) -> int:
        given: dict[str, Any] = {"patience": PATIENCE} | changes
        return attend(self.party(endpoint, **given))

    @contextlib.contextmanager
    def attending(self, endpoint: Parrot, **changes: Any) -> Iterator[list[int]]:
        """Exit codes of a party that is there until it ends."""
        codes, work = list[int](), partial(self.attends, endpoint, **changes)
        thread = in_thread(lambda: codes.append(work()))
        yield codes
        thread.join(60)
        assert not thread.is_alive()

    @contextlib.contextmanager
    def connected(self) -> Iterator[Any]:
        """A relay, once the party is there."""
        with self.relay() as relay:
            wait_for(relay, 1)
            yield relay

    def visit(self, endpoint: Parrot, status: int, content: bytes) -> int:
        """Exit code where the service answers every poll with this."""
        party = self.party(endpoint, patience=0.1)
        answer = lambda _: httpx.Response(status, content=iter([content]))  # noqa: E731
        http = httpx.Client(transport=httpx.MockTransport(answer), base_url="https://h")
        return attending._Visit(party, partial(attending._posted, party, http)).run()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(attending, "RETRY_SECONDS", 0.05)
    return World(tmp_path)


def test_without_an_operator_it_gives_up(world: World, capsys) -> None:
    start = time.monotonic()
    assert world.attends(Parrot(), patience=0.5) == 1
    assert 0.5 <= time.monotonic() - start < 10
    assert "nobody listens" in world.said[0]
    assert f"error: operator at 127.0.0.1:{world.port} is gone" in capsys.readouterr().err


def test_an_operator_that_comes_back_in_time_finds_it(world: World) -> None:
    """Patience counts from the last contact: this takes longer than it in all."""
    endpoint = Parrot()
    with world.attending(endpoint) as codes:
        for asked in (b"1", b"2", b"end"):
            time.sleep(0.4 * PATIENCE)
            with world.connected() as relay:
                assert dict(relay.ask_each({1: asked})) == {1: b"re: " + asked}
    assert (codes, endpoint.heard) == ([0], [b"1", b"2", b"end"])


def test_an_answer_is_sent_again_until_it_has_arrived(world: World) -> None:
    """The operator is gone while the answer is made; the next one gets it to the same question."""

    def slowly(request: bytes) -> bytes:
        time.sleep(0.5 * (request == b"work"))
        return b"re: " + request

    endpoint = Parrot(answers=slowly)
    with world.attending(endpoint, patience=30) as codes:
        with world.connected() as relay:
            assert dict(relay.ask_each({1: b"work"}, seconds=0.25)) == {}
        with world.relay() as relay:
            for asked in (b"work", b"end"):
                assert dict(relay.ask_each({1: asked})) == {1: b"re: " + asked}
    assert (codes, endpoint.heard) == ([0], [b"work", b"end"])


def test_what_is_refused_is_said_once_and_escaped(world: World) -> None:
    endpoint = Parrot(answers=lambda request: b"\1no\x1b")
    with world.attending(endpoint), world.connected() as relay:
        for request in (b"1", b"2", b"end"):
            assert dict(relay.ask_each({1: request})) == {1: b"\1no\x1b"}
    assert world.heard == ["connected", "refused what the operator asked: no\\x1b"]


@pytest.mark.parametrize(
    ("status", "content", "words"),
    [
        (200, name_of_question(b"q" + bytes(2000)) + b"q" + bytes(2000), "must be <= 1000 bytes"),
        (200, bytes(32) + b"q", "question must have its own name"),
        (200, b"short", "question must have its own name"),
        (401, b"", "this party's key is not registered with the operator"),
        (404, b"", "the operator runs another federation"),
        (429, b"", "the operator refuses: 429"),
    ],
    ids=["long", "of another name", "short", "401", "404", "429"],
)
def test_what_is_no_question_is_refused_and_a_refusal_named(
    status: int, content: bytes, words: str, world: World
) -> None:
    endpoint = Parrot()
    assert world.visit(endpoint, status, content) == 1
    assert endpoint.heard == []
    assert words in world.said[0]


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("certificate verify failed: unable to get local issuer", "is not the one that was agreed"),
        ("certificate verify failed: certificate has expired", "has expired"),
        ("certificate verify failed: certificate is not yet valid", "clock is behind"),
        ("Hostname mismatch, certificate is not valid for 'x'", "is not for this address"),
        ("[Errno 111] Connection refused", "nobody listens"),
        (httpx.ReadTimeout(""), "the operator does not answer"),
    ],
)
def test_a_failed_connection_is_named(error: Any, cause: str) -> None:
    given = httpx.ConnectError(error) if isinstance(error, str) else error
    assert cause in attending._cause(given)


def test_another_authority_is_not_believed(world: World, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    write_certificate(other, ["127.0.0.1"])
    with world.relay():
        assert world.attends(Parrot(), certificates=other / "server.pem", patience=0.3) == 1
    assert "is not the one that was agreed on" in world.said[0]


def test_a_service_that_ends_does_not_keep_a_party_busy(world: World, monkeypatch) -> None:
    monkeypatch.setattr(polling, "POLL_SECONDS", 0.0)
    with world.attending(Parrot(), patience=0.5) as codes, world.connected() as relay:
        polls, take = list[Any](), relay._take
        monkeypatch.setattr(relay, "_take", lambda poll: (polls.append(poll), take(poll)))
        time.sleep(1.1)
    assert len(polls) < 5
    assert codes == [1]


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        *(
            ("address", each, f"address must be HOST:PORT, got '{each}'")
            for each in ("example.org", ":9092", "example.org:https", "example.org:65536")
        ),
        ("certificates", Path("nowhere.pem"), r"nowhere\.pem must be a file, got nothing there"),
    ],
)
def test_what_leads_to_no_operator_is_refused(
    name: str, given: Any, message: str, world: World
) -> None:
    with pytest.raises(ValueError, match=message):
        world.attends(Parrot(), **{name: given})


def test_one_process_of_a_party_takes_part(tmp_path: Path) -> None:
    words = "must be one process's, another one takes part"
    with alone(tmp_path), pytest.raises(ValueError, match=words), alone(tmp_path):
        pass
    with alone(tmp_path):
        pass
