"""Questions to parties that fetch them by long polls, on the service of the operator.

    POST /relay/{digest of the federation}
      party u32 | name of the question answered, 32 bytes (zeros: none) | signature, 64 | answer
      -> 200  name, 32 | question      there is something to do
         204                           nothing within `POLL_SECONDS`: ask again
         401, 413, 429                 signature; size; rate
    GET  /healthz                      204

Polls are signed as `orders` says. Asking consumes nothing, and an answer counts for the one
question that it names, once: so no clock is needed, and none that is sent again does harm. The
header `message-summary` shows the signature before the body is read, in its party's own room.
"""

import asyncio
import ssl
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from train_distributed.federation.aggregator_limits import OCTETS, NoRoom
from train_distributed.federation.aggregator_server import in_thread
from train_distributed.federation.aggregator_watch import Watch
from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.door import Door, Unread
from train_distributed.federation.orders import (
    POLL_HEAD_BYTES,
    POLL_SECONDS,
    Poll,
    name_of_question,
    poll_signer,
    read_poll,
)
from train_distributed.secure_sum.errors import ProtocolError

AWAY_SECONDS = 30.0  # since a party's last poll began
MOST_POLLS = 16  # of one party, that wait at the same time
UNDER_WAY = 2**28  # bytes of answers that may be under way at once
SETTLE_SECONDS = 1.0  # for the last polls to be answered


@dataclass(frozen=True)
class _Asked:
    name: bytes
    question: bytes


