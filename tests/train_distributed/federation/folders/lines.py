"""A reverse proxy that has TLS before a service on loopback; or somebody who plays it."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.ports import free_port


def carry(source: socket.socket, to: socket.socket) -> None:
    """Until the source ends, or either is gone."""
    with suppress(OSError):
        while piece := source.recv(2**16):
            to.sendall(piece)
        to.shutdown(socket.SHUT_WR)


@contextmanager
def terminating(tls: Path, service: int, port: int | None = None) -> Iterator[int]:
    """Port of the proxy, which has the certificate in a folder, before a service on loopback."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls / "server.pem", tls / "server.key")

    def serve(line: socket.socket) -> None:
        with (
            suppress(OSError),
            context.wrap_socket(line, server_side=True) as near,
            socket.create_connection(("127.0.0.1", service)) as far,
        ):
            back = threading.Thread(target=carry, args=(far, near), daemon=True)
            back.start()
            carry(near, far)
            back.join()

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(door.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", port or free_port())) as door:
        threading.Thread(target=accept, daemon=True).start()
        yield door.getsockname()[1]
        door.shutdown(socket.SHUT_RDWR)
