import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pretrain.datasets import ImageSet
from pretrain.sources import open_images


def lay_out(root: Path, pictures, *names: str) -> Path:
    for k, name in enumerate(names):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pictures.files[k] if path.suffix in (".png", ".PNG") else b"?")
    return root


def skipped(images: ImageSet) -> list[str]:
    return [name for name, _ in images.skipped]


def test_users_and_classes(tmp_path: Path, pictures) -> None:
    names = ("b/dog/1.png", "b/cat/0.png", "a/owl/9.PNG", "b/cat/2.png", "a/owl/10.png")
    images = open_images(str(lay_out(tmp_path, pictures, *names)), layout="user-class")
    assert [images.image_name(k) for k in range(5)] == [
        "a/owl/10.png",
        "a/owl/9.PNG",
        "b/cat/0.png",
        "b/cat/2.png",
        "b/dog/1.png",
    ]
    assert images.class_names == ("cat", "dog", "owl")
    assert not images.inferred
    assert images.labels.tolist() == [2, 2, 0, 0, 1]
    assert images.users is not None
    assert images.users.tolist() == [0, 0, 1, 1, 1]
    assert images.user_names == ("a", "b")
    assert (images.images(slice(None)) == pictures.pixels[[4, 2, 1, 3, 0]]).all()


def test_users_and_classes_by_split(tmp_path: Path, pictures) -> None:
    names = ("train/b/dog/1.png", "train/a/cat/1.png", "test/c/cat/0.png", "evaluation/a/dog/7.png")
    images = open_images(str(lay_out(tmp_path, pictures, *names)), layout="user-class")
    assert images.split.tolist() == [0, 0, 1, 2]
    assert images.users is not None
    assert images.users.tolist() == [0, 1, 2, 0]
    assert images.image_name(2) == "test/c/cat/0.png"
    alone = open_images(str(tmp_path), layout="user-class", splits=["train"])
    assert alone.users is not None
    assert alone.users.tolist() == [0, 1]
    with pytest.raises(ValueError, match=r"splits must be of .*'evaluation'\], got \['val'\]"):
        open_images(str(tmp_path), layout="user-class", splits=["val"])


def test_pictures_without_classes(tmp_path: Path, pictures) -> None:
    images = open_images(str(lay_out(tmp_path / "new", pictures, "b.png", "a.png", "notes.txt")))
    assert not images.labelled
    assert [images.image_name(k) for k in range(2)] == ["a.png", "b.png"]
    assert images.skipped == (("notes.txt", "no picture by its suffix"),)
    lay_out(tmp_path / "deep", pictures, "x/y/2.png", "x/1.png", "0.png", ".trash/3.png")
    deep = open_images(str(tmp_path / "deep"), layout="flat")
    assert [deep.image_name(k) for k in range(3)] == ["0.png", "x/1.png", "x/y/2.png"]
    assert (deep.images(slice(None)) == pictures.pixels[[2, 1, 0]]).all()
    assert deep.skipped == ((".trash/", "hidden, or left by a system"),)
    named = open_images(str(tmp_path / "deep"), layout="flat", classes=("u", "v"))
    assert named.class_names == ("u", "v")
    assert not named.labelled


def test_what_is_left_out_is_named(tmp_path: Path, pictures) -> None:
    names = ("cat/1.png", "cat/deeper/2.png", "cat/notes.txt", "loose.png", ".cache/x.png")
    images = open_images(str(lay_out(tmp_path, pictures, *names, "cat/.hidden.png")))
    assert len(images) == 1
    assert images.class_names == ("cat",)
    assert sorted(skipped(images)) == [
        ".cache/",
        "cat/.hidden.png",
        "cat/deeper/",
        "cat/notes.txt",
        "loose.png",
    ]
    lay_out(tmp_path / "split", pictures, "train/a/1.png", "test/a/2.png", "read.me")
    assert skipped(open_images(str(tmp_path / "split"))) == ["read.me"]
    lay_out(tmp_path / "users", pictures, "me/a/1.png", "me/2.png", "3.png")
    held = open_images(str(tmp_path / "users"), layout="user-class")
    assert skipped(held) == ["3.png", "me/2.png"]


