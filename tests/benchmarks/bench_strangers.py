"""Strangers at the aggregators of a window: how long honest reports take meanwhile.

    python tests/benchmarks/bench_strangers.py [--write results/secure_sum/strangers.json]

Two aggregators, each `blind-averaging federation aggregator` in its own process with 1,024 file
descriptors. Every attack is a process at the users' own address, inside TLS. Before
and during each six users report; the longest wait counts, and the resident memory and the log of
either aggregator at its end. Then an impostor acknowledges, which must not be believed, and the
leader's clock is 23 days ahead for one report, which is refused, and right again for the next ones.
Exit code 1 beyond the bars: 2 s, 300 MiB, 10 MB.
"""

import base64
import contextlib
import resource
import socket
import ssl
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import tyro

from pretrain.cli.provenance import provenance
from tests.benchmarks.aggregators import FOLDERS, TLS, commands, make_window
from tests.benchmarks.common import save
from train_distributed.federation.aggregator_client import Aggregators, Refused
from train_distributed.federation.aggregator_limits import SUMMARY
from train_distributed.federation.documents.certificates import AGREED, serving, trust
from train_distributed.federation.documents.window_file import WindowFile
from train_distributed.secure_sum.aggregator import STATUS, write_order
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.reports import HELPER_MESSAGE_BYTES, make_report
from train_distributed.secure_sum.window import LEADER
from train_distributed.secure_sum.wire import summary

DESCRIPTORS, REPORTS, BOUND, DIMENSION = 1024, 6, 2**20, 9546
MOST_SECONDS, MOST_MIB, MOST_LOG = 2.0, 300.0, 10**7
VECTOR = np.arange(DIMENSION) % 7
AHEAD = 2 * 10**6  # seconds, beyond the window's end
SHIFTED = """
import pathlib, runpy, sys, time
real, shift = time.time, pathlib.Path(sys.argv.pop(1))
time.time = lambda: real() + float(shift.read_text())
runpy.run_module("train_distributed", run_name="__main__", alter_sys=True)
"""
LINES, FLOODS = 1100, 4  # connections of an attack to each aggregator, and of a flood
Address = tuple[str, int]


def connect(address: Address, tls: ssl.SSLContext) -> socket.socket:
    return tls.wrap_socket(socket.create_connection(address, 5), server_hostname=address[0])


@dataclass(frozen=True)
class Idle:
    """Holds 1,100 connections to each, without a word, and comes back where one is closed."""

    def run(self, addresses: list[Address], agreed: Path) -> None:
        held: dict[Address, list[socket.socket]] = {address: [] for address in addresses}
        while True:
            for address, lines in held.items():
                lines[:] = [line for line in lines if is_open(line)]
                while len(lines) < LINES:
                    with contextlib.suppress(OSError):
                        lines.append(socket.create_connection(address, 5))
                        lines[-1].setblocking(False)
            time.sleep(0.05)


@dataclass(frozen=True)
class Slow:
    """Begins a request over 1,100 connections to each, and sends a byte of it a second."""

    begin: bytes

    def run(self, addresses: list[Address], agreed: Path) -> None:
        held, tls = dict[int, socket.socket](), trust(agreed)
        places = [address for _ in range(LINES) for address in addresses]
        while True:
            before = time.monotonic()
            for place, address in enumerate(places):
                try:
                    if place not in held:
                        held[place] = connect(address, tls)
                        held[place].sendall(self.begin)
                    held[place].sendall(b"x")
                except OSError:
                    if place in held:
                        held.pop(place).close()
            time.sleep(max(0.0, before + 1 - time.monotonic()))


