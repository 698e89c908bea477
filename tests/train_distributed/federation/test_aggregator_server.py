"""A served aggregator and strangers: bounded bodies and connections, signed acknowledgements."""

import asyncio
import contextlib
import gc
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator

import httpx
import pytest
from uvicorn.protocols.http.flow_control import FlowControl

from tests.train_distributed.secure_sum.window.conftest import (  # noqa: F401
    Service,
    make_service,
    vector,
)
from train_distributed.federation import aggregator_limits, aggregator_server, door
from train_distributed.federation.aggregator_app import Service as AggregatorService
from train_distributed.federation.aggregator_app import application
from train_distributed.federation.aggregator_client import Aggregators, Refused
from train_distributed.federation.aggregator_limits import Credit, RateLimits
from train_distributed.federation.aggregator_server import serve
from train_distributed.federation.aggregator_watch import Watch
from train_distributed.federation.documents.certificates import trust
from train_distributed.federation.limited_http import Line
from train_distributed.secure_sum.aggregator import Send, request_bytes
from train_distributed.secure_sum.reports import HELPER_MESSAGE_BYTES, acknowledge
from train_distributed.secure_sum.window import HELPER, LEADER
from train_distributed.secure_sum.wire import summary


class Hall:
    """Both aggregators of a window, served by threads of this process."""

    def __init__(self, service: Service, proxies: tuple[str, ...] = ()) -> None:
        self.service, self.ports, self.proxies = service, dict[int, int](), proxies
        self.watches, self.apps = dict[int, Watch](), dict[int, AggregatorService]()
        self._ends: list[tuple[asyncio.AbstractEventLoop, asyncio.Task, threading.Thread]] = []
        self._serve(HELPER, None)
        self._jobs = self.client()
        self._serve(LEADER, self._jobs.job)

    def client(self, patience: float = 10.0) -> Aggregators:
        addresses = {number: ("127.0.0.1", port) for number, port in self.ports.items()}
        made = Aggregators(self.service.window, addresses, trust(None), patience)
        for http in made._http.values():  # as behind a proxy
            http.base_url = http.base_url.copy_with(scheme="http")
        return made

    def url(self, path: str, number: int = LEADER) -> str:
        task = f"/tasks/{self.service.window.digest.hex()}"
        return f"http://127.0.0.1:{self.ports[number]}{task}{path}"

    def _serve(self, number: int, send: Send | None) -> None:
        watch, ready = self.watches.setdefault(number, Watch()), threading.Event()
        app = application(self.service.machines[number], send, watch, self.proxies)
        self.apps[number] = app.state.service

        def listening(port: int) -> None:
            self.ports[number] = port
            ready.set()

        async def run() -> None:
            task = asyncio.ensure_future(serve(app, watch, "127.0.0.1", 0, None, listening))
            self._ends.append((asyncio.get_running_loop(), task, thread))
            with contextlib.suppress(asyncio.CancelledError):
                await task

        thread = threading.Thread(target=lambda: asyncio.run(run()))
        thread.start()
        assert ready.wait(30)

    def end(self) -> None:
        for loop, task, thread in reversed(self._ends):
            loop.call_soon_threadsafe(task.cancel)
            thread.join(30)
            assert not thread.is_alive()
        self._jobs.__exit__()
        for store in self.service.stores.values():
            store.close()


@pytest.fixture
def hall(make_service) -> Iterator[Hall]:  # noqa: F811
    made = Hall(make_service(6))
    yield made
    made.end()


