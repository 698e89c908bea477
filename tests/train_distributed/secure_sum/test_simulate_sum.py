"""`secagg` gives the plain sum modulo 2^64, bit for bit, or an error and nothing."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.train_distributed.secure_sum.simulate import Drive, make_secagg, simulate_sum, vectors
from train_distributed.secure_sum import prg, secagg_server
from train_distributed.secure_sum.errors import OutOfOrder, TooFewUsers
from train_distributed.secure_sum.graph import whole_users
from train_distributed.secure_sum.prg import CHUNK_WORDS
from train_distributed.secure_sum.wire import Kind

SIZES = [(2, 100_000), (3, 1), (7, 8193), (12, 61_450)]
Vectors = Callable[[int, int], NDArray[np.uint64]]


@pytest.mark.parametrize(
    ("w", "d"),
    [
        *SIZES,
        pytest.param(200, 5, marks=pytest.mark.slow),
        pytest.param(200, 100_000, marks=pytest.mark.slow),
    ],
)
def test_the_total_is_the_plain_sum(w: int, d: int) -> None:
    sent = vectors(w, d)
    result = simulate_sum(sent)
    assert np.array_equal(result.total, sent.sum(0))
    assert result.survivors == tuple(range(w))
    assert 8 * d < result.bytes_per_client <= 8 * d + 20_000 + 400 * w


@settings(derandomize=True, deadline=None, max_examples=40)
@given(st.integers(2, 12), st.integers(1, 50), st.data())
def test_the_survivors_total_is_exact_whoever_drops_out(w, d, data) -> None:
    most = whole_users(w, 0.2, "fraction")
    stages = data.draw(st.dictionaries(st.integers(0, w - 1), st.integers(0, 3), max_size=most))
    drop = {stage: [u for u, s in stages.items() if s == stage] for stage in range(4)}
    sent = np.full((w, d), 2**64 - 1, np.uint64)
    sent[:, 0] = 2 ** np.arange(w, dtype=np.uint64)  # names every user in the sum
    result = simulate_sum(sent, drop)
    assert set(result.survivors) == set(range(w)) - {u for u, s in stages.items() if s < 3}
    assert np.array_equal(result.total, sent[list(result.survivors)].sum(0))


def test_secagg_with_lists_shorter_than_all_is_exact() -> None:
    """65 users with 31 on each list; some drop out at every stage."""
    sent = vectors(65, 7)
    drop = {0: [3], 1: [7], 2: [0, 64], 3: [20, 21]}
    result = simulate_sum(sent, drop=drop, corrupt_fraction=0, dropout_fraction=0.1)
    left = [u for u in range(65) if u not in (3, 7, 0, 64)]
    assert list(result.survivors) == left
    assert np.array_equal(result.total, sent[left].sum(0))


@pytest.mark.parametrize("stage", range(4))
def test_secagg_one_below_the_threshold_releases_nothing(stage: int) -> None:
    """10 users: 9 neighbours each, 6 shares open a secret; so 7 must answer to the end."""
    sent = vectors(10, 4)
    left = simulate_sum(sent, drop={stage: [7, 8, 9]}, minimum=2).survivors
    assert len(left) == (10 if stage == 3 else 7)
    with pytest.raises(TooFewUsers, match=r"got \d"):
        simulate_sum(sent, drop={stage: [6, 7, 8, 9]}, minimum=2)


@pytest.mark.parametrize("stage", range(3))
def test_fewer_than_the_minimum_release_nothing(stage: int) -> None:
    sent = vectors(10, 4)
    simulate_sum(sent, drop={stage: [3]}, minimum=9)
    with pytest.raises(TooFewUsers, match="must be >= 9"):
        simulate_sum(sent, drop={stage: [3, 4]}, minimum=9)


GONE = {0, 4, 11}
Words = NDArray[np.uint64]


def almost_summed(dimension: int):
    """A session whose server has all it needs, three of 15 users having shared keys only."""
    rows = vectors(15, dimension)
    parties = make_secagg(rows, minimum=9)
    server: Any = parties.server
    finish, server.finish = server.finish, lambda: None

    def answer(kind: Kind, user: int, message: bytes) -> bytes | None:
        return None if kind is Kind.MASKED and user in GONE else message

    Drive(parties, answer).run()
    return server, finish, np.delete(rows, sorted(GONE), 0).sum(0, dtype=np.uint64)


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
    times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, finish, expected = almost_summed(2 * CHUNK_WORDS + 5)
    monkeypatch.setattr(secagg_server, "add_stream", _chunk_fault(times))
    assert np.array_equal(finish().total, expected) == (times == 1)


def test_a_failure_here_leaves_nothing_released(monkeypatch) -> None:
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
