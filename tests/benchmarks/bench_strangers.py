"""Strangers at the aggregators of a window: how long honest reports take meanwhile.

    python tests/benchmarks/bench_strangers.py [--tls] [--write results/secure_sum/strangers.json]

Two aggregators, each `blind-averaging federation aggregator` in its own process with 1,024 file
descriptors. Before and during every attack six users report; the longest wait counts, and the
resident memory and the log of either aggregator at its end. Exit code 1 beyond the bars: 2 s,
300 MiB, 10 MB.
"""

import argparse
import contextlib
import json
import resource
import socket
import ssl
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from aggregators import Process, commands, make_window

from pretrain.cli.output import new_file
from pretrain.cli.provenance import provenance
from train_distributed.flower.aggregator_client import Aggregators
from train_distributed.flower.documents.window_file import WindowFile
from train_distributed.secure_sum.aggregator import STATUS, write_order
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.reports import make_report

DESCRIPTORS, IDLE, LINES, REPORTS, BOUND = 1024, 1100, 4, 6, 2**20
MOST_SECONDS, MOST_MIB, MOST_LOG = 2.0, 300.0, 10**7
Attack = Callable[[list[tuple[str, int]], threading.Event], None]


def idle(addresses: list[tuple[str, int]], ended: threading.Event) -> None:
    """Holds 1,100 connections to each, and comes back at once where one is closed."""
    held: dict[tuple[str, int], list[socket.socket]] = {address: [] for address in addresses}
    while not ended.is_set():
        for address, lines in held.items():
            lines[:] = [line for line in lines if _open(line)]
            while len(lines) < IDLE and not ended.is_set():
                lines.append(socket.create_connection(address, 5))
                lines[-1].setblocking(False)
        time.sleep(0.05)
    for lines in held.values():
        for line in lines:
            line.close()


def _open(line: socket.socket) -> bool:
    try:
        gone = not line.recv(1)
    except BlockingIOError:
        return True
    except OSError:
        gone = True
    if gone:
        line.close()
    return not gone


def slow(addresses: list[tuple[str, int]], ended: threading.Event) -> None:
    """Sends requests that never end, a byte a second, over 1,100 connections to each."""
    held = [socket.create_connection(each, 5) for each in addresses for _ in range(IDLE)]
    for line in held:
        with contextlib.suppress(OSError):
            line.sendall(b"POST / HTTP/1.1\r\ncontent-length: 100\r\n\r\n")
    while not ended.wait(1):
        for line in held:
            with contextlib.suppress(OSError):
                line.sendall(b"x")
    for line in held:
        line.close()


def flood(request: bytes, reads: bool) -> Attack:
    """Sends one request without end over four connections, whose answers are read or not."""
    content = request * max(1, 2**16 // len(request))

    def attack(addresses: list[tuple[str, int]], ended: threading.Event) -> None:
        def send(line: socket.socket) -> None:
            while not ended.is_set():
                try:
                    line.sendall(content)
                except OSError:
                    return

        def read(line: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while line.recv(2**16):
                    pass

        lines = [socket.create_connection(addresses[i % 2], 5) for i in range(LINES)]
        for line in lines:
            for work in (send, read)[: 1 + reads]:
                threading.Thread(target=work, args=(line,), daemon=True).start()
        ended.wait()
        for line in lines:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    return attack


def posted(path: str, body: bytes) -> bytes:
    """A request as it travels."""
    return f"POST {path} HTTP/1.1\r\nhost: h\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


def measure(
    file: WindowFile,
    processes: list[Process],
    keys: Iterator[tuple[int, PrivateKeys]],
    tls: ssl.SSLContext | None,
) -> dict[str, Any]:
    """The longest of six honest reports, and what the aggregators hold."""
    waits, vector = [], np.arange(file.window.dimension) % 7
    for _ in range(REPORTS):
        user, own = next(keys)
        report, start = make_report(file.window, user, own, vector, BOUND), time.monotonic()
        with Aggregators(file.window, file.addresses, tls, 60.0) as aggregators:
            aggregators.report(user, report)
        waits.append(time.monotonic() - start)
    return {
        "longest_report_seconds": round(max(waits), 3),
        "resident_mib": [round(each.resident_kb() / 1024, 1) for each in processes],
        "log_bytes": [each.log.stat().st_size for each in processes],
    }


def main() -> int:
    """Prints a line for every attack."""
    parser = argparse.ArgumentParser(description="strangers at aggregators")
    parser.add_argument("--seconds", type=float, default=15.0, help="of an attack, before reports")
    parser.add_argument("--tls", action="store_true", help="aggregators with certificates")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    found: dict[str, Any] = {}
    users = [PrivateKeys.generate() for _ in range(100)]
    keys = iter(enumerate(users))
    with tempfile.TemporaryDirectory() as folder:
        file = make_window(Path(folder), users, 9546, BOUND)
        processes = commands(Path(folder), tls=options.tls)
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, most))
        for process in processes:
            process.start()
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        task = f"/tasks/{file.window.digest.hex()}"
        order = write_order(file.window, STATUS, (), PrivateKeys.generate())
        small = make_report(file.window, 0, PrivateKeys.generate(), np.zeros(9546, int), BOUND)
        attacks: dict[str, Attack] = {
            "nobody": lambda addresses, ended: None,
            "1,100 idle connections to each": idle,
            "1,100 slow connections to each": slow,
            "1-byte bodies": flood(posted(f"{task}/reports", b"x"), True),
            "1-byte bodies, answers unread": flood(posted(f"{task}/reports", b"x"), False),
            "forged orders": flood(posted(task, order), True),
            "forged reports": flood(posted(f"{task}/reports", small), True),
        }
        ca = Path(folder) / "tls" / "ca.pem"
        tls = ssl.create_default_context(cafile=str(ca)) if options.tls else None
        addresses = list(file.addresses.values())
        for name, attack in attacks.items():
            ended = threading.Event()
            thread = threading.Thread(target=attack, args=(addresses, ended))
            thread.start()
            time.sleep(options.seconds if name != "nobody" else 0)
            found[name] = measure(file, processes, keys, tls)
            ended.set()
            thread.join()
            print(name, found[name], flush=True)
        for process in processes:
            process.kill()
    result = {"machine": provenance(), "attacks": found}
    if options.write:
        with new_file(options.write) as path:
            path.write_text(json.dumps(result, indent=1) + "\n")
    return any(
        each["longest_report_seconds"] > MOST_SECONDS
        or max(each["resident_mib"]) > MOST_MIB
        or max(each["log_bytes"]) > MOST_LOG
        for each in found.values()
    )


if __name__ == "__main__":
    sys.exit(main())