class Polls(Door):
    """A `Relay` whose nodes are the parties themselves, by their numbers, each proven by its key.

    The coordinator asks in one thread, the service answers polls in another.

    Args:
        federation: whose parties are let in.
        watch: counts what happens.
    """

    def __init__(self, federation: Federation, watch: Watch) -> None:
        super().__init__(watch, partial(poll_signer, federation), proves=True)
        self._federation = federation
        self._largest = federation.largest_frame
        self._changed = threading.Condition()
        self._asked: dict[int, _Asked] = {}
        self._arrived: dict[int, bytes] = {}
        self._seen: dict[int, float] = {}  # party -> when its last poll began
        self._polling: dict[int, set[asyncio.Event]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: str | None = None  # why nobody is asked any more

    @property
    def routes(self) -> list[Route]:
        """Routes of the service."""
        path = f"/relay/{self._federation.digest.hex()}"
        return [
            Route(path, self.handler("relay", self.poll), methods=["POST"]),
            Route("/healthz", self.handler("health", self.health)),
        ]

    def nodes(self) -> list[int]:
        """Parties that are polling now."""
        now = time.monotonic()
        with self._changed:
            return sorted(p for p, seen in self._seen.items() if now - seen < AWAY_SECONDS)

    def ask_each(
        self, requests: Mapping[int, bytes], seconds: float | None = None
    ) -> Iterator[tuple[int, bytes]]:
        """(party, answer) as they come; other parties may be asked meanwhile.

        Args:
            requests: by party.
            seconds: for each to answer; as was agreed if left out.

        Raises:
            ConnectionError: the service has ended.
        """
        waiting, deadlines = list(requests), dict[int, float]()
        seconds = self._federation.deadlines.answer if seconds is None else seconds
        window = max(16, UNDER_WAY // self._largest)
        try:
            while waiting or deadlines:
                while waiting and len(deadlines) < window:
                    party = waiting.pop(0)
                    self._ask(party, requests[party])
                    deadlines[party] = time.monotonic() + seconds
                yield from self._wait(deadlines)
        finally:
            for party in deadlines:
                self._forget(party)

    def _ask(self, party: int, question: bytes) -> None:
        if len(question) > self._largest:
            raise ValueError(f"request must be <= {self._largest} bytes, got {len(question)}")
        with self._changed:
            self._arrived.pop(party, None)
            self._asked[party] = _Asked(name_of_question(question), question)
        self._wake([party])

    def _forget(self, party: int) -> None:
        with self._changed:
            self._asked.pop(party, None)
            self._arrived.pop(party, None)

    def _wait(self, deadlines: dict[int, float]) -> Iterator[tuple[int, bytes]]:
        """Those that have arrived; waits for one, or for the first deadline."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._ended is not None or not self._arrived.keys().isdisjoint(deadlines),
                max(0.0, min(deadlines.values()) - time.monotonic()),
            )
            if self._ended is not None:
                raise ConnectionError(f"service must listen, ended: {self._ended}")
            here = [(p, self._arrived.pop(p)) for p in [*deadlines] if p in self._arrived]
        for party, answer in here:
            del deadlines[party]
            yield party, answer
        now = time.monotonic()
        for party in [party for party, deadline in deadlines.items() if deadline <= now]:
            del deadlines[party]
            self._forget(party)

    def end(self, why: str) -> None:
        """Asks nobody any more: all polls are answered at once, and `ask_each` raises."""
        with self._changed:
            self._ended = self._ended or why
            self._changed.notify_all()
        self._wake([*self._polling])

    def settle(self) -> None:
        """Waits until the polls that were woken have been answered, if they are soon."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while any(self._polling.values()) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.05)  # their answers are on the way

    def _wake(self, parties: list[int]) -> None:
        def wake() -> None:
            for party in parties:
                for event in self._polling.get(party, ()):
                    event.set()

        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(wake)

    async def health(self, request: Request) -> Response:
        """Answers as long as the service does."""
        return Response(status_code=204)

    async def poll(self, request: Request) -> Response:
        """Takes an answer, if one is brought, and gives out the party's next question."""
        most, seconds = POLL_HEAD_BYTES + self._largest, self._federation.deadlines.send
        async with self.body(request, most, seconds) as body:
            poll = self._read(body)
        self._loop = asyncio.get_running_loop()
        self._take(poll)
        asked = await self._question(poll.party)
        if asked is None:
            return Response(status_code=204)
        return Response(asked.name + asked.question, media_type=OCTETS)

    def _take(self, poll: Poll) -> None:
        """Notes that a party is here, and its answer if that was asked for."""
        with self._changed:
            self._seen[poll.party] = time.monotonic()
            asked = self._asked.get(poll.party)
            if asked is not None and asked.name == poll.name:
                del self._asked[poll.party]
                self._arrived[poll.party] = poll.answer
                self._changed.notify_all()

    async def _question(self, party: int) -> _Asked | None:
        """The question that waits for a party; None: none came within the time of a poll."""
        polls, event = self._polling.setdefault(party, set()), asyncio.Event()
        if len(polls) >= MOST_POLLS:
            raise NoRoom(f"polls of one party must be <= {MOST_POLLS} at a time")
        polls.add(event)
        try:
            async with asyncio.timeout(POLL_SECONDS):
                while self._ended is None:
                    if (asked := self._asked.get(party)) is not None:
                        return asked
                    await event.wait()
                    event.clear()
        except TimeoutError:
            pass
        finally:
            polls.discard(event)
        return None

    def _read(self, body: bytes) -> Poll:
        try:
            return read_poll(self._federation, body)
        except ProtocolError as error:
            raise Unread(401, str(error)) from error


@contextmanager
def open_relay(
    federation: Federation,
    tls: ssl.SSLContext | None,
    host: str,
    port: int,
    routes: Iterable[Route] = (),
) -> Iterator[Polls]:
    """The operator's service, in a thread of its own, and the relay over it, until the block ends.

    Args:
        federation: whose parties are let in.
        tls: of the service; None: plain HTTP, as a proxy has it.
        host: address to listen on.
        port: port to listen on.
        routes: more that the service answers.

    Raises:
        OSError: the address is taken.
        ValueError: no such address.
    """
    watch = Watch()
    polls = Polls(federation, watch)
    app = Starlette(routes=[*polls.routes, *routes])
    users = len(federation.users)
    with in_thread(app, watch, host, port, tls, parties=users, ended=polls.end):
        try:
            yield polls
        finally:
            polls.end("it is over")
            polls.settle()
