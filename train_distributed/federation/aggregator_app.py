"""An aggregator as a web service: an ASGI application, in the shape of the IETF's DAP.

    POST /tasks/{id}/reports             leader: a report -> 201, the signed acknowledgement
    PUT  /tasks/{id}/aggregation_jobs/…  helper: a job -> 200, the verdicts
    GET  /tasks/{id}                     leader: 204, while reports are taken
    POST /tasks/{id}                     an order of the operator's: status
    POST /tasks/{id}/collection_jobs     COMMIT
    POST /tasks/{id}/aggregate_shares    OPEN
    POST /tasks/{id}/centre              CENTRE; from then on the second sum is a task, too
    GET  /tasks/{id}/centre              leader: 200, that order; 204, there is none yet
    GET  /healthz                        204, if the database answers

Bodies are octets, signed and sealed; how they are bounded and refused says `door`. Reports that
arrive while others are written are written together. GET requests ask the database once a second at
most. All state is in the database; any number of processes may serve the same task where that is
PostgreSQL.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from train_distributed.federation.aggregator_limits import OCTETS, Asked
from train_distributed.federation.aggregator_watch import LOG, Watch
from train_distributed.federation.door import Door, problem
from train_distributed.secure_sum.aggregator import (
    Aggregator,
    Helper,
    Leader,
    Send,
    order_bytes,
    read_centre,
    request_bytes,
)
from train_distributed.secure_sum.errors import ProtocolError
from train_distributed.secure_sum.window import Window

BATCH = 256  # reports that are written together
Second = Callable[[Window], tuple[Aggregator, Send]]
LOOK_SECONDS = 1.0  # between looks for reports that wait, and after the helper was gone


def application(
    aggregator: Aggregator,
    send: Send | None = None,
    watch: Watch | None = None,
    proxies: Sequence[str] = (),
    second: Second | None = None,
) -> Starlette:
    """The service of one aggregator.

    Args:
        aggregator: what answers.
        send: how a leader sends a job to the helper.
        watch: counts what happens.
        proxies: addresses whose X-Forwarded-For is believed; nobody's otherwise.
        second: starts the aggregator of the second sum, where one was agreed on.
    """
    watch = Watch() if watch is None else watch
    tasks = Tasks(aggregator, send, watch, second)
    watch.count_reports(tasks.counts)
    first, base = tasks.first, "/tasks/{task}"
    posts = [base, f"{base}/collection_jobs", f"{base}/aggregate_shares", f"{base}/centre"]
    routes = [tasks.route(path, "order", "POST") for path in posts]
    if isinstance(aggregator, Leader):
        routes.append(tasks.route(f"{base}/reports", "report", "POST"))
        routes.append(tasks.route(base, "open", "GET"))
        routes.append(tasks.route(f"{base}/centre", "centre", "GET"))
    else:
        routes.append(tasks.route(f"{base}/aggregation_jobs/{{job}}", "job", "PUT"))
    routes.append(Route("/healthz", first.handler("health", first.health)))
    app = Starlette(routes=routes, lifespan=tasks.working)
    app.state.service = first
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


class Tasks:
    """The first sum of an aggregator, and the second one as soon as a centre is published."""

    def __init__(
        self, aggregator: Aggregator, send: Send | None, watch: Watch, second: Second | None
    ) -> None:
        self.first, self._watch, self._second = Service(aggregator, watch), watch, second
        self._of_first = self._under_way = aggregator, send
        self._services = {aggregator.window.digest.hex(): self.first}
        self._looked = Asked(self._look)
        self._stop, self._workers = threading.Event(), list[threading.Thread]()

    def counts(self) -> dict[int, int]:
        """Reports to the sum under way, by their state."""
        return self._under_way[0].counts()

    def route(self, path: str, name: str, method: str) -> Route:
        """The route of the request of this name, of whichever task its path names."""

        async def answer(request: Request) -> Response:
            task = request.path_params["task"]
            if task not in self._services:
                await self._looked()
            service = self._services.get(task)
            if service is None:
                return problem(404, "NotFound", "there is no such task")
            response = await getattr(service, name)(request)
            if name == "order":
                self._looked.forget()
            return response

        return Route(path, self.first.handler(name, answer), methods=[method])

    @asynccontextmanager
    async def working(self, _: Starlette) -> AsyncIterator[None]:
        """A leader has reports decided while this context lasts."""
        self._work(*self._of_first)
        try:
            await asyncio.to_thread(self._look)
            yield
        finally:
            self._stop.set()
            for worker in self._workers:
                worker.join()

    def _work(self, aggregator: Aggregator, send: Send | None) -> None:
        if isinstance(aggregator, Leader) and send is not None:
            given = aggregator, send, self._stop, self._watch
            self._workers.append(threading.Thread(target=work, args=given, daemon=True))
            self._workers[-1].start()

    def _look(self) -> None:
        """Starts the second sum if its centre was published, by whichever process."""
        if self._second is None or len(self._services) > 1:
            return
        first = self._of_first[0]
        if not (order := first.published):
            return
        window = first.window.window
        found, send = self._under_way = self._second(window.at(read_centre(window, order)))
        self._services[found.window.digest.hex()] = Service(found, self._watch, self.first)
        self._work(found, send)


class Service(Door):
    """The requests of one aggregator; of a second one, with the limits of the first."""

    def __init__(
        self, aggregator: Aggregator, watch: Watch, first: "Service | None" = None
    ) -> None:
        super().__init__(watch, aggregator.sender, aggregator.window.servers)
        if first is not None:
            self._limits = first._limits
        self._aggregator = aggregator
        self._largest = request_bytes(aggregator.window, aggregator.number)
        self._order = order_bytes(aggregator.window.window)
        self._waiting: list[tuple[bytes, asyncio.Future[bytes | ProtocolError]]] = []
        self._writing: asyncio.Task[None] | None = None
        self._healthy = Asked(aggregator.check)
        if isinstance(aggregator, Leader):
            self._taking = Asked(aggregator.check_open)
            self._published, self._asked = b"", Asked(self._look)

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
            self._asked.forget()
        LOG.info("an order was carried out")
        return Response(answer, media_type=OCTETS)

    async def open(self, request: Request) -> Response:
        """Says whether reports are taken."""
        await self._taking()
        return Response(status_code=204)

    async def centre(self, request: Request) -> Response:
        """The order that has published the centre."""
        if not self._published:
            await self._asked()
        return Response(self._published, 200 if self._published else 204, media_type=OCTETS)

    def _look(self) -> None:
        self._published = self._aggregator.published

    async def health(self, request: Request) -> Response:
        """Asks the database."""
        await self._healthy()
        return Response(status_code=204)
