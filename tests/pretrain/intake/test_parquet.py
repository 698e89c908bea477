"""Parquet in the ways that people write it: bytes, Hugging Face's structs, paths; any row order."""

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pretrain.datasets import UnreadableImage
from pretrain.intake.table_files import BATCH
from pretrain.sources import open_images

pa: Any = pytest.importorskip("pyarrow")
pq: Any = pytest.importorskip("pyarrow.parquet")


def as_bytes(pictures, tmp_path: Path) -> list[Any]:
    return pictures.files


def as_structs(pictures, tmp_path: Path) -> list[Any]:
    return [{"bytes": file, "path": f"p/{k}.png"} for k, file in enumerate(pictures.files)]


def as_paths(pictures, tmp_path: Path) -> list[Any]:
    for k, file in enumerate(pictures.files):
        (tmp_path / f"{k}.png").write_bytes(file)
    return [f"{k}.png" for k in range(12)]


def as_structs_of_paths(pictures, tmp_path: Path) -> list[Any]:
    return [{"bytes": None, "path": path} for path in as_paths(pictures, tmp_path)]


@pytest.mark.parametrize("column", [as_bytes, as_structs, as_paths, as_structs_of_paths])
@pytest.mark.parametrize("groups", [5, 100])
def test_kinds_of_columns(tmp_path: Path, pictures, column, groups: int) -> None:
    table = pa.table(
        {
            "image": column(pictures, tmp_path),
            "label": pictures.numbers,
            "user": pictures.users,
            "split": pictures.splits,
        }
    )
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=groups)
    images = open_images(f"parquet:{tmp_path}/t.parquet", classes=("cat", "dog", "owl"))
    assert images.labels.tolist() == pictures.numbers
    assert np.asarray(images.users).tolist() == pictures.user_numbers
    assert images.split.tolist() == pictures.split_numbers
    assert (images.images(slice(None)) == pictures.pixels).all()
    order = np.random.default_rng(0).integers(0, 12, 40)
    assert (images.images(order) == pictures.pixels[order]).all()
    names = {as_bytes: "row 4", as_structs: "p/4.png"}
    assert images.image_name(4) == names.get(column, "4.png")
    assert images.place(4) == f"{tmp_path}/t.parquet: row 4 ({images.image_name(4)})"


def test_several_files_are_one_table(tmp_path: Path, pictures) -> None:
    for part in range(3):
        rows = slice(4 * part, 4 * part + 4)
        table = pa.table({"image": pictures.files[rows], "finding": pictures.labels[rows]})
        pq.write_table(table, tmp_path / f"part-{part}.parquet")
    for pattern in ("part-*.parquet", "part-{0..2}.parquet"):
        images = open_images(f"parquet:{tmp_path}/{pattern}", columns="label=finding")
        assert images.class_names == ("cat", "dog", "owl")
        assert images.labels.tolist() == pictures.numbers
        assert (images.images(np.array([11, 0, 5])) == pictures.pixels[[11, 0, 5]]).all()
        assert images.image_name(5) == "part-1.parquet 1"
        assert images.place(5) == f"{tmp_path}/part-1.parquet: row 1 (part-1.parquet 1)"
    two = open_images(
        f"parquet:{tmp_path}/part-2.parquet::{tmp_path}/part-0.parquet", columns="label="
    )
    assert (two.images(slice(None)) == pictures.pixels[[8, 9, 10, 11, 0, 1, 2, 3]]).all()
    assert not two.labelled


def test_hugging_face_s_class_names_declare_the_classes(tmp_path: Path, pictures) -> None:
    features = {"label": {"names": ["owl", "dog", "cat", "elk"], "_type": "ClassLabel"}}
    table = pa.table({"image": pictures.files, "label": [0, 1, 2] * 4})
    kept = {"huggingface": json.dumps({"info": {"features": features}})}
    pq.write_table(table.replace_schema_metadata(kept), tmp_path / "t.parquet")
    images = open_images(f"parquet:{tmp_path}/t.parquet")
    assert images.class_names == ("owl", "dog", "cat", "elk")
    assert images.labels.tolist() == [0, 1, 2] * 4
    assert not images.inferred


