"""Servers hold as many vectors as they hold parts, however many users there are."""

import gc
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from train_distributed.secure_sum.journal import VolatileJournal
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.parties import FIRST_SERVER
from train_distributed.secure_sum.replicated import Replicated, ReplicatedUser
from train_distributed.secure_sum.replicated_server import ReplicaServer


@pytest.fixture(autouse=True)
def _nothing_of_the_process(make_shares: Callable) -> None:
    """What a first message fills is filled, and what earlier tests left is gone."""
    parties = make_shares(2, 8, servers=2)
    (holder,) = parties.seed_servers.values()
    for user in parties.users:
        holder.receive(next(user.submit(np.zeros(8, np.uint64)))[1])
    gc.collect()


def _size(receive: Callable[[bytes], object], message: bytes) -> int:
    """Bytes that are kept of a message, which itself counts if it is."""
    tracemalloc.start()
    receive(bytes(bytearray(message)))
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return size


def _kept(make_shares: Callable, w: int, d: int) -> int:
    """Bytes that the last server has kept of all the messages it took."""
    parties = make_shares(w, d, servers=2)
    (holder,) = parties.seed_servers.values()
    vector = np.zeros(d, np.uint64)
    pending = []
    for user in parties.users:
        parts = user.submit(vector)
        holder.receive(next(parts)[1])
        pending.append(parts)
    adder = parties.vector_server
    adder.receive(holder.close())
    return sum(_size(adder.receive, next(parts)[1]) for parts in pending)


@pytest.mark.parametrize("w", [20, pytest.param(10_000, marks=pytest.mark.slow)])
def test_memory_kept_per_user_is_a_few_bytes(w: int, make_shares: Callable) -> None:
    assert _kept(make_shares, w, 61_450) < 200 * w + 20_000  # one vector is 491,600 bytes


def _added(machine, messages, settle) -> int:
    """Bytes that a server has kept of messages that are made when it takes them."""

    def receive(message: bytes) -> None:
        machine.receive(message)
        settle()

    return sum(_size(receive, message) for message in messages)


@pytest.mark.parametrize("w", [20, pytest.param(2000, marks=pytest.mark.slow)])
def test_a_server_of_seeds_keeps_the_seeds(w: int, make_shares: Callable) -> None:
    parties, vector = make_shares(w, 61_450, servers=2), np.zeros(61_450, np.uint64)
    (holder,) = parties.seed_servers.values()
    messages = (next(user.submit(vector))[1] for user in parties.users)
    assert _added(holder, messages, lambda: None) < 400 * w + 20_000


@pytest.mark.parametrize("w", [20, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_replicated_server_keeps_one_round(w: int) -> None:
    """Rounds of one user each: what is left is 40 bytes of the user, and the books."""
    keys = {n: PrivateKeys.generate() for n in [*range(w), *range(FIRST_SERVER, FIRST_SERVER + 3)]}
    setup = Replicated.agree_on(
        nonce=bytes(32),
        dimension=61_450,
        minimum=1,
        users={i: keys[i].public.verifying for i in range(w)},
        servers={s: keys[s].public for s in sorted(keys)[-3:]},
    )
    server, vector = FIRST_SERVER, np.zeros(61_450, np.uint64)
    machine = ReplicaServer(setup, server, keys[server], VolatileJournal())
    others = [ReplicaServer(setup, s, keys[s], VolatileJournal()) for s in sorted(keys)[-2:]]

    def messages():
        for i in range(w):
            user = ReplicatedUser(setup, i, keys[i], VolatileJournal())
            made = dict(user.submit(vector))
            for other, name in zip(others, sorted(keys)[-2:], strict=True):
                other.receive(made[name])
            yield made[server]

    def settle() -> None:
        mine, holdings = machine.hold(), [other.hold() for other in others]
        for holding in holdings:
            machine.receive(holding)
        for other, holding in zip(others, reversed(holdings), strict=True):
            other.receive(mine)
            other.receive(holding)
            other.settle()
        assert machine.settle() == frozenset()

    assert _added(machine, messages(), settle) < 2000 * w + 20_000  # of three servers
