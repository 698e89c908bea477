"""The service that parties poll: who is let in, what it reads, questions, answers, presence."""

import base64
import contextlib
import hashlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.train_distributed.federation import fake_relay as fake
from train_distributed.federation import aggregator_server, polling
from train_distributed.federation.aggregator_limits import SUMMARY
from train_distributed.federation.orders import NO_QUESTION, Poll, name_of_question, write_poll
from train_distributed.federation.polling import Polls, open_relay
from train_distributed.secure_sum.keys import FIRST_SERVER

SECONDS = 20.0


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
        return in_thread(lambda: found.extend(self.listening.ask_each(requests, **more))), found

    def polled(self, party: int) -> tuple[threading.Thread, list[int]]:
        """Polls in a thread; the status."""
        found: list[int] = []
        return in_thread(lambda: found.append(self.poll(party).status_code)), found

    def wait_for(self, *parties: int) -> None:
        while self.listening.nodes() != [*parties]:
            time.sleep(0.01)


def in_thread(work: Any) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


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
def test_a_poll_brings_an_answer_and_fetches_the_next_question(
    shown: bool, service: Service
) -> None:
    assert service.poll(2, shown=shown).status_code == 204
    assert service.listening.nodes() == [2]
    thread, found = service.asked({2: b"first"})
    name = name_of_question(b"first")
    for _ in range(2):  # asking consumes nothing
        fetched = service.poll(2, shown=shown)
        assert (fetched.status_code, fetched.content) == (200, name + b"first")
    assert service.poll(2, name, b"answer", shown=shown).status_code == 204
    thread.join(SECONDS)
    assert found == [(2, b"answer")]


def test_an_answer_counts_for_the_question_that_it_names(service: Service) -> None:
    """Once: neither early nor late, nor again."""
    first, second = name_of_question(b"first"), hashlib.sha256(b"second").digest()
    service.poll(2, first, b"early")
    thread, found = service.asked({2: b"first"})
    assert any(service.poll(2).status_code == 200 for _ in range(10))
    service.poll(2, second, b"of another")
    service.poll(2, first, b"answer")
    thread.join(SECONDS)
    service.poll(2, first, b"again")
    thread, more = service.asked({2: b"second"})
    assert service.poll(2).content == second + b"second"
    service.poll(2, first, b"late")
    service.poll(2, second, b"")
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
    asking, _ = service.asked({0: b"wakes both", 1: b"has a place"}, seconds=0.5)
    assert service.poll(1).status_code == 200
    for thread in [asking, *(thread for thread, _ in polls)]:
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
    service.wait_for(0)
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
        service.wait_for(0)
        for _ in range(40):
            stack.enter_context(socket.create_connection(("127.0.0.1", service.port)))
        monkeypatch.setattr(polling, "POLL_SECONDS", 0.1)
        assert service.poll(1).status_code == 204  # who comes now finds a place
        asking, _ = service.asked({0: b"question"}, seconds=0.5)
        waiting.join(SECONDS)
        asking.join(SECONDS)
        assert status == [200]