@dataclass(frozen=True)
class Flood:
    """Sends one thing without end over four connections, made again when they are closed."""

    what: bytes
    before: bytes = b""
    reads: bool = True

    def run(self, addresses: list[Address], agreed: Path) -> None:
        tls, places = trust(agreed), [addresses[i % len(addresses)] for i in range(FLOODS)]
        with ThreadPoolExecutor(FLOODS) as pool:
            list(pool.map(lambda address: self._one(address, tls), places))

    def _one(self, address: Address, tls: ssl.SSLContext) -> None:
        content = self.what * max(1, 2**12 // len(self.what))
        while True:
            with contextlib.suppress(OSError), connect(address, tls) as line:
                line.sendall(self.before)
                while True:
                    line.sendall(content)
                    if self.reads and not line.recv(2**16):
                        break


Attack = Idle | Slow | Flood


def posted(path: str, body: bytes = b"", length: int | None = None, shown: bytes = b"") -> bytes:
    """A request as it travels, of a body that may not follow; `shown` of its signature."""
    size = len(body) if length is None else length
    words = f"POST {path} HTTP/1.1\r\nhost: h\r\ncontent-length: {size}\r\n"
    words += f"{SUMMARY}: {base64.b64encode(shown).decode()}\r\n" if shown else ""
    return f"{words}\r\n".encode() + body


def is_open(line: socket.socket) -> bool:
    try:
        gone = not line.recv(1)
    except BlockingIOError:
        return True
    except OSError:
        gone = True
    if gone:
        line.close()
    return not gone


class Scene:
    """The window, its aggregators, and users that have not reported yet."""

    def __init__(self, folder: Path) -> None:
        users = [PrivateKeys.generate() for _ in range(150)]
        self.file = make_window(folder, users, DIMENSION, BOUND)
        self.processes = commands(folder)
        self.shift = folder / "shift"
        self.shift.write_text("0")
        leader = self.processes[list(FOLDERS).index(LEADER)]
        leader.command[1:3] = ["-c", SHIFTED, str(self.shift)]
        self.users: Iterator[tuple[int, PrivateKeys]] = iter(enumerate(users))
        self.agreed = folder / AGREED
        self.tls = trust(self.agreed)
        self.impostors = serving(folder / FOLDERS[LEADER] / TLS, self.agreed)
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, most))
        for process in self.processes:
            process.start()
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    def report(self, file: WindowFile | None = None) -> float:
        """Seconds that the report of a new user takes."""
        file, (user, own) = file or self.file, next(self.users)
        report, start = make_report(file.window, user, own, VECTOR, BOUND), time.monotonic()
        with Aggregators(file.window, file.addresses, self.tls, 60.0) as aggregators:
            aggregators.report(user, report)
        return time.monotonic() - start

    def measured(self) -> dict[str, Any]:
        """The longest of six honest reports, and what the aggregators hold."""
        waits = [self.report() for _ in range(REPORTS)]
        return {
            "longest_report_seconds": round(max(waits), 3),
            "resident_mib": [round(each.resident_kb / 1024, 1) for each in self.processes],
            "log_bytes": [each.log.stat().st_size for each in self.processes],
        }

    def attacked(self, attack: Attack | None, seconds: float) -> dict[str, Any]:
        """What is measured while an attack goes on."""
        if attack is None:
            return self.measured()
        given = (list(self.file.addresses.values()), self.agreed)
        work = get_context("spawn").Process(target=attack.run, args=given)
        work.start()
        try:
            time.sleep(seconds)
            found = self.measured()
            if not work.is_alive():
                raise RuntimeError(f"an attack must go on, {attack} ended")
        finally:
            work.kill()
            work.join()
        return found

    def clock_ahead(self) -> dict[str, Any]:
        """Measures after one report that came beyond the window by the leader's clock."""
        self.shift.write_text(str(AHEAD))
        try:
            self.report()
            raise RuntimeError("a report beyond the window must be refused")
        except Refused as error:
            if "OutOfOrder" not in str(error):
                raise
        self.shift.write_text("0")
        return self.measured()

    def impostor(self) -> dict[str, Any]:
        """Measures after an impostor has acknowledged a report, which nobody must believe."""

        class Answer(BaseHTTPRequestHandler):
            log_message = Mock()

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                self.send_response(201)
                self.end_headers()
                self.wfile.write(b"d")

        server = HTTPServer(("127.0.0.1", 0), Answer)
        server.socket = self.impostors.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        addresses = dict.fromkeys(self.file.addresses, ("127.0.0.1", server.server_port))
        believed = 0
        with contextlib.suppress(Refused):
            self.report(WindowFile.of(self.file.window, addresses))
            believed = 1
        server.shutdown()
        server.server_close()
        return self.measured() | {"impostors_believed": believed}


def chosen(scene: Scene) -> dict[str, Attack | None]:
    """All attacks by their names."""
    window, stranger = scene.file.window, PrivateKeys.generate()
    task = f"/tasks/{window.digest.hex()}"
    reports = f"{task}/reports"
    order = write_order(window, STATUS, (), stranger)
    forged = make_report(window, 0, stranger, np.zeros(DIMENSION, int), BOUND)
    shown = summary(forged[:-HELPER_MESSAGE_BYTES])
    user, own = next(scene.users)
    again = make_report(window, user, own, VECTOR, BOUND)
    insider = posted(reports, again, shown=summary(again[:-HELPER_MESSAGE_BYTES]))
    chunked = f"POST {reports} HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    return {
        "nobody": None,
        "1,100 idle connections to each": Idle(),
        "1,100 slow requests to each": Slow(posted("/", length=100)),
        "1,100 slow bodies to each": Slow(posted(reports, length=len(forged))),
        "1,100 slow orders to each": Slow(posted(task, length=len(order))),
        "5-byte frames": Flood(b"12345"),
        "5-byte chunks": Flood(b"5\r\n12345\r\n", chunked),
        "1-byte bodies": Flood(posted(reports, b"x")),
        "1-byte bodies, answers unread": Flood(posted(reports, b"x"), reads=False),
        "questions": Flood(f"GET {task} HTTP/1.1\r\nhost: h\r\n\r\n".encode()),
        "forged orders": Flood(posted(task, order)),
        "forged reports": Flood(posted(reports, forged)),
        "forged reports that show a signature": Flood(posted(reports, forged, shown=shown)),
        "an enrolled user's report, again and again": Flood(insider),
    }


def main(seconds: float = 15.0, write: Path | None = None) -> int:
    """Prints a line for every attack, after so many seconds of it."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        scene = Scene(Path(folder))
        for process in scene.processes:
            stack.callback(process.kill)
        work: dict[str, Callable[[], dict[str, Any]]] = {
            name: partial(scene.attacked, attack, seconds) for name, attack in chosen(scene).items()
        }
        work |= {"an impostor": scene.impostor, "a clock ahead": scene.clock_ahead}
        for name, measure in work.items():
            found[name] = measure()
            print(name, found[name], flush=True)
    save(write, {"machine": provenance(), "attacks": found})
    every = list(found.values())
    slow = max(each["longest_report_seconds"] for each in every) > MOST_SECONDS
    large = max(max(each["resident_mib"]) for each in every) > MOST_MIB
    long = max(max(each["log_bytes"]) for each in every) > MOST_LOG
    return int(slow or large or long or found["an impostor"]["impostors_believed"])


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
