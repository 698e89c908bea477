"""Aggregators as processes: any of them killed at any moment, strangers at the door."""

import argparse
import asyncio
import contextlib
import hashlib
import importlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from train_distributed.flower import aggregator_server
from train_distributed.flower.aggregator_client import Aggregators
from train_distributed.flower.aggregator_server import ORDER, REPORT, serve
from train_distributed.flower.check_pool import spread
from train_distributed.flower.transport import frames
from train_distributed.flower.transport.frames import LENGTH
from train_distributed.secure_sum.aggregator import DONE, Aggregator
from train_distributed.secure_sum.keys import SIGNATURE_BYTES, PrivateKeys
from train_distributed.secure_sum.parties import FIRST_SERVER
from train_distributed.secure_sum.report_store import ReportStore
from train_distributed.secure_sum.reports import RECEIPT_BYTES, Checker, Part, make_report
from train_distributed.secure_sum.window import Window, WindowWithKeys

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
USERS, D = 12, 7


def vector(user: int) -> np.ndarray:
    return np.random.default_rng(user).integers(0, 1000, D).astype(np.uint64)


class Hall:
    """A window of two aggregators in threads of this process."""

    def __init__(self, folder: Path) -> None:
        self.users = [PrivateKeys.generate() for _ in range(USERS)]
        self.keys = {FIRST_SERVER + j: PrivateKeys.generate() for j in range(2)}
        roll = b"".join(keys.public.verifying for keys in self.users)
        self.window = Window(
            nonce=bytes(32),
            dimension=D,
            bits=32,
            minimum=2,
            enrolled=USERS,
            roll=hashlib.sha256(roll).digest(),
            servers={name: keys.public for name, keys in self.keys.items()},
            opens=0,
            closes=2**40,
        )
        self.enrolled = WindowWithKeys(self.window, np.frombuffer(roll, np.uint8).reshape(-1, 32))
        self.addresses: dict[int, tuple[str, int]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._threads: list[threading.Thread] = []
        for aggregator in self.keys:
            ready = threading.Event()
            thread = threading.Thread(target=self._run, args=(aggregator, folder, ready))
            thread.start()
            self._threads.append(thread)
            assert ready.wait(30)

    def _run(self, aggregator: int, folder: Path, ready: threading.Event) -> None:
        holdings = ReportStore(folder / str(aggregator), self.enrolled, aggregator)
        machine = Aggregator(self.enrolled, aggregator, self.keys[aggregator], holdings)

        def listening(port: int) -> None:
            self.addresses[aggregator] = ("127.0.0.1", port)
            ready.set()

        async def main() -> None:
            work = serve(machine, self.enrolled, "127.0.0.1", 0, None, listening)
            self._tasks.append(asyncio.ensure_future(work))
            await asyncio.wait(self._tasks[-1:])

        asyncio.run(main())
        holdings.close_file()

    def reports(self, users: range) -> dict[int, dict[int, bytes]]:
        return {u: make_report(self.window, u, self.users[u], vector(u)) for u in users}

    def end(self) -> None:
        for task in self._tasks:
            task.get_loop().call_soon_threadsafe(task.cancel)
        for thread in self._threads:
            thread.join(30)


def gone(line: socket.socket, seconds: float) -> bool:
    """Whether the other end has hung up, or does in that time."""
    line.settimeout(seconds)
    try:
        return line.recv(1) == b""
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


@pytest.fixture
def hall(tmp_path: Path) -> Iterator[Hall]:
    made = Hall(tmp_path)
    yield made
    made.end()


def test_many_reports_of_one_line_are_answered_in_their_order(hall: Hall) -> None:
    with Aggregators(hall.window, hall.addresses, patience=5.0) as aggregators:
        aggregators.connect()
        reports = hall.reports(range(USERS))
        foreign = make_report(hall.window, 3, PrivateKeys.generate(), vector(3))
        refused = aggregators.report(reports | {3: foreign})
        assert refused.keys() == {3}
        assert refused[3].startswith("aggregator 0: BadSignature")
        assert aggregators.report(reports) == {}
        opened = aggregators.open(hall.keys[FIRST_SERVER])
    plain = np.sum([vector(user) for user in range(USERS)], 0)
    assert opened.total.tolist() == plain.tolist()


def test_strangers_are_sent_away_and_the_others_served(hall: Hall, monkeypatch) -> None:
    monkeypatch.setattr(aggregator_server, "IDLE_SECONDS", 0.2)
    address = hall.addresses[FIRST_SERVER]
    for sent in (
        LENGTH.pack(2**31),
        LENGTH.pack(0),
        b"GET / HTTP/1.1\r\n\r\n",
        LENGTH.pack(3) + b"xyz",
    ):
        with socket.create_connection(address, 10) as line:
            line.sendall(sent)
            assert gone(line, 10)
    with socket.create_connection(address, 10) as slow:
        slow.sendall(LENGTH.pack(100) + b"r")  # and no more
        with Aggregators(hall.window, hall.addresses, patience=5.0) as aggregators:
            assert aggregators.report(hall.reports(range(3))) == {}
            for _ in range(100):
                aggregators.connect()
                if gone(slow, 0.2):
                    return
    pytest.fail("a line without a whole request must be closed, is not")


def test_whoever_does_not_read_answers_is_sent_away(hall: Hall, monkeypatch) -> None:
    monkeypatch.setattr(aggregator_server, "UNREAD_BYTES", 2**12)
    monkeypatch.setattr(aggregator_server, "WAITING_BYTES", 2**14)
    with socket.create_connection(hall.addresses[FIRST_SERVER], 10) as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**18)  # with 2**12 TCP may stall
        line.settimeout(20)
        flood = (LENGTH.pack(len(REPORT)) + REPORT) * 2**10
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            _ = [line.sendall(flood) for _ in range(10**5)]
    with Aggregators(hall.window, hall.addresses, patience=5.0) as aggregators:
        assert aggregators.report(hall.reports(range(2))) == {}


