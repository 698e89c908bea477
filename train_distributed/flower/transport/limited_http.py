"""The way in to the hub: TLS connections, each with a deadline for whatever comes next."""

import asyncio
import contextlib
import resource
import socket
import ssl

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from train_distributed.flower.transport.places import Places

HANDSHAKE_SECONDS = 10  # of TLS
STRANGER_SECONDS = 10  # from there to a header with a registered key's signature
IDLE_SECONDS = 60  # between two headers of a registered key
CLOSE_SECONDS = 5  # for the other side to take leave
LINES_OF_A_KEY = 16
STRANGERS = 512
FILES = 2**16  # that may be open, where the system allows it
FULL_SECONDS = 0.05  # to wait where no more files can be opened


class LimitedHttp(H11Protocol):
    """HTTP/1.1 on one connection; headers end at 64 KiB."""

    def __init__(self, config: uvicorn.Config, state: ServerState, places: Places) -> None:
        """Before the handshake.

        Args:
            config: of the server.
            state: of the server.
            places: where this line has entered.
        """
        super().__init__(config, state, {"prove": self._prove})
        self._places, self._known = places, False
        self._waiting: asyncio.TimerHandle | None = None
        self.greeting: asyncio.Task[None] | None = None  # the handshake

    def leave(self) -> None:
        """Ends the connection at once."""
        if self.transport is not None:
            self.transport.abort()
        elif self.greeting is not None:
            self.greeting.cancel()

    def connection_made(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, transport: asyncio.Transport
    ) -> None:
        """Starts the clock for the first header."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Stops the clock once a header of a registered key is complete."""
        super().data_received(data)
        if self._known and self.cycle is not None and not self.cycle.response_complete:
            self._stop()

    def on_response_complete(self) -> None:
        """Starts the clock for the next header."""
        super().on_response_complete()
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Gives its place back."""
        self._stop()
        self._places.gone(self)
        super().connection_lost(exc)

    def _prove(self, key: bytes) -> None:
        """Notes the registered key that has signed a header; `FleetApi` calls it."""
        self._known = True
        self._places.prove(self, key)
        self._stop()

    def _wait(self) -> None:
        self._stop()
        seconds = IDLE_SECONDS if self._known else STRANGER_SECONDS
        self._waiting = self.loop.call_later(seconds, self.leave)

    def _stop(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


async def serve(listening: socket.socket, config: uvicorn.Config, *, keys: int) -> None:
    """Takes connections until the process ends.

    Args:
        listening: a bound socket.
        config: application, certificate and key; loaded.
        keys: how many are registered, each with places of its own.
    """
    assert config.ssl is not None
    loop, state = asyncio.get_running_loop(), ServerState()
    places = Places(_strangers(LINES_OF_A_KEY * keys), LINES_OF_A_KEY)
    listening.setblocking(False)
    while True:
        try:
            line, (address, *_) = await loop.sock_accept(listening)
        except OSError:  # no more files can be opened
            places.make_room()
            await asyncio.sleep(FULL_SECONDS)
            continue
        http = LimitedHttp(config, state, places)
        http.greeting = loop.create_task(_greet(http, line, config.ssl))
        http.greeting.add_done_callback(lambda _, http=http: _greeted(http, places))
        places.enter(http, address)
        await asyncio.sleep(0)  # those that are in come first


async def _greet(http: LimitedHttp, line: socket.socket, context: ssl.SSLContext) -> None:
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError):  # a handshake that failed, or took too long
        await loop.connect_accepted_socket(
            lambda: http,
            line,
            ssl=context,
            ssl_handshake_timeout=HANDSHAKE_SECONDS,
            ssl_shutdown_timeout=CLOSE_SECONDS,
        )


def _greeted(http: LimitedHttp, places: Places) -> None:
    if http.transport is None:
        places.gone(http)


def _strangers(registered: int) -> int:
    """Places for strangers: a quarter of the open files, or what registered keys leave of them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # some systems allow less than they say
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = wanted if soft == resource.RLIM_INFINITY else soft
    return max(16, min(STRANGERS, soft // 4, soft - registered))
