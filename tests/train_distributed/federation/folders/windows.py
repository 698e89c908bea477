"""A federation's folders with a window, aggregators that run while a test does, TLS before them."""

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.train_distributed.federation.folders.homes import digest_of, federation_of, initiate
from train_distributed.commands.federation.aggregating import Aggregate, Invite
from train_distributed.commands.federation.collecting import Collect, MakeWindow
from train_distributed.commands.federation.reporting import Report
from train_distributed.federation import aggregator_app, aggregator_client, aggregator_server
from train_distributed.federation.aggregator_server import serve
from train_distributed.federation.documents.sessions import read_ledger
from train_distributed.federation.documents.window_file import WINDOW, WindowFile
from train_distributed.federation.evaluation_task import task_of
from train_distributed.federation.model_task import ModelTask
from train_distributed.privacy.promise import Privacy

SETTINGS: dict[str, Any] = {"servers": 1, "minimum": 2, "privacy": Privacy(5.0, 1e-5)}


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

    def __init__(
        self, home: Path, hours: float = 24.0, addresses: tuple[str, ...] | None = None
    ) -> None:
        self.home, self.window, self.model = home, home / "window", home / "model"
        addresses = addresses or tuple(f"127.0.0.1:{free_port()}" for _ in range(2))
        MakeWindow(home / "fed", addresses, self.window, hours).run()
        self.file = WindowFile.load(self.window / WINDOW)
        self.aggregators = [home / name for name in ("fed", "server1")]
        self.stack = ExitStack()

    def start(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for folder in self.aggregators:
            self.stack.enter_context(running(Aggregate(folder, self.window), monkeypatch))

    def report(self, user: int, **changes: Any) -> Report:
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
        other = replace(self.file.window, **changes)
        WindowFile.of(other, self.file.addresses).save(self.home / "other.json")
        return self.home / "other.json"

    def collect(self, out: str = "model", **changes: Any) -> Collect:
        made = Collect(self.home / "fed", self.window, self.home / out, patience=5.0)
        return replace(made, **changes)

    def task(self) -> ModelTask:
        task = task_of(federation_of(self.home), self.home / "fed" / "transform.safetensors")
        assert isinstance(task, ModelTask)
        return task

    def used(self, user: int) -> int:
        return sum(entry.used for entry in read_ledger(self.home / f"user{user}"))


@pytest.fixture
def windowed(tmp_path: Path) -> Home:
    """A window of one sum whose aggregators do not run."""
    return Home(initiate(tmp_path, **SETTINGS))


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Home]]:
    """Makes a window whose aggregators run, and seldom rest; of one sum unless options say two."""
    monkeypatch.setattr(aggregator_client, "PAUSES", (0.05,))
    monkeypatch.setattr(aggregator_app, "LOOK_SECONDS", 0.05)
    homes = []

    def make(home: Path | None = None, **settings: Any) -> Home:
        homes.append(Home(home or initiate(tmp_path, **SETTINGS | settings)))
        homes[-1].start(monkeypatch)
        return homes[-1]

    yield make
    for home in homes:
        home.stack.close()


def carry(source: socket.socket, to: socket.socket) -> None:
    """Until the source ends, or either is gone."""
    with suppress(OSError):
        while piece := source.recv(2**16):
            to.sendall(piece)
        to.shutdown(socket.SHUT_WR)


@contextmanager
def terminating(tls: Path, service: int, port: int | None = None) -> Iterator[int]:
    """Port of a reverse proxy, with the certificate in a folder, before a service on loopback."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls / "server.pem", tls / "server.key")

    def serve(line: socket.socket) -> None:
        with (
            suppress(OSError),
            context.wrap_socket(line, server_side=True) as near,
            socket.create_connection(("127.0.0.1", service)) as far,
        ):
            back = threading.Thread(target=carry, args=(far, near), daemon=True)
            back.start()
            carry(near, far)
            back.join()

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(door.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", port or free_port())) as door:
        threading.Thread(target=accept, daemon=True).start()
        yield door.getsockname()[1]
        door.shutdown(socket.SHUT_RDWR)


@contextmanager
def web_server(
    handler: type[BaseHTTPRequestHandler] = BaseHTTPRequestHandler, tls: Path | None = None
) -> Iterator[int]:
    """Port of a web server on loopback, with the certificate in a folder if one is given."""
    quiet = type("Quiet", (handler,), {"log_message": lambda *given: None})
    server = ThreadingHTTPServer(("127.0.0.1", 0), quiet)
    server.handle_error = lambda *given: None  # pyright: ignore[reportAttributeAccessIssue]
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls / "server.pem", tls / "server.key")
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
