"""An invitation behind a link: its files, and every user's own place, for whoever has the link.

    GET /invitations/{digest}/{file}        one of the invitation's files, or window.json
    GET /invitations/{digest}/places/{key}  place of the user with this public key

A link is https://HOST:PORT/invitations/{digest of the federation}. Nothing here is secret, and
nobody need trust the line: what is fetched must have the digest, or be signed with the key of the
operator that the federation states.
"""

import functools
import os
import re
import shutil
import ssl
import tempfile
from dataclasses import replace
from pathlib import Path

import httpx
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from pretrain.cli.waiting import Waiting
from train_distributed.federation.aggregator_client import SECONDS, reason, remedy
from train_distributed.federation.documents.certificates import AGREED
from train_distributed.federation.documents.document import KEY, LARGE, SMALL
from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.documents.invitation import FEDERATION, OPERATOR, Invitation
from train_distributed.federation.documents.place import PLACES, Place, place_path
from train_distributed.federation.documents.terms import agreed_file
from train_distributed.federation.documents.window_file import WINDOW, WindowFile
from train_distributed.federation.proxies import client
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.roll import Roll

LINK = re.compile(r"https://[A-Za-z0-9._\-\[\]:]{1,255}/invitations/([0-9a-f]{64})/?")


def invitation_routes(
    invitation: Invitation, roll: Roll | None, window: Path | None
) -> list[Route]:
    """Routes of one invitation.

    Args:
        invitation: as `init` has made it.
        roll: of its users, with protocol `shares`.
        window: window.json of the window that is open; None: there is none.
    """
    base = f"/invitations/{invitation.federation.digest.hex()}"
    names = (FEDERATION, OPERATOR, AGREED, invitation.agreed.name)
    files = {name: invitation.folder / name for name in names}
    files |= {} if window is None else {WINDOW: window}

    async def file(request: Request) -> Response:
        found = files.get(request.path_params["name"])
        if found is None or not found.exists():  # of certificates there are none behind proxies
            return Response(status_code=404)
        return FileResponse(found)

    def place(request: Request) -> Response:  # no coroutine: another thread reads the roll
        key = request.path_params["key"]
        number = roll.find(bytes.fromhex(key)) if roll and KEY.fullmatch(key) else None
        if number is None or roll is None:
            return Response(status_code=404)
        return Response(Place.of(number, roll.placed(number)).text, media_type="application/json")

    return [Route(f"{base}/places/{{key}}", place), Route(f"{base}/{{name}}", file)]


def fetched(link: str, folder: Path, keys: PrivateKeys) -> Invitation:
    """The invitation that a link names, kept in a party's folder.

    Args:
        link: https://HOST:PORT/invitations/DIGEST.
        folder: the party's.
        keys: its own, whose place on a roll is fetched.

    Raises:
        ValueError: no such link, or a file that is not what the digest, or the operator, says.
        ConnectionError: the server is gone, or does not have it.
    """
    digest, host = _parts(link)
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE  # the digest is what is checked
    http, through = client(host, tls, timeout=SECONDS, follow_redirects=False)
    (folder / "invitations").mkdir(parents=True, exist_ok=True)
    kept, key = folder / "invitations" / digest[:16], keys.public.verifying
    with tempfile.TemporaryDirectory(
        dir=folder / "invitations", ignore_cleanup_errors=True
    ) as made:
        partial, base = Path(made), link.rstrip("/")
        whom = f"{link.partition('/invitations/')[0]}{through}"
        with http, Waiting(whom, "it has the invitation"):
            get = functools.partial(_get, http, through)
            for name in (FEDERATION, OPERATOR):
                (partial / name).write_bytes(get(f"{base}/{name}", LARGE))
            federation = Federation.load(partial / FEDERATION)
            of_tls = [AGREED] if federation.certificates else []
            for name in (*of_tls, agreed_file(federation.task)):
                (partial / name).write_bytes(get(f"{base}/{name}", LARGE))
            invitation = Invitation.read(partial, digest)
            if place := get(f"{base}/{PLACES}/{key.hex()}", SMALL, need=False):
                (partial / PLACES).mkdir()
                place_path(partial / PLACES, key).write_bytes(place)
                invitation.placed(keys)
            if window := get(f"{base}/{WINDOW}", LARGE, need=False):
                (partial / WINDOW).write_bytes(window)
                WindowFile.load(partial / WINDOW, signed=True)
        shutil.rmtree(kept, ignore_errors=True)
        os.replace(partial, kept)
    return replace(invitation, folder=kept)


def _parts(link: str) -> tuple[str, str]:
    """Digest and host of a link."""
    try:
        if found := LINK.fullmatch(link):
            url = httpx.URL(link)
            return found[1], url.host
    except httpx.InvalidURL:
        pass
    raise ValueError(f"link must be https://HOST:PORT/invitations/DIGEST, got {link[:300]!r}")


def _get(http: httpx.Client, through: str, url: str, most: int, *, need: bool = True) -> bytes:
    """Up to `most` bytes; nothing where the server has no such file and none is needed."""
    content = bytearray()
    try:
        with http.stream("GET", url) as response:
            if response.status_code == 404 and not need:
                return b""
            if response.status_code != 200:
                status = response.status_code
                raise ConnectionError(f"{url}{through} must be there, got status {status}")
            for piece in response.iter_bytes():
                content += piece
                if len(content) > most:
                    raise ValueError(f"{url} must be at most {most} bytes, got more")
    except httpx.TransportError as error:
        mend = f"; {found}" if (found := remedy(error)) else ""
        raise ConnectionError(f"{url}{through} must answer: {reason(error)}{mend}") from error
    return bytes(content)
