"""Real aggregators killed at every step, and a database that is gone for a minute by the clock."""

import time
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.benchmarks.aggregators import Process, commands, make_window
from tests.benchmarks.postgresql import BINARIES, running
from tests.train_distributed.federation.fake_relay import in_thread
from train_distributed.federation.aggregator_client import Aggregators
from train_distributed.federation.documents.certificates import AGREED, trust
from train_distributed.federation.documents.private_keys import read_private
from train_distributed.federation.documents.window_file import WindowFile
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.opening import Opened
from train_distributed.secure_sum.reports import make_report
from train_distributed.secure_sum.window import HELPER, LEADER

USERS, DIMENSION, BOUND, MINUTE = 12, 20, 2**20, 60.0
pytestmark = pytest.mark.slow


class Case:
    """A window whose aggregators are processes."""

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
