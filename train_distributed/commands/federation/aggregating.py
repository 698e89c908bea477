"""`federation aggregator` and `federation invite`: files are checked, then a service listens."""

import asyncio
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_network
from pathlib import Path

from pretrain import check
from pretrain.public import function
from train_distributed.commands.federation.setup import BEHIND_PROXY, INVITATION, LOOPBACK, TLS
from train_distributed.federation.documents.certificates import AGREED, serving, trust
from train_distributed.federation.documents.invitation import Invitation
from train_distributed.federation.documents.place import with_roll
from train_distributed.federation.documents.private_keys import read_private
from train_distributed.federation.documents.run_log import RunLog
from train_distributed.federation.documents.sessions import party_state
from train_distributed.federation.documents.window_file import (
    WINDOW,
    Address,
    WindowFile,
    split_address,
)
from train_distributed.privacy.discrete_gaussian import discrete_gaussian
from train_distributed.secure_sum.aggregator import AGGREGATORS, Aggregator, Send
from train_distributed.secure_sum.report_store import ADDED, ReportStore
from train_distributed.secure_sum.roll import Roll
from train_distributed.secure_sum.window import LEADER, Window, WindowWithKeys
from train_distributed.store.sql import POSTGRESQL, open_sql


@dataclass(frozen=True)
class Aggregate:
    """Aggregator: take users' reports until the window is closed, then open their noised sum."""

    folder: Path
    """Folder of `join --server` or `init`: its keys, and its state, never to be lost or copied."""
    window: Path
    """The folder that `federation window` has made."""
    listen: str | None = None
    """HOST:PORT to listen on (default: the window's port on all addresses; behind a proxy, on
    127.0.0.1)."""
    store: str | None = None
    """postgresql://USER@HOST/DATABASE that keeps the state instead of a file in FOLDER; several
    processes may then serve one window, each with this command."""
    proxies: tuple[str, ...] = ()
    """Addresses of your reverse proxies, whose X-Forwarded-For is believed; of nobody if left out.
    Limits then count for the address that the proxy names."""
    metrics: str | None = None
    """HOST:PORT for your Prometheus, such as 127.0.0.1:9200; not served if left out. Never an
    address that strangers reach."""
    passphrase_file: Path | None = None
    """File with the passphrase of the keys in FOLDER (default: asked for if they have one)."""

    def run(self) -> None:
        """Serves until it is ended.

        Raises:
            ValueError: keys, a roll or a state that do not fit.
            OSError: the state or the port is used by another process, or cannot be reached.
        """
        check.installed("uvicorn", "an aggregator", extra="federation")
        from train_distributed.federation.aggregator_app import application
        from train_distributed.federation.aggregator_client import Aggregators
        from train_distributed.federation.aggregator_server import serve
        from train_distributed.federation.aggregator_watch import Watch, logged
        from train_distributed.federation.links import invitation_routes

        _check_service(self)
        folder = self.folder.resolve()
        file = WindowFile.load(self.window / WINDOW)
        keys = read_private(folder, self.passphrase_file)
        window, public = file.window, keys.public
        number = next((a for a, pinned in window.servers.items() if pinned == public), None)
        if number is None:
            raise ValueError(
                f"keys in {folder} must be those of an aggregator of the window, are not"
            )
        enrolled = file.enrolled(self.window)
        agreed = self.window / AGREED if (folder / TLS).exists() else None
        if agreed is None and (self.window / AGREED).exists():
            raise ValueError(f"{folder / TLS} must hold an agreed certificate, is not there")
        tls = None if agreed is None else serving(folder / TLS, agreed)
        called = f"aggregator{number - LEADER}"
        listen = file.addresses[number][1] if self.listen is None else self.listen
        everywhere = LOOPBACK if tls is None else "0.0.0.0"
        host, port = (everywhere, listen) if isinstance(listen, int) else split_address(listen)
        log = RunLog.begin(folder, called)

        def started(window: Window) -> tuple[Aggregator, Send]:
            known = WindowWithKeys(window, enrolled.roll)
            state = party_state(window.digest, called, folder / "state")
            schema = f"{called}_{window.digest.hex()[:16]}"
            place, name = (state, "reports") if self.store is None else (self.store, schema)
            store = ReportStore(open_sql(place, name, "reports"), known, number)
            stack.callback(store.close)
            others = Aggregators(window, file.addresses, trust(agreed), 0.0)
            stack.enter_context(others)
            return AGGREGATORS[number](known, keys, store, discrete_gaussian), others.job

        with log.told(), logged(log.directory), ExitStack() as stack:
            aggregator, send = started(window)
            held, watch = aggregator.counts()[ADDED], Watch()
            log.say(f"{called} of window {window.digest.hex()[:16]}, {held} reports")
            if tls is None:
                log.say(BEHIND_PROXY.format(host))
            if self.metrics is not None:
                stack.callback(watch.serve(*split_address(self.metrics)))
            second = None if window.second is None else started
            app = application(aggregator, send, watch, self.proxies, second)
            if number == LEADER and (folder / INVITATION).exists():
                invitation = Invitation.read(folder / INVITATION)
                shown = invitation_routes(invitation, enrolled.roll, self.window / WINDOW)
                app.routes.extend(shown)
                log.say(_link(invitation, file.addresses[number]))
            serve_all = serve if self.store is None else partial(serve, shared=True)
            with suppress(KeyboardInterrupt):
                asyncio.run(serve_all(app, watch, host, port, tls, partial(_ready, log)))
            held = aggregator.counts()[ADDED]
            log.say(f"ended with {held} reports; started again, it goes on")


federation_aggregator = function("federation_aggregator", Aggregate)


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
        check.installed("uvicorn", "to invite", extra="federation")
        from starlette.applications import Starlette

        from train_distributed.federation.aggregator_server import serve
        from train_distributed.federation.aggregator_watch import Watch
        from train_distributed.federation.links import invitation_routes

        invitation = Invitation.read(self.folder / INVITATION)
        known = with_roll(invitation.federation, self.folder).known
        host, port = split_address(self.listen)
        roll = known if isinstance(known, Roll) else None
        app = Starlette(routes=invitation_routes(invitation, roll, None))
        tls = None
        if invitation.certificates is None:
            print(BEHIND_PROXY.format(host))
        else:
            tls = serving(self.folder / TLS, invitation.certificates)
        with suppress(KeyboardInterrupt):
            ready = partial(_tell, invitation, self.listen)
            asyncio.run(serve(app, Watch(), host, port, tls, ready))


federation_invite = function("federation_invite", Invite)


def _check_service(options: Aggregate) -> None:
    """Refuses options that would be found wrong once it has begun, or never."""
    if options.store is not None and not options.store.startswith(POSTGRESQL):
        raise ValueError(f"store must begin with {POSTGRESQL}, got {options.store.split(':')[0]!r}")
    if options.metrics is not None:
        split_address(options.metrics)
    for proxy in options.proxies:
        try:
            ip_network(proxy)
        except ValueError as error:
            raise ValueError(f"proxies must be addresses or networks: {error}") from error


def _link(invitation: Invitation, address: Address) -> str:
    at, digest = "{}:{}".format(*address), invitation.federation.digest.hex()
    return f"a user needs no more than https://{at}/invitations/{digest}"


def _ready(log: RunLog, port: int) -> None:
    log.say(f"listening on port {port}")


def _tell(invitation: Invitation, address: str, port: int) -> None:
    digest = invitation.federation.digest.hex()
    print(f"listening on port {port}: https://{address}/invitations/{digest}", flush=True)
