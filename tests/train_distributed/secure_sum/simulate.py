"""All parties of `secagg` in one process, every message made, sent, checked and measured."""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from pretrain import check
from train_distributed.secure_sum.journal import VolatileJournal
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.opening import Opened
from train_distributed.secure_sum.prg import new_seed
from train_distributed.secure_sum.secagg import SERVER, SecAgg
from train_distributed.secure_sum.secagg_server import SecAggServer
from train_distributed.secure_sum.secagg_user import SecAggUser

ADVERTISE, SHARE_KEYS, MASKED_INPUT, UNMASK = range(4)  # stages at which a user can drop out
Drop = Mapping[int, Collection[int]]  # stage -> users whose message of that stage never comes
T = TypeVar("T")


@dataclass(frozen=True)
class SumResult:
    """A sum, and what it cost; set-up (keys) is not counted."""

    total: NDArray[np.uint64]  # (d,) sum over the survivors modulo 2^64
    survivors: tuple[int, ...]  # rows of `vectors` that the sum contains
    bytes_per_client: int  # sent and received, of the user with most
    bytes_server: int  # sent and received
    seconds_per_client: float  # CPU time, mean over users
    seconds_server: float  # CPU time


class Meter:
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
        """Result of the run, with its cost."""
        return SumResult(
            total=opened.total,
            survivors=tuple(sorted(opened.users)),
            bytes_per_client=max(self._bytes[i] for i in range(users)),
            bytes_server=self._bytes[SERVER],
            seconds_per_client=sum(self._seconds[i] for i in range(users)) / users,
            seconds_server=self._seconds[SERVER],
        )


def simulate_sum(
    vectors: NDArray[np.uint64],
    drop: Drop | None = None,
    *,
    minimum: int | None = None,
    corrupt_fraction: float = 0.1,
    dropout_fraction: float = 0.2,
) -> SumResult:
    """Sums the users' vectors by protocol `secagg`.

    Args:
        vectors: (w, d) uint64, one row per user, w >= 2.
        drop: stage (0 advertise keys, 1 share keys, 2 masked input, 3 unmask) -> users that drop
            out then.
        minimum: m_min, fewest users whose sum is opened; default more than half.
        corrupt_fraction: see `choose_degree`.
        dropout_fraction: likewise.

    Raises:
        ValueError: an argument outside its range.
        TooFewUsers: too many dropped out; nothing is released.
    """
    if vectors.ndim != 2 or vectors.dtype != np.uint64 or len(vectors) < 2:
        raise ValueError(f"vectors must be (w >= 2, d) uint64, got {vectors.shape} {vectors.dtype}")
    gone = _gone_at(drop or {}, len(vectors))
    least = len(vectors) // 2 + 1 if minimum is None else minimum
    users, key, meter = [PrivateKeys.generate() for _ in vectors], PrivateKeys.generate(), Meter()
    setup = SecAgg.agree_on(
        nonce=new_seed(),
        dimension=vectors.shape[1],
        minimum=least,
        users={i: own.public.verifying for i, own in enumerate(users)},
        server=key.public,
        corrupt_fraction=corrupt_fraction,
        dropout_fraction=dropout_fraction,
    )
    opened = _run_secagg(vectors, setup, key, users, gone, meter)
    return meter.result(opened, len(vectors))


def _run_secagg(
    vectors: NDArray[np.uint64],
    setup: SecAgg,
    keys: PrivateKeys,
    user_keys: list[PrivateKeys],
    gone: list[int],
    meter: Meter,
) -> Opened:
    """Stage by stage; a user's last two answers both belong to the unmasking stage."""
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
