"""Users that stream in: who is in a chunk, what rounding does to rows, who holds what."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embed import EmbeddingSet, PublicTransform
from train_distributed.one_shot.source import EmbeddingUsers, check_stream, own_partition
from train_distributed.one_shot.statistic import Chunk
from train_distributed.partition import Partition, split
from train_distributed.privacy.fixed_point import FixedPoint

ROWS = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20)


def chunk_of(x: torch.Tensor, counts: list[int] | None = None) -> Chunk:
    users, n = x.shape[:2]
    labels = torch.arange(users * n).unflatten(0, (users, n)) % 3
    return Chunk(torch.arange(users), x, labels, torch.tensor(counts or [n] * users))


def embedding_set(users: np.ndarray | None = None, rows: int = 20) -> EmbeddingSet:
    draw = np.random.default_rng(0)
    return EmbeddingSet(
        embeddings=draw.standard_normal((rows, 4)).astype(np.float32),
        labels=np.arange(rows) % 3,
        split=(np.arange(rows) % 4 == 3).astype(np.uint8),
        users=users,
        meta={"class_names": ["a", "b", "c"]},
    )


@settings(derandomize=True, deadline=None)
@given(ROWS, st.integers(-30, 3))
def test_rounding_towards_zero_never_lengthens_a_row(row: list[float], exponent: int) -> None:
    """And its entries are whole steps, which encode without another rounding."""
    grid = 2.0**exponent
    x = torch.tensor(row, dtype=torch.float64)[None, None]
    rounded = chunk_of(x).rounded(grid).x.numpy()
    assert np.all(np.abs(rounded) <= np.abs(x.numpy()))
    assert np.all(rounded * x.numpy() >= 0)
    assert np.all(np.abs(x.numpy() - rounded) < grid)
    assert (
        FixedPoint(grid, 1e6, 1).encode(rounded).view(np.int64).tolist()
        == (rounded / grid).tolist()
    )


@pytest.mark.parametrize("grid", [0.3, 3.0, 0.0, -0.5, math.inf, math.nan])
def test_a_grid_that_division_would_round_is_refused(grid: float) -> None:
    with pytest.raises(ValueError, match=f"grid must be a power of two, got {grid}"):
        chunk_of(torch.ones(1, 2, 3)).rounded(grid)


def test_without_a_grid_rows_stay_as_they_are() -> None:
    chunk = chunk_of(torch.full((2, 2, 3), 0.3))
    assert chunk.rounded(None) is chunk


def test_selected_users_keep_their_own_rows() -> None:
    chunk = chunk_of(torch.arange(24.0).reshape(4, 2, 3), [2, 1, 2, 1])
    picked = chunk.select(torch.tensor([False, True, False, True]))
    assert picked.users.tolist() == [1, 3]
    assert torch.equal(picked.x, chunk.x[[1, 3]])
    assert torch.equal(picked.y, chunk.y[[1, 3]])
    assert picked.counts.tolist() == [1, 1]
    assert chunk.select(torch.ones(4, dtype=torch.bool)) is chunk


@pytest.mark.parametrize("user", [0, 5, 6])
def test_every_user_of_a_stream_is_looked_at(user: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the rows are cut into parts, and never the padding."""
    monkeypatch.setattr("train_distributed.one_shot.source.BLOCK", 12)
    x = torch.tensor([0.5, 0.5, 0.5]).expand(7, 2, 3).clone()
    x[:, 1] = 99.0  # padding
    check_stream(chunk_of(x, [1] * 7), 3, 1.0, 0.5)
    x[user, 0, 0] = 0.25
    with pytest.raises(ValueError, match=r"rows must begin with the constant 0\.5, got 0\.25"):
        check_stream(chunk_of(x, [1] * 7), 3, 1.0, 0.5)


def test_only_training_rows_stream_in_and_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where memory cuts the users into several chunks."""
    monkeypatch.setattr("train_distributed.one_shot.source.CHUNK", 30)
    data = embedding_set()
    train = np.flatnonzero(data.split == 0)
    held = split(torch.from_numpy(data.labels[train]), 6)
    users = EmbeddingUsers(data, PublicTransform.identity(4), held)
    monkeypatch.setattr(Partition, "shuffled", lambda partition, generator: partition)
    chunks = list(users.chunks())
    assert len(chunks) > 1
    assert torch.cat([chunk.users for chunk in chunks]).sort().values.tolist() == list(range(6))
    for chunk in chunks:
        for user, x, y, count in zip(chunk.users, chunk.x, chunk.y, chunk.counts, strict=True):
            rows = train[held.rows(int(user)).numpy()]
            assert torch.equal(x[:count], users.transform(data.embeddings[rows]))
            assert y[:count].tolist() == data.labels[rows].tolist()
    assert users.sizes.tolist() == held.counts.tolist()
    assert users.dim == chunks[0].x.shape[2]


def test_users_are_those_that_the_set_names() -> None:
    named = np.array([7, 3] * 10)
    data = embedding_set(named)
    held = own_partition(data)
    train = np.flatnonzero(data.split == 0)
    assert [set(named[train[held.rows(user).numpy()]]) for user in (0, 1)] == [{3}, {7}]
    assert own_partition(embedding_set(), single=True).users == 1
    with pytest.raises(ValueError, match="users must be named by the embedding set"):
        own_partition(embedding_set())


def test_shuffled_users_keep_their_own_rows_and_padding_its_place() -> None:
    chunk = chunk_of(torch.randn(3, 40, 4, generator=torch.Generator().manual_seed(0)), [40, 7, 1])
    for generator in (None, torch.Generator().manual_seed(1)):
        shuffled = chunk.shuffled(generator)
        assert torch.equal(shuffled.counts, chunk.counts)
        for user, count in enumerate(chunk.counts.tolist()):
            pairs = [
                sorted((*row, label) for row, label in zip(x.tolist(), y.tolist(), strict=True))
                for x, y in (
                    (each.x[user, :count], each.y[user, :count]) for each in (chunk, shuffled)
                )
            ]
            assert pairs[0] == pairs[1]
            assert torch.equal(shuffled.x[user, count:], chunk.x[user, count:])
        assert not torch.equal(shuffled.x[0], chunk.x[0])


def test_every_order_of_a_user_s_rows_is_drawn_alike() -> None:
    chunk = chunk_of(torch.arange(3.0)[None, :, None])
    drawn = [tuple(chunk.shuffled().x.flatten().tolist()) for _ in range(3000)]
    counts = [drawn.count(order) for order in itertools.permutations([0.0, 1.0, 2.0])]
    assert sum(counts) == 3000
    assert max(abs(count - 500) for count in counts) < 5 * math.sqrt(500 * 5 / 6)
