"""An invitation over HTTP: its files, and every user's own place, for whoever has the link.

    GET /invitations/{digest}/{file}        one of the invitation's files, or window.json
    GET /invitations/{digest}/places/{key}  place of the user with this public key

A link is http://HOST:PORT/invitations/{digest of the federation}. Nothing here is secret, and
nobody need trust the line: what is fetched must have the digest, or be signed with the key of the
operator that the federation states.
"""

from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from train_distributed.flower.documents.certificates import CA
from train_distributed.flower.documents.invitation import FEDERATION, OPERATOR, Invitation
from train_distributed.flower.documents.party import KEY
from train_distributed.flower.documents.place import place_text
from train_distributed.flower.documents.window_file import WINDOW
from train_distributed.secure_sum.roll import Roll


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
    names = (FEDERATION, OPERATOR, CA, invitation.agreed.name)
    files = {name: invitation.folder / name for name in names}
    files |= {} if window is None else {WINDOW: window}

    async def file(request: Request) -> Response:
        found = files.get(request.path_params["name"])
        return Response(status_code=404) if found is None else FileResponse(found)

    def place(request: Request) -> Response:  # no coroutine: another thread reads the roll
        key = request.path_params["key"]
        number = roll.find(bytes.fromhex(key)) if roll and KEY.fullmatch(key) else None
        if number is None or roll is None:
            return Response(status_code=404)
        return Response(place_text(number, roll.placed(number)), media_type="application/json")

    return [Route(f"{base}/places/{{key}}", place), Route(f"{base}/{{name}}", file)]
