"""A served aggregator and strangers: bounded bodies and connections, signed acknowledgements."""

import contextlib
import gc
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from uvicorn.protocols.http.flow_control import FlowControl

from tests.train_distributed.secure_sum.window.conftest import Service, vector_of
from train_distributed.federation import aggregator_limits, aggregator_server, door
from train_distributed.federation.aggregator_app import application
from train_distributed.federation.aggregator_client import Aggregators, Refused
from train_distributed.federation.aggregator_limits import Credit, RateLimits
from train_distributed.federation.aggregator_server import in_thread
from train_distributed.federation.aggregator_watch import Watch
from train_distributed.federation.documents.certificates import trust
from train_distributed.federation.limited_http import Line
from train_distributed.secure_sum.reports import HELPER_MESSAGE_BYTES, acknowledge
from train_distributed.secure_sum.window import HELPER, LEADER
from train_distributed.secure_sum.wire import summary


class Hall:
    """Both aggregators of a window, served by threads of this process."""

    def __init__(self, service: Service, ends: contextlib.ExitStack, *proxies: str) -> None:
        self.service, self.ports, self.apps = service, dict[int, int](), dict[int, Any]()
        self.watches = {number: Watch() for number in (HELPER, LEADER)}
        for number, watch in self.watches.items():
            jobs = ends.enter_context(self.client()).job if number == LEADER else None
            app = application(service.machines[number], jobs, watch, proxies)
            ends.callback(service.stores[number].close)
            served = in_thread(app, watch, "127.0.0.1", 0, None)
            self.ports[number] = ends.enter_context(served)
            self.apps[number] = app.state.service

    def client(self, patience: float = 10.0) -> Aggregators:
        addresses = {number: ("127.0.0.1", port) for number, port in self.ports.items()}
        made = Aggregators(self.service.window, addresses, trust(None), patience)
        for http in made._http.values():  # as behind a proxy
            http.base_url = http.base_url.copy_with(scheme="http")
        return made

    def path(self, path: str) -> str:
        return f"/tasks/{self.service.window.digest.hex()}{path}"

    def url(self, path: str, number: int = LEADER) -> str:
        return f"http://127.0.0.1:{self.ports[number]}{path}"

    def post(self, content: Any, **more: Any) -> httpx.Response:
        return httpx.post(self.url(self.path("/reports")), content=content, **more)

    def sent(self, client: Aggregators, report: bytes, shown: bytes) -> tuple[int, bytes]:
        return client._sent(LEADER, "POST", self.url(self.path("/reports")), report, shown)

    def begun(self, size: int, source: str = "127.0.0.1") -> socket.socket:
        """A stranger's body that begins and does not go on."""
        line = socket.create_connection(("127.0.0.1", self.ports[LEADER]), 10, (source, 0))
        head = f"POST {self.path('/reports')} HTTP/1.1\r\nhost: h\r\ncontent-length: {size}"
        line.sendall(f"{head}\r\n\r\nx".encode())
        return line

    def report(self, user: int) -> bytes:
        return self.service.report(user, vector_of(user))

    def credit(self, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
        limits = RateLimits()
        limits._credit = Credit(most, 0.0)
        monkeypatch.setattr(self.apps[LEADER], "_limits", limits)

    def count(self, name: str, **labels: str) -> float:
        found = self.watches[LEADER].registry.get_sample_value(f"aggregator_{name}", labels)
        return found or 0


@pytest.fixture
def make_hall(tmp_path: Path) -> Iterator[Callable[..., Hall]]:
    with contextlib.ExitStack() as ends:
        yield lambda *proxies: Hall(Service.of(tmp_path, range(1, 7), 5, 2), ends, *proxies)


@pytest.fixture
def hall(make_hall: Callable[..., Hall]) -> Hall:
    return make_hall()


def test_reports_of_many_at_once_are_opened(hall: Hall) -> None:
    def report(user: int) -> None:
        with hall.client() as client:
            client.connect()
            client.report(user, hall.report(user))

    threads = [threading.Thread(target=report, args=(user,)) for user in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with hall.client() as client:
        opened = client.open(hall.service.keys[LEADER])
        assert "closed" in client.status(hall.service.keys[LEADER])[HELPER]
        assert opened.users == set(range(5))
        with pytest.raises(Refused, match="OutOfOrder: report must come before the window is"):
            client.connect()


def test_refusals_are_problems_and_bodies_are_bounded_before_they_are_read(hall: Hall) -> None:
    largest = hall.apps[LEADER]._largest
    for body, status, title in (
        (b"x", 400, "TruncatedMessage"),
        (bytes(largest), 400, "MalformedMessage"),
        (bytes(largest + 1), 413, "Unread"),
        (iter([b"x"]), 411, "Unread"),
    ):
        answer = hall.post(body)
        assert answer.headers["content-type"] == "application/problem+json"
        assert (answer.status_code, answer.json()["status"]) == (status, status)
        assert answer.json()["title"] == title
    with socket.create_connection(("127.0.0.1", hall.ports[LEADER])) as line:
        line.sendall(b"POST /tasks HTTP/1.1\r\nx: " + b"y" * 2**17)
        assert line.recv(100).startswith(b"HTTP/1.1 4")
    other = hall.url(f"/tasks/{'0' * 64}/reports")
    assert httpx.post(other, content=b"x").status_code == 404
    assert httpx.get(hall.url("/healthz", HELPER)).status_code == 204


def test_a_body_that_comes_too_slowly_is_not_waited_for(hall: Hall, monkeypatch) -> None:
    monkeypatch.setattr(door, "BODY_SECONDS", 0.3)
    with hall.begun(100) as line:
        assert line.recv(100).startswith(b"HTTP/1.1 408")


def test_slow_bodies_of_strangers_do_not_keep_a_user_waiting(hall: Hall, monkeypatch) -> None:
    monkeypatch.setattr(aggregator_limits, "SLOW_SECONDS", 60.0)
    sources = ["127.0.0.1"] * 20 + ["127.0.0.2"] * 20
    lines = [hall.begun(hall.apps[LEADER]._largest, source) for source in sources]
    reports = [hall.report(user) for user in range(3)]
    time.sleep(0.5)
    with hall.client(patience=0.0) as client:
        client.report(0, reports[0])
    refused = hall.post(reports[1])
    assert (refused.status_code, refused.json()["title"]) == (429, "NoRoom")
    assert refused.headers["retry-after"] == "1"
    monkeypatch.setattr(aggregator_limits, "SLOW_SECONDS", 0.0)
    taken = hall.post(reports[2])
    assert taken.status_code == 201  # of nobody known, in the room of one that was too slow
    for line in lines:
        line.close()


def test_strangers_spend_their_own_credit_and_users_go_on(hall: Hall, monkeypatch) -> None:
    hall.credit(20, monkeypatch)
    with httpx.Client() as stranger:
        url = hall.url(hall.path("/reports"))
        answers = [stranger.post(url, content=b"x").status_code for _ in range(30)]
    read = answers.count(400)
    assert 10 <= read <= 20  # the seconds that they took count as well
    assert answers == [400] * read + [429] * (30 - read)
    report, impostor = hall.report(0), hall.report(1)
    assert hall.post(report).status_code == 429
    with hall.client() as client:
        for _ in range(3):
            client.report(0, report)
        shown = bytearray(summary(impostor[:-HELPER_MESSAGE_BYTES]))
        shown[-1] ^= 1
        status, words = hall.sent(client, impostor, bytes(shown))
        assert (status, words[:6]) == (429, b"NoRoom")
    assert hall.count("reports_received_total", answer="acknowledged") == 3
    assert hall.count("reports_received_total", answer="TruncatedMessage") == read
    assert hall.count("request_seconds_count", request="report", status="429") == 30 - read + 2
    assert hall.count("received_bytes_total") > 3 * len(report)


def test_a_user_who_floods_spends_its_own_credit(hall: Hall, monkeypatch) -> None:
    hall.credit(5, monkeypatch)
    report = hall.report(0)
    shown = summary(report[:-HELPER_MESSAGE_BYTES])
    with hall.client() as client:
        sent = [hall.sent(client, report, shown)[0] for _ in range(6)]
        assert sent == [201] * 4 + [429] * 2
        client.report(1, hall.report(1))


@pytest.mark.parametrize("proxies", [(), ("127.0.0.1",)])
def test_an_address_behind_a_proxy_counts_if_the_operator_names_the_proxy(
    make_hall: Callable[..., Hall], monkeypatch, proxies: tuple[str, ...]
) -> None:
    hall, seen, plain = make_hall(*proxies), list[str](), RateLimits.stranger

    def stranger(self: RateLimits, host: str, *rest):
        seen.append(host)
        return plain(self, host, *rest)

    monkeypatch.setattr(RateLimits, "stranger", stranger)
    forged = {"x-forwarded-for": "198.51.100.9, 203.0.113.5"}
    assert hall.post(b"x", headers=forged).status_code == 400
    assert seen == ["203.0.113.5" if proxies else "127.0.0.1"]


def test_questions_without_a_body_ask_the_database_once_a_second(hall: Hall, monkeypatch) -> None:
    asked, plain = list[int](), hall.service.leader.check_open
    monkeypatch.setattr(hall.apps[LEADER]._taking, "_ask", lambda: (asked.append(1), plain()))
    with httpx.Client() as client:
        for _ in range(20):
            assert client.get(hall.url(hall.path(""))).status_code == 204
    assert len(asked) <= 3


def test_connections_that_do_nothing_make_room(make_hall: Callable[..., Hall], monkeypatch) -> None:
    monkeypatch.setattr(aggregator_server, "MOST_LINES", 8)
    hall = make_hall()
    with contextlib.ExitStack() as stack:
        for _ in range(8):
            line = socket.create_connection(("127.0.0.1", hall.ports[LEADER]))
            stack.enter_context(line)
        time.sleep(0.3)
        with hall.client() as client:
            client.report(0, hall.report(0))
        assert hall.count("closed_connections_total", why="crowded")


def test_a_connection_that_was_reset_leaves_nothing_behind(hall: Hall) -> None:
    """Its buffers, 60 KiB with TLS, go at once, and the rest with the next garbage."""
    at = "127.0.0.1", hall.ports[LEADER]

    def there(kind: type) -> int:
        return sum(type(each) is kind for each in gc.get_objects())

    def gone(kind: type, most: int) -> bool:
        until = time.monotonic() + 10
        while there(kind) > most and time.monotonic() < until:
            time.sleep(0.05)
        return there(kind) <= most

    gc.collect()
    most = {kind: there(kind) + 1 for kind in (FlowControl, Line)}  # the one accepted last
    gc.disable()
    try:
        for _ in range(5):
            with socket.create_connection(at) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n")
                answer = b""
                while not answer.endswith(b"\r\n\r\nNot Found"):
                    answer += stranger.recv(4096)
                reset = struct.pack("ii", 1, 0)
                stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        assert gone(FlowControl, most[FlowControl])  # what holds the transport
        gc.collect()
        assert gone(Line, most[Line])
    finally:
        gc.enable()


def test_an_impostor_cannot_acknowledge(hall: Hall, monkeypatch) -> None:
    other = acknowledge(hall.service.window, 0, bytes(32), hall.service.keys[HELPER])
    monkeypatch.setattr(Aggregators, "_sent", lambda *given: (201, other))
    with hall.client() as client, pytest.raises(Refused, match="acknowledgement must be signed"):
        client.report(0, hall.report(0))


def test_what_is_not_there_yet_is_asked_again_and_words_are_safe(hall: Hall, monkeypatch) -> None:
    answers = [(503, b"NotYet: later"), (502, b"status 502"), (204, b"")]
    monkeypatch.setattr(Aggregators, "_sent", lambda *given: answers.pop(0))
    with hall.client() as client:
        client.connect()
        assert answers == []
        monkeypatch.setattr(Aggregators, "_sent", lambda *given: (400, b"\x1b[31mred"))
        with pytest.raises(Refused) as refused:
            client.connect()
        assert "\x1b" not in str(refused.value)


def test_a_problem_is_json() -> None:
    answer = door.problem(503, "NotYet", "x" * 1000)
    assert json.loads(bytes(answer.body))["detail"] == "x" * 400
    assert answer.headers["retry-after"] == "1"
