"""Processes that are killed, stopped or doubled, crowds of strangers, a database that is gone."""

import asyncio
import base64
import os
import re
import resource
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.benchmarks.aggregators import Process, commands, make_window
from tests.benchmarks.postgresql import BINARIES, running
from tests.train_distributed.federation.fake_relay import in_thread
from train_distributed.federation.aggregator_client import Aggregators
from train_distributed.federation.aggregator_limits import SUMMARY
from train_distributed.federation.documents.certificates import AGREED, trust
from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.documents.private_keys import read_private
from train_distributed.federation.documents.window_file import WindowFile
from train_distributed.federation.orders import Poll, name_of_question, write_poll
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.opening import Opened
from train_distributed.secure_sum.reports import make_report
from train_distributed.secure_sum.window import HELPER, LEADER

pytestmark = pytest.mark.slow
TIMEOUT = 16.0
KINDS = "neighbours", "inbox", "survivors", "unmask"
STAGES = ["gather", "start", *(f"deliver {kind}" for kind in KINDS)]
Outcome = tuple[str, list[int] | None]  # words, with seconds; users in the sum, which was exact
LOSES = {"user 3 killed", "user 3 killed and restarted"}  # one user at most


def kill(field, party: str, *, restarted: bool = False) -> None:
    process = field.latest[party]
    process.kill()
    process.wait()
    if restarted:
        field.node(party)


def pause(field, party: str) -> None:
    process = field.latest[party]
    process.send_signal(signal.SIGSTOP)
    time.sleep(TIMEOUT / 2)
    process.send_signal(signal.SIGCONT)


BLOWS: dict[str, Callable[[Any], None]] = {
    "operator killed and restarted": lambda field: kill(field, "operator", restarted=True),
    "user 3 killed": lambda field: kill(field, "user3"),
    "user 3 killed and restarted": lambda field: kill(field, "user3", restarted=True),
    "user 3 stopped for half a time-out": lambda field: pause(field, "user3"),
    "operator stopped for half a time-out": lambda field: pause(field, "operator"),
}


def finish(field, start: float) -> Outcome:
    code = field.latest["operator"].wait(300)
    seconds = time.monotonic() - start
    if code == 0:
        users = field.opened()
        return f"exact sum of {len(users)} users | {seconds:.0f}", users
    assert code == 2, field.logs()
    assert not (field.folder / "opened.npz").exists()
    words = re.sub(r"\s+", " ", field.status()["outcome"].partition(";")[0])
    return f"refused: {words[:120]} | {seconds:.0f}", None


def attended(field, *more: Any, wait: float = 0.0) -> Outcome:
    field.nodes()
    for options in more:
        field.node("user3", **options)
    time.sleep(wait)
    start = time.monotonic()
    field.node("operator")
    return finish(field, start)


def younger(field) -> Outcome:
    start = time.monotonic()
    field.node("operator")
    field.wait_for((field.folder / "ready").exists)
    time.sleep(TIMEOUT / 2)
    field.nodes()
    return finish(field, start)


