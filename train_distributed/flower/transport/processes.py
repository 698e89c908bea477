"""Processes of ours that talk to the network, started with nothing and ended with their parent.

A child gets Python, a socket to its parent and a temporary directory: no environment, no
arguments but its module's name, no inherited files, no privileges beyond its user's. It starts no
processes itself, so nothing can stay behind.
"""

import json
import logging
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from train_distributed.flower.transport import frames
from train_distributed.flower.transport.sandbox import leash

CONFIG_BYTES = 2**26  # a key of every node
_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); from importlib import import_module; "
    "import_module(sys.argv[2]).main(*map(int, sys.argv[3:]))"
)


@dataclass(frozen=True)
class Child:
    """A running process and the line to it."""

    process: subprocess.Popen[bytes]
    line: socket.socket


@contextmanager
def child(module: str, config: dict[str, Any], log: Path | None = None) -> Iterator[Child]:
    """Runs `MODULE.main(line, parent)` of this package, which ends with the block.

    Args:
        module: its name.
        config: JSON, the first frame that it receives; the private parts of it stand nowhere else.
        log: file that its output is appended to; nowhere if None.

    Raises:
        ValueError: Flower is not installed.
    """
    _check_flower()
    here, there = socket.socketpair()
    root = str(Path(__file__).parents[3])
    with here, tempfile.TemporaryDirectory(prefix="carrier-") as home, _output(log) as output:
        with there:
            arguments = [root, f"{__package__}.{module}", str(there.fileno()), str(os.getpid())]
            process = subprocess.Popen(
                [sys.executable, "-I", "-W", "ignore", "-c", _START, *arguments],
                env=_environment(home),
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[there.fileno()],
                start_new_session=True,
            )
        try:
            with suppress(OSError):  # it may have ended already; the reader will see
                frames.send(here, json.dumps(config).encode())
            yield Child(process, here)
        finally:
            here.close()  # on which it ends by itself
            _stop(process)


@contextmanager
def started(line: int, parent: int) -> Iterator[tuple[socket.socket, dict[str, Any]]]:
    """Ties a child to its parent and yields its configuration: its first step.

    Args:
        line: file descriptor of the socket to the parent.
        parent: the parent's process.

    Yields:
        That socket, and the configuration.
    """
    leash(parent)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    with socket.socket(fileno=line) as upwards:
        yield upwards, json.loads(frames.receive(upwards, CONFIG_BYTES) or b"{}")


def _environment(home: str) -> dict[str, str]:
    """A private home, no telemetry, no look for updates, and nothing of this process's own."""
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    return kept | {
        "PATH": os.defpath,
        "HOME": home,
        "TMPDIR": home,
        "FLWR_HOME": home,
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "OMP_NUM_THREADS": "1",
    }


@contextmanager
def _output(log: Path | None) -> Iterator[Any]:
    if log is None:
        yield subprocess.DEVNULL
        return
    with log.open("ab") as file:
        yield file


def _check_flower() -> None:
    from importlib.util import find_spec

    if find_spec("flwr") is None:
        raise ValueError("flwr must be installed (pip install 'blind-averaging[flower]')")


def _stop(process: subprocess.Popen[bytes]) -> None:
    for end, seconds in ((lambda: None, 3.0), (process.terminate, 2.0), (process.kill, None)):
        end()
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
            return
