"""The classes are public: they are declared, and what occurs in the data is no declaration."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pretrain.datasets import declared_classes
from pretrain.intake.archive import open_npz
from pretrain.sources import open_images


def archive(path: Path, labels: list[int], test: list[int] = [0], **more: Any) -> Path:  # noqa: B006
    arrays = {
        "x_train": np.zeros((len(labels), 4, 4), np.uint8),
        "y_train": np.array(labels),
        "x_test": np.zeros((len(test), 4, 4), np.uint8),
        "y_test": np.array(test),
    }
    np.savez(path, **arrays, **more)
    return path


def test_one_record_adds_no_class_where_they_are_declared(tmp_path: Path) -> None:
    for name, labels in (("with", [0, 1, 7]), ("without", [0, 1, 1])):
        path = archive(tmp_path / f"{name}.npz", labels)
        images = open_images(str(path), classes=declared_classes(10))
        assert images.class_names == tuple("0123456789")
        assert not images.inferred
        counted = open_images(str(path))
        assert counted.inferred
        assert len(counted.class_names) == (8 if name == "with" else 2)


def test_labels_outside_the_declared_ones_are_refused_with_their_row(tmp_path: Path) -> None:
    path = archive(tmp_path / "set.npz", [0, 1, 7], [2])
    with pytest.raises(ValueError, match=r"label must be >= 0 and < 3, got 7 in row 2 of y_train"):
        open_images(str(path), classes=declared_classes(3))
    with pytest.raises(ValueError, match=r"label must be >= 0 and < 2, got 2 in row 0 of y_test"):
        open_images(str(path), splits=["test"], classes=("cat", "dog"))


def test_names_in_the_file_are_a_declaration(tmp_path: Path) -> None:
    path = archive(tmp_path / "set.npz", [0, 1], names=np.array(["a", "b", "c"]))
    images = open_npz(path)
    assert images.class_names == ("a", "b", "c")
    assert not images.inferred
    assert open_images(str(path), classes=("a", "b", "c")).class_names == ("a", "b", "c")
    for classes in (("a", "b"), ("a", "c", "b"), declared_classes(3)):
        with pytest.raises(ValueError, match=r"classes must be \('a', 'b', 'c'\)"):
            open_images(str(path), classes=classes)


def picture(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(path)


def test_a_class_that_nobody_has_is_declared_by_name(tmp_path: Path) -> None:
    for split in ("train", "test"):
        picture(tmp_path / split / "cat" / "0.png")
        (tmp_path / split / "ape").mkdir()
    with pytest.raises(ValueError, match=r"every class must have an image .*, got none in .*/ape"):
        open_images(str(tmp_path))
    images = open_images(str(tmp_path), classes=("ape", "cat"))
    assert images.class_names == ("ape", "cat")
    assert images.labels.tolist() == [1, 1]
    assert not images.inferred


def test_users_with_other_folders_number_their_classes_alike(tmp_path: Path) -> None:
    names = ("ape", "cat", "dog")
    for user, folders in (("one", ("ape", "dog")), ("two", ("cat", "dog"))):
        for folder in folders:
            picture(tmp_path / user / folder / "0.png")
    assert open_images(str(tmp_path / "one"), classes=names).labels.tolist() == [0, 2]
    assert open_images(str(tmp_path / "two"), classes=names).labels.tolist() == [1, 2]
    picture(tmp_path / "one" / "bat" / "0.png")
    with pytest.raises(ValueError, match=r"must hold only the classes .*, got \['bat'\]"):
        open_images(str(tmp_path / "one"), classes=names)


@pytest.mark.parametrize(
    ("number", "names", "rule"),
    [
        (3, ("a", "b", "c"), "only one of num_classes and class_names"),
        (1, (), r"num_classes must be in \[2, \d+\], got 1"),
        (None, ("a",), "class_names must be two or more"),
        (None, ("a", "b", "a"), "class_names must be distinct"),
    ],
)
def test_declarations_that_are_none(number: Any, names: tuple[str, ...], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        declared_classes(number, names)


def test_rows_are_named_after_their_files(tmp_path: Path) -> None:
    images = open_npz(archive(tmp_path / "set.npz", [0, 1, 1], [0, 1]))
    assert images.place(4) == f"{tmp_path / 'set.npz'}: row 1 of test"
    assert images.take(np.array([4, 1])).place(1) == f"{tmp_path / 'set.npz'}: row 1 of train"
    picture(tmp_path / "folder" / "cat" / "7.png")
    assert open_images(str(tmp_path / "folder")).place(0).endswith("cat/7.png")
