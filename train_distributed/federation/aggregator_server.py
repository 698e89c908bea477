"""Serves an aggregator's application by itself: uvicorn's HTTP, connections bounded before it.

When there are more connections than files may be open, the address with most of them loses its most
idle one. Behind a proxy the proxy bounds them, and any ASGI server will do.
"""

import asyncio
import os
import resource
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from starlette.applications import Starlette
from uvicorn.server import ServerState

from train_distributed.federation.aggregator_watch import LOG, Watch
from train_distributed.federation.limited_http import Line, accept, http_config
from train_distributed.federation.places import Places

MOST_LINES = 4096  # connections at once, if the process may open as many files
LINES_OF_A_PARTY = 16
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
    parties: int = 0,
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
        parties: number of those that prove their keys, and then have connections of their own.

    Raises:
        OSError: the address is taken.
    """
    quiet = {"log_level": "critical"}  # what strangers send is not worth a line
    config = http_config(app, h11_max_incomplete_event_size=HEAD_BYTES, **quiet)
    most = _most(MOST_LINES if tls is None else MOST_TLS_LINES, LINES_OF_A_PARTY * parties)
    state, places = ServerState(), Places(most, LINES_OF_A_PARTY)
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
                    accept(each, places, lambda: Line(config, state, places, watch), tls)
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


@contextmanager
def in_thread(
    app: Starlette,
    watch: Watch,
    host: str,
    port: int,
    tls: ssl.SSLContext | None,
    *,
    parties: int = 0,
    ended: Callable[[str], None] = lambda why: None,
) -> Iterator[int]:
    """Serves from a thread of its own until the block ends; yields the port.

    All but `ended` is as `serve` has it.

    Args:
        app: what answers.
        watch: counts what happens.
        host: address to listen on.
        port: port; 0: any.
        tls: its certificate, if it has one.
        parties: number of those that prove their keys.
        ended: is told why the service has ended by itself.
    """
    began: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[None], int]] = Future()

    async def run() -> None:
        loop = asyncio.get_running_loop()

        def ready(listening: int) -> None:
            began.set_result((loop, serving, listening))

        serving = loop.create_task(serve(app, watch, host, port, tls, ready, parties=parties))
        try:
            await serving
        except asyncio.CancelledError:
            pass
        except Exception as error:
            if began.done():
                LOG.exception("the service ends")
                ended(f"{type(error).__name__}: {error}")
            else:
                began.set_exception(error)

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    loop, serving, listening = began.result()
    try:
        yield listening
    finally:
        with suppress(RuntimeError):  # it has ended by itself
            loop.call_soon_threadsafe(serving.cancel)
        thread.join()


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


def _most(wanted: int, of_parties: int) -> int:
    """Connections of strangers: as many as wanted, if parties have files for theirs beside them."""
    files, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + of_parties + OTHER_FILES
    if files != resource.RLIM_INFINITY and files < needed:
        allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with suppress(OSError, ValueError):  # some systems allow less than they say
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return wanted
    left = files - OTHER_FILES
    return max(1, min(wanted, max(left - of_parties, left // 4)))