def test_names_that_are_no_unicode(tmp_path: Path, pictures) -> None:
    name = b"caf\xe9.png".decode("utf-8", "surrogateescape")
    images = open_images(str(lay_out(tmp_path, pictures, f"cat/{name}", "cat/ü.png")))
    assert images.image_name(0) == f"cat/{name}"
    assert (images.images(slice(None)) == pictures.pixels[:2]).all()


@pytest.mark.parametrize(
    ("names", "layout", "rule"),
    [
        ((), "flat", "must hold class folders with images, got none"),
        (("a.txt",), "auto", "must hold class folders with images, got none"),
        (("a/b.txt",), "class", "must hold class folders with images, got none"),
        (("a/b.png",), "user-class", "must hold user-class folders with images, got none"),
    ],
)
def test_no_pictures(tmp_path: Path, pictures, names, layout, rule: str) -> None:
    (tmp_path / "x").mkdir()
    with pytest.raises(ValueError, match=rule):
        open_images(str(lay_out(tmp_path / "x", pictures, *names)), layout=layout)


def opened(root: Path, pictures, *names: str, **options: Any) -> ImageSet:
    return open_images(str(lay_out(root, pictures, *names)), **options)


def test_a_class_named_like_a_split_is_a_class(tmp_path: Path, pictures) -> None:
    names = [f"{name}/{k}.png" for name in ("bus", "car", "train") for k in range(2)]
    for k, layout in enumerate(("auto", "class")):
        images = opened(tmp_path / str(k), pictures, *names, layout=layout)
        assert images.class_names == ("bus", "car", "train")
        assert len(images) == 6
        assert not images.split.any()
    names = [f"u{user}/{name}" for user in range(2) for name in names]
    images = opened(tmp_path / "users", pictures, *names, layout="user-class")
    assert (len(images), images.class_names) == (12, ("bus", "car", "train"))


@pytest.mark.parametrize("name", ["test", "Dev", "evaluation"])
def test_a_user_named_like_a_split_is_a_user(tmp_path: Path, pictures, name: str) -> None:
    names = [f"{user}/{c}/1.png" for user in ("anna", "ben", name) for c in ("cat", "dog")]
    images = opened(tmp_path / "some", pictures, *names, layout="user-class")
    assert images.user_names == tuple(sorted(("anna", "ben", name)))
    assert not images.split.any()
    with pytest.raises(ValueError, match=rf"or pass --layout, .*got {name} beside anna"):
        open_images(str(tmp_path / "some"))
    alone = opened(tmp_path / "alone", pictures, *names[4:], layout="user-class")
    assert alone.user_names == (name,)


def test_folders_of_splits_and_others_are_refused(tmp_path: Path, pictures) -> None:
    names = ("train/1.png", "test/2.png", "extra/3.png")
    with pytest.raises(ValueError, match=r"splits only, or none .*, got test beside extra"):
        opened(tmp_path, pictures, *names)
    assert open_images(str(tmp_path), layout="class").class_names == ("extra", "test", "train")
    flat = open_images(str(tmp_path), layout="flat")
    assert (len(flat), flat.split.tolist()) == (3, [0, 0, 0])


@pytest.mark.parametrize(
    ("held_out", "number"),
    [("Test", 1), ("VALID", 2), ("validation", 2), ("dev", 2), ("val", 2), ("Evaluation", 2)],
)
def test_splits_in_other_words(tmp_path: Path, pictures, held_out: str, number: int) -> None:
    names = ("Training/a/1.png", "Training/b/1.png", f"{held_out}/a/2.png", f"{held_out}/b/2.png")
    images = opened(tmp_path, pictures, *names)
    assert images.split.tolist() == [0, 0, number, number]
    assert images.image_name(3) == names[3]
    assert len(open_images(str(tmp_path), splits=[held_out.upper()])) == 2
    lay_out(tmp_path, pictures, "train/a/3.png")
    with pytest.raises(ValueError, match="one folder for each split, got Training and train"):
        open_images(str(tmp_path))


