"""Connections over which a server of ours is asked: few, and each with a deadline.

Where there are too many, `places` say which one leaves; so does one on which nothing is asked for
too long, or too much at once. A connection that says nothing costs no buffers of TLS.
"""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from train_distributed.federation.aggregator_watch import Watch
from train_distributed.federation.places import Places

HANDSHAKE_SECONDS = 10.0  # to the first byte, and again for TLS
IDLE_SECONDS = 60.0  # between two answers, or two headers of a registered key
CLOSE_SECONDS = 5.0  # for the other side to take leave
FULL_SECONDS = 0.1  # to wait where no connection can be accepted
HEAD_BYTES = 2**16  # of requests that come before the last one was answered


class Line(H11Protocol):
    """HTTP/1.1 on one connection, from the moment it is accepted.

    Args:
        config: of the server.
        state: of the server.
        places: where this line has entered.
        watch: counts bytes and answers.
    """

    def __init__(
        self, config: uvicorn.Config, state: ServerState, places: Places, watch: Watch
    ) -> None:
        super().__init__(config, state, {"prove": self._prove})
        self._places, self._watch, self._known = places, watch, False
        self._waiting: asyncio.TimerHandle | None = None

    def begin(self, connection: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Shakes hands, where there is a certificate, and reads."""
        self._beginning = asyncio.create_task(self._connect(connection, tls))

    async def _connect(self, connection: socket.socket, tls: ssl.SSLContext | None) -> None:
        shakes, closes = (None, None) if tls is None else (HANDSHAKE_SECONDS, CLOSE_SECONDS)
        try:
            if tls is not None:
                async with asyncio.timeout(HANDSHAKE_SECONDS):
                    await _readable(connection)
            await self.loop.connect_accepted_socket(
                lambda: self,
                connection,
                ssl=tls,
                ssl_handshake_timeout=shakes,
                ssl_shutdown_timeout=closes,
            )
        except (OSError, asyncio.CancelledError):
            self._places.gone(self)
            connection.close()

    def leave(self, why: str) -> None:
        """Ends the connection at once."""
        self._watch.closed.labels(why).inc()
        if self.transport is None:
            self._beginning.cancel()
        else:
            self.transport.abort()

    def connection_made(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, transport: asyncio.Transport
    ) -> None:
        """Starts the clock for the first header."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Takes what arrives; the clock stops once a header of a registered key is complete."""
        self._watch.received.inc(len(data))
        super().data_received(data)
        if self._known and self.cycle is not None and not self.cycle.response_complete:
            self._stop()
        if self.conn.their_state is h11.DONE and len(self.conn.trailing_data[0]) > HEAD_BYTES:
            self.leave("pipelined")

    def on_response_complete(self) -> None:
        """Starts the clock for the next header: this is not an idle connection."""
        self._watch.responses.inc()
        self._places.used(self)
        super().on_response_complete()
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Gives its place back."""
        self._stop()
        self._places.gone(self)
        super().connection_lost(exc)
        if self.timeout_keep_alive_task is not None:  # runs on after a reset, and holds the line
            self.timeout_keep_alive_task.cancel()
        self.transport = self.flow = self.cycle = None  # pyright: ignore  # buffers go now

    def _prove(self, key: bytes) -> None:
        """Notes the registered key that has signed a request, whose handler calls it."""
        self._known = True
        self._places.prove(self, key)
        self._stop()

    def _wait(self) -> None:
        self._stop()
        self._waiting = self.loop.call_later(IDLE_SECONDS, self.leave, "idle")

    def _stop(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


def http_config(app: Any, **more: Any) -> uvicorn.Config:
    """Configuration of a server of `Line`s, without a line of log for each request."""
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=int(IDLE_SECONDS),
        **more,
    )
    config.load()
    return config


async def accept(
    listener: socket.socket, places: Places, line: Callable[[], Line], tls: ssl.SSLContext | None
) -> None:
    """Accepts all connections until it is cancelled; another one may have to leave for each."""
    listener.setblocking(False)
    loop = asyncio.get_running_loop()
    while True:
        try:
            connection, (host, *_) = await loop.sock_accept(listener)
        except OSError as error:  # hung up already, or no more files can be opened
            if error.errno in (errno.EMFILE, errno.ENFILE):
                places.make_room()
            await asyncio.sleep(FULL_SECONDS)
            continue
        made = line()
        made.begin(connection, tls)
        places.enter(made, str(host))
        await asyncio.sleep(0)  # so that whoever leaves is gone before the next one comes


async def _readable(connection: socket.socket) -> None:
    """Waits until something has come, or the other end is gone."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(connection, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(connection)
