"""What the library `datasets` wrote, and what it reads from folders."""

import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pretrain.sources import open_images
from tests.pretrain.conftest import CLASSES, data_set, put

datasets: Any = pytest.importorskip("datasets")
ORDER = ("owl", "dog", "cat")


def a_set(pictures, rows: slice = slice(None)) -> Any:
    labels = [ORDER.index(label) for label in pictures.labels[rows]]
    return data_set(labels, ORDER, pictures.files[rows], user=pictures.users[rows])


def saved(folder: Path, held: Any) -> str:
    """Writes a set, or one for each split; its `--data`."""
    held = datasets.DatasetDict(held) if isinstance(held, dict) else held
    held.save_to_disk(folder / "saved")
    return f"hf:{folder}/saved"


def test_a_saved_set(tmp_path: Path, pictures) -> None:
    images = open_images(saved(tmp_path, a_set(pictures)))
    assert (images.class_names, images.inferred) == (ORDER, False)
    assert [images.class_names[k] for k in images.labels] == pictures.labels
    assert np.asarray(images.users).tolist() == pictures.user_numbers
    assert (images.images(slice(None)) == pictures.pixels).all()
    assert (images.images(np.array([9, 2])) == pictures.pixels[[9, 2]]).all()
    assert images.image_name(9) == "row 9"


def test_its_splits(tmp_path: Path, pictures) -> None:
    parts = {"train": a_set(pictures, slice(0, 8)), "validation": a_set(pictures, slice(8, 12))}
    source = saved(tmp_path, parts)
    images = open_images(source)
    assert images.split.tolist() == [0] * 8 + [2] * 4  # validation is held out
    assert (images.images(slice(None)) == pictures.pixels).all()
    test = open_images(source, splits=["val"])
    assert (test.images(slice(None)) == pictures.pixels[8:]).all()
    assert test.image_name(1) == "validation 1"


def test_other_columns_and_places_of_classes(tmp_path: Path, pictures) -> None:
    names = {"label": "finding", "user": "ward", "image": "scan"}
    source = saved(tmp_path, a_set(pictures).rename_columns(names))
    images = open_images(source, columns="user=ward")
    assert [images.class_names[k] for k in images.labels] == pictures.labels
    assert images.users is not None
    rule = "columns must give label= one of scan, finding, ward, got 'label'"
    with pytest.raises(ValueError, match=rule):
        open_images(source, columns="label=label")
    images = open_images(saved(tmp_path / "numbers", data_set([0, 0, 1], ("1", "0"))))
    assert (images.class_names, images.labels.tolist()) == (("1", "0"), [0, 0, 1])


def test_hidden_labels_of_a_held_out_split(tmp_path: Path, capsys) -> None:
    """The library stores an unknown class as -1."""
    parts = {"train": data_set([0, 1, 1], ORDER), "test": data_set([-1, -1], ORDER)}
    source = saved(tmp_path, parts)
    images = open_images(source)
    assert (images.labels.tolist(), images.split.tolist()) == ([0, 1, 1], [0, 0, 0])
    assert "test has no labels: 2 left out (--splits test" in capsys.readouterr().err
    test = open_images(source, splits=["test"])
    assert (test.labelled, len(test), test.class_names) == (False, 2, ORDER)


def test_an_image_folder(tmp_path: Path, pictures) -> None:
    for k, file in enumerate(pictures.files):
        put(tmp_path / pictures.splits[k] / pictures.labels[k] / f"{k:02d}.png", file)
    images = open_images(f"hf:{tmp_path}")
    assert images.split.tolist() == pictures.split_numbers
    rows = [int(Path(images.image_name(k)).stem) for k in range(12)]
    assert (images.images(slice(None)) == pictures.pixels[rows]).all()
    assert [images.class_names[k] for k in images.labels] == [pictures.labels[r] for r in rows]
    own = open_images(str(tmp_path))
    assert sorted(rows) == sorted(int(Path(own.image_name(k)).stem) for k in range(12))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_image_folder_with_metadata(tmp_path: Path, pictures) -> None:
    lines = ["file_name,finding,ward"]
    for k, file in enumerate(pictures.files):
        put(tmp_path / f"{k}.png", file)
        lines.append(f"{k}.png,{pictures.labels[k]},{pictures.users[k]}")
    (tmp_path / "metadata.csv").write_text("\n".join(lines) + "\n")
    images = open_images(f"hf:{tmp_path}", columns="label=finding,user=ward")
    rows = [int(Path(images.image_name(k)).stem) for k in range(12)]
    assert (images.images(slice(None)) == pictures.pixels[rows]).all()
    assert images.labels.tolist() == [pictures.numbers[row] for row in rows]
    assert (images.class_names, images.user_names) == (CLASSES, ("ward A", "ward B", "ward C"))
    gc.collect()  # the library leaves a file open


