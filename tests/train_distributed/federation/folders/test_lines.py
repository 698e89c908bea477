"""Links, proxies and TLS: whoever is on the line can change nothing, and gets nothing."""

import asyncio
import json
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette

from tests.ports import free_port
from tests.train_distributed.federation.folders.homes import (
    Engine,
    digest_of,
    federation_of,
    init_of,
)
from tests.train_distributed.federation.folders.windows import (
    SETTINGS,
    Home,
    carry,
    running,
    terminating,
    web_server,
)
from train_distributed.commands.federation import Join, Start, Status
from train_distributed.commands.federation.aggregating import Aggregate, Invite
from train_distributed.commands.federation.collecting import MakeWindow
from train_distributed.commands.federation.reporting import invited
from train_distributed.federation import links
from train_distributed.federation.documents.certificates import write_certificate
from train_distributed.federation.documents.invitation import Invitation
from train_distributed.federation.documents.private_keys import read_private
from train_distributed.federation.documents.window_file import WINDOW
from train_distributed.federation.links import invitation_routes
from train_distributed.secure_sum.keys import FIRST_SERVER
from train_distributed.secure_sum.roll import Roll

HOST = "sum.example"  # which only the proxy knows


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A folder with a certificate that nobody agreed on."""
    (folder := tmp_path / "other certificate").mkdir()
    write_certificate(folder, ["127.0.0.1"])
    return folder


class Line:
    """Somebody on the line, who answers what it likes."""

    def __init__(self, port: int) -> None:
        self.at, self.files = f"https://127.0.0.1:{port}", dict[str, bytes]()


@pytest.fixture
def line(other: Path) -> Iterator[Line]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = made.files.get(self.path)
            self.send_response(200 if content is not None else 404)
            self.send_header("content-length", str(len(content or b"")))
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, format: str, *given: object) -> None:
            pass

    with web_server(Handler, other) as port:
        made = Line(port)
        yield made


def served(home: Path, window: Path | None = None) -> tuple[str, dict[str, bytes]]:
    """Path of the invitation, and what the operator's server answers, by path."""
    invitation = Invitation.read(home / "fed" / "invitation")
    known = federation_of(home).known
    roll = known if isinstance(known, Roll) else None
    app = Starlette(routes=invitation_routes(invitation, roll, window))

    def get(path: str) -> httpx.Response:
        async def asked() -> httpx.Response:
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url="http://h") as client:
                return await client.get(path)

        return asyncio.run(asked())

    base = f"/invitations/{invitation.federation.digest.hex()}"
    keys = [read_private(home / f"user{i}").public.verifying.hex() for i in range(3)]
    names = ["federation.json", "operator.json", "ca.pem", invitation.agreed.name, WINDOW]
    paths = [f"{base}/{name}" for name in (*names, *(f"places/{key}" for key in keys))]
    answers = {path: get(path) for path in paths}
    for odd in ("private.json", "..%2fprivate.json", "places/00", f"places/{'0' * 64}", "roll"):
        assert get(f"{base}/{odd}").status_code == 404
    assert get("/invitations/" + "0" * 64 + "/federation.json").status_code == 404
    return base, {path: got.content for path, got in answers.items() if got.status_code == 200}


