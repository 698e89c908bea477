"""`window`, `adder`, `report` and `collect` over real lines: from users' folders to the model."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from embed import EmbeddingSet
from train_distributed.commands.federation import adding, reporting
from train_distributed.commands.federation.window import Add, Collect, MakeWindow, Report
from train_distributed.flower.adder_client import Adders
from train_distributed.flower.adder_server import serve
from train_distributed.flower.blobs import split
from train_distributed.flower.documents.document import read_document
from train_distributed.flower.documents.federation import Federation
from train_distributed.flower.documents.ledger import read_ledger
from train_distributed.flower.documents.party import read_private
from train_distributed.flower.documents.window_file import WINDOW, WindowFile
from train_distributed.flower.evaluation_task import task_of
from train_distributed.flower.model_task import Facts, ModelTask
from train_distributed.flower.transport.processes import free_port
from train_distributed.one_shot.method_options import MethodOptions
from train_distributed.secure_sum.opening import Opened
from train_distributed.secure_sum.reports import RECEIPT_BYTES


@contextmanager
def running(options: Add, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An adder in a thread of this process, until the block ends; then its files are let go."""
    loops: list[asyncio.AbstractEventLoop] = []
    tasks: list[asyncio.Task] = []
    listening, failed = threading.Event(), list[BaseException]()

    async def stoppable(machine, window, host, port, tls, ready) -> None:
        loops.append(asyncio.get_running_loop())
        task = asyncio.ensure_future(
            serve(machine, window, host, port, tls, lambda port: listening.set())
        )
        tasks.append(task)
        try:
            await task
        except asyncio.CancelledError:
            machine._holdings.close_file()

    def work() -> None:
        try:
            options.run()
        except Exception as error:
            failed.append(error)
            listening.set()

    monkeypatch.setattr(adding, "serve", stoppable)
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
    """The folders of a federation with a window, whose adders run while the test does."""

    def __init__(self, home: Path, **window: float) -> None:
        self.home, self.window = home, home / "window"
        ports = [f"127.0.0.1:{free_port()}" for _ in range(3)]
        MakeWindow(home / "fed", tuple(ports), self.window, **window).run()
        self.adders = [home / name for name in ("fed", "server1", "server2")]

    def report(self, user: int, **changes) -> Report:
        folder = self.home / f"user{user}"
        made = Report(
            folder,
            self.home / "fed" / "invitation",
            self.window / WINDOW,
            folder / "embeddings",
            patience=5.0,
        )
        return replace(made, **changes)

    def collect(self, out: str = "model", **changes) -> Collect:
        made = Collect(self.home / "fed", self.window, self.home / out, patience=5.0)
        return replace(made, **changes)

    def task(self) -> ModelTask:
        fed = self.home / "fed"
        task = task_of(Federation.load(fed / "federation.json"), fed / "transform.safetensors")
        assert isinstance(task, ModelTask)
        return task

    def used(self, user: int) -> int:
        return sum(entry.used for entry in read_ledger(self.home / f"user{user}"))


@pytest.fixture
def opened(initiated, monkeypatch) -> Iterator[Callable[..., Home]]:
    stops = []

    def make(tls: bool = False, hours: float = 24.0, **settings) -> Home:
        fixed = {"users": 3, "servers": 2, "protocol": "shares", "minimum": 2}
        home = Home(initiated(**(fixed | settings)), hours=hours)
        for folder in home.adders:
            add = Add(folder, home.window, tls=home.home / "fed" / "tls" if tls else None)
            adder = running(add, monkeypatch)
            adder.__enter__()
            stops.append(partial(adder.__exit__, None, None, None))
        return home

    yield make
    for stop in stops:
        stop()


