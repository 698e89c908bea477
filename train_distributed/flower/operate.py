"""The operator's process: starts the SuperLink, admits the nodes, runs one session over it."""

import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from train_distributed.flower.bundle import write_bundle
from train_distributed.flower.coordinate import Log, coordinate
from train_distributed.flower.federation import Federation
from train_distributed.flower.pipe import Desk, open_desk
from train_distributed.flower.processes import environment, program, running, wait_for_port
from train_distributed.flower.relay import FlowerRelay
from train_distributed.secure_sum.journal import Journal
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.opening import Opened
from train_distributed.secure_sum.prg import new_seed

START_SECONDS = 60  # for Flower's own programs


@dataclass(frozen=True, kw_only=True)
class Operation:
    """What the operator runs, and where."""

    federation: Federation
    keys: PrivateKeys
    journal: Journal
    nodes: tuple[Path, ...]  # node-key.pub of every party
    certificates: Path  # folder with ca.pem, server.pem, server.key
    host: str
    port: int
    seconds: float  # to connect, and to answer each question


def operate(operation: Operation) -> tuple[Opened, Log]:
    """Runs one session.

    Returns:
        The sum, and what went wrong on the way.

    Raises:
        ValueError: no sum; the message names who is missing. Nothing is released.
    """
    log = Log()
    with tempfile.TemporaryDirectory(prefix="flwr-") as name, open_desk() as desk:
        home = Path(name)
        with running(_superlink(operation), home, home / "superlink.log") as superlink:
            try:
                wait_for_port(operation.host, operation.port, superlink, START_SECONDS)
                connection = _submit(operation, home, desk)
                with connection:
                    relay = FlowerRelay(connection, operation.seconds)
                    _gather(relay, len(operation.nodes), operation.seconds)
                    return _session(operation, relay, log), log
            except (ValueError, OSError, subprocess.TimeoutExpired) as error:
                lost = ", ".join(f"user {u} ({step})" for u, step in sorted(log.missing.items()))
                refused = "; ".join(log.refused[:20])
                raise ValueError(
                    f"{type(error).__name__}: {error}; missing: {lost or 'nobody'}; "
                    f"refused: {refused or 'nothing'}"
                ) from error


def _session(operation: Operation, relay: FlowerRelay, log: Log) -> Opened:
    return coordinate(
        operation.federation, new_seed(), operation.keys, operation.journal, relay, log
    )


def _superlink(operation: Operation) -> list[str]:
    folder = operation.certificates
    return [
        program("flower-superlink"),
        *("--ssl-ca-certfile", str(folder / "ca.pem")),
        *("--ssl-certfile", str(folder / "server.pem")),
        *("--ssl-keyfile", str(folder / "server.key")),
        *("--host", operation.host),
        *("--port", str(operation.port)),
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
    ]


def _submit(operation: Operation, home: Path, desk: Desk) -> Connection:
    """Admits the nodes, starts the ServerApp, returns its connection."""
    (home / "config.toml").write_text(
        '[superlink]\ndefault = "federation"\n\n[superlink.federation]\n'
        f'address = "{operation.host}:{operation.port}"\n'
        f'root-certificates = "{(operation.certificates / "ca.pem").resolve()}"\n'
    )
    for key in operation.nodes:
        _flwr(home, ["supernode", "register", str(key)])
    write_bundle(home / "app")
    _flwr(home, ["run", str(home / "app"), "--run-config", f'desk="{desk.folder}"'])
    return _within(START_SECONDS, desk.accept)


def _flwr(home: Path, arguments: list[str]) -> None:
    done = subprocess.run(
        [program("flwr"), *arguments, "--format", "json"],
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
        check=False,
    )
    if done.returncode or '"success": false' in done.stdout:
        raise ValueError(f"flwr {arguments[0]} must succeed, got {done.stdout} {done.stderr}")


def _within(seconds: float, accept: Callable[[], Connection | None]) -> Connection:
    found: list[Connection] = []

    def wait() -> None:
        connection = accept()
        if connection is not None:
            found.append(connection)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    thread.join(seconds)
    if not found:
        raise TimeoutError(f"ServerApp must connect within {seconds} s, did not")
    return found[0]


def _gather(relay: FlowerRelay, nodes: int, seconds: float) -> None:
    """Waits until all nodes are connected, or the time is up."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and len(relay.nodes()) < nodes:
        time.sleep(1)
