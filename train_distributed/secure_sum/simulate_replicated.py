"""All parties of the replicated protocol in one process, round by round."""

import itertools
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from train_distributed.secure_sum.journal import VolatileJournal
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.opening import Opened
from train_distributed.secure_sum.parties import FIRST_SERVER
from train_distributed.secure_sum.prg import new_seed
from train_distributed.secure_sum.replicated import Replicated, ReplicatedUser
from train_distributed.secure_sum.replicated_server import ReplicaServer
from train_distributed.secure_sum.tally import tally

ROUND_BYTES = 2**25  # of users' messages to a server at a time
T = TypeVar("T")


class Meter(Protocol):
    """Books what the parties do and send."""

    def at(self, party: int, work: Callable[[], T]) -> T:
        """Does a party's work."""
        ...

    def sent(self, message: bytes, *parties: int) -> bytes:
        """Notes a message."""
        ...


def run_replicated(
    vectors: NDArray[np.uint64],
    servers: int,
    reached: list[int],
    minimum: int,
    corrupt_fraction: float,
    meter: Meter,
) -> Opened:
    """One session.

    Args:
        vectors: (w, d) uint64.
        servers: S.
        reached: to how many servers, from the first on, each user's messages get.
        minimum: m_min.
        corrupt_fraction: see `Replicated.agree_on`.
        meter: books bytes and seconds.
    """
    keys = {FIRST_SERVER + j: PrivateKeys.generate() for j in range(servers)}
    users = [PrivateKeys.generate() for _ in vectors]
    setup = Replicated.agree_on(
        nonce=new_seed(),
        dimension=vectors.shape[1],
        minimum=minimum,
        users={i: key.public.verifying for i, key in enumerate(users)},
        servers={server: key.public for server, key in keys.items()},
        corrupt_fraction=corrupt_fraction,
    )
    machines = {s: ReplicaServer(setup, s, k, VolatileJournal()) for s, k in keys.items()}
    for batch in _batches(len(users), max(map(setup.share_bytes, keys))):
        for i in batch:
            parts = _submitted(setup, i, users[i], vectors[i], meter)
            for server, message in itertools.islice(parts, reached[i]):
                meter.sent(message, i, server)
                meter.at(server, lambda s=server, m=message: machines[s].receive(m))
        _exchange(machines, ReplicaServer.hold, meter)
        for server, machine in machines.items():
            meter.at(server, machine.settle)
    commit = _exchange(machines, ReplicaServer.commit, meter)[FIRST_SERVER]
    openings = {
        server: meter.sent(meter.at(server, machine.open), server, FIRST_SERVER)
        for server, machine in machines.items()
    }
    return meter.at(FIRST_SERVER, lambda: tally(setup, commit, openings).opened)


def _submitted(
    setup: Replicated, i: int, keys: PrivateKeys, vector: NDArray[np.uint64], meter: Meter
) -> Iterator[tuple[int, bytes]]:
    """User i's messages; its time is booked as they are made."""
    user = ReplicatedUser(setup, i, keys, VolatileJournal())
    parts = meter.at(i, lambda: user.submit(vector))
    for _ in setup.servers:
        yield meter.at(i, lambda: next(parts))


def _exchange(
    machines: dict[int, ReplicaServer], step: Callable[[ReplicaServer], bytes], meter: Meter
) -> dict[int, bytes]:
    """Every server takes a step and hears of the others'."""
    made = {s: meter.at(s, lambda m=machine: step(m)) for s, machine in machines.items()}
    for sender, message in made.items():
        for server in machines.keys() - {sender}:
            meter.sent(message, sender, server)
            meter.at(server, lambda s=server, m=message: machines[s].receive(m))
    return made


def _batches(users: int, share_bytes: int) -> Iterator[range]:
    size = max(1, ROUND_BYTES // share_bytes)
    for start in range(0, users, size):
        yield range(start, min(start + size, users))
