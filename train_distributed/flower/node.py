"""One party's node: its desk, and a Flower SuperNode that brings it the operator's requests."""

import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from train_distributed.flower.desk import Desk
from train_distributed.flower.party import NODE_KEY
from train_distributed.flower.pipe import open_desk
from train_distributed.flower.processes import free_port, program, running


@dataclass(frozen=True)
class Node:
    """Where a desk is to be reached, and by whom."""

    desk: Desk
    superlink: str  # host:port
    ca: Path
    keys: Path  # folder with node-key
    seconds: float  # without a connection, until the node gives up


def serve(node: Node) -> int:
    """Answers until the SuperNode ends: because it is stopped, or because the operator is gone.

    Returns:
        1: the SuperNode has ended by itself.

    Raises:
        ValueError: Flower is not installed, or a file is missing.
    """
    for path in (node.ca, node.keys / NODE_KEY):
        if not path.is_file():
            raise ValueError(f"{path} must be a file, is not")
    with open_desk() as line, tempfile.TemporaryDirectory(prefix="flwr-") as home:
        threading.Thread(target=line.serve, args=(node.desk.answer,), daemon=True).start()
        log = Path(home) / "supernode.log"
        command = [
            program("flower-supernode"),
            *("--superlink", node.superlink),
            *("--root-certificates", str(node.ca)),
            *("--auth-supernode-private-key", str(node.keys / NODE_KEY)),
            *("--port", str(free_port())),
            *("--max-wait-time", str(node.seconds)),
            *("--node-config", f'desk="{line.folder}"'),
        ]
        with running(command, Path(home), log) as process:
            print("waiting for the operator", file=sys.stderr, flush=True)
            process.wait()
        print(log.read_text(errors="replace")[-2000:], file=sys.stderr)
    print(f"error: operator at {node.superlink} is gone", file=sys.stderr)
    return 1
