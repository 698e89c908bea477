"""Nobody waits in silence: for an aggregator, a link's server, a lock, or for what cannot come."""

import re
import socket
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.train_distributed.federation.folders.homes import Engine, digest_of, federation_of
from tests.train_distributed.federation.folders.windows import Home, web_server
from tests.train_distributed.ledger.ledger_entries import GAUSSIAN
from train_distributed.commands.federation import Start, collecting
from train_distributed.commands.federation.aggregating import Aggregate
from train_distributed.federation.aggregator_client import Aggregators
from train_distributed.federation.documents.certificates import write_certificate
from train_distributed.federation.documents.sessions import remember
from train_distributed.federation.documents.window_file import WindowFile
from train_distributed.ledger.ledger import Ledger
from train_distributed.secure_sum.journal import DurableJournal

NO_ONE = (
    r"^waiting for aggregator 0 at 127\.0\.0\.1:\d+ \(0 s of at most 1 s\): .*Connection refused$"
)
pytestmark = pytest.mark.usefixtures("soon")


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait is said after a tenth of a second."""
    monkeypatch.setattr("pretrain.cli.waiting.FIRST", 0.1)


def at(home: Home, host: str, port: int) -> Path:
    """The window, whose aggregators are elsewhere."""
    made = WindowFile.of(home.file.window, dict.fromkeys(home.file.addresses, (host, port)))
    made.save(home.home / "elsewhere.json")
    return home.home / "elsewhere.json"


def test_an_aggregator_that_is_gone_is_waited_for_aloud(windowed: Home, capsys) -> None:
    for command in (
        windowed.report(0, patience=0.9),
        windowed.collect(patience=0.9),
        windowed.collect(patience=0.9, status=True),
    ):
        with pytest.raises(ConnectionError, match=r"aggregator 0 at 127\.0\.0\.1:\d+ must answer"):
            command.run()
        assert re.search(NO_ONE, capsys.readouterr().err, re.MULTILINE)
    assert windowed.used(0) == 0
    assert not windowed.model.exists()


def test_a_server_that_says_nothing_is_waited_for_aloud(
    windowed: Home, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """While a single question is under way, and also where an invitation is fetched."""
    for module in ("aggregator_client", "links"):
        monkeypatch.setattr(f"train_distributed.federation.{module}.SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(ConnectionError, match=r"must answer: .*timed out"):
            windowed.report(0, window=at(windowed, "127.0.0.1", port), patience=0.0).run()
        link = f"https://127.0.0.1:{port}/invitations/{digest_of(windowed.home)}"
        with pytest.raises(ConnectionError, match=r"must answer: .*timed out"):
            windowed.report(0, window=None, invitation=link).run()
    said = capsys.readouterr().err
    assert "waiting for aggregator 0 at 127.0.0.1:" in said
    assert f"waiting for https://127.0.0.1:{port} (0 s): it has the invitation" in said


def test_what_no_patience_mends_ends_at_once(windowed: Home) -> None:
    start, other = time.monotonic(), windowed.home / "other"
    other.mkdir()
    write_certificate(other, ["127.0.0.1"])
    agreed = windowed.home / "fed" / "tls"
    with (
        web_server() as plain,
        web_server(tls=agreed) as secure,
        web_server(tls=other) as foreign,
    ):
        for host, port, words in (
            ("no.such.host.invalid", 1, r"at no\.such\..* no host has this name"),
            ("127.0.0.1", plain, "it does not speak TLS, which was agreed on"),
            ("localhost", secure, "must be valid, for this address, and agreed on"),
            ("127.0.0.1", foreign, "must be valid, for this address, and agreed on"),
            ("127.0.0.1", secure, "aggregator 0 at 127.* refuses: status 501"),
        ):
            report = windowed.report(0, window=at(windowed, host, port), patience=600.0)
            with pytest.raises((ConnectionError, ValueError), match=words) as refused:
                report.run()
            assert "\n" not in str(refused.value)
    assert time.monotonic() - start < 20
    assert windowed.used(0) == 0


def test_nobody_waits_beyond_the_end_of_the_window(
    windowed: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    closes, start = windowed.file.window.closes, time.monotonic()
    monkeypatch.setattr(time, "time", lambda: closes - 0.5)
    with pytest.raises(ConnectionError, match="must answer"):
        windowed.report(0, patience=600.0).run()
    assert time.monotonic() - start < 20


def test_collect_says_how_many_reports_it_waits_for(
    windowed: Home, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr(collecting, "LOOK_SECONDS", 0.3)
    counts = [0, 0, 1, 3]
    monkeypatch.setattr(Aggregators, "decided", lambda self, keys: counts.pop(0))
    with pytest.raises(ConnectionError):
        windowed.collect(wait=True, patience=0.0).run()
    said = capsys.readouterr().err
    assert re.search(r"waiting for users' reports \(0 s of .*\): 0 of 3 are decided\n", said)
    assert re.search(r"waiting for users' reports \(1 s of .*\): 1 of 3 are decided\n", said)


def test_a_used_up_federation_is_an_error_at_once(
    initiated: Callable[..., Path], engine: Engine
) -> None:
    home = initiated()
    start = Start(home / "user0", home / "fed" / "invitation", accept=digest_of(home))
    assert start.run() == 0  # nobody has asked it for anything
    federation = federation_of(home)
    journal = DurableJournal(remember(home / "user0", federation, 0))
    journal.claim(federation.digest, "session0", b"n" * 32)
    with pytest.raises(ValueError, match="sessions must be <= 1, got one more: all that were agr"):
        start.run()
    assert len(engine.parties) == 1


def test_a_ledger_that_another_program_has_is_waited_for_aloud(tmp_path: Path, capsys) -> None:
    ledger = Ledger(tmp_path / "rows.ledger")
    ledger.reserve(GAUSSIAN)
    other = sqlite3.connect(ledger.path, isolation_level=None, check_same_thread=False)
    for hold in ("EXCLUSIVE", "IMMEDIATE"):
        other.execute(f"BEGIN {hold}")
        release = threading.Timer(0.6, other.execute, ("COMMIT",))
        release.start()
        ledger.reserve(GAUSSIAN)
        release.join()
        said = capsys.readouterr().err
        assert f"waiting for another command, which has {ledger.path} in use (0 s of" in said
        assert "no longer waiting for another command" in said
    other.close()


@pytest.mark.parametrize(
    ("listen", "words"),
    [
        ("127.0.0.1:{taken}", r"listen must be a free port .*127\.0\.0\.1:\d+: Address already"),
        ("192.0.2.7:9100", r"listen must be a free port .*192\.0\.2\.7:9100: Cannot assign"),
        ("no.such.host.invalid:1", r"listen must be an address of this machine, got no\.such"),
    ],
)
def test_an_address_that_cannot_be_listened_at_is_named(
    windowed: Home, listen: str, words: str
) -> None:
    with web_server() as taken:
        fed = windowed.home / "fed"
        command = Aggregate(fed, windowed.window, listen=listen.format(taken=taken))
        with pytest.raises((OSError, ValueError), match=words):
            command.run()
