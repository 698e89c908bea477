"""Nobody waits in silence: for an aggregator, a link's server, a lock, or for what cannot come."""

import re
import socket
import sqlite3
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.train_distributed.federation.folders.engine import digest_of
from tests.train_distributed.federation.folders.windows import SETTINGS, Home, running
from tests.train_distributed.ledger.ledger_entries import GAUSSIAN
from train_distributed.commands.federation import Start, collecting
from train_distributed.commands.federation.aggregating import Aggregate
from train_distributed.federation.aggregator_client import Aggregators
from train_distributed.federation.documents.certificates import write_certificate
from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.documents.sessions import remember
from train_distributed.federation.documents.window_file import WINDOW, WindowFile
from train_distributed.ledger.ledger import Ledger
from train_distributed.secure_sum.journal import DurableJournal

NO_ONE = (
    r"^waiting for aggregator 0 at 127\.0\.0\.1:\d+ \(1 s of at most 3 s\): .*Connection refused$"
)


@pytest.fixture
def home(initiated) -> Home:
    return Home(initiated(**SETTINGS))


def at(home: Home, host: str, port: int) -> Path:
    """The window, whose aggregators are elsewhere."""
    file = WindowFile.load(home.window / WINDOW)
    made = WindowFile.of(file.window, dict.fromkeys(file.addresses, (host, port)))
    made.save(home.home / "elsewhere.json")
    return home.home / "elsewhere.json"


@contextmanager
def serving(tls: Path | None) -> Iterator[int]:
    """Another web server, with the certificate in this folder."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    server.handle_error = lambda *given: None  # pyright: ignore[reportAttributeAccessIssue]
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls / "server.pem", tls / "server.key")
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("command", ["report", "collect", "status"])
def test_an_aggregator_that_is_gone_is_waited_for_aloud(home, capsys, command: str) -> None:
    made = home.report(0) if command == "report" else home.collect(status=command == "status")
    object.__setattr__(made, "patience", 3.0)
    with pytest.raises(ConnectionError, match=r"aggregator 0 at 127\.0\.0\.1:\d+ must answer: "):
        made.run()
    assert re.search(NO_ONE, capsys.readouterr().err, re.M)
    assert home.used(0) == 0
    assert not (home.home / "model").exists()


def test_a_server_that_says_nothing_is_waited_for_aloud(home, monkeypatch, capsys) -> None:
    """While a single question is under way, and also where an invitation is fetched."""
    monkeypatch.setattr("train_distributed.federation.aggregator_client.SECONDS", 1.7)
    monkeypatch.setattr("train_distributed.federation.links.SECONDS", 1.7)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(ConnectionError, match=r"must answer: .*timed out"):
            home.report(0, window=at(home, "127.0.0.1", port), patience=0.0).run()
        link = f"https://127.0.0.1:{port}/invitations/{digest_of(home.home)}"
        with pytest.raises(ConnectionError, match=r"must answer: .*timed out"):
            home.report(0, window=None, invitation=link).run()
    said = capsys.readouterr().err
    assert "waiting for aggregator 0 at 127.0.0.1:" in said
    assert f"waiting for https://127.0.0.1:{port} (1 s): it has the invitation" in said


def test_what_no_patience_mends_ends_at_once(home, capsys) -> None:
    start, fed, other = time.monotonic(), home.home / "fed", home.home / "other"
    other.mkdir()
    write_certificate(other, ["127.0.0.1"])
    with serving(None) as plain, serving(fed / "tls") as secure, serving(other) as foreign:
        for host, port, words in (
            ("no.such.host.invalid", 1, r"at no\.such\..* no host has this name"),
            ("127.0.0.1", plain, "it does not speak TLS, which was agreed on"),
            ("localhost", secure, "must be valid, for this address, and agreed on"),
            ("127.0.0.1", foreign, "must be valid, for this address, and agreed on"),
            ("127.0.0.1", secure, "aggregator 0 at 127.* refuses: status 501"),
        ):
            report = home.report(0, window=at(home, host, port), patience=600.0)
            with pytest.raises((ConnectionError, ValueError), match=words) as refused:
                report.run()
            assert "\n" not in str(refused.value)
    assert time.monotonic() - start < 20
    assert home.used(0) == 0


def test_nobody_waits_beyond_the_end_of_the_window(home, monkeypatch) -> None:
    closes, start = WindowFile.load(home.window / WINDOW).window.closes, time.monotonic()
    monkeypatch.setattr(time, "time", lambda: closes - 1.0)
    with pytest.raises(ConnectionError, match="must answer"):
        home.report(0, patience=600.0).run()
    assert time.monotonic() - start < 20


def test_collect_says_how_many_reports_it_waits_for(home, monkeypatch, capsys) -> None:
    monkeypatch.setattr(collecting, "LOOK_SECONDS", 1.2)
    counts = [0, 0, 1, 3]
    monkeypatch.setattr(Aggregators, "decided", lambda self, keys: counts.pop(0))
    with pytest.raises(ConnectionError):
        home.collect(wait=True, patience=0.0).run()
    said = capsys.readouterr().err
    assert re.search(r"waiting for users' reports \(1 s of .*\): 0 of 3 are decided\n", said)
    assert re.search(r"waiting for users' reports \(2 s of .*\): 1 of 3 are decided\n", said)


def test_a_used_up_federation_is_an_error_at_once(initiated, engine, capsys) -> None:
    home = initiated()
    start = Start(home / "user0", home / "fed" / "invitation", accept=digest_of(home))
    assert start.run() == 0  # nobody has asked it for anything
    federation = Federation.load(home / "fed" / "federation.json")
    journal = DurableJournal(remember(home / "user0", federation, 0))
    journal.claim(federation.digest, "session0", b"n" * 32)
    with pytest.raises(ValueError, match="sessions must be <= 1, got one more: all that were agr"):
        start.run()
    assert len(engine.parties) == 1


def test_a_user_of_another_window_that_has_no_session_left_waits_for_nobody(
    home, monkeypatch
) -> None:
    with running(Aggregate(home.home / "fed", home.window), monkeypatch):
        home.report(0).run()
    window = home.changed_window(nonce=bytes(32))
    with pytest.raises(ValueError, match="sessions must be <= 1, got one more"):
        home.report(0, window=window, patience=600.0).run()
    home.report(0, patience=0.0)  # its own is kept, and can be sent again
    assert home.used(0) == 1


def test_a_ledger_that_another_program_has_is_waited_for_aloud(tmp_path, capsys) -> None:
    ledger = Ledger(tmp_path / "rows.ledger")
    ledger.reserve(GAUSSIAN)
    other = sqlite3.connect(ledger.path, isolation_level=None, check_same_thread=False)
    for hold in ("EXCLUSIVE", "IMMEDIATE"):
        other.execute(f"BEGIN {hold}")
        release = threading.Timer(1.5, other.execute, ("COMMIT",))
        release.start()
        ledger.reserve(GAUSSIAN)
        release.join()
        said = capsys.readouterr().err
        assert f"waiting for another command, which has {ledger.path} in use (1 s of" in said
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
def test_an_address_that_cannot_be_listened_at_is_named(home, listen: str, words: str) -> None:
    with serving(None) as taken:
        command = Aggregate(home.home / "fed", home.window, listen=listen.format(taken=taken))
        with pytest.raises((OSError, ValueError), match=words):
            command.run()
