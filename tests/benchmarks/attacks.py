"""What strangers send to an aggregator without end: each attack runs in a process of its own."""

import base64
import contextlib
import socket
import ssl
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from train_distributed.federation.aggregator_limits import SUMMARY
from train_distributed.federation.documents.certificates import trust

LINES, FLOODS = 1100, 4
Address = tuple[str, int]


def connect(address: Address, tls: ssl.SSLContext) -> socket.socket:
    return tls.wrap_socket(socket.create_connection(address, 5), server_hostname=address[0])


@dataclass(frozen=True)
class Idle:
    """Holds 1,100 connections to each, without a word, and comes back where one is closed."""

    def run(self, addresses: list[Address], tls: ssl.SSLContext) -> None:
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

    def run(self, addresses: list[Address], tls: ssl.SSLContext) -> None:
        held = dict[int, tuple[Address, socket.socket]]()
        places = [address for _ in range(LINES) for address in addresses]
        while True:
            before = time.monotonic()
            for place, address in enumerate(places):
                try:
                    if place not in held:
                        held[place] = address, connect(address, tls)
                        held[place][1].sendall(self.begin)
                    held[place][1].sendall(b"x")
                except OSError:
                    if place in held:
                        held.pop(place)[1].close()
            time.sleep(max(0.0, before + 1 - time.monotonic()))


@dataclass(frozen=True)
class Flood:
    """Sends one thing without end over four connections, made again when they are closed."""

    what: bytes
    before: bytes = b""
    reads: bool = True

    def run(self, addresses: list[Address], tls: ssl.SSLContext) -> None:
        threads = [
            threading.Thread(target=self._one, args=(addresses[i % len(addresses)], tls))
            for i in range(FLOODS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

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


def run(attack: Attack, addresses: list[Address], agreed: Path) -> None:
    """Attacks until the process is ended."""
    attack.run(addresses, trust(agreed))


def posted(path: str, body: bytes, shown: bytes = b"") -> bytes:
    """A request as it travels; `shown`: what it shows of its signature."""
    words = f"POST {path} HTTP/1.1\r\nhost: h\r\ncontent-length: {len(body)}\r\n"
    if shown:
        words += f"{SUMMARY}: {base64.b64encode(shown).decode()}\r\n"
    return f"{words}\r\n".encode() + body


def begun(path: str, length: int) -> bytes:
    """A request whose body has this length and does not follow."""
    return f"POST {path} HTTP/1.1\r\nhost: h\r\ncontent-length: {length}\r\n\r\n".encode()


def chunked(path: str) -> bytes:
    """A request whose body comes in chunks, without a length."""
    return f"POST {path} HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n".encode()


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
