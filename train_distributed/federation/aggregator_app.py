"""An aggregator as a web service: an ASGI application, in the shape of the IETF's DAP.

    POST /tasks/{id}/reports             leader: a report -> 201, the signed acknowledgement
    PUT  /tasks/{id}/aggregation_jobs/…  helper: a job -> 200, the verdicts
    GET  /tasks/{id}                     leader: 204, while reports are taken
    POST /tasks/{id}                     an order of the operator's: status
    POST /tasks/{id}/collection_jobs     COMMIT
    POST /tasks/{id}/aggregate_shares    OPEN
    GET  /healthz                        204, if the database answers

Bodies are octets, signed and sealed; how they are bounded and refused says `door`. Reports that
arrive while others are written are written together. GET requests ask the database once a second at
most. All state is in the database; any number of processes may serve the same task where that is
PostgreSQL.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from train_distributed.federation.aggregator_limits import OCTETS, Asked
from train_distributed.federation.aggregator_watch import LOG, Watch
from train_distributed.federation.door import Door
from train_distributed.secure_sum.aggregator import (
    Aggregator,
    Helper,
    Leader,
    Send,
    order_bytes,
    request_bytes,
)
from train_distributed.secure_sum.errors import ProtocolError

BATCH = 256  # reports that are written together
LOOK_SECONDS = 1.0  # between looks for reports that wait, and after the helper was gone


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


class Service(Door):
    """The requests of one aggregator."""

    def __init__(self, aggregator: Aggregator, watch: Watch) -> None:
        super().__init__(watch, aggregator.sender, aggregator.window.servers)
        self._aggregator = aggregator
        self._largest = request_bytes(aggregator.window, aggregator.number)
        self._order = order_bytes(aggregator.window.window)
        self._waiting: list[tuple[bytes, asyncio.Future[bytes | ProtocolError]]] = []
        self._writing: asyncio.Task[None] | None = None
        self._healthy = Asked(aggregator.check)
        if isinstance(aggregator, Leader):
            self._taking = Asked(aggregator.check_open)

    async def report(self, request: Request) -> Response:
        """Takes a report, and acknowledges it once it is on the disk."""
        async with self.body(request, self._largest) as body:
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
        async with self.body(request, self._largest) as body:
            answer = await asyncio.to_thread(self._aggregator.prepare, body)
        return Response(answer, media_type=OCTETS)

    async def order(self, request: Request) -> Response:
        """Does what the operator orders."""
        async with self.body(request, self._order) as body:
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