def test_class_numbers_are_places_whatever_the_classes_are_called(tmp_path: Path, pictures) -> None:
    names = {"names": ["1", "0"], "_type": "ClassLabel"}
    for feature, labels in ((names, [0, 0, 1]), ({"feature": names}, [[0], [0], [1]])):
        kept = {"huggingface": json.dumps({"info": {"features": {"label": feature}}})}
        table = pa.table({"image": pictures.files[:3], "label": labels})
        pq.write_table(table.replace_schema_metadata(kept), tmp_path / "t.parquet")
        images = open_images(f"parquet:{tmp_path}/t.parquet")
        assert (images.class_names, images.labels.tolist()) == (("1", "0"), [0, 0, 1])


def test_words_that_are_no_text_are_named(tmp_path: Path, pictures) -> None:
    table = pa.table({"image": pictures.files[:2], "label": [b"a", b"\xff"]})
    pq.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(
        ValueError, match=r"t\.parquet: names must be text in UTF-8, got .* in row 1"
    ):
        open_images(f"parquet:{tmp_path}/t.parquet")


@pytest.fixture
def many(tmp_path: Path, pictures) -> str:
    """3,000 rows in one row group; row r is picture r % 12, and so large that it has many pages."""
    files = [pictures.files[k % 12] + bytes(1000) for k in range(3000)]
    pq.write_table(pa.table({"image": files}), tmp_path / "t.parquet", row_group_size=1 << 20)
    return f"parquet:{tmp_path}/t.parquet"


def test_reading_on_goes_through_the_file_once(
    many: str, pictures, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = []
    whole = pq.ParquetFile.iter_batches

    def counted(self, *args, **kwargs):
        for batch in whole(self, *args, **kwargs):
            passed.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counted)
    images = open_images(many)
    spans = [(start, min(3000, start + 100)) for start in range(0, 3000, 100)]
    for k in range(0, 30, 3):  # as threads that decode ahead may come: a little out of order
        for start, stop in (spans[k + 2], spans[k], spans[k + 1]):
            found = images.images(slice(start, stop))
            assert (found == pictures.pixels[np.arange(start, stop) % 12]).all()
    assert sum(passed) == 3000
    assert max(passed) <= BATCH


def test_threads_at_once(many: str, pictures) -> None:
    images, wrong = open_images(many), []

    def read(seed: int) -> None:
        for row in np.random.default_rng(seed).integers(0, 3000, 12):
            if not (images.images(np.array([row])) == pictures.pixels[[row % 12]]).all():
                wrong.append(row)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_is_wrong_is_named(tmp_path: Path, pictures) -> None:
    place = tmp_path / "t.parquet"
    place.write_bytes(b"PAR1 not")
    with pytest.raises(ValueError, match=r"t\.parquet must be a Parquet file, got"):
        open_images(f"parquet:{place}")
    with pytest.raises(ValueError, match=r"files must exist, got .*none\.parquet"):
        open_images(f"parquet:{tmp_path}/none.parquet")
    with pytest.raises(ValueError, match=r"files must exist, got .*\*\.parq"):
        open_images(f"parquet:{tmp_path}/*.parq")
    with pytest.raises(ValueError, match=r"braces must be closed, got .*\{0"):
        open_images(f"parquet:{tmp_path}/{{0..2.parquet")
    pq.write_table(pa.table({"a": [1], "b": [2]}), place)
    with pytest.raises(ValueError, match=r"columns must give path= .* got columns a, b"):
        open_images(f"parquet:{place}")
    with pytest.raises(ValueError, match="columns must give label= one of a, b, got 'c'"):
        open_images(f"parquet:{place}", columns="path=a,label=c")
    images = open_images(f"parquet:{place}", columns="path=a")
    with pytest.raises(UnreadableImage, match="row 0 must hold an image's bytes or its path, got"):
        images.images(slice(None))
    pq.write_table(pa.table({"image": [pictures.files[0], None, b"?"]}), place)
    images = open_images(f"parquet:{place}")
    with pytest.raises(UnreadableImage, match=r"row 1 must hold an image's bytes .* got none"):
        images.images(slice(0, 2))
    with pytest.raises(UnreadableImage, match=r"row 2 .* must be a readable image, got 1 bytes"):
        images.images(slice(2, 3))


def test_a_file_that_is_cut_while_it_is_read(many: str, tmp_path: Path) -> None:
    images = open_images(many)
    place = tmp_path / "t.parquet"
    place.write_bytes(place.read_bytes()[:-5000])
    with pytest.raises(ValueError, match=r"t\.parquet must be a Parquet file, got"):
        images.images(slice(0, 4))
