"""All parties of a secure sum in one process, every message made, sent, checked and measured."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from pretrain import check
from train_distributed.secure_sum.journal import VolatileJournal
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.opening import Opened
from train_distributed.secure_sum.parties import FIRST_SERVER
from train_distributed.secure_sum.prg import new_seed
from train_distributed.secure_sum.replicated import Replicated, ReplicatedUser
from train_distributed.secure_sum.replicated_server import ReplicaServer
from train_distributed.secure_sum.secagg import SERVER, SecAgg
from train_distributed.secure_sum.secagg_server import SecAggServer
from train_distributed.secure_sum.secagg_user import SecAggUser
from train_distributed.secure_sum.simulate_shares import Meter, SharesSum, SumResult
from train_distributed.secure_sum.tally import tally

ADVERTISE, SHARE_KEYS, MASKED_INPUT, UNMASK = range(4)  # stages at which a user can drop out
ROUND_BYTES = 2**25  # of users' messages to a replica at a time
Drop = Mapping[int, Collection[int]]  # stage -> users whose message of that stage never comes
Protocol = Literal["shares", "shares-replicated", "secagg"]


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
    check.one_of(get_args(Protocol), protocol=protocol)
    if protocol == "shares":
        reached = [user for user, stage in enumerate(gone) if stage >= MASKED_INPUT]
        whole = SharesSum(len(vectors), vectors.shape[1], servers, least, reached)
        for user in reached:
            if gone[user] > MASKED_INPUT:
                whole.add(user, vectors[user])
        return whole.result()
    users = [PrivateKeys.generate() for _ in vectors]
    agreed: dict[str, Any] = {
        "nonce": new_seed(),
        "dimension": vectors.shape[1],
        "minimum": least,
        "users": {i: key.public.verifying for i, key in enumerate(users)},
        "corrupt_fraction": corrupt_fraction,
    }
    meter = Meter()
    if protocol == "shares-replicated":
        keys = {FIRST_SERVER + j: PrivateKeys.generate() for j in range(servers)}
        public = {server: key.public for server, key in keys.items()}
        setup = Replicated.agree_on(**agreed, servers=public)
        opened = _run_replicated(vectors, setup, keys, users, gone, meter)
    else:
        key = PrivateKeys.generate()
        setup = SecAgg.agree_on(**agreed, server=key.public, dropout_fraction=dropout_fraction)
        opened = _run_secagg(vectors, setup, key, users, gone, meter)
    return meter.result(opened, len(vectors))


def _run_replicated(
    vectors: NDArray[np.uint64],
    setup: Replicated,
    keys: dict[int, PrivateKeys],
    user_keys: list[PrivateKeys],
    gone: list[int],
    meter: Meter,
) -> Opened:
    """Protocol A with replicas, round by round."""
    machines = {s: ReplicaServer(setup, s, k, VolatileJournal()) for s, k in keys.items()}
    size = max(1, ROUND_BYTES // max(map(setup.share_bytes, keys)))
    for start in range(0, len(vectors), size):
        for i in range(start, min(start + size, len(vectors))):
            user = ReplicatedUser(setup, i, user_keys[i], VolatileJournal())
            parts = meter.at(i, lambda u=user, i=i: u.submit(vectors[i]))
            reached = max(0, len(keys) * (gone[i] >= MASKED_INPUT) - (gone[i] == MASKED_INPUT))
            for _ in range(reached):
                server, message = meter.at(i, lambda p=parts: next(p))
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


def _run_secagg(
    vectors: NDArray[np.uint64],
    setup: SecAgg,
    keys: PrivateKeys,
    user_keys: list[PrivateKeys],
    gone: list[int],
    meter: Meter,
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
