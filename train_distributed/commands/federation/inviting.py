"""`federation invite`: the invitation behind a link, without an aggregator."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pretrain import check
from train_distributed.commands.federation.setup import INVITATION
from train_distributed.flower.documents.invitation import Invitation
from train_distributed.flower.documents.place import with_roll
from train_distributed.flower.documents.window_file import split_address
from train_distributed.secure_sum.roll import Roll


@dataclass(frozen=True)
class Invite:
    """Operator: serve the invitation, so that every party needs a link only."""

    folder: Path
    """Folder of `init`."""
    listen: str
    """HOST:PORT to listen on."""

    def run(self) -> None:
        """Serves until it is ended.

        Raises:
            ValueError: no operator's folder.
            OSError: the port is used by another process.
        """
        check.installed("uvicorn", "to invite", extra="flower")
        from starlette.applications import Starlette

        from train_distributed.flower.aggregator_server import serve
        from train_distributed.flower.aggregator_watch import Watch
        from train_distributed.flower.links import invitation_routes

        invitation = Invitation.read(self.folder / INVITATION, signed=True)
        known = with_roll(invitation.federation, self.folder).known
        host, port = split_address(self.listen)
        roll = known if isinstance(known, Roll) else None
        app = Starlette(routes=invitation_routes(invitation, roll, None))
        with suppress(KeyboardInterrupt):
            ready = partial(_ready, invitation, self.listen)
            asyncio.run(serve(app, Watch(), host, port, None, ready))


def _ready(invitation: Invitation, address: str, port: int) -> None:
    digest = invitation.federation.digest.hex()
    print(f"listening on port {port}: http://{address}/invitations/{digest}", flush=True)
