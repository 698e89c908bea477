"""One connection to the hub: closed when there are too many, or nothing complete comes in time."""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

IDLE_SECONDS = 60  # without a complete header


class Door(H11Protocol):
    """HTTP/1.1 with two limits that the server does not have; headers end at 64 KiB anyway."""

    most = 1024  # connections at once

    def connection_made(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, transport: asyncio.Transport
    ) -> None:
        """Lets it in, or closes it."""
        super().connection_made(transport)
        self._waiting = self.loop.call_later(IDLE_SECONDS, transport.close)
        if len(self.connections) > self.most:
            transport.close()

    def data_received(self, data: bytes) -> None:
        """Stops the clock once a header is complete."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._waiting.cancel()

    def on_response_complete(self) -> None:
        """Starts the clock for the next header."""
        super().on_response_complete()
        self._waiting.cancel()
        self._waiting = self.loop.call_later(IDLE_SECONDS, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops the clock."""
        self._waiting.cancel()
        super().connection_lost(exc)