def test_an_invitation_is_served_without_an_aggregator(
    initiated: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, at = initiated(), f"127.0.0.1:{free_port()}"
    folder, link = home / "user0", f"https://{at}/invitations/{digest_of(home)}"
    with running(Invite(home / "fed", at), monkeypatch):
        found = invited(link, folder, read_private(folder), "")
    assert found.federation == federation_of(home)


def test_nothing_that_was_changed_on_the_line_is_believed(windowed: Home, line: Line) -> None:
    home = windowed.home
    base, files = served(home, windowed.window / WINDOW)
    link, folder = line.at + base, home / "user1"
    keys = read_private(folder)
    parties = [*home.glob("user*/*.party.json"), *home.glob("server1/*.party.json")]
    init_of(home, parties, folder=home / "other", protocol="shares").run()
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
    assert found.federation.digest == federation_of(home).digest
    assert found.federation.display_name(1) == "user 1 (hospital-1)"
    assert {path.name for path in found.folder.iterdir()} == {
        *("federation.json", "operator.json", "ca.pem", "transform.safetensors"),
        *("places", WINDOW),
    }
    with pytest.raises(ValueError, match="must have the digest that you were told, x"):
        invited(link, folder, keys, 16 * "x")


def test_a_server_that_sends_without_end_is_left(
    initiated: Callable[..., Path], line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = initiated(**SETTINGS)
    base, line.files = served(home)
    monkeypatch.setattr(links, "LARGE", 100)
    with pytest.raises(ValueError, match="must be at most 100 bytes, got more"):
        invited(line.at + base, home / "user0", read_private(home / "user0"), "")


def test_a_party_of_secagg_starts_by_its_link(
    initiated: Callable[..., Path], line: Line, engine: Engine
) -> None:
    home = initiated()
    base, line.files = served(home)
    user = home / "user0"
    Start(user, line.at + base, embeddings=user / "embeddings", accept=digest_of(home)).run()
    assert engine.parties[0].address == "127.0.0.1:9092"


def test_a_link_is_all_that_a_user_needs(opened: Callable[..., Home]) -> None:
    """Federation, transform, its place and the window come from the operator's aggregator."""
    home = opened()
    digest = digest_of(home.home)
    at = "https://{}:{}/invitations/".format(*home.file.addresses[FIRST_SERVER])
    for path in (home.home / "fed" / "invitation" / "places").iterdir():
        path.unlink()  # as where there are very many
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
                back = threading.Thread(target=carry, args=(there, self.connection))
                back.start()
                carry(self.connection, there)
                back.join()
            self.close_connection = True

        def log_message(self, format: str, *given: object) -> None:
            pass

    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with web_server(Handler) as port:
        yield f"127.0.0.1:{port}", asked


@pytest.fixture
def far(initiated: Callable[..., Path]) -> Home:
    """A federation whose aggregators are at a host that is not this one."""
    home = initiated(**SETTINGS, hosts=(HOST,))
    return Home(home, addresses=(f"{HOST}:{free_port()}", f"{HOST}:{free_port()}"))


def test_a_proxy_is_named_in_the_question_and_carries_the_report(
    far: Home, proxy: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"me:hush@{proxy[0]}")  # without a scheme
    port = far.file.addresses[FIRST_SERVER][1]
    listens = Aggregate(far.home / "fed", far.window, listen=f"127.0.0.1:{port}")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(sys.stdin, "readline", lambda: "yes\n")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    with running(listens, monkeypatch):
        capsys.readouterr()
        far.report(0, accept="").run()
    said = capsys.readouterr().out
    at = f"aggregator 0 at {HOST}:{port} through the proxy http://...@{proxy[0]} of HTTPS_PROXY"
    assert f"sent to {at}\n" in said
    assert f"do you take part by {at}? yes or no: " in said
    assert "hush" not in said
    assert f"{HOST}:{port}" in proxy[1]
    assert far.used(0) == 1


@pytest.mark.parametrize("given", ["nonsense://p:1", "http://", "socks5://127.0.0.1:9"])
def test_a_proxy_that_cannot_be_used_is_refused_before_anything_is_made(
    far: Home, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setitem(sys.modules, "socksio", None)
    monkeypatch.setenv("ALL_PROXY", given)
    link = f"https://{HOST}:1/invitations/{digest_of(far.home)}"
    for command in (far.report(0), far.report(0, invitation=link, window=None), far.collect()):
        with pytest.raises(ValueError, match=r"^ALL_PROXY") as refused:
            command.run()
        assert "\n" not in str(refused.value)
    assert not far.model.exists()
    for made in ("state", "invitations"):
        assert not (far.home / "user0" / made).exists()


def test_a_proxy_that_does_not_answer_is_named(far: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", f"127.0.0.1:{free_port()}")
    link = f"https://{HOST}:1/invitations/{digest_of(far.home)}"
    for command in (
        far.report(0, patience=0.0),
        far.report(0, invitation=link, window=None),
        far.collect(patience=0.0),
    ):
        with pytest.raises(OSError, match=rf"{HOST}.* through the proxy .* of ALL_PROXY must ans"):
            command.run()
    assert far.used(0) == 0


def test_secagg_goes_through_the_proxy_too(
    initiated: Callable[..., Path], engine: Engine, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://p:1")
    home = initiated()
    user, given = home / "user0", {"accept": digest_of(home), "operator": "h:9"}
    assert Start(user, home / "fed" / "invitation", **given).run() == 0
    words = "sent to the operator at h:9 through the proxy http://p:1 of HTTPS_PROXY\n"
    assert words in capsys.readouterr().out


def test_a_window_behind_proxies_of_an_authority_that_the_system_trusts(
    initiated: Callable[..., Path], other: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    own = [free_port(), free_port()]
    monkeypatch.setenv("SSL_CERT_FILE", str(other / "server.pem"))
    with ExitStack() as stack:
        ports = [stack.enter_context(terminating(other, port)) for port in own]
        addresses = tuple(f"127.0.0.1:{port}" for port in ports)
        home = Home(initiated(**SETTINGS, behind_proxy=True), addresses=addresses)
        assert not (home.home / "fed" / "tls").exists()
        assert not (home.window / "ca.pem").exists()
        for folder, port in zip(home.aggregators, own, strict=True):
            aggregator = Aggregate(folder, home.window, listen=f"127.0.0.1:{port}")
            stack.enter_context(running(aggregator, monkeypatch))
        with monkeypatch.context() as patched:
            patched.delenv("SSL_CERT_FILE")
            with pytest.raises(ConnectionError, match="certificate must be valid, for this addre"):
                home.report(0).run()
        assert home.used(0) == 0
        capsys.readouterr()
        for user in range(3):
            home.report(user).run()
        said = capsys.readouterr().out
        assert said.count(", whose proxy has TLS by a public authority\n") == 3
        home.collect().run()
    Status(home.home / "fed").run()
    said = capsys.readouterr().out
    assert "plain HTTP behind a proxy that has TLS" in said
    report = json.loads((home.model / "report.json").read_text())
    assert report["survivors"] == 3


def test_nobody_between_with_another_certificate_gets_anything(
    windowed: Home, other: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where TLS was agreed on, the system's authorities do not count, and no plain HTTP does."""
    monkeypatch.setenv("SSL_CERT_FILE", str(other / "server.pem"))
    with running(Aggregate(windowed.aggregators[0], windowed.window), monkeypatch):
        port = windowed.file.addresses[FIRST_SERVER][1]
        with terminating(other, port) as between:
            at = (f"127.0.0.1:{between}", "h:1")
            MakeWindow(windowed.home / "fed", at, tmp_path / "w").run()
            with pytest.raises(ConnectionError, match="for this address, and agreed on"):
                windowed.report(0, window=tmp_path / "w", patience=60.0).run()
    assert windowed.used(0) == 0
