"""The server that adds vectors holds one, however many users there are."""

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest


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
    kept = 0
    for parts in pending:
        _, message = next(parts)
        tracemalloc.start()
        adder.receive(message)
        size, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        kept += size
    return kept


@pytest.mark.parametrize("w", [20, pytest.param(10_000, marks=pytest.mark.slow)])
def test_memory_kept_per_user_is_a_few_bytes(w: int, make_shares: Callable) -> None:
    assert _kept(make_shares, w, 61_450) < 200 * w + 20_000  # one vector is 491,600 bytes
