"""An aggregator as a web service: an ASGI application, in the shape of the IETF's DAP.

    POST /tasks/{id}/reports             leader: a report -> 201, the signed acknowledgement
    PUT  /tasks/{id}/aggregation_jobs/…  helper: a job -> 200, the verdicts
    GET  /tasks/{id}                     leader: 204, while reports are taken
    POST /tasks/{id}                     an order of the operator's: status
    POST /tasks/{id}/collection_jobs     COMMIT
    POST /tasks/{id}/aggregate_shares    OPEN
    GET  /healthz                        204, if the database answers

A refusal is JSON as RFC 9457 has it, whose `title` is the name of the error; 503 says: later.
Bodies are octets, signed and sealed, and bounded before they are read; a header shows who signed,
so that an enrolled party has room of its own (`aggregator_limits`). Reports that arrive while
others are written are written together. GET requests ask the database once a second at most. All
state is in the database; any number of processes may serve the same task where that is PostgreSQL.
"""

import asyncio
import base64
import binascii
import json
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from train_distributed.flower.aggregator_limits import Asked, Body, Limits, NoRoom
from train_distributed.flower.aggregator_watch import LOG, Watch
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
SUMMARY = "message-summary"  # header: base64 of `wire.summary`
BODY_SECONDS = 20.0  # in which a body must have arrived
BATCH = 256  # reports that are written together
LOOK_SECONDS = 1.0  # between looks for reports that wait, and after the helper was gone
Handler = Callable[[Request], Awaitable[Response]]


