"""Masks are taken off whole and once; where that fails nothing is released."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from train_distributed.secure_sum import prg, secagg_server
from train_distributed.secure_sum.errors import OutOfOrder
from train_distributed.secure_sum.prg import CHUNK_WORDS
from train_distributed.secure_sum.wire import Kind

GONE = {0, 4, 11}
Words = NDArray[np.uint64]


@pytest.fixture
def almost_summed(make_secagg: Callable, drive: Callable, vectors: Callable) -> Callable:
    """A session whose server has all it needs, three of 15 users having shared keys only."""

    def make(dimension: int):
        rows = vectors(15, dimension)
        parties = make_secagg(rows, minimum=9)
        finish, parties.server.finish = parties.server.finish, lambda: None

        def answer(kind: Kind, user: int, message: bytes) -> bytes | None:
            return None if kind is Kind.MASKED and user in GONE else message

        drive(parties, answer).run()
        return parties.server, finish, np.delete(rows, sorted(GONE), 0).sum(0, dtype=np.uint64)

    return make


def _chunk_fault(times: int) -> Callable:
    """The second chunk of one stream, added so many times."""
    left = [1]

    def add(total: Words, seed: bytes) -> None:
        for number, (place, words) in enumerate(prg.stream(seed, len(total))):
            faulty = number == 1 and left and left.pop()
            for _ in range(times if faulty else 1):
                total[place] += words

    return add


@pytest.mark.parametrize("times", [0, 1, 2])
def test_the_sum_is_exact_where_every_chunk_of_a_mask_is_taken_off_once(
    times: int, almost_summed: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, finish, expected = almost_summed(2 * CHUNK_WORDS + 5)
    monkeypatch.setattr(secagg_server, "add_stream", _chunk_fault(times))
    assert np.array_equal(finish().total, expected) == (times == 1)


def test_a_failure_here_leaves_nothing_released(almost_summed, monkeypatch) -> None:
    server, finish, expected = almost_summed(8)
    done = []

    def add(total: Words, seed: bytes) -> None:
        done.append(1)
        if len(done) == 7:
            raise MemoryError("at the seventh mask")
        prg.add_stream(total, seed)

    monkeypatch.setattr(secagg_server, "add_stream", add)
    with pytest.raises(MemoryError, match="at the seventh mask"):
        finish()
    assert server._journal.detail(server._session.digest, "open") is None
    assert not np.array_equal(server._total, expected)
    with pytest.raises(OutOfOrder):
        finish()