def test_from_reports_to_the_model(opened, monkeypatch, capsys) -> None:
    monkeypatch.setattr(ModelTask, "noised", lambda self, encoded: encoded)
    home = opened()
    for user in (2, 0, 0):
        home.report(user).run()
    home.collect(status=True).run()
    said = capsys.readouterr().out
    assert said.count("2 reports, open") == 3
    assert not (home.home / "model").exists()
    home.collect().run()
    assert "2 of 3 users in" in capsys.readouterr().out
    task, window = home.task(), WindowFile.load(home.window / WINDOW).window
    report = json.loads((home.home / "model" / "report.json").read_text())
    assert report["survivors"] == 2
    assert report["missing"] == {"user 1 (hospital-1)": "report"}
    assert report["session"] == window.digest.hex()
    assert report["noise"] == "discrete"
    total = np.zeros(window.dimension, np.uint64)
    for user in (0, 2):
        rows = EmbeddingSet.open(home.home / f"user{user}" / "embeddings")
        total += task.encoded(user, rows)
    facts = Facts(session="", bytes_per_user=0)
    expected = task.released(Opened(total, frozenset({0, 2})), facts)
    from train_distributed import Release

    found = Release.load(home.home / "model")
    np.testing.assert_array_equal(found.weights, expected.weights)
    assert [home.used(user) for user in range(3)] == [1, 0, 1]


def test_every_report_holds_its_noise(opened, monkeypatch) -> None:
    """What the sum holds beyond the plain sum: the noise of those who reported, all of it."""
    noise, drawn = ModelTask.noised, []
    home = opened()

    def noised(self: ModelTask, encoded: np.ndarray) -> np.ndarray:
        made = noise(self, encoded)
        drawn.append(made - encoded)
        return made

    monkeypatch.setattr(ModelTask, "noised", noised)
    task, window = home.task(), WindowFile.load(home.window / WINDOW)
    plain = np.zeros(window.window.dimension, np.uint64)
    for user in range(3):
        home.report(user).run()
        plain += task.encoded(user, EmbeddingSet.open(home.home / f"user{user}" / "embeddings"))
    assert len(drawn) == 3
    with Adders(window.window, window.addresses) as adders:
        opened_sum = adders.open(read_private(home.home / "fed"))
    total = opened_sum.total - plain
    assert total.tolist() == (drawn[0] + drawn[1] + drawn[2]).tolist()
    spread = total.view(np.int64) / (3**0.5 * task.integers.plan.stds_in_steps)
    assert 0.7 < spread.std() < 1.3


def test_reports_with_noise_in_32_bits_over_tls(opened) -> None:
    """Class sums of few rows fit; the sum is far from wrapping around, noise and all."""
    settings = {"method": "class-sums", "word_bits": 32, "options": MethodOptions()}
    home = opened(tls=True, **settings)
    window = WindowFile.load(home.window / WINDOW).window
    assert window.bits == home.task().integers.code.bits == 32
    ca = home.home / "fed" / "invitation" / "ca.pem"
    with pytest.raises(OSError, match="must answer"):
        home.report(0, patience=0.0).run()  # no TLS
    assert home.used(0) == 0
    for user in range(3):
        home.report(user, ca=ca).run()
    home.collect(ca=ca).run()
    report = json.loads((home.home / "model" / "report.json").read_text())
    assert report["survivors"] == 3
    (kept,) = (home.home / "user0" / "state").glob("*/*.report")
    messages = split(bytes.fromhex(kept.read_text()))
    assert report["bytes_per_user"] == sum(map(len, messages)) + 2 * RECEIPT_BYTES


def test_too_few_reports_are_not_opened_and_the_window_goes_on(opened) -> None:
    home = opened()
    home.report(1).run()
    with pytest.raises(ValueError, match=r"TooFewUsers: users must be >= 2 to be opened, got 1"):
        home.collect().run()
    assert not (home.home / "model").exists()
    home.report(0).run()
    home.collect().run()
    with pytest.raises(ValueError, match="closed"):
        home.report(2).run()
    assert home.used(2) == 0  # nothing was drawn
    with pytest.raises(FileExistsError):
        home.collect().run()
    home.collect("again").run()  # the same sum
    models = [(home.home / name / "model.safetensors").read_bytes() for name in ("model", "again")]
    assert models[0] == models[1]