class Unread(Exception):
    """A body that is not read; the status says why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


def application(
    aggregator: Aggregator,
    send: Send | None = None,
    watch: Watch | None = None,
    proxies: Sequence[str] = (),
) -> Starlette:
    """The service of one aggregator.

    Args:
        aggregator: what answers.
        send: how a leader sends a job to the helper.
        watch: counts what happens.
        proxies: addresses whose X-Forwarded-For is believed; nobody's otherwise.
    """
    watch = Watch() if watch is None else watch
    watch.count_reports(aggregator.counts)
    service = Service(aggregator, watch)
    base = f"/tasks/{aggregator.window.digest.hex()}"
    order = service.handler("order", service.order)
    posts = [base, f"{base}/collection_jobs", f"{base}/aggregate_shares"]
    routes = [Route(path, order, methods=["POST"]) for path in posts]
    if isinstance(aggregator, Leader):
        handler = service.handler("report", service.report)
        routes.append(Route(f"{base}/reports", handler, methods=["POST"]))
        routes.append(Route(base, service.handler("open", service.open)))
    else:
        handler = service.handler("job", service.job)
        routes.append(Route(f"{base}/aggregation_jobs/{{job}}", handler, methods=["PUT"]))
    routes.append(Route("/healthz", service.handler("health", service.health)))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        if not isinstance(aggregator, Leader) or send is None:
            yield
            return
        stop = threading.Event()
        working = threading.Thread(target=work, args=(aggregator, send, stop, watch), daemon=True)
        working.start()
        try:
            yield
        finally:
            stop.set()
            working.join()

    app = Starlette(routes=routes, lifespan=lifespan)
    app.state.service = service
    if proxies:
        app.add_middleware(ProxyHeadersMiddleware, trusted_hosts=list(proxies))
    return app


def work(leader: Leader, send: Send, stop: threading.Event, watch: Watch) -> None:
    """Has reports that wait decided until it is stopped; what fails is tried again."""
    sent = 0

    def counted(job: bytes) -> bytes:
        nonlocal sent
        sent += 1
        try:
            with watch.job_seconds.time():
                answer = send(job)
        except OSError:
            watch.jobs.labels("failed").inc()
            raise
        watch.jobs.labels("decided").inc()
        sent -= 1
        return answer

    while not stop.is_set():
        before = sent
        try:
            if leader.work(counted):
                continue
        except (OSError, ValueError) as error:
            if sent == before and isinstance(error, OSError):  # it was not the helper
                watch.database_errors.inc()
            LOG.warning("reports wait", extra={"fields": {"why": str(error)[:300]}})
        stop.wait(LOOK_SECONDS)


class Service:
    """The requests of one aggregator."""

    def __init__(self, aggregator: Aggregator, watch: Watch) -> None:
        self._aggregator, self._watch, self._limits = aggregator, watch, Limits()
        self._largest = request_bytes(aggregator.window, aggregator.number)
        self._order = order_bytes(aggregator.window.window)
        self._waiting: list[tuple[bytes, asyncio.Future[bytes | ProtocolError]]] = []
        self._writing: asyncio.Task[None] | None = None
        self._healthy = Asked(aggregator.check)
        if isinstance(aggregator, Leader):
            self._taking = Asked(aggregator.check_open)

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
            return _problem(error.status, "Unread", str(error))
        except NoRoom as error:
            return _problem(429, "NoRoom", str(error))
        except (NotYet, OSError) as error:
            if isinstance(error, OSError):
                self._watch.database_errors.inc()
                LOG.error("database fails", extra={"fields": {"why": str(error)[:300]}})
            return _problem(503, type(error).__name__, str(error))
        except ProtocolError as error:
            status = 413 if isinstance(error, OversizedMessage) else 409
            if not isinstance(error, OutOfOrder | OversizedMessage):
                status = 400
            return _problem(status, type(error).__name__, str(error))
        except ClientDisconnect:
            return _problem(400, "Unread", "body must come whole")
        except Exception:
            LOG.exception("a request fails")
            return _problem(500, "InternalError", "it is in the log")

    async def report(self, request: Request) -> Response:
        """Takes a report, and acknowledges it once it is on the disk."""
        async with self._body(request, self._largest) as body:
            future = asyncio.get_running_loop().create_future()
            self._waiting.append((body, future))
            if self._writing is None or self._writing.done():
                self._writing = asyncio.create_task(self._write())
            answer = await future
        refused = isinstance(answer, ProtocolError)
        self._watch.reports.labels(type(answer).__name__ if refused else "acknowledged").inc()
        if refused:
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
        async with self._body(request, self._largest) as body:
            answer = await asyncio.to_thread(self._aggregator.prepare, body)
        return Response(answer, media_type=OCTETS)

    async def order(self, request: Request) -> Response:
        """Does what the operator orders."""
        async with self._body(request, self._order) as body:
            answer = await asyncio.to_thread(self._aggregator.order, body)
        if isinstance(self._aggregator, Leader):
            self._taking.forget()
        LOG.info("an order was carried out")
        return Response(answer, media_type=OCTETS)

    async def open(self, request: Request) -> Response:
        """Says whether reports are taken."""
        await self._taking()
        return Response(status_code=204)

    async def health(self, request: Request) -> Response:
        """Asks the database."""
        await self._healthy()
        return Response(status_code=204)

    @asynccontextmanager
    async def _body(self, request: Request, largest: int) -> AsyncIterator[bytes]:
        """The body, no longer than this, which has its room until the block ends.

        Raises:
            Unread: it has no length or too much, or comes too slowly.
            NoRoom: there are too many.
        """
        stated = request.headers.get("content-length", "")
        if not stated.isascii() or not stated.isdecimal():
            raise Unread(411, "content-length must be stated")
        if len(stated) > 20 or int(stated) > largest:
            raise Unread(413, f"body must be <= {largest} bytes, got {stated[:20]}")
        try:
            async with self._place(request, int(stated)) as place:
                body = bytearray()
                async for piece in request.stream():  # no more than was stated
                    body += piece
                    place.received += len(piece)
                place.whole()
                yield bytes(body)
        except TimeoutError as error:
            words = f"body must come within {BODY_SECONDS:g} s, and make room"
            raise Unread(408, words) from error

    def _place(self, request: Request, length: int) -> AbstractAsyncContextManager[Body]:
        """Room for a body, of whoever has signed it as the header shows."""
        sender = None
        with suppress(ProtocolError, binascii.Error, ValueError):
            shown = base64.b64decode(request.headers.get(SUMMARY, ""), validate=True)
            sender = self._aggregator.sender(shown)
        if sender is None:
            host = request.client.host if request.client else ""
            return self._limits.stranger(host, length, BODY_SECONDS)
        if sender in self._aggregator.window.servers:
            return self._limits.aggregator(sender, length, BODY_SECONDS)
        return self._limits.user(sender, length, BODY_SECONDS)


def _problem(status: int, title: str, detail: str) -> Response:
    content = {"type": "about:blank", "title": title, "status": status, "detail": detail[:400]}
    headers = {"retry-after": "1"} if status in (429, 503) else None
    return Response(json.dumps(content), status, headers, PROBLEM)
