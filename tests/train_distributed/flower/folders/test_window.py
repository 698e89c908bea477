"""`window`, `aggregator`, `report` and `collect` over real lines, from folders to the model."""

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from embed import EmbeddingSet
from tests.train_distributed.flower.folders.windows import Home, running
from train_distributed.commands.federation import Status, reporting
from train_distributed.commands.federation.aggregating import Aggregate
from train_distributed.flower.aggregator_client import Aggregators
from train_distributed.flower.blobs import split
from train_distributed.flower.documents.party import read_private
from train_distributed.flower.documents.window_file import WINDOW, WindowFile
from train_distributed.flower.model_task import ModelTask
from train_distributed.flower.sum_task import Facts
from train_distributed.ledger.ledger import Ledger
from train_distributed.one_shot.method_options import MethodOptions
from train_distributed.secure_sum.journal import FILE
from train_distributed.secure_sum.opening import Opened
from train_distributed.secure_sum.reports import RECEIPT_BYTES
from train_distributed.store.store import read_store


def kept_reports(folder: Path) -> list[bytes]:
    """Reports in the journals of a user's folder."""
    rows = [read_store(path, "journal") for path in (folder / "state").glob(f"*/{FILE}")]
    return [row.content for each in rows for row in each if row.name.endswith(".report")]


@pytest.fixture
def opened(initiated, monkeypatch) -> Iterator[Callable[..., Home]]:
    stops = []

    def make(tls: bool = False, hours: float = 24.0, **settings) -> Home:
        fixed = {"users": 3, "servers": 2, "protocol": "shares", "minimum": 2}
        home = Home(initiated(**(fixed | settings)), hours=hours)
        for folder in home.aggregators:
            add = Aggregate(folder, home.window, tls=home.home / "fed" / "tls" if tls else None)
            aggregator = running(add, monkeypatch)
            aggregator.__enter__()
            stops.append(partial(aggregator.__exit__, None, None, None))
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
    Status(home.home / "fed").run()
    named = WindowFile.load(home.window / WINDOW).window.digest.hex()[:16]
    assert re.search(rf"^window {named}, [^\n]* UTC: open$", capsys.readouterr().out, re.M)
    home.collect().run()
    assert "2 of 3 users in" in capsys.readouterr().out
    home.collect(status=True).run()
    assert capsys.readouterr().out.count("2 reports, closed\n") == 3
    Status(home.home / "fed").run()
    assert re.search(rf"^window {named}, [^\n]* UTC: closed$", capsys.readouterr().out, re.M)
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
    with Aggregators(window.window, window.addresses) as aggregators:
        opened_sum = aggregators.open(read_private(home.home / "fed"))
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
    (kept,) = kept_reports(home.home / "user0")
    messages = split(kept)
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


def test_a_user_reports_in_as_many_windows_as_sessions_were_agreed(opened) -> None:
    home = opened()
    home.report(0).run()
    with pytest.raises(ValueError, match="sessions must be <= 1, got one more"):
        home.report(0, window=home.changed_window(nonce=bytes(32))).run()


def test_a_user_whose_state_is_lost_gives_nothing_away_twice(opened) -> None:
    """In another window or the same one: the ledger beside the rows remembers."""
    home = opened()
    home.report(0).run()
    beside = Ledger.open(home.home / "user0" / "embeddings.ledger")
    for window in (home.changed_window(nonce=bytes(32)), home.window / WINDOW):
        shutil.rmtree(home.home / "user0" / "state")
        with pytest.raises(ValueError, match=r"sessions must be <= 1, got one more: .* counts 1"):
            home.report(0, window=window).run()
        assert beside.state().length == 1
        assert not kept_reports(home.home / "user0")
    home.report(1).run()
    home.collect(status=True).run()


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
def test_a_window_that_was_changed_gets_no_report(opened, changes, words) -> None:
    home = opened()
    with pytest.raises(ValueError, match=words):
        home.report(0, window=home.changed_window(**changes)).run()
    assert home.used(0) == 0


def test_the_operator_s_state_says_of_every_window_whether_its_time_is_over(
    initiated, monkeypatch, capsys
) -> None:
    home = Home(initiated(users=3, servers=2, protocol="shares", minimum=2), hours=1.0)
    capsys.readouterr()
    for hours, words in ((-1, "not open yet"), (0, "open"), (2, "closed, its time is over")):
        now = time.time() + 3600 * hours
        with monkeypatch.context() as patched:
            patched.setattr(time, "time", lambda now=now: now)
            Status(home.home / "fed").run()
        assert f" UTC: {words}\n" in capsys.readouterr().out


def test_where_an_aggregator_is_gone_nothing_is_drawn(initiated) -> None:
    home = Home(initiated(users=3, servers=2, protocol="shares", minimum=2))
    with pytest.raises(OSError, match=r"aggregator 0 at 127\.0\.0\.1:\d+ must answer"):
        home.report(0, patience=0.0).run()
    assert home.used(0) == 0