READ = """
import socket, sys
def refuse(*args): raise SystemExit("asked for the network")
socket.socket.connect = socket.getaddrinfo = refuse
from pretrain.sources import open_images
print([len(open_images(f"hf:{place}").images(slice(None))) for place in sys.argv[1:]])
"""


def test_nothing_is_copied_and_nobody_is_asked(tmp_path: Path, pictures) -> None:
    saved(tmp_path, a_set(pictures))
    put(tmp_path / "folder" / "cat" / "1.png")
    left = [tmp_path / name for name in ("home", "cache", "scratch")]
    for place in left:
        place.mkdir()
    names = ("HF_HOME", "HF_DATASETS_CACHE", "TMPDIR")
    given = dict(zip(names, map(str, left), strict=True)) | {"HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", READ, str(tmp_path / "saved"), str(tmp_path / "folder")]
    done = subprocess.run(command, env=os.environ | given, capture_output=True, text=True)
    assert done.stdout == "[12, 1]\n", done.stderr
    assert [list(place.rglob("*")) for place in left] == [[], [], []]
    assert len(list((tmp_path / "folder").rglob("*"))) == 2


def test_what_is_wrong_is_named(tmp_path: Path, pictures) -> None:
    (tmp_path / "empty").mkdir()
    no_pictures = saved(tmp_path, datasets.Dataset.from_dict({"a": [1]}))
    for source, rule in (
        (f"hf:{tmp_path}/none", "hf must be a directory, got"),
        (f"hf:{tmp_path}/empty", "empty must be a data set on disk, got"),
        (no_pictures, r"columns must give path= .* got columns a"),
    ):
        with pytest.raises(ValueError, match=rule):
            open_images(source)
    kinds = datasets.Features({"image": datasets.Image()})
    rows = {"image": [{"bytes": pictures.files[0], "path": None}, None]}
    images = open_images(saved(tmp_path / "rows", datasets.Dataset.from_dict(rows, features=kinds)))
    with pytest.raises(ValueError, match="row 1 must hold an image's bytes or its path, got none"):
        images.images(slice(None))


@pytest.mark.parametrize(
    ("other", "names", "rule"),
    [
        ({"unsupervised": [-1, -1]}, ORDER, r"one of .* pass --splits .*, got 'unsupervised'"),
        ({"train_extra": [0, 1]}, ORDER, "got 'train_extra'"),
        ({"a": [0, 1], "b": [1, 1], "test": [1, 0]}, ORDER, "got 'a', 'b'"),
        ({"validation": [0, -1]}, ORDER, r"where -1 is none, got -1 in row 3 \(validation 1\)"),
        *(
            ({"test": [0, 1]}, names, r"classes of split test must be .*--splits .* got \(")
            for names in (ORDER[::-1], ORDER[:2], ("Owl", "dog", "cat"))
        ),
    ],
)
def test_splits_that_are_not_asked_for_are_not_looked_at(tmp_path, other, names, rule) -> None:
    parts = {name: data_set(labels, names) for name, labels in other.items()}
    source = saved(tmp_path, {"train": data_set([0, 1], ORDER)} | parts)
    with pytest.raises(ValueError, match=rule):
        open_images(source)
    for name in other:
        for file in (tmp_path / "saved" / name).iterdir():
            file.write_bytes(b"damaged")
    images = open_images(source, splits=["train"])
    assert (images.labels.tolist(), images.class_names) == ([0, 1], ORDER)
    with pytest.raises(ValueError, match=r"splits must be of .*, got \['evaluation'\]"):
        open_images(source, splits=["evaluation"])
