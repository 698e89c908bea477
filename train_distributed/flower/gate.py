"""What of the SuperLink the world can reach: eight calls of registered nodes, and nothing else.

Flower serves nodes, its own apps and `flwr` on one port. Here every request passes this gate first:
a path on the list, POST, a node's key that was registered and its signature over the time, a length
that is announced and small enough. Anything else is answered before a byte of its body is read.
"""

import asyncio
import binascii
import datetime
from base64 import b64decode
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from cryptography.exceptions import InvalidSignature
from flwr.common.constant import TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
from uvicorn.protocols.http.h11_impl import H11Protocol

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

OVERHEAD = 2**16  # bytes that a call may have beside an object
REQUEST_SECONDS = 120  # from the headers to the end of the answer
IDLE_SECONDS = 60  # without a complete header
_OBJECT = "/v1/fleet/push-object"
CALLS = frozenset(
    {_OBJECT}
    | {
        f"/v1/fleet/{name}"
        for name in (
            "activate-node",
            "deactivate-node",
            "send-node-heartbeat",
            "pull-messages",
            "push-messages",
            "pull-object",
            "confirm-message-received",
        )
    }
)


class Gate:
    """An ASGI application in front of the SuperLink's."""

    def __init__(self, app: Any, keys: Collection[bytes], largest: int) -> None:
        """Puts a gate before an app.

        Args:
            app: the SuperLink's ASGI application.
            keys: the registered nodes' public keys, as Flower sends them.
            largest: bytes of the largest object.
        """
        self._app, self._keys, self._largest = app, frozenset(keys), largest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or refuses it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        status = self._judge(scope)
        if status is not None:
            await _refuse(send, status)
            return
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                await self._app(scope, receive, send)
        except TimeoutError:
            return  # the connection is closed, since the answer is not complete

    def _judge(self, scope: Scope) -> int | None:
        """The HTTP status of a refusal, or None."""
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in CALLS:
            return 404
        headers = {name: value for name, value in scope["headers"]}
        if not self._signed(headers):
            return 401
        length = headers.get(b"content-length", b"")
        if not length.isdigit() or b"transfer-encoding" in headers:
            return 411
        most = OVERHEAD + self._largest * (scope["path"] == _OBJECT)
        return 413 if len(length) > 12 or int(length) > most else None

    def _signed(self, headers: dict[bytes, bytes]) -> bool:
        """Whether a registered node has signed the time, and the time is now."""
        try:
            key = b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER.encode()], validate=True)
            signature = b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER.encode()], validate=True)
            stamp = headers[TIMESTAMP_HEADER.encode()]
            if key not in self._keys:
                return False
            signed = datetime.datetime.fromisoformat(stamp.decode("ascii"))
            age = (datetime.datetime.now(datetime.UTC) - signed).total_seconds()
            if abs(age) > TIMESTAMP_TOLERANCE:
                return False
            return verify_signature(bytes_to_public_key(key), stamp, signature)
        except (KeyError, ValueError, TypeError, binascii.Error, InvalidSignature):
            return False


async def _refuse(send: Send, status: int) -> None:
    headers = [(b"content-length", b"0"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


class Door(H11Protocol):
    """One connection: closed when there are too many, or its next header does not come in time."""

    most = 1024  # connections at once

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
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
