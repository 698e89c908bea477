"""Lines to services: whoever is on one changes nothing; nobody waits in silence, or in vain."""

import json
import re
import socket
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from tests.ports import free_port
from tests.train_distributed.federation.folders import homes
from tests.train_distributed.ledger.ledger_entries import GAUSSIAN
from train_distributed.commands.federation import Join, Start
from train_distributed.commands.federation.aggregating import Aggregate, Invite
from train_distributed.commands.federation.collecting import MakeWindow
from train_distributed.commands.federation.reporting import invited
from train_distributed.federation import links
from train_distributed.federation.documents.certificates import trust, write_certificate
from train_distributed.federation.documents.private_keys import read_private
from train_distributed.federation.documents.window_file import WINDOW, WindowFile
from train_distributed.ledger.ledger import Ledger
from train_distributed.secure_sum.keys import FIRST_SERVER

HOST = "sum.example"  # which only the proxy knows


@pytest.fixture
def other(tmp_path: Path) -> Path:
    (folder := tmp_path / "other certificate").mkdir()
    write_certificate(folder, ["127.0.0.1"])
    return folder


@pytest.fixture
def line(other) -> Iterator[SimpleNamespace]:
    """Somebody on the line, who answers what it likes."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = made.files.get(self.path)
            self.send_response(200 if content is not None else 404)
            self.send_header("content-length", str(len(content or b"")))
            self.end_headers()
            self.wfile.write(content or b"")

    with homes.web_server(Handler, other) as port:
        made = SimpleNamespace(at=f"https://127.0.0.1:{port}", files=dict[str, bytes]())
        yield made


def served(home: homes.Home, monkeypatch: pytest.MonkeyPatch) -> tuple[str, dict[str, bytes]]:
    """Path of the invitation, and what the operator's aggregator answers, by path."""
    base = f"/invitations/{homes.digest_of(home.home)}"
    users = [read_private(home.home / f"user{i}").public.verifying.hex() for i in range(3)]
    names = ["federation.json", "operator.json", "ca.pem", "transform.safetensors", WINDOW]
    at, tls = home.file.addresses[FIRST_SERVER], trust(home.window / "ca.pem")
    with (
        homes.running(Aggregate(home.aggregators[0], home.window), monkeypatch),
        httpx.Client(base_url="https://{}:{}".format(*at), verify=tls) as http,
    ):
        paths = [f"{base}/{name}" for name in (*names, *(f"places/{user}" for user in users))]
        answers = {path: http.get(path) for path in paths}
        for odd in ("private.json", "..%2fprivate.json", "places/00", f"places/{'0' * 64}", "roll"):
            assert http.get(f"{base}/{odd}").status_code == 404
        assert http.get("/invitations/" + "0" * 64 + "/federation.json").status_code == 404
    return base, {path: got.content for path, got in answers.items() if got.status_code == 200}


def test_a_party_of_secagg_starts_by_its_link(initiated, engine, monkeypatch) -> None:
    home, at = initiated(), f"127.0.0.1:{free_port()}"
    user, digest = home / "user0", homes.digest_of(home)
    link = f"https://{at}/invitations/{digest}"
    with homes.running(Invite(home / "fed", at), monkeypatch):
        assert invited(link, user, read_private(user), "").federation == homes.federation_of(home)
        assert Start(user, link, embeddings=user / "embeddings", accept=digest).run() == 0
    assert engine.parties[0].address == "127.0.0.1:9092"


