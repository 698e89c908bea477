"""A link is believed for its digest alone: whoever is on the line can change nothing."""

import asyncio
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette

from tests.ports import free_port
from tests.train_distributed.federation.folders.engine import digest_of
from tests.train_distributed.federation.folders.windows import SETTINGS, Home, running
from train_distributed.commands.federation import Init, Start
from train_distributed.commands.federation.aggregating import Invite
from train_distributed.commands.federation.reporting import invited
from train_distributed.federation import links
from train_distributed.federation.documents.certificates import write_certificate
from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.documents.invitation import Invitation
from train_distributed.federation.documents.place import with_roll
from train_distributed.federation.documents.private_keys import read_private
from train_distributed.federation.documents.window_file import WINDOW
from train_distributed.federation.links import invitation_routes
from train_distributed.secure_sum.roll import Roll


class Line:
    """Somebody on the line, who answers what it likes."""

    def __init__(self, tls: Path) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        line = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                line.asked.append(self.path)
                content = line.files.get(self.path)
                self.send_response(200 if content is not None else 404)
                self.send_header("content-length", str(len(content or b"")))
                self.end_headers()
                self.wfile.write(content or b"")

            def log_message(self, format: str, *given: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls / "server.pem", tls / "server.key")
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.at = f"https://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    (tmp_path / "line").mkdir()
    write_certificate(tmp_path / "line", ["stranger.example"])  # nobody's authority
    made = Line(tmp_path / "line")
    yield made
    made.server.shutdown()
    made.server.server_close()


def served(home: Path, window: Path | None = None) -> dict[str, bytes]:
    """What the operator's server answers, by path."""
    invitation = Invitation.read(home / "fed" / "invitation")
    known = with_roll(invitation.federation, home / "fed").known
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
    return {path: found.content for path, found in answers.items() if found.status_code == 200}


def test_an_invitation_is_served_without_an_aggregator(
    initiated: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, at = initiated(users=3), f"127.0.0.1:{free_port()}"
    folder, link = home / "user0", f"https://{at}/invitations/{digest_of(home)}"
    with running(Invite(home / "fed", at), monkeypatch):
        found = invited(link, folder, read_private(folder), "")
    assert found.federation == Federation.load(home / "fed" / "federation.json")


def test_nothing_that_was_changed_on_the_line_is_believed(
    initiated: Callable[..., Path], line: Line
) -> None:
    home = Home(initiated(**SETTINGS)).home
    files = served(home, home / "window" / WINDOW)
    (base,) = {path.rpartition("/")[0] for path in files if "places" not in path}
    link, folder = line.at + base, home / "user1"
    keys = read_private(folder)
    Init(
        home / "other",
        tuple(home.glob("user*/*.party.json")) + tuple(home.glob("server1/*.party.json")),
        home / "public.safetensors",
        ("127.0.0.1",),
        num_classes=3,
        protocol="shares",
    ).run()
    other = home / "other" / "invitation"
    own = f"{base}/places/{keys.public.verifying.hex()}"
    place, window = json.loads(files[own]), json.loads(files[f"{base}/{WINDOW}"])
    later = json.dumps(window | {"closes": window["closes"] + 1}).encode()
    there = json.dumps(window | {"aggregators": window["aggregators"][::-1]}).encode()
    unsigned = {name: value for name, value in window.items() if name != "signature"}
    for changes, words in (
        ({f"{base}/federation.json": (other / "federation.json").read_bytes()}, "must have the di"),
        ({f"{base}/ca.pem": (other / "ca.pem").read_bytes()}, "must be what was agreed on"),
        ({f"{base}/operator.json": (other / "operator.json").read_bytes()}, "must have the digest"),
        (
            {
                f"{base}/operator.json": files[f"{base}/operator.json"].replace(b":9092", b":9093"),
            },
            "signature must be the operator's",
        ),
        ({f"{base}/operator.json": b'{"address": "h:1"}'}, "federation must be given"),
        ({own: json.dumps(place | {"rows": 13}).encode()}, "must prove that key"),
        ({f"{base}/{WINDOW}": later}, "signature must be the operator's"),
        ({f"{base}/{WINDOW}": there}, "signature must be the operator's"),
        ({f"{base}/{WINDOW}": json.dumps(unsigned).encode()}, "signature must be the operator's"),
    ):
        line.files = files | changes
        with pytest.raises(ValueError, match=words):
            invited(link, folder, keys, "")
        assert list((folder / "invitations").iterdir()) == []
    line.files = files
    found = invited(link, folder, keys, "")
    assert found.federation == Federation.load(home / "fed" / "federation.json")
    assert found.federation.display_name(1) == "user 1 (hospital-1)"
    kept = {path.name for path in found.folder.iterdir()}
    assert kept == {
        *("federation.json", "operator.json", "ca.pem", "transform.safetensors"),
        *("places", WINDOW),
    }
    with pytest.raises(ValueError, match="must have the digest that you were told, x"):
        invited(link, folder, keys, 16 * "x")


def test_a_server_that_sends_without_end_is_left(
    initiated: Callable[..., Path], line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = initiated(**SETTINGS)
    files = served(home)
    monkeypatch.setattr(links, "LARGE", 100)
    line.files = files
    base = next(path for path in files if path.endswith("ca.pem")).rpartition("/")[0]
    with pytest.raises(ValueError, match="must be at most 100 bytes, got more"):
        invited(line.at + base, home / "user0", read_private(home / "user0"), "")
    with pytest.raises(ValueError, match="link must be http"):
        invited("ftp://h/invitations/" + "0" * 64, home / "user0", read_private(home / "user0"), "")


def test_a_party_of_secagg_starts_by_its_link(
    initiated: Callable[..., Path], line: Line, engine
) -> None:
    home = initiated()
    line.files = served(home)
    (base,) = {path.rpartition("/")[0] for path in line.files}
    digest = Federation.load(home / "fed" / "federation.json").digest.hex()
    user = home / "user0"
    Start(user, line.at + base, embeddings=user / "embeddings", accept=digest).run()
    assert engine.parties[0].address == "127.0.0.1:9092"


def test_an_invitation_that_nobody_has_signed_is_refused(initiated: Callable[..., Path]) -> None:
    folder = initiated() / "fed" / "invitation"
    told = json.loads((folder / "operator.json").read_text())
    (folder / "operator.json").write_text(
        json.dumps({name: told[name] for name in ("address", "federation")})
    )
    with pytest.raises(ValueError, match="signature must be the operator"):
        Invitation.read(folder)


def test_a_user_without_a_window_is_told(initiated: Callable[..., Path]) -> None:
    home = Home(initiated(**SETTINGS))
    with pytest.raises(ValueError, match=r"window must be given where .* holds none"):
        home.report(0, window=None).run()
