"""Images without labels: embedded and named like others, refused wherever something is learned."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from embed import EmbeddingSet, PublicTransform
from embed.run import Exclude, FitTransform
from pretrain.datasets import concatenate, decode_name
from pretrain.intake.archive import open_npz
from pretrain.sources import open_images
from tests.embed.conftest import embed


def unlabelled(rows: int = 8, **changes: Any) -> EmbeddingSet:
    x = np.random.default_rng(0).standard_normal((rows, 3)).astype(np.float32)
    names = np.array([f"ward/{k} ü.png" for k in range(rows)])
    fields = {"embeddings": x, "labels": np.full(rows, -1), "names": names}
    return EmbeddingSet(**(fields | changes))


def test_labels_are_there_for_all_rows_or_for_none() -> None:
    assert not unlabelled().labelled
    assert unlabelled(labels=np.zeros(8, np.int64)).labelled
    for labels in ([-1] * 7 + [0], [0] * 7 + [-1], [-2] * 8):
        with pytest.raises(ValueError, match=r"labels must be >= 0, or -1 in every row, got -"):
            unlabelled(labels=np.array(labels))
    with pytest.raises(ValueError, match=r"public must have labels to learn from, got a set of 8"):
        unlabelled().need_labels("public")


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
    with pytest.raises(ValueError, match=r"names must be 8 strings, got int64 \(8,\)"):
        unlabelled(names=np.arange(8))
    with pytest.raises(ValueError, match=r"names must be 8 strings, got <U1 \(2,\)"):
        unlabelled(names=np.array(["a", "b"]))


def test_public_rows_need_no_labels(tmp_path: Path) -> None:
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
    assert done is not None
    assert (done.labelled, done.meta["classes"], done.declared_classes) == (False, "none", ())
    assert done.embeddings[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 0, 1]


def test_a_held_out_split_without_labels_is_left_out_with_a_word(tmp_path: Path, capsys) -> None:
    pixels, path = np.zeros((2, 4, 4), np.uint8), tmp_path / "set.npz"
    np.savez(path, x_train=pixels, y_train=np.arange(2), x_test=pixels)
    images = open_npz(path)
    assert (images.labelled, images.split.tolist()) == (True, [0, 0])
    assert "test has no labels: 2 left out (--splits test" in capsys.readouterr().err
    assert not open_images(str(path), splits=["test"]).labelled
    np.savez(path, x_train=pixels, y_test=np.arange(2), x_test=pixels)
    with pytest.raises(ValueError, match="label must be given in every row or in none, got none"):
        open_npz(path)


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
    assert done is not None
    assert done.names is not None
    assert [decode_name(name) for name in done.names] == ["test/a/1.png", "train/b/0.png"]