def test_nothing_that_was_changed_on_the_line_is_believed(windowed, line, monkeypatch) -> None:
    home = windowed.home
    base, files = served(windowed, monkeypatch)
    link, folder = line.at + base, home / "user1"
    keys = read_private(folder)
    parties = [*home.glob("user*/*.party.json"), *home.glob("server1/*.party.json")]
    homes.init_of(home, parties, folder=home / "other", protocol="shares").run()
    other = home / "other" / "invitation"
    told, own = f"{base}/operator.json", f"{base}/places/{keys.public.verifying.hex()}"
    place, window = json.loads(files[own]), json.loads(files[f"{base}/{WINDOW}"])
    later = json.dumps(window | {"closes": window["closes"] + 1}).encode()
    there = json.dumps(window | {"aggregators": window["aggregators"][::-1]}).encode()
    unsigned = json.dumps({k: v for k, v in window.items() if k != "signature"}).encode()
    elsewhere = files[told].replace(b":9092", b":9093")
    for path, content, words in (
        (f"{base}/federation.json", (other / "federation.json").read_bytes(), "must have the di"),
        (f"{base}/ca.pem", (other / "ca.pem").read_bytes(), "must be what was agreed on"),
        (told, (other / "operator.json").read_bytes(), "must have the digest"),
        (told, elsewhere, "signature must be the operator's"),
        (told, b'{"address": "h:1"}', "federation must be given"),
        (own, json.dumps(place | {"rows": 13}).encode(), "must prove that key"),
        (f"{base}/{WINDOW}", later, "signature must be the operator's"),
        (f"{base}/{WINDOW}", there, "signature must be the operator's"),
        (f"{base}/{WINDOW}", unsigned, "signature must be the operator's"),
    ):
        line.files = files | {path: content}
        with pytest.raises(ValueError, match=words):
            invited(link, folder, keys, "")
        assert list((folder / "invitations").iterdir()) == []
    line.files = files
    found = invited(link, folder, keys, "")
    assert found.federation.digest == homes.federation_of(home).digest
    assert found.federation.display_name(1) == "user 1 (hospital-1)"
    assert {path.name for path in found.folder.iterdir()} == {
        *("federation.json", "operator.json", "ca.pem", "transform.safetensors"),
        *("places", WINDOW),
    }
    with pytest.raises(ValueError, match="must have the digest that you were told, x"):
        invited(link, folder, keys, 16 * "x")
    monkeypatch.setattr(links, "LARGE", 100)
    with pytest.raises(ValueError, match="must be at most 100 bytes, got more"):
        invited(link, folder, keys, "")


