"""An aggregator as a web service: an ASGI application, in the shape of the IETF's DAP.

    POST /tasks/{id}/reports             leader: a report -> 201, the signed acknowledgement
    PUT  /tasks/{id}/aggregation_jobs/…  helper: a job -> 200, the verdicts
    GET  /tasks/{id}                     leader: 204, while reports are taken
    POST /tasks/{id}                     an order of the operator's: status
    POST /tasks/{id}/collection_jobs     COMMIT
    POST /tasks/{id}/aggregate_shares    OPEN
    GET  /healthz                        204, if the database answers

A refusal is JSON as RFC 9457 has it, whose `title` is the name of the error; 503 says: later.
Bodies are octets, signed and sealed, and bounded before they are read. Reports that arrive while
others are written are written together. All state is in the database; any number of processes may
serve the same task where that is PostgreSQL.
"""

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from train_distributed.secure_sum.aggregator import (
    Aggregator,
    Helper,
    Leader,
    Send,
    order_bytes,
    request_bytes,
)
from train_distributed.secure_sum.errors import NotYet, OutOfOrder, OversizedMessage, ProtocolError

OCTETS, PROBLEM = "application/octet-stream", "application/problem+json"
BODY_SECONDS = 20.0  # in which a body must have arrived
BODIES = 256  # that are read at a time; beyond, one is refused for now
BATCH = 256  # reports that are written together
LOOK_SECONDS = 1.0  # between looks for reports that wait, and after the helper was gone
_LOG = logging.getLogger("blind_averaging.aggregator")
Handler = Callable[[Request], Awaitable[Response]]


class Unread(Exception):
    """A body that is not read; the status says why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


def application(aggregator: Aggregator, send: Send | None = None) -> Starlette:
    """The service of one aggregator.

    Args:
        aggregator: what answers.
        send: how a leader sends a job to the helper.
    """
    service = Service(aggregator)
    base = f"/tasks/{aggregator.window.digest.hex()}"
    posts = [base, f"{base}/collection_jobs", f"{base}/aggregate_shares"]
    routes = [Route(path, service.handler(service.order), methods=["POST"]) for path in posts]
    if isinstance(aggregator, Leader):
        handler = service.handler(service.report)
        routes.append(Route(f"{base}/reports", handler, methods=["POST"]))
        routes.append(Route(base, service.handler(service.open)))
    else:
        handler = service.handler(service.job)
        routes.append(Route(f"{base}/aggregation_jobs/{{job}}", handler, methods=["PUT"]))
    routes.append(Route("/healthz", service.handler(service.health)))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        if not isinstance(aggregator, Leader) or send is None:
            yield
            return
        stop = threading.Event()
        working = threading.Thread(target=work, args=(aggregator, send, stop), daemon=True)
        working.start()
        try:
            yield
        finally:
            stop.set()
            working.join()

    return Starlette(routes=routes, lifespan=lifespan)


def work(leader: Leader, send: Send, stop: threading.Event) -> None:
    """Has reports that wait decided until it is stopped; what fails is tried again."""
    said = ""
    while not stop.is_set():
        try:
            if leader.work(send):
                said = ""
                continue
        except (OSError, ValueError) as error:
            why = str(error)[:300]
            if why != said:  # once, however long it lasts
                _LOG.warning("reports wait: %s", why)
            said = why
        stop.wait(LOOK_SECONDS)


class Service:
    """The requests of one aggregator."""

    def __init__(self, aggregator: Aggregator) -> None:
        self._aggregator = aggregator
        self._largest = request_bytes(aggregator.window, aggregator.number)
        self._order = order_bytes(aggregator.window.window)
        self._waiting: list[tuple[bytes, asyncio.Future[bytes | ProtocolError]]] = []
        self._writing: asyncio.Task[None] | None = None
        self._bodies = 0

    def handler(self, answer: Handler) -> Handler:
        """Answers requests; whatever fails has a status, and words."""

        async def handle(request: Request) -> Response:
            try:
                return await answer(request)
            except Unread as error:
                return _problem(error.status, "Unread", str(error))
            except (NotYet, OSError) as error:
                return _problem(503, type(error).__name__, str(error))
            except ProtocolError as error:
                status = 413 if isinstance(error, OversizedMessage) else 409
                if not isinstance(error, OutOfOrder | OversizedMessage):
                    status = 400
                return _problem(status, type(error).__name__, str(error))

        return handle

    async def report(self, request: Request) -> Response:
        """Takes a report, and acknowledges it once it is on the disk."""
        body = await self._body(request, self._largest)
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((body, future))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())
        answer = await future
        if isinstance(answer, ProtocolError):
            raise answer
        return Response(answer, 201, media_type=OCTETS)

    async def _write(self) -> None:
        """Writes the reports that have come, batch by batch."""
        assert isinstance(self._aggregator, Leader)
        while self._waiting:
            batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
            try:
                answers = await asyncio.to_thread(self._aggregator.take, [b for b, _ in batch])
            except Exception as error:
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                continue
            for (_, future), answer in zip(batch, answers, strict=True):
                if not future.done():  # whoever asked may be gone
                    future.set_result(answer)

    async def job(self, request: Request) -> Response:
        """Decides a job."""
        assert isinstance(self._aggregator, Helper)
        body = await self._body(request, self._largest)
        answer = await asyncio.to_thread(self._aggregator.prepare, body)
        return Response(answer, media_type=OCTETS)

    async def order(self, request: Request) -> Response:
        """Does what the operator orders."""
        body = await self._body(request, self._order)
        answer = await asyncio.to_thread(self._aggregator.order, body)
        return Response(answer, media_type=OCTETS)

    async def open(self, request: Request) -> Response:
        """Says whether reports are taken."""
        assert isinstance(self._aggregator, Leader)
        await asyncio.to_thread(self._aggregator.check_open)
        return Response(status_code=204)

    async def health(self, request: Request) -> Response:
        """Asks the database."""
        await asyncio.to_thread(self._aggregator.check)
        return Response(status_code=204)

    async def _body(self, request: Request, largest: int) -> bytes:
        """The body, no longer than this.

        Raises:
            Unread: it has no length or too much, comes too slowly, or there are too many.
        """
        stated = request.headers.get("content-length", "")
        if not stated.isascii() or not stated.isdecimal():
            raise Unread(411, "content-length must be stated")
        if int(stated) > largest:
            raise Unread(413, f"body must be <= {largest} bytes, got {stated[:20]}")
        if self._bodies >= BODIES:
            raise Unread(503, f"bodies must be fewer than {BODIES} at a time")
        self._bodies += 1
        try:
            async with asyncio.timeout(BODY_SECONDS):
                return await request.body()  # no more than was stated
        except TimeoutError as error:
            raise Unread(408, f"body must come within {BODY_SECONDS:g} s") from error
        finally:
            self._bodies -= 1


def _problem(status: int, title: str, detail: str) -> Response:
    content = {"type": "about:blank", "title": title, "status": status, "detail": detail[:400]}
    headers = {"retry-after": "1"} if status == 503 else None
    return Response(json.dumps(content), status, headers, PROBLEM)