def test_splits_without_classes(tmp_path: Path, pictures) -> None:
    images = opened(tmp_path, pictures, "train/1.png", "test/2.png", "test/3.png")
    assert not images.labelled
    assert images.split.tolist() == [0, 1, 1]


def test_both_forms_of_a_name_are_one_class_and_one_user(tmp_path: Path, pictures) -> None:
    composed, apart = (unicodedata.normalize(form, "Entzündung") for form in ("NFC", "NFD"))
    users = [unicodedata.normalize(form, "Zoë") for form in ("NFC", "NFD")]
    names = (f"anna/{composed}/1.png", f"ben/{apart}/2.png", f"{users[0]}/{apart}/3.png")
    names += (f"{users[1]}/{composed}/4.png", f"{users[1]}/ gesund\u00a0/5.png", "ben/gesund/6.png")
    images = opened(tmp_path, pictures, *names, layout="user-class")
    assert images.class_names == (composed, "gesund")
    assert images.user_names == (users[0], "anna", "ben")
    assert np.bincount(images.labels).tolist() == [4, 2]
    assert len(images.images(slice(None))) == 6  # found under the names they have
    declared = open_images(str(tmp_path), layout="user-class", classes=("gesund ", apart))
    assert declared.class_names == ("gesund", composed)


def test_classes_that_differ_only_in_case(tmp_path: Path, pictures) -> None:
    names = ("Normal/1.png", "normal/2.png", "ill/3.png")
    with pytest.raises(ValueError, match=r"--ignore-case\), got 'Normal' and 'normal'"):
        opened(tmp_path, pictures, *names)
    both = open_images(str(tmp_path), classes=("ill", "normal", "Normal"))
    assert np.bincount(both.labels).tolist() == [1, 1, 1]
    joined = open_images(str(tmp_path), ignore_case=True)
    assert joined.class_names == ("Normal", "ill")
    assert joined.labels.tolist() == [0, 0, 1]
    spelled = open_images(str(tmp_path), ignore_case=True, classes=("ill", "normal"))
    assert spelled.labels.tolist() == [0, 1, 1]


@pytest.mark.parametrize("inside", ["notes.txt", ".hidden.png", "deeper/1.png", ""])
def test_a_class_without_pictures_is_refused_or_declared(
    tmp_path: Path, pictures, inside: str
) -> None:
    lay_out(tmp_path, pictures, "cat/1.png", f"dog/{inside}" if inside else "cat/2.png")
    (tmp_path / "dog").mkdir(exist_ok=True)
    with pytest.raises(ValueError, match=r"every class must have an image .* got none in .*/dog"):
        open_images(str(tmp_path))
    declared = open_images(str(tmp_path), classes=("cat", "dog", "owl"))
    assert declared.class_names == ("cat", "dog", "owl")


@pytest.mark.parametrize("inside", ["1.png", "cat/notes.txt", "cat/.1.png"])
def test_a_user_without_pictures_is_refused(tmp_path: Path, pictures, inside: str) -> None:
    lay_out(tmp_path, pictures, "anna/cat/1.png", "anna/dog/1.png", f"ben/{inside}")
    rule = (
        r"every user must have an image \(or remove the folder\), got none in .*/ben; it holds 1 "
    )
    for classes in ((), ("cat", "dog")):
        with pytest.raises(ValueError, match=rule):
            open_images(str(tmp_path), layout="user-class", classes=classes)


def test_users_read_as_classes_are_told_of_the_layout(tmp_path: Path, pictures) -> None:
    with pytest.raises(ValueError, match=r"got none; it holds 2 folders: .*--layout user-class"):
        opened(tmp_path, pictures, "anna/cat/1.png", "ben/dog/2.png")
