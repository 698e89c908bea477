"""SuperLink's public calls: eight of registered nodes, and nothing else.

Flower's own server answers nodes, apps and `flwr` on one port. This one has Flower's handlers of
eight fleet calls and no others: no control interface, no runtime interface, no app to fetch. A
request passes in this order: a call on the list, POST; a registered key and its signature over the
time; a length that is announced and small enough; then its body is read, and must speak for the
node that signed.
"""

import asyncio
import binascii
import datetime
from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping
from email.utils import formatdate
from typing import Any

from train_distributed.flower.transport import flower_internals as flower

handlers = flower.fleet_handlers()
Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

OVERHEAD = 2**16  # bytes that a call may have beside an object
REQUEST_SECONDS = 120  # from the headers to the end of the answer
_PREFIX, _OBJECT = "/v1/fleet/", "push-object"
_CALLS: dict[str, type[Any]] = {  # handlers have the same names
    "activate-node": flower.ActivateNodeRequest,
    "deactivate-node": flower.DeactivateNodeRequest,
    "send-node-heartbeat": flower.SendNodeHeartbeatRequest,
    "pull-messages": flower.PullMessagesRequest,
    "push-messages": flower.PushMessagesRequest,
    _OBJECT: flower.PushObjectRequest,
    "pull-object": flower.PullObjectRequest,
    "confirm-message-received": flower.ConfirmMessageReceivedRequest,
}
_OF_OBJECTS = ("pull-messages", "confirm-message-received")  # whose handlers take the store too
_MEDIA = b"application/x-protobuf"
_KEY, _SIGNATURE, _TIME = (
    name.lower().encode()
    for name in (
        flower.FLEET_HTTP_PUBLIC_KEY_HEADER,
        flower.FLEET_HTTP_SIGNATURE_HEADER,
        flower.TIMESTAMP_HEADER,
    )
)


class FleetApi:
    """An ASGI application with the eight calls."""

    def __init__(
        self, state: Any, nodes: Mapping[bytes, int], largest: int, leaving: Callable[[], None]
    ) -> None:
        """Opens nothing yet.

        Args:
            state: the SuperLink's.
            nodes: public key, as Flower sends it -> the node registered with it.
            largest: bytes of the largest object.
            leaving: called before a node is away, while the state still gives out its answers.
        """
        self._nodes, self._largest, self._leaving = dict(nodes), largest, leaving
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request; a refusal has a status and no body.

        `scope["state"]["prove"]` is told the registered key that has signed the header.
        """
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                status, body = await self._answer(scope, receive)
                media = (
                    [(b"content-type", _MEDIA)] if status == 200 else [(b"connection", b"close")]
                )
                date = formatdate(usegmt=True).encode()
                headers = [(b"content-length", str(len(body)).encode()), (b"date", date), *media]
                start = {"type": "http.response.start", "status": status, "headers": headers}
                await send(start)
                await send({"type": "http.response.body", "body": body})
        except TimeoutError:
            return  # an answer that is not complete ends the connection

    async def _answer(self, scope: Scope, receive: Receive) -> tuple[int, bytes]:
        call = scope["path"].removeprefix(_PREFIX)
        if scope["method"] != "POST" or scope["path"] != _PREFIX + call or call not in _CALLS:
            return 404, b""
        headers = dict(scope["headers"])
        key = _signer(headers, self._nodes)
        if key is None:
            return 401, b""
        scope["state"]["prove"](key)
        length = headers.get(b"content-length", b"")
        if not length.isdigit() or b"transfer-encoding" in headers:
            return 411, b""
        most = OVERHEAD + self._largest * (call == _OBJECT)
        if len(length) > 12 or int(length) > most:
            return 413, b""
        kind = _CALLS[call]
        needed = (self._state, self._state.object_store) if call in _OF_OBJECTS else (self._state,)
        try:
            request = kind.FromString(await _body(receive))
            if not self._speaks_for(request, key):
                return 401, b""
            if kind is flower.DeactivateNodeRequest:
                self._leaving()
            answer = getattr(handlers, call.replace("-", "_"))(request, *needed)
            return 200, answer.SerializeToString()
        except Exception:  # whatever a node can send: Flower's own errors, broken protobuf
            return 409, b""

    def _speaks_for(self, request: Any, key: bytes) -> bool:
        """Whether a request is about the node that signed it."""
        if isinstance(request, flower.ActivateNodeRequest):
            return request.public_key == key
        about = request if isinstance(request, flower.DeactivateNodeRequest) else request.node
        return about.node_id == self._nodes[key]


def _signer(headers: Mapping[bytes, bytes], nodes: Mapping[bytes, int]) -> bytes | None:
    """The registered key that has signed the time, if the time is now."""
    try:
        key = b64decode(headers[_KEY], validate=True)
        stamp = headers[_TIME]
        age = datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(stamp.decode())
        signature = b64decode(headers[_SIGNATURE], validate=True)
    except (KeyError, ValueError, TypeError, binascii.Error):
        return None
    if key not in nodes or abs(age.total_seconds()) > flower.TIMESTAMP_TOLERANCE:
        return None
    return (
        key if flower.verify_signature(flower.bytes_to_public_key(key), stamp, signature) else None
    )


async def _body(receive: Receive) -> bytes:
    """All of it; the server reads no more than was announced."""
    parts = []
    while True:
        event = await receive()
        if event["type"] != "http.request":
            raise ConnectionError("request must be complete, was broken off")
        parts.append(event.get("body", b""))
        if not event.get("more_body", False):
            return b"".join(parts)
