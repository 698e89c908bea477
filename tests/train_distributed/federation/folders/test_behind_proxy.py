"""Windows whose aggregators speak plain HTTP to reverse proxies, and what nobody speaks to."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.train_distributed.federation.folders.lines import terminating
from tests.train_distributed.federation.folders.windows import SETTINGS, Home, running
from train_distributed.commands.federation import Status
from train_distributed.commands.federation.aggregating import Aggregate
from train_distributed.commands.federation.collecting import MakeWindow
from train_distributed.federation.documents.certificates import write_certificate
from train_distributed.federation.documents.window_file import WindowFile
from train_distributed.secure_sum.keys import FIRST_SERVER


@pytest.fixture
def proxied(
    initiated: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Home]:
    """Both aggregators behind proxies whose authority the system trusts."""
    home = Home(initiated(**SETTINGS, behind_proxy=True))
    (tls := tmp_path / "proxies").mkdir()
    write_certificate(tls, ["127.0.0.1"])
    monkeypatch.setenv("SSL_CERT_FILE", str(tls / "server.pem"))
    own = [free_port(), free_port()]
    with ExitStack() as stack:
        ports = [stack.enter_context(terminating(tls, port)) for port in own]
        home.window = home.home / "proxied"
        MakeWindow(home.home / "fed", tuple(f"127.0.0.1:{p}" for p in ports), home.window).run()
        for folder, port in zip(home.aggregators, own, strict=True):
            aggregator = Aggregate(folder, home.window, listen=f"127.0.0.1:{port}")
            stack.enter_context(running(aggregator, monkeypatch))
        yield home


def test_a_window_behind_proxies(
    proxied: Home, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not (proxied.home / "fed" / "tls").exists()
    assert not (proxied.window / "ca.pem").exists()
    for user in range(3):
        proxied.report(user).run()
    said = capsys.readouterr().out
    assert said.count(", whose proxy has TLS by a public authority\n") == 3
    Status(proxied.home / "fed").run()
    said = capsys.readouterr().out
    assert "plain HTTP behind a proxy that has TLS" in said
    assert "plain HTTP on 127.0.0.1: your reverse proxy has TLS by a public authority" in said
    proxied.collect().run()
    report = json.loads((proxied.home / "model" / "report.json").read_text())
    assert report["survivors"] == 3


def test_a_proxy_that_the_system_does_not_trust_gets_nothing(
    proxied: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(ConnectionError, match="its certificate must be valid, for this address"):
        proxied.report(0).run()
    assert proxied.used(0) == 0


def test_nobody_between_with_another_certificate_gets_anything(
    initiated: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where TLS was agreed on, the system's authorities do not count, and no plain HTTP does."""
    home = Home(initiated(**SETTINGS))
    (other := tmp_path / "other").mkdir()
    write_certificate(other, ["127.0.0.1"])
    monkeypatch.setenv("SSL_CERT_FILE", str(other / "server.pem"))
    with running(Aggregate(home.aggregators[0], home.window), monkeypatch):
        port = WindowFile.load(home.window / "window.json").addresses[FIRST_SERVER][1]
        with terminating(other, port) as between:
            MakeWindow(home.home / "fed", (f"127.0.0.1:{between}", "h:1"), tmp_path / "w").run()
            with pytest.raises(ConnectionError, match="for this address, and agreed on"):
                home.report(0, window=tmp_path / "w", patience=60.0).run()
    assert home.used(0) == 0
