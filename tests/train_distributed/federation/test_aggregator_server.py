"""Aggregators and strangers: bounded rooms, places, metrics, log, bodies and connections."""

import asyncio
import contextlib
import gc
import json
import logging
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from uvicorn.protocols.http.flow_control import FlowControl

from tests.ports import free_port
from tests.train_distributed.secure_sum.window.conftest import Service, vector_of
from train_distributed.federation import aggregator_limits, aggregator_watch, door
from train_distributed.federation.aggregator_app import application
from train_distributed.federation.aggregator_client import Aggregators, Refused
from train_distributed.federation.aggregator_limits import Credit, NoRoom, RateLimits, Room
from train_distributed.federation.aggregator_server import in_thread
from train_distributed.federation.aggregator_watch import EVENTS, LOG, Seldom, Watch, logged
from train_distributed.federation.documents.certificates import trust
from train_distributed.federation.limited_http import Line
from train_distributed.federation.places import Places, network
from train_distributed.secure_sum.reports import HELPER_MESSAGE_BYTES, acknowledge
from train_distributed.secure_sum.window import HELPER, LEADER
from train_distributed.secure_sum.wire import summary


def test_a_bucket_is_empty_for_as_long_as_its_rate_says_and_others_are_not() -> None:
    now = [100.0]
    credit = Credit(10, 2.0, clock=lambda: now[0])
    for _ in range(10):
        credit.check("a")
        credit.spend("a", 1)
    with pytest.raises(NoRoom, match="2 a second"):
        credit.check("a")
    credit.check("b")
    now[0] += 0.6
    credit.check("a")
    now[0] += 1000
    credit.spend("a", 9.5)  # no more than a full bucket comes back
    credit.check("a")
    credit.spend("a", 1)
    with pytest.raises(NoRoom):
        credit.check("a")
    credit = Credit(1, 0.0, owners=3)
    for owner in range(10):
        credit.spend(owner, 5)
    assert len(credit._spent) == 3  # the latest
    credit.check(6)
    with pytest.raises(NoRoom):
        credit.check(7)


async def held(room: Room, owner: object, length: int, *, came: int = 0) -> asyncio.Task:
    """A body in the room, which waits there."""
    entered = asyncio.get_running_loop().create_future()

    async def hold() -> None:
        try:
            async with room.body(owner, length, 60) as body:
                body.received = came
                entered.set_result(body)
                await asyncio.sleep(60)
        except (NoRoom, TimeoutError) as error:
            if entered.done():
                raise
            entered.set_exception(error)  # and not the task's as well, whom nobody asks

    task = asyncio.create_task(hold())
    await entered
    return task


async def released(*tasks: asyncio.Task) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_a_slow_body_makes_room_and_a_fast_one_does_not(monkeypatch) -> None:
    async def run() -> None:
        room = Room(3 * 2**20, each=8)
        monkeypatch.setattr(aggregator_limits, "SLOW_SECONDS", 0.05)
        fast = await held(room, "a", 2**20, came=2**20)
        slow = [await held(room, "a", 2**20, came=came) for came in (100, 10)]
        with pytest.raises(NoRoom, match="bodies at a time"):
            await held(room, "b", 2**20)  # none is slow yet
        await asyncio.sleep(0.1)
        late = await held(room, "b", 2**20)
        await asyncio.sleep(0.01)
        assert [task.done() for task in (fast, *slow, late)] == [False, False, True, False]
        assert isinstance(slow[1].exception(), TimeoutError)
        await released(fast, slow[0], late)
        assert not room._bodies

    asyncio.run(run())


def test_an_owner_has_a_share_and_a_body_that_has_come_keeps_its_place(monkeypatch) -> None:
    async def run() -> None:
        monkeypatch.setattr(aggregator_limits, "SLOW_SECONDS", 0.0)
        room = Room(2**30, each=2)
        tasks = [await held(room, "a", 10) for _ in range(2)]
        for body in room._bodies:
            body.whole()
        await asyncio.sleep(0.05)
        with pytest.raises(NoRoom, match="bodies of one party must be <= 2"):
            await held(room, "a", 10)
        tasks.append(await held(room, "b", 10))
        await released(*tasks)

    asyncio.run(run())


def test_one_body_that_is_larger_than_the_room_finds_it_empty() -> None:
    async def run() -> None:
        room, start = Room(100, each=8), time.monotonic()
        task = await held(room, "a", 2**20)
        with pytest.raises(NoRoom):
            await held(room, "b", 1)
        await released(task)
        await released(await held(room, "b", 1))
        with pytest.raises(TimeoutError):
            async with room.body("a", 1, 0.05):
                await asyncio.sleep(60)
        assert time.monotonic() - start < 30

    asyncio.run(run())