def test_a_link_is_all_that_a_user_needs(opened, monkeypatch) -> None:
    monkeypatch.setattr("train_distributed.commands.federation.setup.MOST_PLACES", 2)
    home = opened()  # of so many users that no file is written for each
    assert not (home.home / "fed" / "invitation" / "places").exists()
    with pytest.raises(ValueError, match="must be registered in"):
        home.report(0).run()
    digest = homes.digest_of(home.home)
    at = "https://{}:{}/invitations/".format(*home.file.addresses[FIRST_SERVER])
    for user in (0, 2, 0):
        home.report(user, invitation=at + digest, window=None).run()
    home.collect().run()
    report = json.loads((home.model / "report.json").read_text())
    assert report["surviving_users"] == ["user 0 (hospital-0)", "user 2 (hospital-2)"]
    stranger = home.home / "stranger"
    Join(stranger, "stranger", rows=12).run()
    with pytest.raises(ValueError, match="must be registered in"):
        home.report(0, invitation=at + digest, window=None, folder=stranger).run()
    with pytest.raises(ConnectionError, match="must be there, got status 404"):
        home.report(0, invitation=at + digest[::-1]).run()


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[str]]]:
    """Address of a proxy for which every host is this machine, and what it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_CONNECT(self) -> None:
            asked.append(self.path)
            port = int(self.path.rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", port)) as there:
                self.send_response(200)
                self.end_headers()
                homes.carry(self.connection, there)
            self.close_connection = True

    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with homes.web_server(Handler) as port:
        yield f"127.0.0.1:{port}", asked


@pytest.fixture
def far(initiated: Callable[..., Path]) -> homes.Home:
    home = initiated(**homes.SETTINGS, hosts=(HOST,))
    return homes.Home(home, addresses=(f"{HOST}:{free_port()}", f"{HOST}:{free_port()}"))


def test_a_proxy_is_named_and_carries_the_report(far, proxy, monkeypatch, capsys) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"me:hush@{proxy[0]}")  # without a scheme
    port = far.file.addresses[FIRST_SERVER][1]
    listens = Aggregate(far.home / "fed", far.window, listen=f"127.0.0.1:{port}")
    homes.type_line(monkeypatch, "yes")
    with homes.running(listens, monkeypatch):
        capsys.readouterr()
        far.report(0, accept="").run()
    said = capsys.readouterr().out
    at = f"aggregator 0 at {HOST}:{port} through the proxy http://...@{proxy[0]} of HTTPS_PROXY"
    assert f"sent to {at}\n" in said
    assert f"do you take part by {at}? yes or no: " in said
    assert "hush" not in said
    assert f"{HOST}:{port}" in proxy[1]
    assert far.used(0) == 1


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ("socks5://127.0.0.1:9", ValueError, "^ALL_PROXY"),
        ("127.0.0.1:9", OSError, rf"{HOST}.* through the proxy .* of ALL_PROXY must answer"),
    ],
)
def test_a_proxy_that_is_of_no_use_is_named(far, monkeypatch, given, error, words) -> None:
    monkeypatch.setitem(sys.modules, "socksio", None)
    monkeypatch.setenv("ALL_PROXY", given)
    link = f"https://{HOST}:1/invitations/{homes.digest_of(far.home)}"
    for command in (
        far.report(0, patience=0.0),
        far.report(0, invitation=link, window=None),
        far.collect(patience=0.0),
    ):
        with pytest.raises(error, match=words) as refused:
            command.run()
        assert "\n" not in str(refused.value)
    assert far.used(0) == 0
    assert not far.model.exists()
    if error is ValueError:  # refused before anything is made
        for made in ("state", "invitations"):
            assert not (far.home / "user0" / made).exists()


def test_another_certificate_gets_nothing(windowed, other, monkeypatch, tmp_path) -> None:
    """Where TLS was agreed on, the system's authorities do not count, and no plain HTTP does."""
    monkeypatch.setenv("SSL_CERT_FILE", str(other / "server.pem"))
    with homes.running(Aggregate(windowed.aggregators[0], windowed.window), monkeypatch):
        port = windowed.file.addresses[FIRST_SERVER][1]
        with homes.terminating(other, port) as between:
            at = (f"127.0.0.1:{between}", "h:1")
            MakeWindow(windowed.home / "fed", at, tmp_path / "w").run()
            with pytest.raises(ConnectionError, match="for this address, and agreed on"):
                windowed.report(0, window=tmp_path / "w", patience=60.0).run()
    assert windowed.used(0) == 0


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait is said after a tenth of a second."""
    monkeypatch.setattr("pretrain.cli.waiting.FIRST", 0.1)


def at(home: homes.Home, host: str, port: int) -> Path:
    made = WindowFile.of(home.file.window, dict.fromkeys(home.file.addresses, (host, port)))
    made.save(home.home / "elsewhere.json")
    return home.home / "elsewhere.json"


def test_who_is_gone_or_silent_is_waited_for_aloud(soon, windowed, monkeypatch, capsys) -> None:
    for command in (
        windowed.report(0, patience=0.9),
        windowed.collect(patience=0.9),
        windowed.collect(patience=0.9, status=True),
    ):
        with pytest.raises(ConnectionError, match=r"aggregator 0 at 127\.0\.0\.1:\d+ must answer"):
            command.run()
        waits = r"^waiting for aggregator 0 at 127\.0\.0\.1:\d+ \(0 s of at most 1 s\): .*refused$"
        assert re.search(waits, capsys.readouterr().err, re.MULTILINE)
    for module in ("aggregator_client", "links"):
        monkeypatch.setattr(f"train_distributed.federation.{module}.SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        link = f"https://127.0.0.1:{port}/invitations/{homes.digest_of(windowed.home)}"
        for asking in ({"window": at(windowed, "127.0.0.1", port)}, {"invitation": link}):
            with pytest.raises(ConnectionError, match=r"must answer: .*timed out"):
                windowed.report(0, **{"window": None, "patience": 0.0} | asking).run()
    waits = f"waiting for https://127.0.0.1:{port} (0 s): it has the invitation"
    assert waits in capsys.readouterr().err
    assert windowed.used(0) == 0
    assert not windowed.model.exists()


def test_what_no_patience_mends_ends_at_once(windowed, other, monkeypatch) -> None:
    start, agreed = time.monotonic(), windowed.home / "fed" / "tls"
    with (
        homes.web_server() as plain,
        homes.web_server(tls=agreed) as secure,
        homes.web_server(tls=other) as foreign,
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
    start, closes = time.monotonic(), windowed.file.window.closes
    monkeypatch.setattr(time, "time", lambda: closes - 0.5)
    with pytest.raises(ConnectionError, match="must answer"):
        windowed.report(0, patience=600.0).run()
    assert time.monotonic() - start < 20
    assert windowed.used(0) == 0


def test_a_ledger_that_another_program_has_is_waited_for_aloud(soon, tmp_path, capsys) -> None:
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


def test_an_address_that_cannot_be_listened_at_is_named(windowed) -> None:
    for listen, words in (
        ("192.0.2.7:9100", r"listen must be a free port .*192\.0\.2\.7:9100: Cannot assign"),
        ("no.such.host.invalid:1", r"listen must be an address of this machine, got no\.such"),
    ):
        with pytest.raises((OSError, ValueError), match=words):
            Aggregate(windowed.home / "fed", windowed.window, listen=listen).run()
