"""Fetches an invitation by its link, and believes nothing but its digest."""

import os
import re
import shutil
import ssl
import tempfile
from dataclasses import replace
from pathlib import Path

import httpx

from train_distributed.flower.aggregator_client import SECONDS
from train_distributed.flower.documents.certificates import CA
from train_distributed.flower.documents.document import LARGE, SMALL
from train_distributed.flower.documents.evaluation_terms import agreed_file
from train_distributed.flower.documents.federation import Federation
from train_distributed.flower.documents.invitation import FEDERATION, OPERATOR, Invitation
from train_distributed.flower.documents.place import PLACES, place_path
from train_distributed.flower.documents.window_file import WINDOW, WindowFile
from train_distributed.secure_sum.keys import PrivateKeys

LINK = re.compile(r"https?://[A-Za-z0-9._\-\[\]:]{1,255}/invitations/([0-9a-f]{64})/?")


def fetched(link: str, folder: Path, keys: PrivateKeys, tls: ssl.SSLContext | None) -> Invitation:
    """The invitation that a link names, kept in a party's folder.

    Args:
        link: http://HOST:PORT/invitations/DIGEST.
        folder: the party's.
        keys: its own, whose place on a roll is fetched.
        tls: what the server's certificate is checked with, if it is not the system's.

    Raises:
        ValueError: no such link, or a file that is not what the digest, or the operator, says.
        ConnectionError: the server is gone, or does not have it.
    """
    if not (found := LINK.fullmatch(link)):
        raise ValueError(f"link must be http://HOST:PORT/invitations/DIGEST, got {link[:300]!r}")
    (folder / "invitations").mkdir(parents=True, exist_ok=True)
    kept, key = folder / "invitations" / found[1][:16], keys.public.verifying
    with tempfile.TemporaryDirectory(
        dir=folder / "invitations", ignore_cleanup_errors=True
    ) as made:
        partial, base = Path(made), link.rstrip("/")
        with httpx.Client(verify=tls or True, timeout=SECONDS, follow_redirects=False) as http:
            for name in (FEDERATION, OPERATOR, CA):
                (partial / name).write_bytes(_get(http, f"{base}/{name}", LARGE))
            federation = Federation.load(partial / FEDERATION)
            agreed = agreed_file(federation.task)
            (partial / agreed).write_bytes(_get(http, f"{base}/{agreed}", LARGE))
            invitation = Invitation.read(partial, found[1], signed=True)
            if place := _get(http, f"{base}/{PLACES}/{key.hex()}", SMALL, need=False):
                (partial / PLACES).mkdir()
                place_path(partial / PLACES, key).write_bytes(place)
                invitation.placed(keys)
            if window := _get(http, f"{base}/{WINDOW}", LARGE, need=False):
                (partial / WINDOW).write_bytes(window)
                WindowFile.load(partial / WINDOW, signed=True)
        shutil.rmtree(kept, ignore_errors=True)
        os.replace(partial, kept)
    return replace(invitation, folder=kept)


def _get(http: httpx.Client, url: str, most: int, *, need: bool = True) -> bytes:
    """Up to `most` bytes; nothing where the server has no such file and none is needed."""
    content = bytearray()
    try:
        with http.stream("GET", url) as response:
            if response.status_code == 404 and not need:
                return b""
            if response.status_code != 200:
                raise ConnectionError(f"{url} must be there, got status {response.status_code}")
            for piece in response.iter_bytes():
                content += piece
                if len(content) > most:
                    raise ValueError(f"{url} must be at most {most} bytes, got more")
    except httpx.TransportError as error:
        raise ConnectionError(f"{url} must answer: {error or type(error).__name__}") from error
    return bytes(content)
