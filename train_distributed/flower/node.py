"""One party's node: its desk, and a Flower SuperNode that brings it the operator's requests."""

import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from train_distributed.flower.desk import Desk
from train_distributed.flower.party import NODE_KEY
from train_distributed.flower.pipe import open_desk
from train_distributed.flower.processes import free_port, listens, program, running

RETRY_SECONDS = 10
PROBE_SECONDS = 2


@dataclass(frozen=True)
class Node:
    """Where a desk is to be reached, and by whom."""

    desk: Desk
    superlink: str  # host:port
    ca: Path
    keys: Path  # folder with node-key
    seconds: float  # without a connection, until the node gives up


def serve(node: Node) -> int:
    """Answers until it is stopped, or the operator cannot be reached for the node's time-out.

    A SuperNode ends at once where the operator does not know it yet, so it is started again. One
    that has lost its operator is stopped here after the time-out, since it may take far longer to
    notice or to leave. Together at most twice as long.

    Returns:
        1: the operator is gone.

    Raises:
        ValueError: Flower is not installed, a file is missing, or the address has no port.
    """
    operator = _address(node.superlink)
    for path in (node.ca, node.keys / NODE_KEY):
        if not path.is_file():
            raise ValueError(f"{path} must be a file, is not")
    start = time.monotonic()
    with open_desk() as line, tempfile.TemporaryDirectory(prefix="flwr-") as home:
        threading.Thread(target=line.serve, args=(node.desk.answer,), daemon=True).start()
        log = Path(home) / "supernode.log"
        while time.monotonic() - start < node.seconds:
            with running(_supernode(node, line.folder), Path(home), log) as process:
                print("waiting for the operator", file=sys.stderr, flush=True)
                _until_lost(process, operator, node.seconds)
            time.sleep(RETRY_SECONDS)
        print(log.read_text(errors="replace")[-2000:], file=sys.stderr)
    print(f"error: operator at {node.superlink} is gone", file=sys.stderr)
    return 1


def _address(superlink: str) -> tuple[str, int]:
    host, _, port = superlink.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ValueError(f"superlink must be HOST:PORT, got {superlink!r}")
    return host.strip("[]"), int(port)


def _until_lost(
    process: subprocess.Popen[bytes], operator: tuple[str, int], seconds: float
) -> None:
    """Returns once the process has ended, or nobody listens there for so many seconds."""
    deadline = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < deadline:
        if listens(*operator):
            deadline = time.monotonic() + seconds
        time.sleep(min(PROBE_SECONDS, seconds / 4))


def _supernode(node: Node, desk: Path) -> list[str]:
    return [
        program("flower-supernode"),
        *("--superlink", node.superlink),
        *("--root-certificates", str(node.ca)),
        *("--auth-supernode-private-key", str(node.keys / NODE_KEY)),
        *("--port", str(free_port())),
        *("--max-wait-time", str(node.seconds)),
        *("--node-config", f'desk="{desk}"'),
    ]
