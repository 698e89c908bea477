"""Serves an aggregator's application by itself: uvicorn's HTTP, connections bounded before it.

When there are more connections than files may be open, the address with most of them loses its most
idle one. Behind a proxy the proxy bounds them, and any ASGI server will do.
"""

import asyncio
import os
import resource
import socket
import ssl
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.server import ServerState

from train_distributed.flower.aggregator_watch import Watch
from train_distributed.flower.transport.limited_http import Line, accept, http_config
from train_distributed.flower.transport.places import Places

MOST_LINES = 4096  # connections at once, if the process may open as many files
MOST_TLS_LINES = 256  # of which each has a buffer of 256 KiB in asyncio
OTHER_FILES = 128  # that stay for the state, and for connections that are being accepted
HEAD_BYTES = 2**14  # of a request's line and headers


async def serve(
    app: Starlette,
    watch: Watch,
    host: str,
    port: int,
    tls: ssl.SSLContext | None,
    ready: Callable[[int], None],
    *,
    shared: bool = False,
) -> None:
    """Serves until it is cancelled.

    Args:
        app: what answers.
        watch: counts what happens.
        host: address to listen on.
        port: port; 0: any.
        tls: its certificate, if it has one.
        ready: is given the port.
        shared: other processes may listen on the same port, and have a part of its connections.

    Raises:
        OSError: the address is taken.
    """
    quiet = {"log_level": "critical"}  # what strangers send is not worth a line
    config = http_config(app, h11_max_incomplete_event_size=HEAD_BYTES, **quiet)
    state, places = ServerState(), Places(_most(MOST_LINES if tls is None else MOST_TLS_LINES))
    watch.connections.set_function(lambda: len(places))
    found = await _addresses(host, port)
    with ExitStack() as stack:
        listeners = [
            stack.enter_context(_listener(address, family, shared))
            for family, address in dict.fromkeys((each[0], each[4]) for each in found)
        ]
        async with app.router.lifespan_context(app):
            tasks = [
                asyncio.create_task(
                    accept(each, places, lambda: WatchedLine(config, state, places, watch), tls)
                )
                for each in listeners
            ]
            ready(listeners[0].getsockname()[1])
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                for line in places:
                    line.leave("end")
                await asyncio.gather(*tasks, return_exceptions=True)  # listeners close after them


async def _addresses(host: str, port: int) -> list[Any]:
    try:
        loop = asyncio.get_running_loop()
        return await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ValueError(
            f"listen must be an address of this machine, got {host}: {error}"
        ) from error


def _listener(address: tuple[Any, ...], family: int, shared: bool) -> socket.socket:
    """A socket that listens.

    Raises:
        OSError: the port is used, or the address is not this machine's.
    """
    try:
        return socket.create_server(address, family=family, backlog=1024, reuse_port=shared)
    except OSError as error:
        at = "{}:{}".format(*address)
        why = os.strerror(error.errno or 0)
        words = f"listen must be a free port of this machine, got {at}: {why}"
        raise OSError(words) from error


class WatchedLine(Line):
    """A connection whose bytes and answers are counted."""

    def __init__(
        self, config: uvicorn.Config, state: ServerState, places: Places, watch: Watch
    ) -> None:
        super().__init__(config, state, places)
        self._watch = watch

    def leave(self, why: str) -> None:
        """See `Line.leave`."""
        self._watch.closed.labels(why).inc()
        super().leave(why)

    def data_received(self, data: bytes) -> None:
        """See `Line.data_received`."""
        self._watch.received.inc(len(data))
        super().data_received(data)

    def on_response_complete(self) -> None:
        """See `Line.on_response_complete`."""
        self._watch.responses.inc()
        super().on_response_complete()


def _most(wanted: int) -> int:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if files == resource.RLIM_INFINITY else max(1, min(wanted, files - OTHER_FILES))