def test_connections_that_do_nothing_make_room(hall: Hall, monkeypatch) -> None:
    monkeypatch.setattr(aggregator_server, "MOST_LINES", 20)
    address = hall.addresses[FIRST_SERVER]
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(socket.create_connection(address, 10))
        start = time.monotonic()
        with Aggregators(hall.window, hall.addresses, patience=5.0) as aggregators:
            assert aggregators.report(hall.reports(range(3))) == {}
        assert time.monotonic() - start < 2


@pytest.mark.parametrize("flood", [REPORT, ORDER + bytes(200)], ids=["short frames", "orders"])
def test_whoever_sends_without_end_waits_and_others_do_not(hall: Hall, flood: bytes) -> None:
    ended, address = threading.Event(), hall.addresses[FIRST_SERVER]
    sent = (LENGTH.pack(len(flood)) + flood) * 5000

    def send(line: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while not ended.is_set():
                line.sendall(sent)

    def read(line: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while line.recv(2**16):
                pass

    with contextlib.ExitStack() as stack:
        lines = [stack.enter_context(socket.create_connection(address, 10)) for _ in range(3)]
        threads = [threading.Thread(target=t, args=(line,)) for line in lines for t in (send, read)]
        for thread in threads:
            thread.start()
        try:
            time.sleep(1)  # the flood is there
            start = time.monotonic()
            with Aggregators(hall.window, hall.addresses, patience=5.0) as aggregators:
                assert aggregators.report(hall.reports(range(3))) == {}
            assert time.monotonic() - start < 2
        finally:
            ended.set()
            for line in lines:
                with contextlib.suppress(OSError):
                    line.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join(10)


def test_short_frames_do_not_pile_up() -> None:
    """What waits of one connection is bounded by number, not by bytes alone."""
    machine = Mock(spec=Aggregator)
    line = aggregator_server._Line(aggregator_server._Queue(machine, 100), "anybody")
    line.connection_made(transport := Mock(spec=asyncio.Transport))
    line.data_received((LENGTH.pack(1) + REPORT) * 10**5)
    assert len(line.waiting) == aggregator_server.LINE_REQUESTS
    transport.pause_reading.assert_called()


def test_an_impostor_cannot_acknowledge(hall: Hall) -> None:
    """Whoever answers in an aggregator's place, without its key, has taken no report."""
    with socket.create_server(("127.0.0.1", 0)) as impostor:

        def answer() -> None:
            line, _ = impostor.accept()
            with line:
                frames.receive(line, 2**20)
                frames.send(line, DONE + bytes(SIGNATURE_BYTES + RECEIPT_BYTES))

        thread = threading.Thread(target=answer)
        thread.start()
        addresses = hall.addresses | {FIRST_SERVER: impostor.getsockname()[:2]}
        with Aggregators(hall.window, addresses, patience=5.0) as aggregators:
            refused = aggregators.report(hall.reports(range(1)))
        thread.join(10)
    assert "acknowledgement must be signed with its pinned key" in refused[0]


def test_slices_of_processes_check_as_one(hall: Hall) -> None:
    aggregator = FIRST_SERVER
    check = Checker(hall.enrolled, aggregator, hall.keys[aggregator])
    messages = [parts[aggregator] for parts in hall.reports(range(7)).values()]
    messages[2] = messages[2][:-1]
    messages[5] = b""
    with spread(check, 3) as several:
        for part in (messages, messages[:1], messages[:2]):
            one, other = check(part), several(part)
            assert other.found == one.found
            assert other.total.tolist() == one.total.tolist()
    assert [isinstance(found, Part) for found in check(messages).found].count(False) == 2
    with pytest.raises(ValueError, match="processes must be >= 1, got 0"), spread(check, 0):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_aggregators_killed_again_and_again_lose_nothing(
    tmp_path: Path, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`load_shares.py` in small: it raises unless the sum is that of the acknowledged reports."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    options = argparse.Namespace(
        adders=3,
        components=20,
        classes=5,
        bits=32,
        clients=2,
        processes=processes,
        line_users=100,
        tls=processes == 2,
        folder=tmp_path,
    )
    found = importlib.import_module("load_shares").measure(options, 4000, 15)
    assert found["exact"]
    assert found["kills"] == 15
    assert found["reports_in_the_sum"] == 3980
