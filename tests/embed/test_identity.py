"""What the hashes of rows catch, and what they cannot; private rows among public ones."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from embed import EmbeddingSet
from embed.identity import false_positives, found, in_both, known_rows, refuse_leak, row_hashes
from embed.run import Exclude


def rows(seed: int = 0, count: int = 50, dim: int = 16) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, dim)).astype(np.float32)


def held(x: np.ndarray) -> EmbeddingSet:
    return EmbeddingSet(embeddings=x, labels=np.zeros(len(x), np.int64))


@pytest.mark.parametrize("length", [1e-30, 1e-5, 2.0**-6, 1.0, 1000.0, 2.0**15, 1e6, 1e30])
def test_a_row_is_the_same_in_every_precision_and_order(length: float) -> None:
    x = rows() * np.float32(length)
    expected = row_hashes(x)
    assert len(np.unique(expected)) == len(x)
    assert (row_hashes(x.astype(np.float64)) == expected).all()
    assert (row_hashes(x[::-1].copy())[::-1] == expected).all()
    assert (row_hashes(np.asfortranarray(x)) == expected).all()
    assert (row_hashes(x[:, ::1][7:9]) == expected[7:9]).all()


def test_rows_stored_as_float16_are_recognised() -> None:
    """Also those whose small entries float16 rounds to its subnormal numbers."""
    x = rows(dim=64) * np.logspace(-6, 4, 64, dtype=np.float32)
    assert (row_hashes(x.astype(np.float16)) == row_hashes(x)).all()
    edge = np.array([[2**15 - 1e-3, 1], [2**-6 - 1e-10, 2**-9], [2**-6, 1e-7]], np.float32)
    assert (row_hashes(edge.astype(np.float16)) == row_hashes(edge)).all()


def test_rows_that_differ_by_more_than_the_sign_of_zero_are_others() -> None:
    """A computed-again row differs somewhere by more than half precision: nothing can tell."""
    x = rows()
    x[:, 3] = 0.0
    negative = x.copy()
    negative[:, 3] = -0.0
    assert (row_hashes(x) == row_hashes(negative)).all()
    assert row_hashes(np.zeros((1, 4))) == row_hashes(np.array([[0, -0.0, 0, -0.0]], np.float16))
    scaled = np.array([[1.0, 2.0]]) * 2.0 ** np.arange(-60, 60)[:, None]
    for other in (scaled.astype(np.float32), scaled * 2.0**-900):
        assert len(np.unique(row_hashes(other))) == len(scaled)
    assert not found(row_hashes(rows() * np.float32(1.01)), known_rows([rows()])).any()


def test_what_was_found_is_what_is_there() -> None:
    known = known_rows([rows(1), rows(2)])
    assert (
        found(row_hashes(np.concatenate([rows(3), rows(2)])), known).tolist()
        == [False] * 50 + [True] * 50
    )
    assert not found(row_hashes(rows(3)), known[:0]).any()
    assert false_positives(2**20, 2**24) == 2.0**-20


def test_no_private_row_passes_for_public_in_any_precision_or_company() -> None:
    """No share is tolerated: the row goes before the fit, or there is no fit."""
    private, public = held(rows(1)), held(rows(0))
    mixed = held(np.concatenate([public.embeddings, rows(1)[3:4]]))
    others = [held(private.embeddings.astype(dtype)) for dtype in (np.float64, np.float16)]
    for other in (private, private.subset(slice(0, 5)), mixed, *others):
        with pytest.raises(ValueError, match=r"public must be another set .* rows in both"):
            refuse_leak(other, private)
    assert [in_both(other, private).sum() for other in others] == [50, 50]
    refuse_leak(public, private)
    refuse_leak(held(rows(0, dim=4)), private)
    for made_by in ({"compared": True}, {"compared": False}, {}):
        transformed = replace(public, meta={"transform": made_by})
        assert transformed.is_compared is made_by.get("compared", False)
    words = r"without any of its rows .*embed exclude.* takes them .* got 1 of 51 rows in both"
    with pytest.raises(ValueError, match=words):
        refuse_leak(mixed, private)


def test_exclude_writes_private_rows_that_are_not_public(tmp_path: Path) -> None:
    private = np.concatenate([rows(0), rows(1)[::3].astype(np.float16)])
    for name, x in (("private", private), ("public", rows(1)), ("blank", rows(0)[:4])):
        held(x).save(tmp_path / name)
    out = tmp_path / "out"
    public = (tmp_path / "public", tmp_path / "blank")
    Exclude(embeddings=tmp_path / "private", public=public, out=out).run()
    kept = EmbeddingSet.open(out)
    assert len(kept) == 46
    assert np.array_equal(kept.embeddings, rows(0)[4:])
    refuse_leak(held(np.concatenate([rows(1), rows(0)[:4]])), kept)
    with pytest.raises(ValueError, match="embeddings must hold rows that are not public, got 0"):
        Exclude(embeddings=public[0], public=public, out=tmp_path / "none").run()
    assert not (tmp_path / "none").exists()
