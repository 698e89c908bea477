"""All parties of a secure sum in one process, every message made, sent, checked and measured."""

import os
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from pretrain import check
from train_distributed.secure_sum.journal import VolatileJournal
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.opening import Opened, combine
from train_distributed.secure_sum.parties import FIRST_SERVER
from train_distributed.secure_sum.prg import new_seed
from train_distributed.secure_sum.secagg import SERVER, SecAgg
from train_distributed.secure_sum.secagg_server import SecAggServer
from train_distributed.secure_sum.secagg_user import SecAggUser
from train_distributed.secure_sum.session import Session
from train_distributed.secure_sum.shares import SeedServer, SharesUser, VectorServer
from train_distributed.secure_sum.simulate_replicated import run_replicated
from train_distributed.secure_sum.wire import check_vector

ADVERTISE, SHARE_KEYS, MASKED_INPUT, UNMASK = range(4)  # stages at which a user can drop out
Drop = Mapping[int, Collection[int]]  # stage -> users whose message of that stage never comes
Protocol = Literal["shares", "shares-replicated", "secagg"]
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


def simulate_sum(
    vectors: NDArray[np.uint64],
    protocol: Protocol = "shares",
    servers: int = 3,
    drop: Drop | None = None,
    *,
    minimum: int | None = None,
    corrupt_fraction: float = 0.1,
    dropout_fraction: float = 0.2,
) -> SumResult:
    """Sums the users' vectors by a secure protocol.

    Args:
        vectors: (w, d) uint64, one row per user, w >= 2.
        protocol: "shares" (protocol A), "shares-replicated" (A with replicas, against a server that
            lies) or "secagg" (protocol B).
        servers: J of protocol A, >= 3 with replicas; protocol B has one.
        drop: stage (0 advertise keys, 1 share keys, 2 masked input, 3 unmask) -> users that drop
            out then. Protocol A's one message belongs to stage 2: who drops out there has reached
            all servers but the last, earlier none, later all.
        minimum: m_min, fewest users whose sum is opened; default more than half.
        corrupt_fraction: protocol B's, see `choose_degree`, and the replicas', see `Replicated`.
        dropout_fraction: likewise.

    Raises:
        ValueError: an argument outside its range.
        TooFewUsers: too many dropped out; nothing is released.
    """
    if vectors.ndim != 2 or vectors.dtype != np.uint64 or len(vectors) < 2:
        raise ValueError(f"vectors must be (w >= 2, d) uint64, got {vectors.shape} {vectors.dtype}")
    gone = _gone_at(drop or {}, len(vectors))
    least = len(vectors) // 2 + 1 if minimum is None else minimum
    meter = _Meter()
    check.one_of(get_args(Protocol), protocol=protocol)
    if protocol == "shares":
        reached = [user for user, stage in enumerate(gone) if stage >= MASKED_INPUT]
        whole = SharesSum(len(vectors), vectors.shape[1], servers, least, reached)
        for user in reached:
            if gone[user] > MASKED_INPUT:
                whole.add(user, vectors[user])
        return whole.result()
    if protocol == "shares-replicated":
        reached = [max(0, servers * (g >= MASKED_INPUT) - (g == MASKED_INPUT)) for g in gone]
        opened = run_replicated(vectors, servers, reached, least, corrupt_fraction, meter)
    else:
        keys = PrivateKeys.generate()
        users = [PrivateKeys.generate() for _ in vectors]
        setup = SecAgg.agree_on(
            nonce=new_seed(),
            dimension=vectors.shape[1],
            minimum=least,
            users={i: key.public.verifying for i, key in enumerate(users)},
            server=keys.public,
            corrupt_fraction=corrupt_fraction,
            dropout_fraction=dropout_fraction,
        )
        opened = _run_secagg(vectors, setup, keys, users, gone, meter)
    return meter.result(opened, len(vectors))


class _Meter:
    """Bytes and seconds of every party."""

    def __init__(self) -> None:
        self._bytes: defaultdict[int, int] = defaultdict(int)
        self._seconds: defaultdict[int, float] = defaultdict(float)
        self._elapsed: defaultdict[int, float] = defaultdict(float)

    def at(self, party: int, work: Callable[[], T]) -> T:
        """Does a party's work and books its time."""
        start, begun = self._cpu(), time.perf_counter()
        try:
            return work()
        finally:
            self._seconds[party] += self._cpu() - start
            self._elapsed[party] += time.perf_counter() - begun

    def _cpu(self) -> float:
        """Seconds of this process and of those that it has waited for."""
        return time.process_time() + sum(os.times()[2:4])

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

    All users hand out their seeds at once; their vectors follow as they are added, or never.

    Args:
        users: w >= 2.
        dimension: d.
        servers: J >= 2.
        minimum: m_min, fewest users whose sum is opened.
        reached: users whose seeds reach the servers; None: all.

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
        self._users, self._meter = users, _Meter()
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


def _run_secagg(
    vectors: NDArray[np.uint64],
    setup: SecAgg,
    keys: PrivateKeys,
    user_keys: list[PrivateKeys],
    gone: list[int],
    meter: _Meter,
) -> Opened:
    """Protocol B; a user's last two answers both belong to the unmasking stage."""
    server = SecAggServer(setup, keys, VolatileJournal())
    users: dict[int, SecAggUser] = {}
    for i, vector in enumerate(vectors):
        if gone[i] > ADVERTISE:
            user = SecAggUser(setup, i, user_keys[i], vector, VolatileJournal())
            users[i] = user
            message = meter.sent(meter.at(i, user.start), i, SERVER)
            meter.at(SERVER, lambda m=message: server.receive(m))
    for stage in (SHARE_KEYS, MASKED_INPUT, UNMASK, UNMASK):
        messages = meter.at(SERVER, server.advance)
        for i in sorted(messages):
            question = meter.at(SERVER, lambda m=messages, i=i: m[i])
            meter.sent(question, i, SERVER)
            if gone[i] > stage:
                answer = meter.at(i, lambda u=users[i], q=question: u.receive(q))
                meter.sent(answer, i, SERVER)
                meter.at(SERVER, lambda a=answer: server.receive(a))
    return meter.at(SERVER, server.finish)


def _gone_at(drop: Drop, users: int) -> list[int]:
    """The stage at which each user drops out; one past the last for those that stay."""
    gone = [UNMASK + 1] * users
    for stage, dropped in drop.items():
        check.within(f"[0, {UNMASK}]", **{"stage in drop": stage})
        for user in dropped:
            check.within(f"[0, {users - 1}]", **{"user in drop": user})
            gone[user] = min(gone[user], stage)
    return gone