class Held:
    here = True

    def leave(self, why: str) -> None:
        self.here = False


def enter(places: Places, *addresses: str) -> list[Held]:
    lines = [Held() for _ in addresses]
    for line, address in zip(lines, addresses, strict=True):
        places.enter(line, address)
    return lines


def here(lines: list[Held]) -> list[bool]:
    return [line.here for line in lines]


def test_a_crowd_shuts_nobody_else_out_and_its_oldest_leave_first() -> None:
    for stranger, crowd in (
        ("198.51.100.1", ["192.0.2.1"] * 1000),
        ("2001:db8:2::1", [f"2001:db8:1::{i:x}" for i in range(50)]),
    ):
        other, *lines = enter(Places(10, 2), stranger, *crowd)
        assert other.here
        assert here(lines) == [False] * (len(crowd) - 9) + [True] * 9
    assert network("::ffff:192.0.2.7") == "192.0.2.7"
    assert network("2001:db8:1:2::9%eth0") == "2001:db8:1:2::"
    assert [network(host) for host in ("", "testclient")] == ["", "testclient"]


def test_a_proven_line_is_out_of_reach_of_strangers_at_its_own_address() -> None:
    """And a key has its own places, and no more."""
    places = Places(10, 2)
    lines = enter(places, *["192.0.2.1"] * 4)
    *users, other = lines
    for line in users:
        places.prove(line, b"key")
        places.prove(line, b"key")
    places.prove(other, b"other")
    enter(places, *["192.0.2.1"] * 1000)
    assert here(lines) == [False, True, True, True]


def test_places_of_lines_that_are_gone_are_free() -> None:
    places = Places(2, 1)
    places.make_room()  # where nobody is
    for _ in range(5):
        (line,) = enter(places, "192.0.2.1")
        places.gone(line)
        places.prove(line, b"key")  # too late: it holds no place of the key's
    kept = enter(places, *["192.0.2.1"] * 2)
    assert here(kept) == [True, True]
    places.make_room()
    assert here(kept) == [False, True]


def test_a_place_of_the_code_writes_seldom(tmp_path, monkeypatch, capsys) -> None:
    now = [0.0]
    monkeypatch.setattr(Seldom.__init__, "__defaults__", (60.0, lambda: now[0]))
    with logged(tmp_path):
        for round_ in range(3):
            for stranger in range(1000):
                LOG.warning("refused", extra={"fields": {"why": f"\n\x1b{stranger}" * 9999}})
            LOG.info("round %d", round_)
            now[0] += 61.0
        logging.getLogger("asyncio").error("of a library")
        logging.getLogger("httpx").info("HTTP Request: POST")
        try:
            raise ZeroDivisionError("x" * 10_000)
        except ZeroDivisionError:
            LOG.exception("a request fails")
    shown = capsys.readouterr().err
    assert (tmp_path / EVENTS).read_text() == shown
    found = [json.loads(line) for line in shown.splitlines()]
    rounds = [event for number in range(3) for event in ("refused", f"round {number}")]
    assert [each["event"] for each in found] == [*rounds, "of a library", "a request fails"]
    refused = [each.get("left_out") for each in found if each["event"] == "refused"]
    assert refused == [None, 999, 999]
    assert all(len(each["why"]) <= 2000 for each in found if "why" in each)
    assert (found[-1]["level"], len(found[-1]["error"])) == ("ERROR", 2000)
    assert "\x1b" not in shown


def test_the_file_is_rotated(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(aggregator_watch, "LOG_BYTES", 10_000)
    monkeypatch.setattr(Seldom, "filter", lambda self, record: True)
    with logged(tmp_path):
        for number in range(1000):
            LOG.info("an event", extra={"fields": {"number": number, "words": "x" * 100}})
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) == aggregator_watch.LOG_FILES
    assert max(sizes) <= 10_000
    assert json.loads((tmp_path / EVENTS).read_text().splitlines()[-1])["number"] == 999


