"""Sets of embeddings: on disk, without labels, and divided.

Rows are held out by a draw on which no row has any influence.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from embed import EmbeddingSet, PublicTransform
from embed.hold_out import HoldOut, random_keys, with_held_out
from embed.run import Exclude, FitTransform
from pretrain.datasets import concatenate, decode_name
from pretrain.intake.archive import open_npz
from pretrain.sources import open_images
from tests.benchmarks.split_by_writer import SplitByWriter
from tests.embed.conftest import embed


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


def test_the_content_hash_is_that_of_rows_however_they_are_stored(tmp_path: Path) -> None:
    half = small_set(embeddings=np.arange(12, dtype=np.float16).reshape(4, 3))
    assert half.content_hash() == small_set().content_hash()
    half.save(tmp_path / "set")
    np.save(tmp_path / "set" / "embeddings.npy", half.embeddings + 1)
    words = r"those of the content_hash in meta\.json, .*, got changed"
    with pytest.raises(ValueError, match=words):
        EmbeddingSet.open(tmp_path / "set").content_hash()


NO_LABELS = "labels must be >= 0, or -1 in every row, got -"


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"embeddings": np.zeros(4, np.float32)}, "embeddings must be a float"),
        ({"labels": [0, 1, 0, 1]}, "labels must be a NumPy array, got a list"),
        ({"labels": np.zeros(4)}, "labels must be 4 integers, got float64"),
        ({"users": np.array([[0, 0, 0, 0]])}, "users must be 4 integers"),
        ({"names": np.arange(4)}, r"names must be 4 strings, got int64 \(4,\)"),
        ({"names": np.array(["a", "b"])}, r"names must be 4 strings, got <U1 \(2,\)"),
        *[({"labels": np.array(few)}, NO_LABELS) for few in ([-1, -1, -1, 0], [0, -1, 0, 0])],
        ({"labels": np.full(4, -2)}, NO_LABELS),
    ],
)
def test_arrays_that_do_not_fit(change: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        small_set(**change)


def unlabelled(rows: int = 8, **changes: Any) -> EmbeddingSet:
    x = np.random.default_rng(0).standard_normal((rows, 3)).astype(np.float32)
    names = np.array([f"ward/{k} ü.png" for k in range(rows)])
    fields = {"embeddings": x, "labels": np.full(rows, -1), "names": names}
    return EmbeddingSet(**(fields | changes))


def test_names_go_to_disk_and_back_and_follow_their_rows(tmp_path: Path) -> None:
    original = unlabelled()
    original.save(tmp_path / "set")
    opened = EmbeddingSet.open(tmp_path / "set")
    assert isinstance(opened.names, np.memmap)
    assert opened.names.dtype.kind == "S"
    assert [opened.name(k) for k in range(8)] == [f"ward/{k} ü.png" for k in range(8)]
    assert opened.place(3) == f"row 3 of {tmp_path}/set/embeddings.npy (ward/3 ü.png)"
    part = opened.subset(np.array([6, 1]))
    assert (part.name(0), part.place(1)) == ("ward/6 ü.png", "row 1 (ward/1 ü.png)")
    part.save(tmp_path / "again")
    assert EmbeddingSet.open(tmp_path / "again").name(1) == "ward/1 ü.png"
    assert unlabelled(names=None).name(5) == "row 5"


def test_public_rows_need_no_labels(tmp_path: Path) -> None:
    assert not unlabelled().labelled
    assert unlabelled(labels=np.zeros(8, np.int64)).labelled
    with pytest.raises(ValueError, match=r"public must have labels to learn from, got a set of 8"):
        unlabelled().need_labels("public")
    unlabelled().save(tmp_path / "public")
    private = unlabelled(embeddings=np.eye(8, 3, dtype=np.float32))
    private.save(tmp_path / "private")
    out = tmp_path / "fitted"
    FitTransform(public=tmp_path / "public", out=out).run()
    assert PublicTransform.load(out / "transform.safetensors").between_class is None
    mixed = np.concatenate([private.embeddings[:2], unlabelled().embeddings[2:]])
    unlabelled(embeddings=mixed).save(tmp_path / "mixed")
    public = (tmp_path / "private",)
    Exclude(embeddings=tmp_path / "mixed", public=public, out=tmp_path / "kept").run()
    kept = EmbeddingSet.open(tmp_path / "kept")
    assert (len(kept), kept.name(0)) == (6, "ward/2 ü.png")


def test_nan_names_file_row_and_image(tmp_path: Path) -> None:
    x = np.ones((8, 3), np.float32)
    x[5, 1] = np.nan
    unlabelled(embeddings=x).save(tmp_path / "set")
    opened = EmbeddingSet.open(tmp_path / "set")
    place = r"got nan in row 5 of .*set/embeddings\.npy \(ward/5 ü\.png\)"
    with pytest.raises(ValueError, match=f"public must be finite, {place}"):
        PublicTransform.fit(opened)
    with pytest.raises(ValueError, match=f"embeddings must be finite, {place}"):
        opened.check_finite()


def test_an_archive_without_labels(tmp_path: Path, row_numbers: Any) -> None:
    pixels = np.zeros((6, 8, 8), np.uint8)
    pixels[:, 0, 0] = range(6)
    np.savez(tmp_path / "set.npz", x_train=pixels, x_test=pixels[:2])
    images = open_npz(tmp_path / "set.npz")
    assert not images.labelled
    assert images.class_names == ()
    assert not images.inferred
    assert images.image_name(7) == f"{tmp_path}/set.npz: row 1 of test"
    with pytest.raises(ValueError, match="images must have labels, got set without any"):
        images.need_labels()
    done = embed(images, row_numbers, tmp_path / "out")
    assert (done.labelled, done.meta["classes"], done.declared_classes) == (False, "none", ())
    assert done.embeddings[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 0, 1]


def test_files_of_a_folder_are_named_below_it(tmp_path: Path, row_numbers: Any) -> None:
    for value, file in enumerate(("train/a/1.png", "train/b/0.png", "test/a/1.png")):
        path = tmp_path / "pictures" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), value, np.uint8)).save(path)
    images = open_images(str(tmp_path / "pictures"))
    assert images.image_name(2) == "test/a/1.png"
    assert images.place(2) == f"{tmp_path}/pictures/test/a/1.png"
    assert concatenate([images, images]).take(np.array([4, 0])).image_name(0) == "train/b/0.png"
    done = embed(images.take(np.array([2, 1])), row_numbers, tmp_path / "out")
    assert [decode_name(name) for name in done.names] == ["test/a/1.png", "train/b/0.png"]


def user_rows(sizes: list[int], *, tests: int = 4, seed: int = 0) -> EmbeddingSet:
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


def test_every_user_gives_its_share_or_whole_users_go() -> None:
    source = user_rows([10, 3, 1, 2])
    held = with_held_out(source, 0.5)
    assert counts(source, held.split == 2) == [5, 2, 0, 1]
    assert np.array_equal(held.split == 1, source.split == 1)
    assert np.array_equal(held.embeddings, source.embeddings)
    assert with_held_out(user_rows([10], tests=0), 0.25).split.sum() == 2 * 3  # 2.5, rounded up
    whole = with_held_out(user_rows([4] * 10), 0.3, by="user")
    assert sorted(counts(whole, whole.split == 2))[-4:] == [0, 4, 4, 4]


@pytest.mark.parametrize("by", ["record", "user"])
def test_no_content_of_rows_changes_which_are_held_out(by: Any) -> None:
    first, second = user_rows([6, 9, 5]), user_rows([6, 9, 5], seed=1)
    assert not np.array_equal(first.labels, second.labels)
    drawn = with_held_out(first, 0.4, by=by, seed=0).split
    assert np.array_equal(drawn, with_held_out(second, 0.4, by=by, seed=0).split)
    assert not np.array_equal(drawn, with_held_out(first, 0.4, by=by, seed=1).split)


def test_no_order_of_rows_changes_which_are_held_out() -> None:
    """A record that another class folder puts at another place takes its number with it."""
    source, draw = user_rows([6, 9, 5]), np.random.default_rng(5)
    keys, moved = random_keys(len(source)), draw.permutation(len(source))
    held = with_held_out(source, 0.4, keys=keys)
    shuffled = with_held_out(source.subset(moved), 0.4, keys=keys[moved])
    assert np.array_equal(shuffled.split, held.split[moved])


def test_the_operating_system_draws_every_row_alike() -> None:
    """Nobody can say beforehand which rows are held out: each is in a fifth of the draws."""
    source = user_rows([10], tests=0)
    found = np.stack([with_held_out(source, 0.2).split == 2 for _ in range(2000)])
    assert (found.sum(1) == 2).all()
    assert np.abs(found.mean(0) - 0.2).max() < 5 * np.sqrt(0.2 * 0.8 / 2000)
    together = found[:, :, None] & found[:, None]  # pairs: 1 of 45
    pairs = together.mean(0)[np.triu_indices(10, 1)]
    assert np.abs(pairs - 1 / 45).max() < 5 * np.sqrt(1 / 45 / 2000)


def test_what_cannot_be_divided() -> None:
    once = with_held_out(user_rows([5, 5]), 0.4)
    for source, share, by, rule in (
        (user_rows([10, 10]), 0.5, "row", "by must be one of record, user"),
        (user_rows([10, 10]), 0.9, "user", r"and leave some, got 0\.9 by user"),
        (once, 0.4, "record", "must hold no evaluation rows yet"),
        (once.subset(once.split == 1), 0.4, "record", r"must hold training rows .*, got none"),
    ):
        with pytest.raises(ValueError, match=rule):
            with_held_out(source, share, by=by)  # pyright: ignore[reportArgumentType]


def test_the_command_holds_rows_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    user_rows([10, 10]).save(tmp_path / "mine")
    HoldOut(embeddings=tmp_path / "mine", share=0.2, out=tmp_path / "held").run()
    assert "16 rows to train on, 4 held out, in" in capsys.readouterr().out
    told = EmbeddingSet.open(tmp_path / "held").meta["held_out"]
    assert told == {"share": 0.2, "by": "record", "seed": None}
    assert EmbeddingSet.open(tmp_path / "held").content_hash() == (
        EmbeddingSet.open(tmp_path / "mine").content_hash()
    )
    with pytest.raises(FileExistsError):
        HoldOut(embeddings=tmp_path / "mine", share=0.2, out=tmp_path / "held").run()


def test_every_other_test_writer_donates_all_of_their_rows(tmp_path: Path) -> None:
    rows, users = np.arange(24, dtype=np.float32)[:, None], np.arange(24) // 3
    split = (users >= 4).astype(np.uint8)
    source = EmbeddingSet(embeddings=rows, labels=np.arange(24) % 2, users=users, split=split)
    source.save(tmp_path / "source")
    places = [tmp_path / name for name in ("source", "private", "public")]
    SplitByWriter(*places).run()
    private, public = (EmbeddingSet.open(place) for place in places[1:])
    assert set(np.asarray(public.users).tolist()) == {4, 6}
    assert not public.split.any()
    assert set(np.asarray(private.users).tolist()) == {0, 1, 2, 3, 5, 7}
    assert private.split.tolist() == [0] * 12 + [1] * 6
    both = np.concatenate([private.embeddings, public.embeddings])
    assert sorted(both[:, 0].tolist()) == rows[:, 0].tolist()
