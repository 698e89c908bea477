"""Rows are held out by a draw on which no row has any influence."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embed import EmbeddingSet
from embed.hold_out import HoldOut, random_keys, with_held_out


def rows(sizes: list[int], *, tests: int = 4, seed: int = 0) -> EmbeddingSet:
    draw, count = np.random.default_rng(seed), sum(sizes) + tests
    return EmbeddingSet(
        embeddings=draw.standard_normal((count, 5)).astype(np.float32),
        labels=draw.integers(0, 3, count),
        users=np.concatenate([np.repeat(np.arange(len(sizes)), sizes), np.full(tests, 99)]),
        split=np.repeat(np.array([0, 1], np.uint8), [sum(sizes), tests]),
        meta={"class_names": ["a", "b", "c"]},
    )


def counts(rows: EmbeddingSet, of: np.ndarray) -> list[int]:
    """How many of these rows each user has."""
    assert rows.users is not None
    return np.bincount(np.asarray(rows.users)[of]).tolist()


def test_every_user_gives_its_share() -> None:
    source = rows([10, 3, 1, 2])
    held = with_held_out(source, 0.5)
    assert counts(source, held.split == 2) == [5, 2, 0, 1]
    assert np.array_equal(held.split == 1, source.split == 1)
    assert np.array_equal(held.embeddings, source.embeddings)
    assert with_held_out(rows([10], tests=0), 0.25).split.sum() == 2 * 3  # 2.5, rounded up


def test_whole_users() -> None:
    held = with_held_out(rows([4] * 10), 0.3, by="user")
    assert counts(held, held.split == 2).count(4) == 3
    assert int((held.split == 2).sum()) == 12


@pytest.mark.parametrize("by", ["record", "user"])
def test_what_is_in_the_rows_changes_nothing(by: Any) -> None:
    first, second = rows([6, 9, 5]), rows([6, 9, 5], seed=1)
    assert not np.array_equal(first.labels, second.labels)
    drawn = with_held_out(first, 0.4, by=by, seed=0).split
    assert np.array_equal(drawn, with_held_out(second, 0.4, by=by, seed=0).split)
    assert not np.array_equal(drawn, with_held_out(first, 0.4, by=by, seed=1).split)


def test_nor_does_the_order_in_which_they_are() -> None:
    """A record that another class folder puts at another place takes its number with it."""
    source, draw = rows([6, 9, 5]), np.random.default_rng(5)
    keys, moved = random_keys(len(source)), draw.permutation(len(source))
    held = with_held_out(source, 0.4, keys=keys)
    shuffled = with_held_out(source.subset(moved), 0.4, keys=keys[moved])
    assert np.array_equal(shuffled.split, held.split[moved])


def test_the_operating_system_draws_every_row_alike() -> None:
    """Nobody can say beforehand which rows are held out: each is in a fifth of the draws."""
    source = rows([10], tests=0)
    found = np.stack([with_held_out(source, 0.2).split == 2 for _ in range(2000)])
    assert (found.sum(1) == 2).all()
    assert np.abs(found.mean(0) - 0.2).max() < 5 * np.sqrt(0.2 * 0.8 / 2000)
    together = found[:, :, None] & found[:, None]  # pairs: 1 of 45
    pairs = together.mean(0)[np.triu_indices(10, 1)]
    assert np.abs(pairs - 1 / 45).max() < 5 * np.sqrt(1 / 45 / 2000)


def test_equal_rows_are_records_like_others() -> None:
    """Were one dropped for what another is, a copy of it would change how many there are."""
    source = rows([8, 8])
    same = replace(source, embeddings=np.broadcast_to(source.embeddings[0], (20, 5)))
    keys = random_keys(20)
    held = with_held_out(same, 0.5, keys=keys)
    assert len(held) == len(source)
    assert np.array_equal(held.split, with_held_out(source, 0.5, keys=keys).split)


def test_what_cannot_be_divided() -> None:
    with pytest.raises(ValueError, match="by must be one of record, user"):
        with_held_out(rows([10, 10]), 0.5, by="row")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"and leave some, got 0\.9 by user"):
        with_held_out(rows([10, 10]), 0.9, by="user")
    once = with_held_out(rows([5, 5]), 0.4)
    with pytest.raises(ValueError, match="must hold no evaluation rows yet"):
        with_held_out(once, 0.4)
    with pytest.raises(ValueError, match=r"must hold training rows \(split 0\), got none"):
        with_held_out(once.subset(once.split == 1), 0.4)


def test_the_command_writes_a_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows([10, 10]).save(tmp_path / "mine")
    HoldOut(embeddings=tmp_path / "mine", share=0.2, out=tmp_path / "held").run()
    assert "16 rows to train on, 4 held out, in" in capsys.readouterr().out
    told = EmbeddingSet.open(tmp_path / "held").meta["held_out"]
    assert told == {"share": 0.2, "by": "record", "seed": None}
    assert EmbeddingSet.open(tmp_path / "held").content_hash() == (
        EmbeddingSet.open(tmp_path / "mine").content_hash()
    )
    with pytest.raises(FileExistsError):
        HoldOut(embeddings=tmp_path / "mine", share=0.2, out=tmp_path / "held").run()
