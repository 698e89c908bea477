"""What the library `datasets` wrote, and what it reads from folders."""

import gc
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pretrain.sources import open_images

datasets: Any = pytest.importorskip("datasets")


def a_set(pictures, rows: slice = slice(None)) -> Any:
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["owl", "dog", "cat"]),
            "user": datasets.Value("string"),
        }
    )
    images = [Image.open(io.BytesIO(file)) for file in pictures.files[rows]]
    labels, users = pictures.labels[rows], pictures.users[rows]
    columns = {"image": images, "label": labels, "user": users}
    return datasets.Dataset.from_dict(columns, features=features)


def test_a_saved_set(tmp_path: Path, pictures) -> None:
    a_set(pictures).save_to_disk(tmp_path / "saved")
    images = open_images(f"hf:{tmp_path}/saved")
    assert images.class_names == ("owl", "dog", "cat")
    assert not images.inferred
    assert [images.class_names[k] for k in images.labels] == pictures.labels
    assert np.asarray(images.users).tolist() == pictures.user_numbers
    assert (images.images(slice(None)) == pictures.pixels).all()
    assert (images.images(np.array([9, 2])) == pictures.pixels[[9, 2]]).all()
    assert images.image_name(9) == "row 9"


def test_its_splits(tmp_path: Path, pictures) -> None:
    parts = {"train": a_set(pictures, slice(0, 8)), "validation": a_set(pictures, slice(8, 12))}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "saved")
    images = open_images(f"hf:{tmp_path}/saved")
    assert images.split.tolist() == [0] * 8 + [2] * 4  # validation is held out
    assert (images.images(slice(None)) == pictures.pixels).all()
    test = open_images(f"hf:{tmp_path}/saved", splits=["val"])
    assert (test.images(slice(None)) == pictures.pixels[8:]).all()
    assert test.image_name(1) == "validation 1"


def test_other_columns(tmp_path: Path, pictures) -> None:
    held = a_set(pictures).rename_column("label", "finding").rename_column("user", "ward")
    held.rename_column("image", "scan").save_to_disk(tmp_path / "saved")
    images = open_images(f"hf:{tmp_path}/saved", columns="user=ward")
    assert [images.class_names[k] for k in images.labels] == pictures.labels
    assert images.users is not None
    rule = "columns must give label= one of scan, finding, ward, got 'label'"
    with pytest.raises(ValueError, match=rule):
        open_images(f"hf:{tmp_path}/saved", columns="label=label")


def test_a_test_split_without_labels(tmp_path: Path, pictures) -> None:
    """The library stores an unknown class as -1."""
    held = a_set(pictures).remove_columns("label")
    features = held.features | {"label": datasets.ClassLabel(names=["owl", "dog", "cat"])}
    held.add_column("label", [-1] * 12).cast(datasets.Features(features)).save_to_disk(
        tmp_path / "saved"
    )
    images = open_images(f"hf:{tmp_path}/saved")
    assert not images.labelled
    assert images.class_names == ("owl", "dog", "cat")


def test_an_image_folder(tmp_path: Path, pictures) -> None:
    for k, file in enumerate(pictures.files):
        split = pictures.splits[k]
        path = tmp_path / "folder" / split / pictures.labels[k] / f"{k:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file)
    images = open_images(f"hf:{tmp_path}/folder")
    assert len(images) == 12
    assert images.split.tolist() == pictures.split_numbers
    rows = [int(Path(images.image_name(k)).stem) for k in range(12)]
    assert (images.images(slice(None)) == pictures.pixels[rows]).all()
    assert [images.class_names[k] for k in images.labels] == [pictures.labels[r] for r in rows]
    own = open_images(str(tmp_path / "folder"))
    assert sorted(rows) == sorted(int(Path(own.image_name(k)).stem) for k in range(12))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_image_folder_with_metadata(tmp_path: Path, pictures) -> None:
    (tmp_path / "folder").mkdir()
    lines = ["file_name,finding,ward"]
    for k, file in enumerate(pictures.files):
        (tmp_path / "folder" / f"{k}.png").write_bytes(file)
        lines.append(f"{k}.png,{pictures.labels[k]},{pictures.users[k]}")
    (tmp_path / "folder" / "metadata.csv").write_text("\n".join(lines) + "\n")
    images = open_images(f"hf:{tmp_path}/folder", columns="label=finding,user=ward")
    rows = [int(Path(images.image_name(k)).stem) for k in range(12)]
    assert (images.images(slice(None)) == pictures.pixels[rows]).all()
    assert images.labels.tolist() == [pictures.numbers[row] for row in rows]
    assert images.user_names == ("ward A", "ward B", "ward C")
    gc.collect()  # the library leaves a file open


