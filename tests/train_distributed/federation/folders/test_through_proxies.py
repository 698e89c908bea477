"""Reports on their way: directly, through a proxy that is named, or not at all."""

import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.train_distributed.federation.folders.engine import digest_of
from tests.train_distributed.federation.folders.lines import carry
from tests.train_distributed.federation.folders.windows import SETTINGS, Home, running
from train_distributed.commands.federation import Start
from train_distributed.commands.federation.aggregating import Aggregate
from train_distributed.commands.federation.collecting import MakeWindow

HOST = "sum.example"  # which only the proxy knows


class Proxy:
    """A proxy of this machine, for which every host is this machine."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            def do_CONNECT(self) -> None:
                proxy.asked.append(self.path)
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

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.at = f"127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    made = Proxy()
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def far(initiated) -> Home:
    """A federation whose aggregators are at a host that is not this one."""
    home = Home(initiated(**SETTINGS, hosts=(HOST,)))
    ports = [free_port(), free_port()]
    home.window = home.home / "far"
    MakeWindow(home.home / "fed", tuple(f"{HOST}:{port}" for port in ports), home.window).run()
    return home


def nothing_made(home: Home) -> bool:
    return not (home.home / "user0" / "state").exists()


def test_a_proxy_is_named_in_the_question_and_carries_the_report(
    far, proxy, monkeypatch, capsys
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"me:hush@{proxy.at}")  # without a scheme
    port = far.report(0).window.read_text().partition(f"{HOST}:")[2].partition('"')[0]
    listens = Aggregate(far.home / "fed", far.window, listen=f"127.0.0.1:{port}")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(sys.stdin, "readline", lambda: "yes\n")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    with running(listens, monkeypatch):
        capsys.readouterr()
        far.report(0, accept="").run()
    said = capsys.readouterr().out
    at = f"aggregator 0 at {HOST}:{port} through the proxy http://...@{proxy.at} of HTTPS_PROXY"
    assert f"sent to {at}\n" in said
    assert f"do you take part by {at}? yes or no: " in said
    assert "hush" not in said
    assert f"{HOST}:{port}" in proxy.asked
    assert far.used(0) == 1


@pytest.mark.parametrize("given", ["nonsense://p:1", "http://", "socks5://127.0.0.1:9"])
def test_a_proxy_that_cannot_be_used_is_refused_before_anything_is_made(
    far, monkeypatch, given
) -> None:
    monkeypatch.setitem(sys.modules, "socksio", None)
    monkeypatch.setenv("ALL_PROXY", given)
    link = f"https://{HOST}:1/invitations/{digest_of(far.home)}"
    for command in (far.report(0), far.report(0, invitation=link, window=None), far.collect()):
        with pytest.raises(ValueError, match=r"^ALL_PROXY") as refused:
            command.run()
        assert "\n" not in str(refused.value)
    assert nothing_made(far)
    assert not (far.home / "model").exists()
    assert not (far.home / "user0" / "invitations").exists()


def test_a_proxy_that_does_not_answer_is_named(far, monkeypatch, capsys) -> None:
    monkeypatch.setenv("ALL_PROXY", f"127.0.0.1:{free_port()}")
    link = f"https://{HOST}:1/invitations/{digest_of(far.home)}"
    for command in (
        far.report(0, patience=0.0),
        far.report(0, invitation=link, window=None),
        far.collect(patience=0.0),
    ):
        with pytest.raises(OSError, match=rf"{HOST}.* through the proxy .* of ALL_PROXY must ans"):
            command.run()
    assert nothing_made(far) or far.used(0) == 0


def test_this_machine_is_reached_directly_whatever_the_proxies(
    initiated, monkeypatch, capsys
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "socks5://nobody.example:1")
    home = Home(initiated(**SETTINGS))
    with running(Aggregate(home.home / "fed", home.window), monkeypatch):
        home.report(0).run()
    assert "proxy" not in capsys.readouterr().out
    assert home.used(0) == 1


def test_secagg_goes_through_the_proxy_too(initiated, engine, monkeypatch, capsys) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://p:1")
    home: Path = initiated()
    accept = digest_of(home)
    other = Start(home / "user0", home / "fed" / "invitation", accept=accept, operator="h:9")
    assert other.run() == 0
    words = "sent to the operator at h:9 through the proxy http://p:1 of HTTPS_PROXY\n"
    assert words in capsys.readouterr().out
