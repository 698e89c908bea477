"""A served aggregator and strangers: bounded bodies and connections, signed acknowledgements."""

import asyncio
import contextlib
import json
import resource
import socket
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.train_distributed.secure_sum.window.conftest import (  # noqa: F401
    Service,
    make_service,
    vector,
)
from train_distributed.flower import aggregator_app, aggregator_server
from train_distributed.flower.aggregator_app import application
from train_distributed.flower.aggregator_client import Aggregators, Refused
from train_distributed.flower.aggregator_server import serve
from train_distributed.secure_sum.aggregator import Send, request_bytes
from train_distributed.secure_sum.reports import acknowledge
from train_distributed.secure_sum.window import HELPER, LEADER


class Hall:
    """Both aggregators of a window, served by threads of this process."""

    def __init__(self, service: Service) -> None:
        self.service, self.ports = service, dict[int, int]()
        self._ends: list[tuple[asyncio.AbstractEventLoop, asyncio.Task, threading.Thread]] = []
        self._serve(HELPER, None)
        self._jobs = self.client()
        self._serve(LEADER, self._jobs.job)

    def client(self, patience: float = 10.0) -> Aggregators:
        addresses = {number: ("127.0.0.1", port) for number, port in self.ports.items()}
        return Aggregators(self.service.window, addresses, patience=patience)

    def url(self, path: str, number: int = LEADER) -> str:
        task = f"/tasks/{self.service.window.digest.hex()}"
        return f"http://127.0.0.1:{self.ports[number]}{task}{path}"

    def _serve(self, number: int, send: Send | None) -> None:
        app, ready = application(self.service.machines[number], send), threading.Event()

        def listening(port: int) -> None:
            self.ports[number] = port
            ready.set()

        async def run() -> None:
            task = asyncio.ensure_future(serve(app, "127.0.0.1", 0, None, listening))
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
    monkeypatch.setattr(aggregator_app, "BODY_SECONDS", 0.3)
    with socket.create_connection(("127.0.0.1", hall.ports[LEADER]), 10) as line:
        path = hall.url("/reports").partition(f":{hall.ports[LEADER]}")[2]
        line.sendall(f"POST {path} HTTP/1.1\r\nhost: h\r\ncontent-length: 100\r\n\r\nx".encode())
        assert line.recv(100).startswith(b"HTTP/1.1 408")


def test_connections_that_do_nothing_make_room(hall: Hall, monkeypatch, vector) -> None:  # noqa: F811
    monkeypatch.setattr(aggregator_server, "MOST_LINES", 8)
    idle = [socket.create_connection(("127.0.0.1", hall.ports[LEADER])) for _ in range(8)]
    time.sleep(0.3)
    with hall.client() as client:
        client.report(0, hall.service.report(0, vector(0)))
    for line in idle:
        line.close()
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert files > 8


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
    answer = aggregator_app._problem(503, "NotYet", "x" * 1000)
    assert json.loads(bytes(answer.body))["detail"] == "x" * 400
    assert answer.headers["retry-after"] == "1"
