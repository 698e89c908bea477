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

from tests.ports import free_port
from tests.train_distributed.federation import fake_relay as fake
from train_distributed.federation import aggregator_server, polling
from train_distributed.federation.aggregator_limits import SUMMARY, Credit, RateLimits
from train_distributed.federation.documents.certificates import serving, write_certificate
from train_distributed.federation.orders import NO_QUESTION, Poll, name_of_question, write_poll
from train_distributed.federation.polling import Polls, open_relay
from train_distributed.secure_sum.keys import FIRST_SERVER

SECONDS = 20.0


class Service:
    """A relay that listens, and lines to it."""

    def __init__(self, folder: Path, port: int) -> None:
        self.federation, self.port, self.folder = fake.agreement(), port, folder
        tls = ssl.create_default_context(cafile=str(folder / "server.pem"))
        self.http = httpx.Client(base_url=f"https://127.0.0.1:{port}", verify=tls, timeout=30)
        self.path = f"/relay/{self.federation.digest.hex()}"
        self.relay: Any = None

    def poll(
        self,
        party: int,
        name: bytes = NO_QUESTION,
        answer: bytes = b"",
        *,
        shown: bool = True,
        **changes: Any,
    ) -> httpx.Response:
        federation = changes.get("federation", self.federation)
        keys = fake.KEYS[changes.get("signer", party)]
        body, header = write_poll(federation, Poll(party, name, answer), keys)
        headers = {SUMMARY: base64.b64encode(header).decode()} if shown else {}
        return self.http.post(self.path, content=body, headers=headers)

    def asked(self, requests: dict[int, bytes], **more: Any) -> tuple[threading.Thread, list]:
        """Asks in a thread; what came."""
        found: list[tuple[int, bytes]] = []
        thread = threading.Thread(
            target=lambda: found.extend(self.relay.ask_each(requests, **more)), daemon=True
        )
        thread.start()
        return thread, found


@contextlib.contextmanager
def serving_at(folder: Path) -> Iterator[Service]:
    if not (folder / "server.pem").exists():
        write_certificate(folder, ["127.0.0.1"])
    service = Service(folder, free_port())
    tls = serving(folder, folder / "server.pem")
    at = service.federation, tls, "127.0.0.1", service.port
    with open_relay(*at) as service.relay, service.http:
        yield service


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setattr(polling, "POLL_SECONDS", 0.3)
    with serving_at(tmp_path) as made:
        yield made


@pytest.mark.parametrize("shown", [True, False])
def test_a_poll_brings_an_answer_and_fetches_the_next_question(
    shown: bool, service: Service
) -> None:
    assert service.poll(2, shown=shown).status_code == 204
    assert service.relay.nodes() == [2]
    thread, found = service.asked({2: b"first"})
    fetched = service.poll(2, shown=shown)
    name = name_of_question(b"first")
    assert (fetched.status_code, fetched.content) == (200, name + b"first")
    assert service.poll(2, shown=shown).content == name + b"first"  # asking consumes nothing
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
    for shown in (True, False):
        refused = [
            service.poll(2, name, b"x", signer=3, shown=shown),
            service.poll(2, name, b"x", federation=other, shown=shown),
            service.poll(99, name, b"x", signer=3, shown=shown),
            service.poll(FIRST_SERVER, name, b"x", shown=shown),
            service.http.post(service.path, content=b""),
            service.http.post(service.path, content=bytes(99)),
        ]
        assert [each.status_code for each in refused] == [401] * len(refused)
    body, header = write_poll(service.federation, Poll(2, name, b"x"), fake.KEYS[2])
    headers = {SUMMARY: base64.b64encode(header).decode()}
    changed = service.http.post(service.path, content=body[:-1] + b"y", headers=headers)
    assert changed.status_code == 401
    assert service.http.post("/relay/" + "0" * 64, content=b"").status_code == 404
    assert service.http.get(service.path).status_code == 405
    thread.join(SECONDS)
    assert (found, service.relay.nodes()) == ([], [])
    assert service.http.get("/healthz").status_code == 204


def test_sizes_are_judged_before_a_body_is_read(service: Service) -> None:
    largest = service.federation.largest_frame
    assert service.poll(0, answer=bytes(largest)).status_code == 204
    assert service.poll(0, answer=bytes(largest + 1)).status_code == 413
    assert service.http.post(service.path, content=iter([b"x"])).status_code == 411
    with pytest.raises(ValueError, match=f"request must be <= {largest} bytes, got {largest + 1}"):
        dict(service.relay.ask_each({0: bytes(largest + 1)}))


def test_one_party_that_floods_spends_its_own_credit(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = RateLimits()
    limits._credit = Credit(5, 0.0)
    monkeypatch.setattr(service.relay, "_limits", limits)
    monkeypatch.setattr(polling, "POLL_SECONDS", 0.0)
    assert [service.poll(0).status_code for _ in range(7)] == [204] * 5 + [429] * 2
    assert service.poll(1).status_code == 204


def test_polls_of_one_party_that_wait_are_few(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polling, "POLL_SECONDS", 3.0)
    monkeypatch.setattr(polling, "MOST_POLLS", 2)
    found = list[int]()
    threads = [
        threading.Thread(target=lambda: found.append(service.poll(0).status_code)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    assert service.poll(1).status_code == 204
    for thread in threads:
        thread.join(SECONDS)
    assert sorted(found) == [204, 204, 429, 429]


def test_who_does_not_poll_is_away(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    service.poll(0)
    monkeypatch.setattr(polling, "AWAY_SECONDS", 0.2)
    time.sleep(0.3)
    assert service.relay.nodes() == []


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


def test_no_more_than_a_window_is_under_way(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
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

    relay = Counting(service.federation, service.relay._watch)
    assert dict(relay.ask_each(requests)) == dict.fromkeys(requests, b"answer")
    assert asked == list(requests)


def test_a_service_that_ends_answers_whoever_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polling, "POLL_SECONDS", 60.0)
    found = list[int]()
    with serving_at(tmp_path) as service:
        waiting = threading.Thread(target=lambda: found.append(service.poll(0).status_code))
        waiting.start()
        while service.relay.nodes() != [0]:
            time.sleep(0.01)
        service.relay.end("the disk is full")
        with pytest.raises(ConnectionError, match="service must listen, ended: the disk is full"):
            dict(service.relay.ask_each({0: b"x"}))
        waiting.join(SECONDS)
    assert found == [204]


def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with (
            pytest.raises(OSError, match=f"listen must be a free port .* 127.0.0.1:{port}"),
            open_relay(fake.agreement(), None, "127.0.0.1", port),
        ):
            pass


def test_a_party_keeps_its_line_where_strangers_take_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aggregator_server, "MOST_TLS_LINES", 4)
    monkeypatch.setattr(polling, "POLL_SECONDS", 3.0)
    with serving_at(tmp_path) as service, contextlib.ExitStack() as stack:
        status = list[int]()
        waiting = threading.Thread(target=lambda: status.append(service.poll(0).status_code))
        waiting.start()
        while service.relay.nodes() != [0]:
            time.sleep(0.01)
        for _ in range(40):
            stack.enter_context(socket.create_connection(("127.0.0.1", service.port)))
        waiting.join(SECONDS)
        assert status == [204]
        assert service.poll(1).status_code == 204  # and who comes now finds a place
