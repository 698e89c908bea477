"""Folders of a federation's parties, made by the commands themselves, and its running services."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embed import EmbeddingSet, PublicTransform
from embed.known_classes import ClassGuess, KnownClasses
from tests.ports import free_port
from train_distributed.commands.federation import Init, Join, taking_part
from train_distributed.commands.federation.aggregating import Aggregate, Invite
from train_distributed.commands.federation.collecting import Collect, MakeWindow
from train_distributed.commands.federation.reporting import Report
from train_distributed.commands.options import RunConfig
from train_distributed.federation import aggregator_server, operation
from train_distributed.federation.aggregator_server import serve
from train_distributed.federation.attendance import Attendance
from train_distributed.federation.documents.certificates import SERVER, serving
from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.documents.place import with_roll
from train_distributed.federation.documents.sessions import read_ledger
from train_distributed.federation.documents.window_file import WINDOW, WindowFile
from train_distributed.federation.evaluation_task import task_of
from train_distributed.federation.model_task import ModelTask
from train_distributed.federation.operation import Operation
from train_distributed.federation.progress import Log
from train_distributed.federation.sum_task import SessionFacts
from train_distributed.privacy.promise import Privacy
from train_distributed.secure_sum.opening import Opened

ROOT = Path(__file__).parents[4]
ROWS, P, CLASSES = 12, 6, ("a", "b", "c")
W, K = 4, len(CLASSES)  # users of an agreed task, classes
OWN = ("127.0.0.1",)  # names of the services
SETTINGS: dict[str, Any] = {"servers": 1, "minimum": 2, "privacy": Privacy(5.0, 1e-5)}
PROMISE = Privacy(1.0, 1e-5, 0.75)
FACTS = SessionFacts(session="5e" * 32, bytes_per_user=1234, missing={1: "masked input"})


def embeddings(seed: int, rows: int = ROWS) -> EmbeddingSet:
    draw = np.random.default_rng(seed)
    return EmbeddingSet(
        embeddings=draw.normal(size=(rows, P)).astype(np.float32),
        labels=draw.integers(0, len(CLASSES), rows),
        split=np.zeros(rows, np.int8),
        meta={"class_names": list(CLASSES)},
    )


def rows_of(home: Path, user: int) -> EmbeddingSet:
    return EmbeddingSet.open(home / f"user{user}" / "embeddings")


def federation_of(home: Path, operator: str = "fed") -> Federation:
    """What an operator has agreed on with its users, with the roll where there is one."""
    return with_roll(Federation.load(home / operator / "federation.json"), home / operator)


def digest_of(home: Path, operator: str = "fed") -> str:
    return federation_of(home, operator).digest.hex()


def join(
    home: Path, users: int = 3, servers: int = 0, hosts: tuple[str, ...] = OWN, rows: int = ROWS
) -> list[Path]:
    """Folders user0, user1, ... and server1, ... with keys, and a transform; the party files."""
    files = []
    for i in range(users):
        embeddings(i).save(home / f"user{i}" / "embeddings")
        Join(home / f"user{i}", f"hospital-{i}", rows=rows).run()
        files.append(home / f"user{i}" / f"hospital-{i}.party.json")
    for j in range(1, servers + 1):
        Join(home / f"server{j}", f"adder-{j}", server=True, hosts=hosts).run()
        files.append(home / f"server{j}" / f"adder-{j}.party.json")
    PublicTransform.fit(embeddings(99, 50)).save(home / "public.safetensors")
    return files


def init_of(home: Path, parties: list[Path], **changes: Any) -> Init:
    """The operator's command, which makes the folder `fed`."""
    fixed: dict[str, Any] = {"folder": home / "fed", "parties": tuple(parties), "hosts": OWN}
    fixed |= {"transform": home / "public.safetensors", "class_names": CLASSES}
    return Init(**fixed | changes)