def test_reports_of_many_at_once_are_opened(hall: Hall, vector) -> None:  # noqa: F811
    def report(user: int) -> None:
        with hall.client() as client:
            client.connect()
            client.report(user, hall.service.report(user, vector(user)))

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
    largest = request_bytes(hall.service.enrolled, LEADER)
    for body, status, title in (
        (b"x", 400, "TruncatedMessage"),
        (bytes(largest), 400, "MalformedMessage"),
        (bytes(largest + 1), 413, "Unread"),
    ):
        answer = httpx.post(hall.url("/reports"), content=body)
        assert (answer.status_code, answer.headers["content-type"]) == (
            status,
            "application/problem+json",
        )
        assert answer.json()["title"] == title
        assert answer.json()["status"] == status
    unstated = httpx.post(hall.url("/reports"), content=iter([b"x"]))
    assert unstated.status_code == 411
    with socket.create_connection(("127.0.0.1", hall.ports[LEADER])) as line:
        line.sendall(b"POST /tasks HTTP/1.1\r\nx: " + b"y" * 2**17)
        assert line.recv(100).startswith(b"HTTP/1.1 4")
    task = f"http://127.0.0.1:{hall.ports[LEADER]}/tasks/{'0' * 64}/reports"
    assert httpx.post(task, content=b"x").status_code == 404
    assert httpx.get(f"http://127.0.0.1:{hall.ports[HELPER]}/healthz").status_code == 204


def test_a_body_that_comes_too_slowly_is_not_waited_for(hall: Hall, monkeypatch) -> None:
    monkeypatch.setattr(door, "BODY_SECONDS", 0.3)
    with socket.create_connection(("127.0.0.1", hall.ports[LEADER]), 10) as line:
        path = hall.url("/reports").partition(f":{hall.ports[LEADER]}")[2]
        line.sendall(f"POST {path} HTTP/1.1\r\nhost: h\r\ncontent-length: 100\r\n\r\nx".encode())
        assert line.recv(100).startswith(b"HTTP/1.1 408")


def slow_bodies(hall: Hall, count: int, source: str = "127.0.0.1") -> list[socket.socket]:
    """Bodies of strangers that begin and do not go on."""
    size = request_bytes(hall.service.enrolled, LEADER)
    path = hall.url("/reports").partition(f":{hall.ports[LEADER]}")[2]
    request = f"POST {path} HTTP/1.1\r\nhost: h\r\ncontent-length: {size}\r\n\r\nx".encode()
    lines = list[socket.socket]()
    for _ in range(count):
        address = "127.0.0.1", hall.ports[LEADER]
        lines.append(socket.create_connection(address, 10, (source, 0)))
        lines[-1].sendall(request)
    return lines


def test_slow_bodies_of_strangers_do_not_keep_a_user_waiting(
    hall: Hall,
    vector,  # noqa: F811
    monkeypatch,
) -> None:
    monkeypatch.setattr(aggregator_limits, "SLOW_SECONDS", 60.0)
    lines = slow_bodies(hall, 20) + slow_bodies(hall, 20, "127.0.0.2")
    reports = [hall.service.report(user, vector(user)) for user in range(3)]
    time.sleep(0.5)
    with hall.client(patience=0.0) as client:
        client.report(0, reports[0])
    refused = httpx.post(hall.url("/reports"), content=reports[1])
    assert (refused.status_code, refused.json()["title"]) == (429, "NoRoom")
    assert refused.headers["retry-after"] == "1"
    monkeypatch.setattr(aggregator_limits, "SLOW_SECONDS", 0.0)
    taken = httpx.post(hall.url("/reports"), content=reports[2])
    assert taken.status_code == 201  # of nobody known, in the room of one that was too slow
    for line in lines:
        line.close()


def test_strangers_spend_their_own_credit_and_users_go_on(
    hall: Hall,
    vector,  # noqa: F811
    monkeypatch,
) -> None:
    limits = RateLimits()
    limits._credit = Credit(20, 0.0)
    monkeypatch.setattr(hall.apps[LEADER], "_limits", limits)
    with httpx.Client() as stranger:
        answers = [stranger.post(hall.url("/reports"), content=b"x") for _ in range(30)]
    read = sum(answer.status_code == 400 for answer in answers)
    assert 10 <= read <= 20  # the seconds that they took count as well
    assert [answer.status_code for answer in answers] == [400] * read + [429] * (30 - read)
    report = hall.service.report(0, vector(0))
    assert httpx.post(hall.url("/reports"), content=report).status_code == 429
    with hall.client() as client:
        for _ in range(3):
            client.report(0, report)
        impostor = Service.report(hall.service, 1, vector(1))
        shown = bytearray(summary(impostor[:-HELPER_MESSAGE_BYTES]))
        shown[-1] ^= 1
        status, words = client._sent(LEADER, "POST", hall.url("/reports"), impostor, bytes(shown))
        assert (status, words[:6]) == (429, b"NoRoom")
    watch = hall.watches[LEADER]
    count = watch.registry.get_sample_value
    assert count("aggregator_reports_received_total", {"answer": "acknowledged"}) == 3
    assert count("aggregator_reports_received_total", {"answer": "TruncatedMessage"}) == read
    labels = {"request": "report", "status": "429"}
    assert count("aggregator_request_seconds_count", labels) == 30 - read + 2
    assert (count("aggregator_received_bytes_total") or 0) > 3 * len(report)


