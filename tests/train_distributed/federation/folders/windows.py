"""A federation's folders with a window, and aggregators that run while a test does."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.train_distributed.federation.folders.engine import digest_of
from train_distributed.commands.federation.aggregating import Aggregate, Invite
from train_distributed.commands.federation.collecting import Collect, MakeWindow
from train_distributed.commands.federation.reporting import Report
from train_distributed.federation import aggregator_server
from train_distributed.federation.aggregator_server import serve
from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.documents.place import with_roll
from train_distributed.federation.documents.sessions import read_ledger
from train_distributed.federation.documents.window_file import WINDOW, WindowFile
from train_distributed.federation.evaluation_task import task_of
from train_distributed.federation.model_task import ModelTask
from train_distributed.privacy.promise import Privacy

SETTINGS: dict[str, Any] = {
    "users": 3,
    "servers": 1,
    "protocol": "shares",
    "minimum": 2,
    "privacy": Privacy(5.0, 1e-5),
    "options": {"sums": 1},
}


@contextmanager
def running(options: Aggregate | Invite, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A service in a thread of this process; its files are closed when the block ends."""
    loops: list[asyncio.AbstractEventLoop] = []
    tasks: list[asyncio.Task] = []
    listening, failed = threading.Event(), list[BaseException]()

    async def stoppable(app, watch, host, port, tls, ready) -> None:
        loops.append(asyncio.get_running_loop())
        task = asyncio.ensure_future(
            serve(app, watch, host, port, tls, lambda port: listening.set())
        )
        tasks.append(task)
        with suppress(asyncio.CancelledError):
            await task

    def work() -> None:
        try:
            options.run()
        except Exception as error:
            failed.append(error)
            listening.set()

    with monkeypatch.context() as patched:
        patched.setattr(aggregator_server, "serve", stoppable)
        thread = threading.Thread(target=work)
        thread.start()
        assert listening.wait(30)
        assert not failed, failed
    try:
        yield
    finally:
        loops[0].call_soon_threadsafe(tasks[0].cancel)
        thread.join(30)
        assert not thread.is_alive()


class Home:
    """The folders of a federation with a window, whose aggregators run while the test does."""

    def __init__(self, home: Path, hours: float = 24.0) -> None:
        self.home, self.window = home, home / "window"
        ports = [f"127.0.0.1:{free_port()}" for _ in range(2)]
        MakeWindow(home / "fed", tuple(ports), self.window, hours).run()
        self.aggregators = [home / name for name in ("fed", "server1")]

    def report(self, user: int, **changes) -> Report:
        folder = self.home / f"user{user}"
        made = Report(
            folder,
            self.home / "fed" / "invitation",
            folder / "embeddings",
            self.window / WINDOW,
            accept=digest_of(self.home),
            patience=5.0,
        )
        return replace(made, **changes)

    def changed_window(self, **changes: Any) -> Path:
        """The file of a window of the same servers that differs in this."""
        first = WindowFile.load(self.window / WINDOW)
        other = replace(first.window, **changes)
        WindowFile.of(other, first.addresses).save(self.home / "other.json")
        return self.home / "other.json"

    def collect(self, out: str = "model", **changes) -> Collect:
        made = Collect(self.home / "fed", self.window, self.home / out, patience=5.0)
        return replace(made, **changes)

    def task(self) -> ModelTask:
        fed = self.home / "fed"
        federation = with_roll(Federation.load(fed / "federation.json"), fed)
        task = task_of(federation, fed / "transform.safetensors")
        assert isinstance(task, ModelTask)
        return task

    def used(self, user: int) -> int:
        return sum(entry.used for entry in read_ledger(self.home / f"user{user}"))