def with_config(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of `init`, with what cannot be typed, method and options, in a file at `path`.

    Of one sum, unless they say something else: what is tested of a sum holds for each of two.
    """
    settings["options"] = {"sums": 1} | settings.get("options", {})
    own = {name: settings.pop(name) for name in ("method", "options") if name in settings}
    chosen: dict[str, Any] = {"method": "discriminant"} | own
    path.write_text(RunConfig(**chosen, privacy=settings.pop("privacy")).text())
    return settings | {"config": path}


def initiate(home: Path, users: int = 3, servers: int = 0, **settings: Any) -> Path:
    """Makes the folders of all parties and of the operator below `home`, and returns it."""
    promise = Privacy(5.0, 1e-5, None if servers else 0.8)
    fixed = {"protocol": ("secagg", "shares")[servers], "privacy": promise, "minimum": users}
    settings = with_config(home / "config.json", fixed | settings)
    parties = join(home, users, servers, () if settings.get("behind_proxy") else OWN)
    init_of(home, parties, **settings).run()
    return home


def agreed_task(home: Path, method: str = "softmax", **settings: Any) -> ModelTask:
    """A task as four users have agreed on it, read again from the operator's folder."""
    promise = replace(PROMISE, honest_fraction=None) if settings.get("servers") else PROMISE
    fixed = {"users": W, "privacy": promise, "minimum": 3, "method": method}
    initiate(home, **fixed | settings)
    return ModelTask.of(federation_of(home), home / "fed" / "transform.safetensors")


class Engine:
    """In place of the network: an operator that opens zeros, a party that is used up at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.operations: list[Operation] = []
        self.parties: list[Attendance] = []
        self.lines: list[Any] = []  # of the parties; None: to the operator's service
        self.failure: Exception | None = None
        monkeypatch.setattr(operation, "operate", self.operate)
        monkeypatch.setattr(taking_part, "attend", self.attend)

    def operate(self, operation: Operation) -> tuple[list[Opened], Log]:
        self.operations.append(operation)
        operation.say("stage: 3 of 3")
        if self.failure is not None:
            raise self.failure
        users = frozenset(operation.federation.users) - {1}
        log = Log(missing={1: "masked input"}, refused=["user 1: refused: \\x1b"])
        log.session, log.bytes_of = "ab" * 32, dict.fromkeys(users, 700)
        return [Opened(np.zeros(operation.federation.dimension, np.uint64), users)], log

    def attend(self, attendance: Attendance, line: Any = None) -> int:
        self.parties.append(attendance)
        self.lines.append(line)
        attendance.say("connected")
        return 0


def type_line(monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    """Somebody types it at a terminal."""
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("sys.stdin.readline", lambda: f"{line}\n")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)


@pytest.fixture
def initiated(tmp_path: Path) -> Callable[..., Path]:
    return partial(initiate, tmp_path)


@pytest.fixture
def agreed(tmp_path: Path) -> Callable[..., ModelTask]:
    return partial(agreed_task, tmp_path)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    return Engine(monkeypatch)


@pytest.fixture
def knowing(tmp_path: Path) -> Path:
    plain = PublicTransform.fit(embeddings(99, 50))
    means = torch.zeros(P, len(CLASSES), dtype=torch.float64)
    guess = ClassGuess("names of 200 public classes", means, plain.public.covariance)
    path = tmp_path / "knowing.safetensors"
    replace(plain, known=KnownClasses(CLASSES, (guess,))).save(path)
    return path


@contextmanager
def running(options: Aggregate | Invite, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A service in a thread of this process; its files are closed when the block ends."""
    tasks: list[asyncio.Task] = []
    listening, failed = threading.Event(), list[BaseException]()

    async def stoppable(app, watch, host, port, tls, ready) -> None:
        until = serve(app, watch, host, port, tls, lambda port: listening.set())
        tasks.append(asyncio.ensure_future(until))
        with suppress(asyncio.CancelledError):
            await tasks[0]

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
        tasks[0].get_loop().call_soon_threadsafe(tasks[0].cancel)
        thread.join(30)
        assert not thread.is_alive()


class Home:
    """The folders of a federation with a window, whose aggregators run while the test does."""

    def __init__(self, home: Path, addresses: tuple[str, ...] | None = None) -> None:
        self.home, self.window, self.model = home, home / "window", home / "model"
        addresses = addresses or tuple(f"127.0.0.1:{free_port()}" for _ in range(2))
        MakeWindow(home / "fed", addresses, self.window).run()
        self.file = WindowFile.load(self.window / WINDOW)
        self.aggregators = [home / name for name in ("fed", "server1")]
        self.stack = ExitStack()

    def start(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for folder in reversed(self.aggregators):  # the leader ends first, as it asks the other
            self.stack.enter_context(running(Aggregate(folder, self.window), monkeypatch))

    def report(self, user: int, **changes: Any) -> Report:
        folder = self.home / f"user{user}"
        invitation, rows = self.home / "fed" / "invitation", folder / "embeddings"
        made = Report(folder, invitation, rows, self.window / WINDOW, digest_of(self.home))
        return replace(made, **{"patience": 5.0} | changes)

    def changed_window(self, **changes: Any) -> Path:
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
    return Home(initiate(tmp_path, **SETTINGS))


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Home]]:
    """Makes a window whose aggregators run, and seldom rest; of one sum unless options say two."""
    monkeypatch.setattr("train_distributed.federation.aggregator_client.PAUSES", (0.05,))
    monkeypatch.setattr("train_distributed.federation.aggregator_app.LOOK_SECONDS", 0.05)
    homes = []

    def make(home: Path | None = None, **settings: Any) -> Home:
        homes.append(Home(home or initiate(tmp_path, **SETTINGS | settings)))
        homes[-1].start(monkeypatch)
        return homes[-1]

    yield make
    for home in homes:
        home.stack.close()


def carry(near: socket.socket, far: socket.socket) -> None:
    """Both ways, until both have ended, or either is gone."""

    def one_way(source: socket.socket, to: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(2**16):
                to.sendall(piece)
            to.shutdown(socket.SHUT_WR)

    back = threading.Thread(target=one_way, args=(far, near), daemon=True)
    back.start()
    one_way(near, far)
    back.join()


@contextmanager
def terminating(tls: Path, service: int, port: int | None = None) -> Iterator[int]:
    """Port of a reverse proxy, with the certificate in a folder, before a service on loopback."""
    context = serving(tls, tls / SERVER)

    def serve(line: socket.socket) -> None:
        with (
            suppress(OSError),
            context.wrap_socket(line, server_side=True) as near,
            socket.create_connection(("127.0.0.1", service)) as far,
        ):
            carry(near, far)

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
        wrap = partial(serving(tls, tls / SERVER).wrap_socket, server_side=True)
        server.socket = wrap(server.socket, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
