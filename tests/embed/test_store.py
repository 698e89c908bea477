from pathlib import Path

import numpy as np
import pytest

from embed import EmbeddingSet


def small_set(**changes: object) -> EmbeddingSet:
    fields: dict[str, object] = {
        "embeddings": np.arange(12, dtype=np.float32).reshape(4, 3),
        "labels": np.array([0, 1, 1, 0]),
        "users": np.array([7, 7, 8, 8]),
        "split": np.array([0, 0, 0, 1], np.uint8),
        "meta": {"class_names": ["a", "b"]},
    }
    return EmbeddingSet(**(fields | changes))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("users", [None, np.array([7, 7, 8, 8])])
def test_saved_set_opens_the_same(tmp_path: Path, users: np.ndarray | None) -> None:
    original = small_set(users=users)
    original.save(tmp_path / "set")
    opened = EmbeddingSet.open(tmp_path / "set")
    assert isinstance(opened.embeddings, np.memmap)
    assert np.array_equal(opened.embeddings, original.embeddings)
    assert np.array_equal(opened.labels, original.labels)
    assert np.array_equal(opened.split, original.split)
    assert (opened.users is None) == (users is None)
    assert opened.meta["class_names"] == ["a", "b"]
    assert opened.content_hash() == original.content_hash()


def test_an_existing_directory_is_kept(tmp_path: Path) -> None:
    small_set().save(tmp_path / "set")
    with pytest.raises(FileExistsError, match="must not exist"):
        small_set().save(tmp_path / "set")
    small_set(users=None).save(tmp_path / "set", overwrite=True)
    assert EmbeddingSet.open(tmp_path / "set").users is None
    assert [p.name for p in tmp_path.iterdir()] == ["set"]


def test_subset_by_mask_and_slice() -> None:
    whole = small_set(meta={"content_hash": small_set().content_hash()})
    part = whole.subset(whole.split == 0)
    assert len(part) == 3
    assert np.asarray(part.users).tolist() == [7, 7, 8]
    assert part.content_hash() != whole.content_hash()
    assert np.shares_memory(whole.subset(slice(1, 3)).embeddings, whole.embeddings)


def test_rows_that_changed_under_their_hash_are_refused(tmp_path: Path) -> None:
    small_set().save(tmp_path / "set")
    rows = np.load(tmp_path / "set" / "embeddings.npy")
    np.save(tmp_path / "set" / "embeddings.npy", rows + 1)
    with pytest.raises(
        ValueError, match=r"those of the content_hash in meta\.json, .*, got changed"
    ):
        EmbeddingSet.open(tmp_path / "set").content_hash()


def test_content_hash_ignores_how_rows_are_stored() -> None:
    half = small_set(embeddings=np.arange(12, dtype=np.float16).reshape(4, 3))
    assert half.content_hash() == small_set().content_hash()


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"embeddings": np.zeros(4, np.float32)}, "embeddings must be a float"),
        ({"labels": np.zeros(4)}, "labels must be 4 integers, got float64"),
        ({"users": np.array([[0, 0, 0, 0]])}, "users must be 4 integers"),
    ],
)
def test_arrays_that_do_not_fit(changes: dict[str, np.ndarray], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        small_set(**changes)
