"""All parties of `secagg` in one process, every message made, sent, checked and measured."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from train_distributed.secure_sum.journal import VolatileJournal
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.prg import new_seed
from train_distributed.secure_sum.secagg import SERVER, SecAgg
from train_distributed.secure_sum.secagg_server import SecAggServer
from train_distributed.secure_sum.secagg_user import SecAggUser

ADVERTISE, SHARE_KEYS, MASKED_INPUT, UNMASK = range(4)  # stages at which a user can drop out
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


def simulate_sum(
    vectors: NDArray[np.uint64],
    drop: Mapping[int, Collection[int]] | None = None,
    *,
    minimum: int | None = None,
    corrupt_fraction: float = 0.1,
    dropout_fraction: float = 0.2,
) -> SumResult:
    """Sums the users' vectors by protocol `secagg`.

    Args:
        vectors: (w, d) uint64, one row per user, w >= 2.
        drop: stage (0 advertise keys, 1 share keys, 2 masked input, 3 unmask) -> users whose
            message of that stage, and of later ones, never comes.
        minimum: m_min, fewest users whose sum is opened; default more than half.
        corrupt_fraction: see `choose_degree`.
        dropout_fraction: likewise.
    """
    w, last = len(vectors), dict[int, int]()
    for stage, dropped in sorted((drop or {}).items(), reverse=True):
        last |= dict.fromkeys(dropped, stage)
    octets, seconds = Counter[int](), defaultdict[int, float](float)

    def at(party: int, work: Callable[[], T]) -> T:
        start = time.process_time()
        try:
            return work()
        finally:
            seconds[party] += time.process_time() - start

    def answered(user: int, message: bytes) -> None:
        octets.update({user: len(message), SERVER: len(message)})
        at(SERVER, lambda: server.receive(message))

    keys = {party: PrivateKeys.generate() for party in [*range(w), SERVER]}
    setup = SecAgg.agree_on(
        nonce=new_seed(),
        dimension=vectors.shape[1],
        minimum=w // 2 + 1 if minimum is None else minimum,
        users={i: keys[i].public.verifying for i in range(w)},
        server=keys[SERVER].public,
        corrupt_fraction=corrupt_fraction,
        dropout_fraction=dropout_fraction,
    )
    server, users = SecAggServer(setup, keys[SERVER], VolatileJournal()), dict[int, SecAggUser]()
    for i, vector in enumerate(vectors):
        if last.get(i, UNMASK + 1) > ADVERTISE:
            users[i] = SecAggUser(setup, i, keys[i], vector, VolatileJournal())
            answered(i, at(i, users[i].start))
    for stage in (SHARE_KEYS, MASKED_INPUT, UNMASK, UNMASK):  # the last two answers belong together
        messages = at(SERVER, server.advance)
        for i in sorted(messages):
            question = at(SERVER, lambda m=messages, i=i: m[i])
            octets.update({i: len(question), SERVER: len(question)})
            if last.get(i, UNMASK + 1) > stage:
                answered(i, at(i, lambda u=users[i], q=question: u.receive(q)))
    opened = at(SERVER, server.finish)
    return SumResult(
        total=opened.total,
        survivors=tuple(sorted(opened.users)),
        bytes_per_client=max(octets[i] for i in range(w)),
        bytes_server=octets[SERVER],
        seconds_per_client=sum(seconds[i] for i in range(w)) / w,
        seconds_server=seconds[SERVER],
    )