OTHERS: dict[str, Callable[[Any], Outcome]] = {
    "two copies of user 3's folder": lambda field: attended(field, {"journals": "copy"}),
    "user 3 started twice": lambda field: attended(field, {}),
    "users older than the time-out": lambda field: attended(field, wait=1.5 * TIMEOUT),
    "users younger than the time-out": younger,
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("what", BLOWS)
def test_whatever_is_struck_one_user_is_lost_at_most(what, stage, make_field) -> None:
    """Nobody is where the operator is killed, or who was stopped comes back in time."""
    field = make_field(seconds=TIMEOUT)

    def reached() -> bool:
        status = field.status()
        return status.get("stage") == stage and (stage != "gather" or "present" in status)

    field.nodes()
    start = time.monotonic()
    field.node("operator")
    field.wait_for(reached)
    BLOWS[what](field)
    words, users = finish(field, start)
    print(f"\n| {what} | {stage} | {words} |")
    assert users is not None, field.logs()
    assert set(users) | ({3} if what in LOSES else set()) == set(range(5)), field.logs()
    assert what not in LOSES or field.status()["missing"].keys() <= {"user 3"}


@pytest.mark.parametrize("scene", OTHERS)
def test_doubles_and_ages(scene: str, make_field) -> None:
    field = make_field(seconds=TIMEOUT)
    words, users = OTHERS[scene](field)
    print(f"\n| {scene} | any | {words} |")
    if "younger" in scene and users is None:  # too slow a machine to start them in time
        assert "users present must be >= 4" in words
        return
    left = [0, 1, 2, 4] if "copies" in scene else list(range(5))  # only one of them was started
    assert users in (left, list(range(5))), field.logs()


def test_a_hundred_users_take_less_than_two_minutes(make_field) -> None:
    field = make_field(users=100, seconds=120, dimension=61_450)
    start, operator, crowd = time.monotonic(), field.operator(), field.node("crowd")
    assert operator.wait(300) == 0, field.logs()
    seconds = time.monotonic() - start
    assert crowd.wait(60) == 0
    assert not field.left()
    assert (field.status()["missing"], field.status()["refused"]) == ({}, [])
    assert field.opened() == list(range(100))
    print(f"secagg, 100 users, d = 61,450: {seconds:.1f} s\n{field.logs()}")
    assert seconds < 120


IDLE, SLOW = 500, 60
MOST_MEMORY, MOST_LOG = 300_000_000, 10_000  # bytes of the operator's process, and of its log
LINES = 8  # of a party that floods


def flood(folder: Path, party: str, port: int) -> None:
    """Polls of an enrolled party without a pause, every second one as long as may be."""
    federation, keys = Federation.load(folder / "federation.json"), read_private(folder / party)
    tls = ssl.create_default_context(cafile=str(folder / "tls" / "server.pem"))
    user, ready = int(party.removeprefix("user")), threading.Event()
    path = f"https://127.0.0.1:{port}/relay/{federation.digest.hex()}"

    def line(number: int) -> None:
        while True:
            try:
                with httpx.Client(verify=tls, timeout=0.5) as http:
                    while True:
                        number += LINES
                        content = bytes(federation.largest_frame if number // LINES % 2 else 0)
                        poll = Poll(user, name_of_question(b"%d" % number), content)
                        body, shown = write_poll(federation, poll, keys)
                        headers = {SUMMARY: base64.b64encode(shown).decode()}
                        http.post(path, content=body, headers=headers)
                        ready.set()
            except httpx.TransportError:
                ready.set()

    for number in range(LINES):
        threading.Thread(target=line, args=(number,), daemon=True).start()
    ready.wait()
    print("ready", flush=True)
    threading.Event().wait()


async def stranger(port: int, kind: str, came: asyncio.Event) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    while True:
        with suppress(OSError):
            tls = None if kind == "silent" else context
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
            came.set()
            if kind != "slow":
                await reader.read()
            else:
                writer.write(b"POST /relay/0 HTTP/1.1\r\nx-a: ")
                while not writer.is_closing():
                    writer.write(b"a")
                    await writer.drain()
                    await asyncio.sleep(1)
            writer.close()
        await asyncio.sleep(1)


async def idle(port: int, idlers: int, slow: int) -> None:
    """Silent connections, some after their TLS handshake, and headers of a byte a second."""
    kinds = ["silent"] * (idlers // 2) + ["idle"] * (idlers - idlers // 2) + ["slow"] * slow
    came = [asyncio.Event() for _ in kinds]
    tasks = [asyncio.create_task(stranger(port, *each)) for each in zip(kinds, came, strict=True)]
    await asyncio.gather(*(event.wait() for event in came))
    print("ready", flush=True)
    await asyncio.gather(*tasks)


@pytest.mark.parametrize("crowd", ["idlers", "flood"])
def test_a_crowd_costs_no_user_and_little_time(crowd: str, make_field) -> None:
    """The session by the clock, once the users are there, with the crowd there from before it."""
    seconds = 15 if crowd == "flood" else 60  # it waits for who floods
    quiet, crowded = (
        _session(make_field(minimum=4, seconds=seconds), crowd, there) for there in (False, True)
    )
    print(f"{quiet:.1f} s alone, {crowded:.1f} s with {crowd}")
    assert crowded <= quiet + 2


def _session(field, crowd: str, there: bool) -> float:
    flooding, at = crowd == "flood", str(field.port)
    operator = field.operator()
    field.wait_for((field.folder / "ready").exists)
    users = field.users[:4] if flooding else field.users
    if there:
        given = [str(field.folder), "user4", at] if flooding else [at, str(IDLE), str(SLOW)]
        command, root = [sys.executable, "-m", __name__, crowd, *given], Path(__file__).parents[3]
        strangers = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root)
        field.running.append(strangers)
        assert strangers.stdout is not None
        with strangers.stdout as said:
            assert said.readline() == "ready\n"
    nodes = [field.node(party) for party in users]
    field.wait_for(lambda: field.status().get("stage", "gather") != "gather")
    start, peak = time.monotonic(), 0
    while operator.poll() is None:
        peak = max(peak, _memory(operator.pid))
        time.sleep(0.05)
    assert operator.returncode == 0, field.logs()
    seconds = time.monotonic() - start
    assert [node.wait(30) for node in nodes] == [0] * len(nodes)
    assert field.opened() == list(range(len(users)))  # and the sum is checked to be the users'
    assert 0 < peak < MOST_MEMORY
    log = (field.folder / "run" / "events.jsonl").read_text()
    assert len(log) < MOST_LOG, log
    return seconds


def _memory(pid: int) -> int:
    with suppress(OSError):
        text = Path(f"/proc/{pid}/status").read_text()
        return sum(int(line.split()[1]) for line in text.splitlines() if "VmHWM" in line) << 10
    return 0


def test_one_port_is_open(make_field) -> None:
    field = make_field(seconds=300)
    operator = field.operator()
    field.wait_for((field.folder / "ready").exists)
    links = {os.readlink(fd) for fd in Path(f"/proc/{operator.pid}/fd").iterdir()}
    lines = Path(f"/proc/{operator.pid}/net/tcp").read_text().splitlines()[1:]
    listening = {
        int(line.split()[1].rpartition(":")[2], 16)
        for line in lines
        if line.split()[3] == "0A" and f"socket:[{line.split()[9]}]" in links
    }
    assert listening == {field.port}


USERS, DIMENSION, BOUND, MINUTE = 12, 20, 2**20, 60.0


class Case:
    def __init__(self, folder: Path, store: str | None = None) -> None:
        users = [PrivateKeys.generate() for _ in range(USERS)]
        self.file: WindowFile = make_window(folder, users, DIMENSION, BOUND)
        self.tls = trust(folder / AGREED)
        self.processes: list[Process] = commands(folder, store=store)
        for process in self.processes:
            process.start()
        self.operator = read_private(folder / "aggregator0")
        self.reports = [
            make_report(self.file.window, user, own, self.vector(user), BOUND)
            for user, own in enumerate(users)
        ]

    def vector(self, user: int) -> np.ndarray:
        return np.random.default_rng(user).integers(-5000, 5000, DIMENSION)

    def client(self, patience: float = 300.0) -> Aggregators:
        return Aggregators(self.file.window, self.file.addresses, self.tls, patience)

    def send(self, users: range) -> None:
        with self.client() as client:
            for user in users:
                client.report(user, self.reports[user])

    def check(self, opened: Opened) -> None:
        """The sum is that of all users, and the noise of both: any other report would show."""
        assert opened.users == set(range(USERS))
        noise = opened.total.view(np.int64) - sum(self.vector(user) for user in range(USERS))
        scale = 2**0.5 * self.file.window.noise_std
        assert 0 < np.abs(noise).max() < 7 * scale

    def steps(self) -> list[Callable[[], object]]:
        """From the first report to the second opening, in small steps."""
        first, second = list[bytes](), list[Opened]()
        orders = {"commit": (b"c", "/collection_jobs"), "open": (b"o", "/aggregate_shares")}

        def ordered(what: str, aggregator: int, commits: list[bytes]) -> bytes:
            with self.client() as client:
                return client._ordered(aggregator, *orders[what], commits, self.operator)

        def opened() -> None:
            with self.client() as client:
                second.append(client.open(self.operator))
            self.check(second[-1])
            np.testing.assert_array_equal(second[-1].total, second[0].total)

        return [
            *(lambda user=user: self.send(range(user, user + 1)) for user in range(USERS)),
            lambda: first.append(ordered("commit", LEADER, [])),
            lambda: first.append(ordered("commit", HELPER, first[:1])),
            lambda: ordered("open", LEADER, first),
            lambda: ordered("open", HELPER, first),
            opened,
            opened,
        ]


@pytest.mark.parametrize("victim", [0, 1], ids=["leader", "helper"])
def test_an_aggregator_killed_at_every_step_opens_one_sum(victim: int, tmp_path: Path) -> None:
    case = Case(tmp_path)
    steps, process = case.steps(), case.processes[victim]
    for place, step in enumerate(steps):
        work = in_thread(step)
        if place % 2:  # it is killed while the step is on its way
            time.sleep(0.01 * place)
            process.kill()
            time.sleep(0.3)
            process.start()
        work.join(300)
        assert not work.is_alive()
        if not place % 2:
            process.kill()
            process.start()
    for each in case.processes:
        each.kill()
    assert process.kills == len(steps) + 1


def test_a_database_that_is_gone_for_a_minute_loses_nothing(tmp_path: Path) -> None:
    if not BINARIES:
        pytest.skip("needs PostgreSQL")
    with running(Path("/tmp")) as server:
        case = Case(tmp_path, server.url)
        host, port = case.file.addresses[LEADER]
        case.send(range(4))
        server.kill()
        start = time.monotonic()
        sender = in_thread(case.send, range(4, USERS))
        while time.monotonic() - start < MINUTE:
            answer = httpx.get(f"https://{host}:{port}/healthz", timeout=30, verify=case.tls)
            assert answer.status_code in ((204, 503) if time.monotonic() - start < 3 else (503,))
            time.sleep(5)
        assert sender.is_alive()
        server.start()
        sender.join(300)
        assert not sender.is_alive()
        with case.client() as client:
            first = client.open(case.operator)
            server.kill()
            time.sleep(MINUTE)
            server.start()
            second = client.open(case.operator)
        case.check(first)
        np.testing.assert_array_equal(first.total, second.total)
        for process in case.processes:
            process.kill()


if __name__ == "__main__":
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if sys.argv[1] == "flood":
        flood(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
    asyncio.run(idle(*map(int, sys.argv[2:])))
