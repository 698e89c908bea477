"""Masks are taken off whole and once, by however many processes; one that fails leaves nothing."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from train_distributed.secure_sum import masks, prg
from train_distributed.secure_sum.errors import OutOfOrder
from train_distributed.secure_sum.prg import CHUNK_WORDS
from train_distributed.secure_sum.secagg_server import SecAggServer
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


def _assert_nothing_released(server: SecAggServer, expected: Words) -> None:
    """Neither a sum nor the journal's entry that one was opened."""
    assert server._journal.detail(server._session.digest, "open") is None
    assert not np.array_equal(server._total, expected)


@pytest.mark.parametrize("cores", [1, 3])
def test_the_sum_is_exact_on_any_number_of_cores(
    cores: int, almost_summed: Callable, started: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masks, "cores", lambda: cores)
    _, finish, expected = almost_summed(2 * CHUNK_WORDS + 5)
    assert np.array_equal(finish().total, expected)
    assert [other.returncode for other in started] == [0] * (cores - 1)


def test_few_masks_are_added_here(almost_summed: Callable, started: list, monkeypatch) -> None:
    monkeypatch.setattr(masks, "PROCESS_WORDS", 2**31)
    _, finish, expected = almost_summed(8)
    assert np.array_equal(finish().total, expected)
    assert not started


def _chunk_fault(times: int) -> Callable:
    """The second chunk of one stream, added so many times."""
    left = [1]

    def add(total: Words, seed: bytes) -> None:
        for number, (place, words) in enumerate(prg.stream(seed, len(total))):
            faulty = number == 1 and left and left.pop()
            for _ in range(times if faulty else 1):
                total[place] += words

    return add


@pytest.mark.parametrize("times", [0, 2])
def test_a_chunk_left_out_or_added_twice_would_be_seen(
    times: int, almost_summed: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, finish, expected = almost_summed(2 * CHUNK_WORDS + 5)
    monkeypatch.setattr(masks, "add_stream", _chunk_fault(times))
    assert not np.array_equal(finish().total, expected)


def test_a_failure_here_leaves_nothing_released(
    almost_summed: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, finish, expected = almost_summed(8)
    done = []

    def add(total: Words, seed: bytes) -> None:
        done.append(1)
        if len(done) == 7:
            raise MemoryError("at the seventh mask")
        prg.add_stream(total, seed)

    monkeypatch.setattr(masks, "add_stream", add)
    with pytest.raises(MemoryError, match="at the seventh mask"):
        finish()
    _assert_nothing_released(server, expected)


_READ = "import os, sys; read = sys.stdin.buffer.read; size = 8 * int.from_bytes(read(8)); read(); "
_WRITE = "sys.stdout.buffer.write(bytes(size{})); "


@pytest.mark.parametrize(
    ("program", "told"),
    [
        (_READ, "gave 0 and ended with 0"),
        (_READ + _WRITE.format(-1), "gave 63 and ended with 0"),
        (_READ + _WRITE.format("+1"), "gave 65 and ended with 0"),
        (_READ + _WRITE.format("+10**7"), "gave 65 and ended with"),
        (_READ + _WRITE.format("") + "sys.exit(3)", "gave 64 and ended with 3"),
        ("import sys; sys.exit('no numpy')", "gave 0 and ended with 1"),
        ("import os; os.kill(os.getpid(), 9)", "gave 0 and ended with -9"),
    ],
)
def test_a_process_that_does_anything_else_leaves_nothing_released(
    program: str, told: str, almost_summed: Callable, started: list, monkeypatch
) -> None:
    server, finish, expected = almost_summed(8)
    monkeypatch.setattr(masks, "_PROCESS", program)
    with pytest.raises(ChildProcessError, match=f"64 bytes and end with 0, .*{told}.*released"):
        finish()
    assert None not in [other.returncode for other in started]
    _assert_nothing_released(server, expected)
    with pytest.raises(OutOfOrder):
        finish()