def test_a_user_who_floods_spends_its_own_credit(hall: Hall, vector, monkeypatch) -> None:  # noqa: F811
    limits = RateLimits()
    limits._credit = Credit(5, 0.0)
    monkeypatch.setattr(hall.apps[LEADER], "_limits", limits)
    report = hall.service.report(0, vector(0))
    shown = summary(report[:-HELPER_MESSAGE_BYTES])
    with hall.client() as client:
        sent = [client._sent(LEADER, "POST", hall.url("/reports"), report, shown) for _ in range(6)]
        assert [status for status, _ in sent] == [201] * 4 + [429] * 2
        client.report(1, hall.service.report(1, vector(1)))


@pytest.mark.parametrize("proxies", [(), ("127.0.0.1",)])
def test_an_address_behind_a_proxy_counts_if_the_operator_names_the_proxy(
    make_service,  # noqa: F811
    monkeypatch,
    proxies: tuple[str, ...],
) -> None:
    hall = Hall(make_service(2), proxies)
    try:
        seen = list[str]()
        plain = RateLimits.stranger

        def stranger(self: RateLimits, host: str, *rest):
            seen.append(host)
            return plain(self, host, *rest)

        monkeypatch.setattr(RateLimits, "stranger", stranger)
        forged = {"x-forwarded-for": "198.51.100.9, 203.0.113.5"}
        assert httpx.post(hall.url("/reports"), content=b"x", headers=forged).status_code == 400
        assert seen == ["203.0.113.5" if proxies else "127.0.0.1"]
    finally:
        hall.end()


def test_questions_without_a_body_ask_the_database_once_a_second(hall: Hall, monkeypatch) -> None:
    asked = list[int]()
    plain = hall.service.leader.check_open
    monkeypatch.setattr(hall.apps[LEADER]._taking, "_ask", lambda: (asked.append(1), plain()))
    with httpx.Client() as client:
        for _ in range(20):
            assert client.get(hall.url("")).status_code == 204
    assert len(asked) <= 3


def test_connections_that_do_nothing_make_room(
    make_service,  # noqa: F811
    monkeypatch,
    vector,  # noqa: F811
) -> None:
    monkeypatch.setattr(aggregator_server, "MOST_LINES", 8)
    hall = Hall(make_service(2))
    with contextlib.ExitStack() as stack:
        stack.callback(hall.end)
        at = "127.0.0.1", hall.ports[LEADER]
        for _ in range(8):
            stack.enter_context(socket.create_connection(at))
        time.sleep(0.3)
        with hall.client() as client:
            client.report(0, hall.service.report(0, vector(0)))
        count = hall.watches[LEADER].registry.get_sample_value
        assert count("aggregator_closed_connections_total", {"why": "crowded"})


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


def test_an_impostor_cannot_acknowledge(hall: Hall, vector, monkeypatch) -> None:  # noqa: F811
    report = hall.service.report(0, vector(0))
    other = acknowledge(hall.service.window, 0, bytes(32), hall.service.keys[HELPER])
    monkeypatch.setattr(Aggregators, "_sent", lambda *given: (201, other))
    with hall.client() as client, pytest.raises(Refused, match="acknowledgement must be signed"):
        client.report(0, report)


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
