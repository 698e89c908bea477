"""Loopback is reached directly; a proxy that is used is named without its password, or refused."""

import os
import sys
import urllib.request

import httpx
import pytest

from train_distributed.federation.documents.certificates import trust
from train_distributed.federation.proxies import client, is_own, proxy_for

TLS = trust(None)


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def through(host: str) -> str:
    made, words = client(host, TLS)
    made.close()
    return words


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "LOCALHOST", "localhost.", "a.localhost", "127.0.0.1", "127.8.9.1"),
        *("127.1", "0.0.0.0", "0", "::1", "[::1]", "::", "::ffff:127.0.0.1", "2130706433"),
    ],
)
def test_this_machine_is_never_reached_through_a_proxy(monkeypatch, host: str) -> None:
    for name in ("HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "socks9://nonsense nobody looks at")
    assert proxy_for(host) is None
    assert through(host) == ""


@pytest.mark.parametrize(
    "host", ["localhost.example", "128.0.0.1", "10.0.0.1", "::2", "::ffff:10.0.0.1", "h"]
)
def test_all_other_machines_are(monkeypatch, host: str) -> None:
    assert not is_own(host)
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:3128")
    assert proxy_for(host) is None  # nothing is sent without TLS
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    assert str(proxy_for(host)) == "the proxy http://proxy:3128 of HTTPS_PROXY"
    monkeypatch.setenv("NO_PROXY", f"elsewhere,{host}")
    assert proxy_for(host) is None


@pytest.mark.parametrize(
    ("variable", "given", "url", "shown"),
    [
        ("HTTPS_PROXY", "proxy:3128", "http://proxy:3128", "proxy:3128"),
        ("https_proxy", "http://proxy:3128/", "http://proxy:3128/", "http://proxy:3128/"),
        ("ALL_PROXY", " http://proxy ", "http://proxy", "http://proxy"),
        ("all_proxy", "10.0.0.9:8080", "http://10.0.0.9:8080", "10.0.0.9:8080"),
        ("ALL_PROXY", "https://[fd00::1]:8080", "https://[fd00::1]:8080", "https://[fd00::1]:8080"),
        ("HTTPS_PROXY", "http://me:secret@p:1", "http://me:secret@p:1", "http://...@p:1"),
        ("HTTPS_PROXY", "me:secret@p:1", "http://me:secret@p:1", "...@p:1"),
    ],
)
def test_a_proxy_is_named_by_its_variable(monkeypatch, variable, given, url, shown) -> None:
    monkeypatch.setenv(variable, given)
    found = proxy_for("sum.example")
    assert found is not None
    assert found.url == url
    assert "secret" not in str(found)
    assert f"{shown} of {variable}" in str(found).replace("http://" + shown, shown)
    assert through("sum.example") == f" through {found}"


@pytest.mark.parametrize(
    "given",
    [
        *("http://", "http://:80", "://p", "http://p:port", "http://p:99999", "http://p:0"),
        *("ftp://p:21", "socks://p:1", "socks4://p:1", "file:///p", "http://a b:1", "p q"),
        *("http://p:1/path", "http://p:1?q", "http://[::1", "//p:1", "http://p\x1b[2J:1"),
        "http://me:se/cret@p:1",
    ],
)
def test_what_is_no_proxy_is_refused_in_one_line(monkeypatch, given: str) -> None:
    monkeypatch.setenv("ALL_PROXY", given)
    with pytest.raises(ValueError, match=r"^ALL_PROXY must be .* got .*; NO_PROXY=sum\.ex") as no:
        client("sum.example", TLS)
    assert str(no.value).isprintable()
    monkeypatch.setenv("NO_PROXY", "sum.example")
    assert proxy_for("sum.example") is None


def test_socks_needs_an_extra(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "socksio", None)
    for given in ("socks5://p:1080", "socks5h://me:secret@p:1080"):
        monkeypatch.setenv("ALL_PROXY", given)
        with pytest.raises(ValueError, match=r"^ALL_PROXY=socks5h?://.*\[socks\]") as refused:
            client("sum.example", TLS)
        assert "secret" not in str(refused.value)
    monkeypatch.setitem(sys.modules, "socksio", sys)
    assert str(proxy_for("h")) == "the proxy socks5h://...@p:1080 of ALL_PROXY"


def test_what_a_socks_proxy_that_is_none_answers_is_an_error_of_the_line(monkeypatch) -> None:
    odd = type("ProtocolError", (Exception,), {"__module__": "socksio.exceptions"})

    def sent(client: httpx.Client, request: httpx.Request, **options: object) -> httpx.Response:
        raise odd("Malformed reply") if request.url.path == "/odd" else ZeroDivisionError

    monkeypatch.setattr(httpx.Client, "send", sent)
    made, _ = client("h", TLS)
    with made:
        with pytest.raises(httpx.TransportError, match="Malformed reply of the proxy"):
            made.get("http://h/odd")
        with pytest.raises(ZeroDivisionError):
            made.get("http://h/")


def test_the_system_s_settings_are_named_where_no_variable_is(monkeypatch) -> None:
    monkeypatch.setattr(urllib.request, "getproxies", lambda: {"https": "http://p:1"})
    assert str(proxy_for("h")) == "the proxy http://p:1 of the system's settings"
    assert "HTTPS_PROXY" not in os.environ
