"""Limits on what strangers and users may make an aggregator do: bytes, seconds, requests.

A request that shows an enrolled party's signature (`wire.summary`) is known before its body is
read; all others are strangers', by their address. Strangers' bodies have a room of their own, so
that they never take the place of a user's; each owner has a share of a room, and a place is kept
until the answer. A room without place ends the body that comes too slowly, and otherwise refuses
the new one for now.

`Credit` is a token bucket for each owner and one for all strangers together: a request costs one
token, and one for each 64 KiB and each second that its body takes. The tables are bounded.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from train_distributed.federation.places import network

OCTETS = "application/octet-stream"
SUMMARY = "message-summary"  # header: base64 of what shows who has signed the body
USERS_BYTES, STRANGERS_BYTES = 2**25, 2**23  # of all bodies that are being read
LEAST_BYTES = 2**15  # that a body counts
SLOW_SECONDS, SLOW_BYTES = 1.0, 2**14  # a body older than this comes as fast a second, or may end
ONE, ALL = (2000, 200.0), (20_000, 2000.0)  # tokens, and those that come back each second
TOKEN_BYTES = 2**16
OWNERS = 4096  # that a table remembers
FRESH_SECONDS = 1.0  # for which an answer is that of before
Clock = Callable[[], float]


class NoRoom(Exception):
    """No room for a body, or no credit; its words say which, and it may be asked again."""


@dataclass(eq=False)
class Body:
    """A body that is being read."""

    owner: Hashable
    size: int
    began: float
    end: asyncio.Timeout
    received: int = 0

    def whole(self) -> None:
        """It has come, and keeps its place until it is answered."""
        self.received = 2**62
        self.end.reschedule(None)

    def slowness(self, now: float) -> float:
        """Bytes that are missing at the pace that a body must have; above 0: it may be ended."""
        age = now - self.began
        return age * SLOW_BYTES - self.received if age > SLOW_SECONDS else 0.0


class Room:
    """Bodies that are read at the same time, all together bounded in bytes.

    Args:
        most_bytes: of all of them; one body always finds room in an empty room.
        each: bodies of one owner.
    """

    def __init__(self, most_bytes: int, each: int) -> None:
        self._most, self._each = most_bytes, each
        self._bodies = set[Body]()

    @asynccontextmanager
    async def body(self, owner: Hashable, length: int, seconds: float) -> AsyncIterator[Body]:
        """A place for a body of this length, whose block notes what it has received.

        Raises:
            NoRoom: there is none.
            TimeoutError: the body did not come within `seconds`, or too slowly where room is short.
        """
        async with asyncio.timeout(seconds) as end:
            now = asyncio.get_running_loop().time()
            body = Body(owner, max(length, LEAST_BYTES), now, end)
            self._make_room(body)
            self._bodies.add(body)
            try:
                yield body
            finally:
                self._bodies.discard(body)

    def _make_room(self, body: Body) -> None:
        own = [each for each in self._bodies if each.owner == body.owner]
        if len(own) >= self._each:
            self._end_slowest(own, body.began, f"bodies of one party must be <= {self._each}")
        while self._bodies and sum(each.size for each in self._bodies) + body.size > self._most:
            words = f"bodies at a time must be <= {self._most} bytes"
            self._end_slowest(list(self._bodies), body.began, words)

    def _end_slowest(self, bodies: list[Body], now: float, words: str) -> None:
        slowest = max(bodies, key=lambda each: each.slowness(now))
        if slowest.slowness(now) <= 0:
            raise NoRoom(words)
        self._bodies.discard(slowest)
        slowest.end.reschedule(now)


class Credit:
    """Token buckets of owners.

    Args:
        most: tokens of a full bucket.
        rate: tokens that come back each second.
        owners: buckets that are remembered; beyond, the one used least recently is full again.
        clock: seconds, rising.
    """

    def __init__(
        self, most: int, rate: float, owners: int = OWNERS, clock: Clock = time.monotonic
    ) -> None:
        self._most, self._rate, self._owners, self._clock = most, rate, owners, clock
        self._spent = OrderedDict[Hashable, tuple[float, float]]()  # owner -> (tokens, when)

    def spend(self, owner: Hashable, tokens: float) -> None:
        """Takes tokens; a bucket may be overdrawn."""
        self._spent[owner] = self._used(owner) + tokens, self._clock()
        self._spent.move_to_end(owner)
        if len(self._spent) > self._owners:
            self._spent.popitem(last=False)

    def check(self, owner: Hashable) -> None:
        """Raises NoRoom for an empty bucket."""
        if self._used(owner) >= self._most:
            raise NoRoom(f"requests must be fewer, {self._rate:g} a second in the long run")

    def _used(self, owner: Hashable) -> float:
        tokens, when = self._spent.get(owner, (0.0, 0.0))
        return max(0.0, tokens - self._rate * (self._clock() - when))


class RateLimits:
    """All of an aggregator's: a room and buckets for users, the same for strangers."""

    def __init__(self) -> None:
        self._rooms = Room(USERS_BYTES, 1), Room(USERS_BYTES, 16), Room(STRANGERS_BYTES, 8)
        self._credit, self._all = Credit(*ONE), Credit(*ALL, owners=1)

    @asynccontextmanager
    async def user(self, user: int, length: int, seconds: float) -> AsyncIterator[Body]:
        """Place for the body of an enrolled user; see `Room.body`."""
        self._credit.check(user)
        async with self._rooms[0].body(user, length, seconds) as body:
            self._credit.spend(user, 1 + length / TOKEN_BYTES)
            yield body

    def aggregator(
        self, number: int, length: int, seconds: float
    ) -> AbstractAsyncContextManager[Body]:
        """Place for the body of an aggregator, which has no bucket."""
        return self._rooms[1].body(number, length, seconds)

    @asynccontextmanager
    async def stranger(self, host: str, length: int, seconds: float) -> AsyncIterator[Body]:
        """Place for the body of anybody else, at this address."""
        owner, start = network(host), time.monotonic()
        self._credit.check(owner)
        self._all.check("")
        try:
            async with self._rooms[2].body(owner, length, seconds) as body:
                yield body
        finally:
            tokens = 1 + length / TOKEN_BYTES + time.monotonic() - start
            self._credit.spend(owner, tokens)
            self._all.spend("", tokens)


class Asked:
    """The answer to a question that costs something: asked once a while, whoever wants it."""

    def __init__(self, ask: Callable[[], None]) -> None:
        self._ask, self._until = ask, 0.0
        self._answer: asyncio.Task[None] | None = None

    async def __call__(self) -> None:
        """Waits for the answer, which is none or an error."""
        if self._answer is None or (self._answer.done() and time.monotonic() >= self._until):
            self._answer = asyncio.create_task(asyncio.to_thread(self._ask))
            self._until = time.monotonic() + FRESH_SECONDS
        await asyncio.shield(self._answer)

    def forget(self) -> None:
        """Has the next one ask again."""
        self._answer = None
