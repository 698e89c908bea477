"""`federation adder`: the keys, the roll and the state are checked, then reports are taken."""

import asyncio
import ssl
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from train_distributed.flower.adder_server import serve, spread
from train_distributed.flower.documents.party import read_private
from train_distributed.flower.documents.run_log import RunLog
from train_distributed.flower.documents.state import party_state
from train_distributed.flower.documents.window_file import WINDOW, WindowFile, split_address
from train_distributed.secure_sum.adder import Adder
from train_distributed.secure_sum.holdings import Holdings
from train_distributed.secure_sum.reports import Checker
from train_distributed.secure_sum.session import FIRST_SERVER

if TYPE_CHECKING:
    from train_distributed.commands.federation.window import Add


def add(options: "Add") -> None:
    """Serves until it is ended, or its disk or clock fails.

    Raises:
        ValueError: keys, a roll or a state that do not fit, or a clock that went back.
        OSError: the state is used by another process, or cannot be written; the port is taken.
    """
    folder = options.folder.resolve()
    window_file, keys = WindowFile.load(options.window / WINDOW), read_private(folder)
    window, public = window_file.window, keys.public
    adder = next((a for a, pinned in window.servers.items() if pinned == public), None)
    if adder is None:
        raise ValueError(f"keys in {folder} must be those of an adder of the window, are not")
    enrolled = window_file.enrolled(options.window)
    tls = None
    if options.tls is not None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(options.tls / "server.pem", options.tls / "server.key")
    number = adder - FIRST_SERVER
    state = party_state(window.digest, f"adder{number}", folder / "state")
    listen = window_file.addresses[adder][1] if options.listen is None else options.listen
    host, port = ("0.0.0.0", listen) if isinstance(listen, int) else split_address(listen)
    log = RunLog.begin(folder, f"adder{number}")
    with log.told(), spread(Checker(enrolled, adder, keys), options.processes) as check:
        holdings = Holdings(state, enrolled, adder)
        machine = Adder(enrolled, adder, keys, holdings, check=check)
        log.say(f"adder {number} of window {window.digest.hex()[:16]}, {holdings.count} reports")
        ready = partial(_ready, log)
        with suppress(KeyboardInterrupt):
            asyncio.run(serve(machine, enrolled, host, port, tls, ready))
        log.say(f"ended with {holdings.count} reports; started again, it goes on")


def _ready(log: RunLog, port: int) -> None:
    log.say(f"listening on port {port}")
