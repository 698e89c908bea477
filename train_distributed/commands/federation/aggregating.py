"""`federation aggregator`: the keys, the roll and the state are checked, then reports are taken."""

import asyncio
import ssl
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from train_distributed.flower.aggregator_server import serve
from train_distributed.flower.check_pool import spread
from train_distributed.flower.documents.party import read_private
from train_distributed.flower.documents.run_log import RunLog
from train_distributed.flower.documents.state import party_state
from train_distributed.flower.documents.window_file import WINDOW, WindowFile, split_address
from train_distributed.secure_sum.aggregator import Aggregator
from train_distributed.secure_sum.parties import FIRST_SERVER
from train_distributed.secure_sum.report_store import ReportStore
from train_distributed.secure_sum.reports import Checker


@dataclass(frozen=True)
class Aggregate:
    """Aggregator: take users' reports until the window is closed, then open their sum."""

    folder: Path
    """Folder of `join --server` or `init`: its keys, and its state, never to be lost or copied."""
    window: Path
    """The folder that `federation window` has made."""
    listen: str | None = None
    """HOST:PORT to listen on; the window's port on all addresses if left out."""
    tls: Path | None = None
    """Folder with server.pem and server.key. Without it connections are not encrypted; reports are
    sealed all the same."""
    processes: int = 1
    """Processes that check reports, each with a slice of the users."""

    def run(self) -> None:
        """Serves until it is ended.

        Raises:
            ValueError: keys, a roll or a state that do not fit.
            OSError: the state or the port is used by another process, or the disk is full.
        """
        folder = self.folder.resolve()
        window_file, keys = WindowFile.load(self.window / WINDOW), read_private(folder)
        window, public = window_file.window, keys.public
        aggregator = next((a for a, pinned in window.servers.items() if pinned == public), None)
        if aggregator is None:
            raise ValueError(
                f"keys in {folder} must be those of an aggregator of the window, are not"
            )
        enrolled = window_file.enrolled(self.window)
        tls = None
        if self.tls is not None:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(self.tls / "server.pem", self.tls / "server.key")
        number = aggregator - FIRST_SERVER
        state = party_state(window.digest, f"adder{number}", folder / "state")
        listen = window_file.addresses[aggregator][1] if self.listen is None else self.listen
        host, port = ("0.0.0.0", listen) if isinstance(listen, int) else split_address(listen)
        log = RunLog.begin(folder, f"aggregator{number}")
        with log.told(), spread(Checker(enrolled, aggregator, keys), self.processes) as check:
            holdings = ReportStore(state, enrolled, aggregator)
            machine = Aggregator(enrolled, aggregator, keys, holdings, check=check)
            name = f"aggregator {number} of window {window.digest.hex()[:16]}"
            log.say(f"{name}, {holdings.count} reports")
            ready = partial(_ready, log)
            with suppress(KeyboardInterrupt):
                asyncio.run(serve(machine, enrolled, host, port, tls, ready))
            log.say(f"ended with {holdings.count} reports; started again, it goes on")


def _ready(log: RunLog, port: int) -> None:
    log.say(f"listening on port {port}")