def test_metrics_are_served_where_the_operator_says_with_the_database_s_counts(monkeypatch) -> None:
    watch, port, counts = Watch(), free_port(), [{0: 3, 1: 5, 2: 1}]

    def count() -> dict[int, int]:
        if not counts:
            raise OSError("gone")
        return counts.pop()

    def scraped() -> str:
        return httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=10).text

    watch.count_reports(count)
    watch.reports.labels("BadSignature").inc(2)
    end = watch.serve("127.0.0.1", port)
    try:
        text = scraped()
        assert 'aggregator_reports{state="added"} 5.0' in text
        assert 'aggregator_reports_received_total{answer="BadSignature"} 2.0' in text
        assert "aggregator_reports{" in scraped()  # it is not asked once more within seconds
        monkeypatch.setattr(aggregator_watch.time, "monotonic", lambda: 1e12)
        assert "aggregator_reports{" not in scraped()  # no figure rather than an old one
    finally:
        end()
    with pytest.raises(httpx.TransportError):
        scraped()


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


def test_refusals_are_problems_and_bodies_are_bounded_unread(hall, monkeypatch) -> None:
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
    monkeypatch.setattr(door, "BODY_SECONDS", 0.3)
    with hall.begun(100) as line:
        assert line.recv(100).startswith(b"HTTP/1.1 408")
    answer = door.problem(503, "NotYet", "x" * 1000)
    assert json.loads(bytes(answer.body))["detail"] == "x" * 400
    assert answer.headers["retry-after"] == "1"


def test_slow_bodies_of_strangers_do_not_keep_a_user_waiting(hall, monkeypatch) -> None:
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


def test_strangers_spend_their_own_credit_and_users_go_on(hall, monkeypatch) -> None:
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


def test_a_user_who_floods_spends_its_own_credit(hall, monkeypatch) -> None:
    hall.credit(5, monkeypatch)
    report = hall.report(0)
    shown = summary(report[:-HELPER_MESSAGE_BYTES])
    with hall.client() as client:
        sent = [hall.sent(client, report, shown)[0] for _ in range(6)]
        assert sent == [201] * 4 + [429] * 2
        client.report(1, hall.report(1))


@pytest.mark.parametrize("proxies", [(), ("127.0.0.1",)])
def test_an_address_behind_a_proxy_that_is_named_counts(make_hall, monkeypatch, proxies) -> None:
    hall, seen, plain = make_hall(*proxies), list[str](), RateLimits.stranger

    def stranger(self: RateLimits, host: str, *rest):
        seen.append(host)
        return plain(self, host, *rest)

    monkeypatch.setattr(RateLimits, "stranger", stranger)
    forged = {"x-forwarded-for": "198.51.100.9, 203.0.113.5"}
    assert hall.post(b"x", headers=forged).status_code == 400
    assert seen == ["203.0.113.5" if proxies else "127.0.0.1"]


def test_questions_without_a_body_ask_the_database_once_a_second(hall, monkeypatch) -> None:
    asked, plain = list[int](), hall.service.leader.check_open
    monkeypatch.setattr(hall.apps[LEADER]._taking, "_ask", lambda: (asked.append(1), plain()))
    with httpx.Client() as client:
        for _ in range(20):
            assert client.get(hall.url(hall.path(""))).status_code == 204
    assert len(asked) <= 3


def test_connections_that_do_nothing_make_room(make_hall: Callable[..., Hall], monkeypatch) -> None:
    monkeypatch.setattr("train_distributed.federation.aggregator_server.MOST_LINES", 8)
    hall = make_hall()
    with contextlib.ExitStack() as stack:
        for _ in range(8):
            line = socket.create_connection(("127.0.0.1", hall.ports[LEADER]))
            stack.enter_context(line)
        time.sleep(0.3)
        with hall.client() as client:
            client.report(0, hall.report(0))
        assert hall.count("closed_connections_total", why="crowded")


def test_a_connection_that_was_reset_leaves_nothing_behind(hall) -> None:
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


def test_what_is_not_there_yet_is_asked_again_and_no_impostor_believed(hall, monkeypatch) -> None:
    answers = [(503, b"NotYet: later"), (502, b"status 502"), (204, b"")]
    monkeypatch.setattr(Aggregators, "_sent", lambda *given: answers.pop(0))
    with hall.client() as client:
        client.connect()
        assert answers == []
        monkeypatch.setattr(Aggregators, "_sent", lambda *given: (400, b"\x1b[31mred"))
        with pytest.raises(Refused) as refused:
            client.connect()
        assert "\x1b" not in str(refused.value)
        forged = acknowledge(hall.service.window, 0, bytes(32), hall.service.keys[HELPER])
        monkeypatch.setattr(Aggregators, "_sent", lambda *given: (201, forged))
        with pytest.raises(Refused, match="acknowledgement must be signed"):
            client.report(0, hall.report(0))
