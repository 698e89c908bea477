"""Protocol A with all its parties in one process, and the meter of what a run costs."""

import os
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from train_distributed.secure_sum.journal import VolatileJournal
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.opening import Opened, combine
from train_distributed.secure_sum.parties import FIRST_SERVER
from train_distributed.secure_sum.prg import new_seed
from train_distributed.secure_sum.session import Session
from train_distributed.secure_sum.shares import SeedServer, SharesUser, VectorServer
from train_distributed.secure_sum.wire import check_vector

T = TypeVar("T")


@dataclass(frozen=True)
class SumResult:
    """A sum, and what it cost; set-up (keys) is not counted."""

    total: NDArray[np.uint64]  # (d,) sum over the survivors modulo 2^64
    survivors: tuple[int, ...]  # rows of `vectors` that the sum contains
    bytes_per_client: int  # sent and received, of the user with most
    bytes_server: int  # sent and received, of the server with most
    seconds_per_client: float  # CPU time, mean over users
    seconds_server: float  # CPU time, of the server with most
    elapsed_server: float  # the same by the clock: it may work on several cores


class Meter:
    """Bytes and seconds of every party."""

    def __init__(self) -> None:
        self._bytes: defaultdict[int, int] = defaultdict(int)
        self._seconds: defaultdict[int, float] = defaultdict(float)
        self._elapsed: defaultdict[int, float] = defaultdict(float)

    def at(self, party: int, work: Callable[[], T]) -> T:
        """Does a party's work and books its time."""
        start, begun = _cpu(), time.perf_counter()
        try:
            return work()
        finally:
            self._seconds[party] += _cpu() - start
            self._elapsed[party] += time.perf_counter() - begun

    def sent(self, message: bytes, *parties: int) -> bytes:
        """Books a message at its sender and its receivers."""
        for party in parties:
            self._bytes[party] += len(message)
        return message

    def result(self, opened: Opened, users: int) -> SumResult:
        """Result of the run, with its cost."""
        return SumResult(
            total=opened.total,
            survivors=tuple(sorted(opened.users)),
            bytes_per_client=max(self._bytes[i] for i in range(users)),
            bytes_server=max(b for i, b in self._bytes.items() if i >= FIRST_SERVER),
            seconds_per_client=sum(self._seconds[i] for i in range(users)) / users,
            seconds_server=max(s for i, s in self._seconds.items() if i >= FIRST_SERVER),
            elapsed_server=max(s for i, s in self._elapsed.items() if i >= FIRST_SERVER),
        )


class SharesSum:
    """Protocol A with all its parties in one process, one vector in memory at a time.

    Users hand out their seeds at once, those that are `reached` (None: all); their vectors follow
    as they are added, or never.

    Raises:
        ValueError: an argument outside its range.
    """

    def __init__(
        self,
        users: int,
        dimension: int,
        servers: int,
        minimum: int,
        reached: Collection[int] | None = None,
    ) -> None:
        self._users, self._meter = users, Meter()
        keys = {FIRST_SERVER + j: PrivateKeys.generate() for j in range(servers)}
        own = [PrivateKeys.generate() for _ in range(users)]
        self._session = session = Session(
            nonce=new_seed(),
            dimension=dimension,
            minimum=minimum,
            users={i: key.public.verifying for i, key in enumerate(own)},
            servers={server: key.public for server, key in keys.items()},
            context=b"shares",
        )
        *first, self._last = sorted(keys)
        journal = VolatileJournal
        self._holders = {s: SeedServer(session, s, keys[s], journal()) for s in first}
        self._adder = VectorServer(session, self._last, keys[self._last], journal())
        self._vector = np.zeros(dimension, np.uint64)  # whose user is about to send it
        self._pending: dict[int, Iterator[tuple[int, bytes]]] = {}
        for i in range(users) if reached is None else sorted(reached):
            self._hand_out(i, SharesUser(session, i, own[i], journal()))
        for server, holder in self._holders.items():
            held = self._meter.sent(self._meter.at(server, holder.close), server, self._last)
            self._meter.at(self._last, lambda h=held: self._adder.receive(h))

    def _hand_out(self, i: int, user: SharesUser) -> None:
        meter = self._meter
        parts = self._pending[i] = meter.at(i, lambda: user.submit(self._vector))
        for _ in self._holders:
            server, message = meter.at(i, lambda: next(parts))
            meter.sent(message, i, server)
            meter.at(server, lambda s=server, m=message: self._holders[s].receive(m))

    def add(self, user: int, vector: NDArray[np.uint64]) -> None:
        """Takes a user's (d,) vector; once.

        Raises:
            ValueError: not (d,) uint64, or of a user that no vector is awaited of.
        """
        check_vector(vector, self._session.dimension)
        if user not in self._pending:
            raise ValueError(f"user must be one whose vector is still to come, got {user}")
        meter, parts = self._meter, self._pending.pop(user)
        self._vector[:] = vector
        _, message = meter.at(user, lambda: next(parts))
        meter.sent(message, user, self._last)
        meter.at(self._last, lambda: self._adder.receive(message))

    def result(self) -> SumResult:
        """Opens the sum of the users that were added.

        Raises:
            TooFewUsers: fewer than the minimum; nothing is released.
        """
        meter, commit = self._meter, b""
        machines: dict[int, SeedServer | VectorServer] = {self._last: self._adder, **self._holders}
        for server, machine in machines.items():
            commit = meter.at(server, machine.commit)
            for other in machines.keys() - {server}:
                meter.sent(commit, server, other)
                meter.at(other, lambda o=other, c=commit: machines[o].receive(c))
        openings = []
        for server, machine in machines.items():
            openings.append(meter.sent(meter.at(server, machine.open), server, self._last))
        opened = meter.at(self._last, lambda: combine(self._session, commit, openings))
        return meter.result(opened, self._users)


def _cpu() -> float:
    """Seconds of this process and of those that it has waited for."""
    return time.process_time() + sum(os.times()[2:4])
