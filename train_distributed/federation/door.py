"""What every service of a federation does with requests: bounded bodies, refusals in words.

A refusal is JSON as RFC 9457 has it, whose `title` is the name of the error; 503 says: later. A
body has a length that is stated and small enough before it is read, and is read in the room of
whoever has signed it: the header `message-summary` shows the signature, so that an enrolled party
has room and credit of its own (`aggregator_limits`). All others are strangers.
"""

import base64
import binascii
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from train_distributed.federation.aggregator_limits import SUMMARY, Body, NoRoom, RateLimits
from train_distributed.federation.aggregator_watch import LOG, Watch
from train_distributed.secure_sum.errors import NotYet, OutOfOrder, OversizedMessage, ProtocolError

PROBLEM = "application/problem+json"
BODY_SECONDS = 20.0  # in which a body must have arrived
Handler = Callable[[Request], Awaitable[Response]]


class Unread(Exception):
    """A body that is not taken; the status says why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Door:
    """Requests to a service, and their limits.

    Args:
        watch: counts what happens.
        sender: the party that has signed a body, from what its header shows; raises ProtocolError.
        servers: parties without a bucket of credit.
        proves: whether a connection on which a party has signed is that party's, with places of its
            own (`limited_http`): for parties that stay connected, and are not very many.
    """

    def __init__(
        self,
        watch: Watch,
        sender: Callable[[bytes], int],
        servers: Collection[int] = (),
        *,
        proves: bool = False,
    ) -> None:
        self._watch, self._sender, self._servers, self._proves = watch, sender, servers, proves
        self._limits = RateLimits()

    def handler(self, name: str, answer: Handler) -> Handler:
        """Answers requests; whatever fails has a status, and words."""

        async def handle(request: Request) -> Response:
            start = time.monotonic()
            response = await self._answered(request, answer)
            seconds = self._watch.request_seconds.labels(name, response.status_code)
            seconds.observe(time.monotonic() - start)
            return response

        return handle

    async def _answered(self, request: Request, answer: Handler) -> Response:
        try:
            return await answer(request)
        except Unread as error:
            return problem(error.status, "Unread", str(error))
        except NoRoom as error:
            return problem(429, "NoRoom", str(error))
        except (NotYet, OSError) as error:
            if isinstance(error, OSError):
                self._watch.database_errors.inc()
                LOG.error("database fails", extra={"fields": {"why": str(error)[:300]}})
            return problem(503, type(error).__name__, str(error))
        except ProtocolError as error:
            status = 413 if isinstance(error, OversizedMessage) else 409
            if not isinstance(error, OutOfOrder | OversizedMessage):
                status = 400
            return problem(status, type(error).__name__, str(error))
        except ClientDisconnect:
            return problem(400, "Unread", "body must come whole")
        except Exception:
            LOG.exception("a request fails")
            return problem(500, "InternalError", "it is in the log")

    @asynccontextmanager
    async def body(
        self, request: Request, largest: int, seconds: float | None = None
    ) -> AsyncIterator[bytes]:
        """The body, no longer than this, which has its room until the block ends.

        Args:
            request: whose body it is.
            largest: bytes.
            seconds: in which it must come; `BODY_SECONDS` if left out.

        Raises:
            Unread: it has no length or too much, or comes too slowly.
            NoRoom: there are too many.
        """
        seconds = BODY_SECONDS if seconds is None else seconds
        stated = request.headers.get("content-length", "")
        if not stated.isascii() or not stated.isdecimal():
            raise Unread(411, "content-length must be stated")
        if len(stated) > 20 or int(stated) > largest:
            raise Unread(413, f"body must be <= {largest} bytes, got {stated[:20]}")
        try:
            async with self._place(request, int(stated), seconds) as place:
                body = bytearray()
                async for piece in request.stream():  # no more than was stated
                    body += piece
                    place.received += len(piece)
                place.whole()
                yield bytes(body)
        except TimeoutError as error:
            words = f"body must come within {seconds:g} s, and make room"
            raise Unread(408, words) from error

    def _place(
        self, request: Request, length: int, seconds: float
    ) -> AbstractAsyncContextManager[Body]:
        """Room for a body, of whoever has signed it as the header shows."""
        sender = None
        with suppress(ProtocolError, binascii.Error, ValueError):
            shown = base64.b64decode(request.headers.get(SUMMARY, ""), validate=True)
            sender = self._sender(shown)
        if sender is None:
            host = request.client.host if request.client else ""
            return self._limits.stranger(host, length, seconds)
        if self._proves and (prove := request.scope.get("state", {}).get("prove")):
            prove(b"party %d" % sender)
        if sender in self._servers:
            return self._limits.aggregator(sender, length, seconds)
        return self._limits.user(sender, length, seconds)


def problem(status: int, title: str, detail: str) -> Response:
    """A refusal."""
    content = {"type": "about:blank", "title": title, "status": status, "detail": detail[:400]}
    headers = {"retry-after": "1"} if status in (429, 503) else None
    return Response(json.dumps(content), status, headers, PROBLEM)
