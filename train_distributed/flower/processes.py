"""Flower's own programs, started and stopped together with the command that needs them."""

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

STOP_SECONDS = 10
_PR_SET_PDEATHSIG = 1  # Linux: the child is killed when its parent dies


def program(name: str) -> str:
    """Where a Flower program is.

    Raises:
        ValueError: it is not installed.
    """
    found = shutil.which(name, path=_path())
    if found is None:
        raise ValueError(f"{name} must be installed (pip install 'blind-averaging[flower]')")
    return found


def environment(home: Path) -> dict[str, str]:
    """Flower's: a private home, no telemetry, no look for updates."""
    return os.environ | {
        "PATH": _path(),
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
    }


@contextmanager
def running(command: list[str], home: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program in a process group of its own, which ends with the block, or with this process.

    Args:
        command: program and arguments.
        home: Flower's home directory.
        log: file that its output is appended to.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            env=environment(home),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
    try:
        yield process
    finally:
        _stop(process)


def wait_for_port(host: str, port: int, process: subprocess.Popen[bytes], seconds: float) -> None:
    """Returns once somebody listens.

    Raises:
        TimeoutError: nobody does in time, or the process has ended.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        if listens(host, port):
            return
        time.sleep(0.2)
    raise TimeoutError(f"SuperLink must listen on {host}:{port} within {seconds} s, did not")


def listens(host: str, port: int) -> bool:
    """Whether somebody accepts connections there."""
    with suppress(OSError), socket.create_connection((host, port), timeout=1):
        return True
    return False


def free_port() -> int:
    """A port of the loopback interface that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _path() -> str:
    """Programs beside this Python first: Flower starts further ones by name."""
    return str(Path(sys.executable).parent) + os.pathsep + os.environ.get("PATH", "")


def _stop(process: subprocess.Popen[bytes]) -> None:
    for how in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