READ = """
import socket, sys
def refuse(*args): raise SystemExit("asked for the network")
socket.socket.connect = socket.getaddrinfo = refuse
from pretrain.sources import open_images
print([len(open_images(f"hf:{place}").images(slice(None))) for place in sys.argv[1:]])
"""


def test_nothing_is_copied_and_nobody_is_asked(tmp_path: Path, pictures) -> None:
    a_set(pictures).save_to_disk(tmp_path / "saved")
    (tmp_path / "folder" / "cat").mkdir(parents=True)
    (tmp_path / "folder" / "cat" / "1.png").write_bytes(pictures.files[0])
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


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="hf must be a directory, got"):
        open_images(f"hf:{tmp_path}/none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty must be a data set on disk, got"):
        open_images(f"hf:{tmp_path}/empty")
    datasets.Dataset.from_dict({"a": [1]}).save_to_disk(tmp_path / "saved")
    with pytest.raises(ValueError, match=r"columns must give path= .* got columns a"):
        open_images(f"hf:{tmp_path}/saved")


def labelled(pictures, labels: list[int], names: tuple[str, ...] = ("cat", "dog")) -> Any:
    kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(names=list(names))}
    images = [{"bytes": file, "path": None} for file in pictures.files[: len(labels)]]
    columns = {"image": images, "label": labels}
    return datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))


@pytest.mark.parametrize(
    ("other", "rule"),
    [
        (
            {"unsupervised": [-1, -1]},
            r"split must be one of .* pass --splits .*, got 'unsupervised'",
        ),
        ({"train_extra": [0, 1]}, "got 'train_extra'"),
        ({"a": [0, 1], "b": [1, 1], "test": [1, 0]}, "got 'a', 'b'"),
        ({"validation": [0, -1]}, r"where -1 is none, got -1 in row 3 \(validation 1\)"),
    ],
)
def test_splits_that_are_not_asked_for_are_not_looked_at(
    tmp_path: Path, pictures, other: dict[str, list[int]], rule: str
) -> None:
    parts = {"train": [0, 1]} | other
    held = {name: labelled(pictures, labels) for name, labels in parts.items()}
    datasets.DatasetDict(held).save_to_disk(tmp_path / "saved")
    source = f"hf:{tmp_path}/saved"
    with pytest.raises(ValueError, match=rule):
        open_images(source)
    assert open_images(source, splits=["train"]).labels.tolist() == [0, 1]
    for name in other:
        for file in (tmp_path / "saved" / name).iterdir():
            file.write_bytes(b"damaged")
    assert open_images(source, splits=["train"]).labels.tolist() == [0, 1]
    with pytest.raises(ValueError, match=r"splits must be of .*, got \['evaluation'\]"):
        open_images(source, splits=["evaluation"])


@pytest.mark.parametrize("names", [("dog", "cat"), ("cat", "dog", "owl"), ("Cat", "dog")])
def test_classes_that_splits_number_differently(
    tmp_path: Path, pictures, names: tuple[str, ...]
) -> None:
    parts = {"train": labelled(pictures, [0, 1]), "test": labelled(pictures, [0, 1], names)}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "saved")
    with pytest.raises(ValueError, match=r"classes of split test must be .*--splits .* got \("):
        open_images(f"hf:{tmp_path}/saved")
    assert open_images(f"hf:{tmp_path}/saved", splits=["train"]).class_names == ("cat", "dog")


def test_hidden_labels_of_a_held_out_split(tmp_path: Path, pictures, capsys) -> None:
    parts = {"train": labelled(pictures, [0, 1, 1]), "test": labelled(pictures, [-1, -1])}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "saved")
    images = open_images(f"hf:{tmp_path}/saved")
    assert (images.labels.tolist(), images.split.tolist()) == ([0, 1, 1], [0, 0, 0])
    assert "test has no labels: 2 left out (--splits test" in capsys.readouterr().err
    test = open_images(f"hf:{tmp_path}/saved", splits=["test"])
    assert (test.labelled, len(test), test.class_names) == (False, 2, ("cat", "dog"))


def test_class_numbers_are_places_whatever_the_classes_are_called(tmp_path: Path, pictures) -> None:
    labelled(pictures, [0, 0, 1], ("1", "0")).save_to_disk(tmp_path / "saved")
    images = open_images(f"hf:{tmp_path}/saved")
    assert (images.class_names, images.labels.tolist()) == (("1", "0"), [0, 0, 1])


def test_a_missing_picture_is_named_with_its_row(tmp_path: Path, pictures) -> None:
    kinds = datasets.Features({"image": datasets.Image()})
    images = [{"bytes": pictures.files[0], "path": None}, None]
    datasets.Dataset.from_dict({"image": images}, features=kinds).save_to_disk(tmp_path / "saved")
    opened = open_images(f"hf:{tmp_path}/saved")
    with pytest.raises(ValueError, match="row 1 must hold an image's bytes or its path, got none"):
        opened.images(slice(None))
