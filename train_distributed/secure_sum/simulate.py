"""All parties of a secure sum in one process, every message made, sent, checked and measured."""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from train_distributed.secure_sum.journal import VolatileJournal
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.opening import Opened, combine
from train_distributed.secure_sum.prg import new_seed
from train_distributed.secure_sum.secagg import SERVER, SecAgg
from train_distributed.secure_sum.secagg_server import SecAggServer
from train_distributed.secure_sum.secagg_user import SecAggUser
from train_distributed.secure_sum.session import FIRST_SERVER, Session
from train_distributed.secure_sum.shares import SeedServer, SharesUser, VectorServer
from train_distributed.secure_sum.simulate_replicated import run_replicated

ADVERTISE, SHARE_KEYS, MASKED_INPUT, UNMASK = range(4)  # stages at which a user can drop out
Drop = Mapping[int, Collection[int]]  # stage -> users whose message of that stage never comes
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


def simulate_sum(
    vectors: NDArray[np.uint64],
    protocol: Literal["shares", "shares-replicated", "secagg"] = "shares",
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
    if protocol == "shares":
        opened = _run_shares(vectors, servers, gone, least, meter)
    elif protocol == "shares-replicated":
        reached = [max(0, servers * (g >= MASKED_INPUT) - (g == MASKED_INPUT)) for g in gone]
        opened = run_replicated(vectors, servers, reached, least, corrupt_fraction, meter)
    elif protocol == "secagg":
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
    else:
        raise ValueError(
            f'protocol must be "shares", "shares-replicated" or "secagg", got {protocol!r}'
        )
    return meter.result(opened, len(vectors))


class _Meter:
    """Bytes and seconds of every party."""

    def __init__(self) -> None:
        self._bytes: defaultdict[int, int] = defaultdict(int)
        self._seconds: defaultdict[int, float] = defaultdict(float)

    def at(self, party: int, work: Callable[[], T]) -> T:
        """Does a party's work and books its time."""
        start = time.process_time()
        try:
            return work()
        finally:
            self._seconds[party] += time.process_time() - start

    def sent(self, message: bytes, *parties: int) -> bytes:
        """Books a message at its sender and its receivers."""
        for party in parties:
            self._bytes[party] += len(message)
        return message

    def result(self, opened: Opened, users: int) -> SumResult:
        """What the run cost."""
        return SumResult(
            total=opened.total,
            survivors=tuple(sorted(opened.users)),
            bytes_per_client=max(self._bytes[i] for i in range(users)),
            bytes_server=max(b for i, b in self._bytes.items() if i >= FIRST_SERVER),
            seconds_per_client=sum(self._seconds[i] for i in range(users)) / users,
            seconds_server=max(s for i, s in self._seconds.items() if i >= FIRST_SERVER),
        )


def _run_shares(
    vectors: NDArray[np.uint64], servers: int, gone: list[int], minimum: int, meter: _Meter
) -> Opened:
    """Protocol A; the relay hands the last server its messages when the others hold theirs."""
    journal = VolatileJournal
    keys = {FIRST_SERVER + j: PrivateKeys.generate() for j in range(servers)}
    users = [PrivateKeys.generate() for _ in vectors]
    session = Session(
        nonce=new_seed(),
        dimension=vectors.shape[1],
        minimum=minimum,
        users={i: key.public.verifying for i, key in enumerate(users)},
        servers={server: key.public for server, key in keys.items()},
        context=b"shares",
    )
    *first, last = sorted(keys)
    holders = {s: SeedServer(session, s, keys[s], journal()) for s in first}
    adder = VectorServer(session, last, keys[last], journal())
    pending = {}
    for i, vector in enumerate(vectors):
        if gone[i] >= MASKED_INPUT:
            user = SharesUser(session, i, users[i], journal())
            parts = pending[i] = meter.at(i, lambda u=user, v=vector: u.submit(v))
            for _ in first:
                server, message = meter.at(i, lambda p=parts: next(p))
                meter.sent(message, i, server)
                meter.at(server, lambda s=server, m=message: holders[s].receive(m))
    for server, holder in holders.items():
        held = meter.sent(meter.at(server, holder.close), server, last)
        meter.at(last, lambda h=held: adder.receive(h))
    for i, parts in pending.items():
        if gone[i] > MASKED_INPUT:
            _, message = meter.at(i, lambda p=parts: next(p))
            meter.sent(message, i, last)
            meter.at(last, lambda m=message: adder.receive(m))
    return _open_shares(session, holders, adder, last, meter)


def _open_shares(
    session: Session,
    holders: dict[int, SeedServer],
    adder: VectorServer,
    last: int,
    meter: _Meter,
) -> Opened:
    machines: dict[int, SeedServer | VectorServer] = {last: adder, **holders}
    commit = b""
    for server, machine in machines.items():
        commit = meter.at(server, machine.commit)
        for other in machines.keys() - {server}:
            meter.sent(commit, server, other)
            meter.at(other, lambda o=other, c=commit: machines[o].receive(c))
    openings = []
    for server, machine in machines.items():
        openings.append(meter.sent(meter.at(server, machine.open), server, last))
    return meter.at(last, lambda: combine(session, commit, openings))


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
        if stage not in range(UNMASK + 1):
            raise ValueError(f"drop must have stages 0 to {UNMASK}, got {stage}")
        for user in dropped:
            if user not in range(users):
                raise ValueError(f"drop must name users 0 to {users - 1}, got {user}")
            gone[user] = min(gone[user], stage)
    return gone