def test_a_report_whose_drawing_was_killed_is_drawn_in_the_same_session(
    opened, monkeypatch
) -> None:
    home = opened()
    with monkeypatch.context() as patch:
        patch.setattr(reporting, "make_report", lambda *given: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            home.report(0).run()
    assert home.used(0) == 1
    for _ in range(2):
        home.report(0).run()
    assert home.used(0) == 1


def test_a_user_reports_in_as_many_windows_as_sessions_were_agreed(opened, tmp_path) -> None:
    home = opened()
    home.report(0).run()
    first = WindowFile.load(home.window / WINDOW)
    other = WindowFile(window=replace(first.window, nonce=bytes(32)), addresses=first.addresses)
    other.save(tmp_path / "other.json")
    with pytest.raises(ValueError, match="sessions must be <= 1, got one more"):
        home.report(0, window=tmp_path / "other.json").run()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"minimum": 1}, "must be of federation"),
        ({"dimension": 7}, "must be of federation"),
        ({"bits": 32}, "must be of federation"),
        ({"context": b"window"}, "must be of federation"),
        ({"opens": 5, "closes": 10}, "report must come from 1970"),
    ],
)
def test_a_window_that_was_changed_gets_no_report(opened, tmp_path, changes, words) -> None:
    home = opened()
    first = WindowFile.load(home.window / WINDOW)
    other = WindowFile(window=replace(first.window, **changes), addresses=first.addresses)
    other.save(tmp_path / "other.json")
    with pytest.raises(ValueError, match=words):
        home.report(0, window=tmp_path / "other.json").run()
    assert home.used(0) == 0


def test_where_an_adder_is_gone_nothing_is_drawn(initiated) -> None:
    home = Home(initiated(users=3, servers=2, protocol="shares", minimum=2))
    with pytest.raises(OSError, match=r"adder 0 at 127\.0\.0\.1:\d+ must answer"):
        home.report(0, patience=0.0).run()
    assert home.used(0) == 0


def test_what_does_not_fit_is_refused_in_one_line(initiated, tmp_path) -> None:
    home = Home(initiated(users=3, servers=2, protocol="shares", minimum=2))
    with pytest.raises(ValueError, match="must be a user's"):
        home.report(0, folder=home.home / "server1").run()
    with pytest.raises(ValueError, match="must be those of an adder"):
        Add(home.home / "user0", home.window).run()
    for given, words in (
        ({"adders": ("h:1",)}, "adders must be 3, got 1"),
        ({"adders": ("h:1", "h:2", "h")}, "HOST:PORT"),
        ({"adders": ("h:1", "h:2", "h:70000")}, "HOST:PORT"),
        ({"adders": ("h:1", "h:2", "h:3"), "hours": 0.0}, "hours must be > 0"),
    ):
        made = MakeWindow(home.home / "fed", given["adders"], tmp_path / "no")
        with pytest.raises(ValueError, match=words):
            replace(made, **given).run()
        assert not (tmp_path / "no").exists()
    (home.window / "roll").write_bytes(bytes(96))
    with pytest.raises(ValueError, match="roll must have SHA-256"):
        Add(home.home / "server1", home.window).run()
    (home.window / "roll").write_bytes(bytes(95))
    with pytest.raises(ValueError, match="must hold keys of 32 bytes"):
        Add(home.home / "server1", home.window).run()


def test_a_window_is_of_shares_without_rounds(initiated) -> None:
    with pytest.raises(ValueError, match="protocol shares without further rounds, got secagg"):
        Home(initiated())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("bits", 33),
        ("minimum", 0),
        ("minimum", 4),
        ("closes", 1),
        ("nonce", "00"),
        ("roll", None),
        ("context", "0"),
        ("adders", []),
        ("dimension", 2**40),
        ("more", 1),
    ],
)
def test_a_file_of_a_window_that_was_damaged_is_refused(initiated, field, value) -> None:
    home = Home(initiated(users=3, servers=2, protocol="shares", minimum=2))
    path = home.window / WINDOW
    values = read_document(path).values | {field: value}
    path.write_text(json.dumps(values))
    with pytest.raises(ValueError, match=str(path)):
        WindowFile.load(path)
