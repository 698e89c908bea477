"""Serves an aggregator's application by itself: uvicorn's HTTP, connections bounded before it.

When there are more connections than files may be open, the address with most of them loses its most
idle one; so does one without a whole request for long. Behind a proxy the proxy bounds them, and
any ASGI server will do.
"""

import asyncio
import math
import resource
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import h11
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from train_distributed.flower.aggregator_limits import owner_of
from train_distributed.flower.aggregator_watch import Watch

MOST_LINES = 4096  # connections at once, if the process may open as many files
MOST_TLS_LINES = 256  # of which each has a buffer of 256 KiB in asyncio
OTHER_FILES = 128  # that stay for the state, and for connections that are being accepted
HANDSHAKE_SECONDS = 10.0
IDLE_SECONDS = 60.0
HEAD_BYTES = 2**14  # of a request's line and headers


async def serve(
    app: Starlette,
    host: str,
    port: int,
    tls: ssl.SSLContext | None,
    ready: Callable[[int], None],
    *,
    shared: bool = False,
) -> None:
    """Serves until it is cancelled.

    Args:
        app: what answers, as `aggregator_app.application` makes it.
        host: address to listen on.
        port: port; 0: any.
        tls: its certificate, if it has one.
        ready: is given the port.
        shared: other processes may listen on the same port, and have a part of its connections.

    Raises:
        OSError: the address is taken.
    """
    loop = asyncio.get_running_loop()
    config = uvicorn.Config(
        app,
        lifespan="off",
        ws="none",
        log_config=None,
        log_level="critical",  # what strangers send is not worth a line
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=int(IDLE_SECONDS),
        h11_max_incomplete_event_size=HEAD_BYTES,
    )
    config.load()
    lines = Lines(config, tls, app.state.watch)
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    with ExitStack() as stack:
        listeners = [
            stack.enter_context(
                socket.create_server(address, family=family, backlog=1024, reuse_port=shared)
            )
            for family, address in dict.fromkeys((each[0], each[4]) for each in found)
        ]
        async with app.router.lifespan_context(app):
            tasks = [asyncio.create_task(lines.accept(each)) for each in listeners]
            tasks.append(asyncio.create_task(lines.sweep()))
            ready(listeners[0].getsockname()[1])
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                lines.close("end")
                await asyncio.gather(*tasks, return_exceptions=True)  # listeners close after them


class Lines:
    """All connections."""

    def __init__(self, config: uvicorn.Config, tls: ssl.SSLContext | None, watch: Watch) -> None:
        self._config, self._tls, self._state = config, tls, ServerState()
        self.watch, self._count = watch, 0
        self._open: dict[str, dict[Line, None]] = {}  # of each address, the most idle ones first
        watch.connections.set_function(lambda: self._count)

    def enter(self, line: "Line") -> None:
        """Knows a connection, as the one of its address that was used last."""
        known = self._open.setdefault(line.address, {})
        if line in known:
            del known[line]
        else:
            self._count += 1
        known[line] = None

    def leave(self, line: "Line") -> None:
        """Forgets a connection."""
        known = self._open.get(line.address, {})
        if line in known:
            del known[line]
            self._count -= 1
            if not known:
                del self._open[line.address]

    def close(self, why: str, before: float = math.inf) -> None:
        """Closes the connections that have been idle since then."""
        for line in [line for known in self._open.values() for line in known]:
            if line.last < before:
                line.close(why)

    async def accept(self, listener: socket.socket) -> None:
        """Accepts all connections; closes another one when there are too many."""
        listener.setblocking(False)
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(listener)
            except OSError:  # hung up already, or no more files
                await asyncio.sleep(0.1)
                continue
            line = Line(self, owner_of(str(address[0])), self._config, self._state)
            self.enter(line)
            line.begin(connection, self._tls)
            if self._count > self._most():
                self._crowded_out().close("crowded")
            await asyncio.sleep(0)  # so that whoever leaves is gone before the next one comes

    async def sweep(self) -> None:
        """Closes connections that have been idle for long."""
        while True:
            await asyncio.sleep(IDLE_SECONDS / 4)
            self.close("idle", time.monotonic() - IDLE_SECONDS)

    def _most(self) -> int:
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = MOST_LINES if self._tls is None else MOST_TLS_LINES
        return most if files == resource.RLIM_INFINITY else max(1, min(most, files - OTHER_FILES))

    def _crowded_out(self) -> "Line":
        """The connection that has been idle for longest, of the address with most connections."""
        return next(iter(max(self._open.values(), key=len)))


class Line(H11Protocol):
    """One connection, from the moment it is accepted."""

    def __init__(
        self, lines: Lines, address: str, config: uvicorn.Config, state: ServerState
    ) -> None:
        super().__init__(config, state, {})
        self.address, self.last, self._lines = address, time.monotonic(), lines

    def begin(self, connection: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Shakes hands, where there is a certificate, and reads."""
        self._beginning = asyncio.create_task(self._connect(connection, tls))

    async def _connect(self, connection: socket.socket, tls: ssl.SSLContext | None) -> None:
        seconds = None if tls is None else HANDSHAKE_SECONDS
        try:
            if tls is not None:  # a connection that says nothing costs no buffers of TLS
                async with asyncio.timeout(HANDSHAKE_SECONDS):
                    await _readable(connection)
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self, connection, ssl=tls, ssl_handshake_timeout=seconds
            )
        except OSError:
            self._lines.leave(self)
            connection.close()
        except asyncio.CancelledError:
            connection.close()

    def data_received(self, data: bytes) -> None:
        """Takes what arrives; requests that come before the last one was answered are few."""
        self._lines.watch.received.inc(len(data))
        super().data_received(data)
        if self.conn.their_state is h11.DONE and len(self.conn.trailing_data[0]) > HEAD_BYTES:
            self.close("pipelined")

    def on_response_complete(self) -> None:
        """Notes that a whole request was answered: this is not an idle connection."""
        self.last = time.monotonic()
        if not self.transport.is_closing():
            self._lines.enter(self)
        self._lines.watch.responses.inc()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the connection."""
        self._lines.leave(self)
        super().connection_lost(exc)

    def close(self, why: str) -> None:
        """Closes the connection at once."""
        self._lines.watch.closed.labels(why).inc()
        self._lines.leave(self)
        transport: Any = self.transport
        if transport is None:
            self._beginning.cancel()
        else:
            transport.abort()


async def _readable(connection: socket.socket) -> None:
    """Waits until something has come, or the other end is gone."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(connection, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(connection)
