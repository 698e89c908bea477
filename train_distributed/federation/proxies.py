"""Which proxy a connection goes through, as the environment says, and a client that uses it.

HTTPS_PROXY, ALL_PROXY and NO_PROXY count as they do for other programs, but an address
of this machine is never asked for through a proxy. A proxy sees whom a user reports to and when, so
it is named wherever a user is asked, and in every error.
"""

import contextlib
import ipaddress
import os
import re
import socket
import ssl
import urllib.request
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from pretrain import check

SOCKS = ("socks5", "socks5h")
SCHEMES = ("http", "https", *SOCKS)
_FORM = re.compile(r"(?:[A-Za-z0-9+.\-]+://)?(?:[^\s/@]*@)?[A-Za-z0-9._\-\[\]:]+/?")


@dataclass(frozen=True)
class Proxy:
    """A proxy that the environment names; as text, without its password."""

    url: str
    variable: str

    def __str__(self) -> str:
        return f"the proxy {_shown(self.url)} of {self.variable}"


class _Client(httpx.Client):
    """A client whose errors are httpx's, those of a SOCKS proxy that is none included."""

    def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        """See `httpx.Client.send`."""
        try:
            return super().send(request, **options)
        except Exception as error:
            if type(error).__module__.partition(".")[0] != "socksio":
                raise
            raise httpx.ProxyError(f"{error} of the proxy", request=request) from error


def client(host: str, tls: ssl.SSLContext, **settings: Any) -> tuple[httpx.Client, str]:
    """A client of https for one host, and how it gets there: "" or " through the proxy ...".

    Args:
        host: name or address.
        tls: what its certificate is checked with.
        settings: of `httpx.Client`.

    Raises:
        ValueError: no host has such a name, or the environment names a proxy that is none or
            needs an extra.
    """
    proxy = proxy_for(host)
    given = {"verify": tls, "proxy": proxy and proxy.url, "trust_env": False}
    try:
        made = _Client(**given, **settings)
    except httpx.InvalidURL as error:
        raise ValueError(f"address must be HOST:PORT, got {host[:300]!r}: {error}") from error
    return made, f" through {proxy}" if proxy else ""


def proxy_for(host: str) -> Proxy | None:
    """The proxy for this host; None: it is reached directly.

    Raises:
        ValueError: the environment names a proxy that is none, or that needs an extra.
    """
    bare = host.lower().rstrip(".").removeprefix("[").removesuffix("]")
    if is_own(bare) or urllib.request.proxy_bypass(bare):
        return None
    known = urllib.request.getproxies()
    named = next((name for name in ("https", "all") if known.get(name)), None)
    if named is None:
        return None
    spelled = (f"{named}_proxy", f"{named}_proxy".upper())
    variable = next((name for name in spelled if os.environ.get(name)), "the system's settings")
    return Proxy(_checked(known[named].strip(), variable, host), variable)


def is_own(host: str) -> bool:
    """Whether a name or address is this machine's own by its form."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    with contextlib.suppress(OSError):  # short forms, such as 127.1
        host = socket.inet_ntoa(socket.inet_aton(host))
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback or address.is_unspecified


def _checked(given: str, variable: str, host: str) -> str:
    url = given if "://" in given else f"http://{given}"
    rule = (
        f"{variable} must be http://, https:// or socks5://HOST:PORT, got {_shown(given)!r}; "
        f"NO_PROXY={host} goes without"
    )
    try:
        parts = urlsplit(url)
        good = bool(parts.hostname) and parts.port != 0 and httpx.URL(url)
    except (ValueError, httpx.InvalidURL) as error:
        raise ValueError(rule) from error
    if not good or parts.scheme not in SCHEMES or not _FORM.fullmatch(given):
        raise ValueError(rule)
    if parts.scheme in SOCKS:
        check.installed("socksio", f"{variable}={_shown(given)}", extra="socks")
    return url


def _shown(url: str) -> str:
    """The URL without user and password, which are nobody's business."""
    return re.sub(r"[^/]*@", "...@", url)[:300]
