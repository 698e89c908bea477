"""Folders of pictures by class, user and split, and what lies beside pictures in them."""

import os
import shutil
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pretrain.datasets import ImageSet, UnreadableImage
from pretrain.sources import open_images
from tests.pretrain.conftest import encoded, put

LEFT = "hidden, or left by a system"
USERS, BOTH = {"layout": "user-class"}, {"classes": ("cat", "dog")}
EMPTY_CLASS = r"every class must have an image .* got none in .*/dog"
EMPTY_USER = (
    r"every user must have an image \(or remove the folder\), got none in .*/ben; it holds 1 "
)
INSIDE = ("notes.txt", ".hidden.png", "deeper/1.png", "")
CATS = ("cat/1.png", "cat/deep/2.png", "cat/a.txt", "3.png", ".cache/x.png", "cat/.4.png")
PEOPLE = ("anna/cat/1.png", "anna/dog/1.png")


def lay_out(root: Path, pictures, *names: str) -> Path:
    """Writes pictures in order; other names hold text, and those that end with / are folders."""
    for k, name in enumerate(names):
        if name.endswith("/"):
            (root / name).mkdir(parents=True)
        else:
            put(root / name, pictures.files[k] if name.lower().endswith(".png") else b"?")
    return root


def opened(root: Path, pictures, *names: str, **options: Any) -> ImageSet:
    return open_images(str(lay_out(root, pictures, *names)), **options)


def image_names(images: ImageSet) -> list[str]:
    return [images.image_name(k) for k in range(len(images))]


def test_users_and_classes(tmp_path: Path, pictures) -> None:
    names = ("b/dog/1.png", "b/cat/0.png", "a/owl/9.PNG", "b/cat/2.png", "a/owl/10.png")
    images = opened(tmp_path / "users", pictures, *names, layout="user-class")
    order = [4, 2, 1, 3, 0]
    assert image_names(images) == [names[k] for k in order]
    assert (images.class_names, images.inferred) == (("cat", "dog", "owl"), False)
    assert images.labels.tolist() == [2, 2, 0, 0, 1]
    assert np.asarray(images.users).tolist() == [0, 0, 1, 1, 1]
    assert images.user_names == ("a", "b")
    assert (images.images(slice(None)) == pictures.pixels[order]).all()
    names = ("Training/b/dog/1.png", "Training/a/cat/1.png", "TEST/c/cat/0.png", "dev/a/dog/7.png")
    images = opened(tmp_path / "splits", pictures, *names, layout="user-class")
    assert images.split.tolist() == [0, 0, 1, 2]
    assert np.asarray(images.users).tolist() == [0, 1, 2, 0]
    assert images.image_name(2) == names[2]
    alone = open_images(str(tmp_path / "splits"), layout="user-class", splits=["train"])
    assert np.asarray(alone.users).tolist() == [0, 1]


def test_pictures_without_classes(tmp_path: Path, pictures) -> None:
    images = opened(tmp_path / "new", pictures, "b.png", "a.png", "notes.txt")
    assert (images.labelled, image_names(images)) == (False, ["a.png", "b.png"])
    assert images.skipped == (("notes.txt", "no picture by its suffix"),)
    names = ("x/y/2.png", "x/1.png", "0.png", ".trash/3.png")
    deep = opened(tmp_path / "deep", pictures, *names, layout="flat", classes=("u", "v"))
    assert image_names(deep) == ["0.png", "x/1.png", "x/y/2.png"]
    assert (deep.images(slice(None)) == pictures.pixels[[2, 1, 0]]).all()
    assert deep.skipped == ((".trash/", LEFT),)
    assert (deep.class_names, deep.labelled) == (("u", "v"), False)
    held_out = opened(tmp_path / "splits", pictures, "train/1.png", "test/2.png", "test/3.png")
    assert (held_out.labelled, held_out.split.tolist()) == (False, [0, 1, 1])


@pytest.mark.parametrize(
    ("names", "layout", "left"),
    [
        (CATS, "auto", [".cache/", "3.png", "cat/.4.png", "cat/a.txt", "cat/deep/"]),
        (("train/a/1.png", "test/a/2.png", "read.me"), "auto", ["read.me"]),
        (("me/a/1.png", "me/2.png", "3.png"), "user-class", ["3.png", "me/2.png"]),
    ],
)
def test_what_is_left_out_is_named(tmp_path, pictures, names, layout, left) -> None:
    images = opened(tmp_path, pictures, *names, layout=layout)
    assert sorted(name for name, _ in images.skipped) == left
    assert len(images) == len(names) - len(left)


@pytest.mark.parametrize(
    ("names", "options", "rule"),
    [
        ((), {"layout": "flat"}, "must hold class folders with images, got none"),
        (("a.txt",), {}, "must hold class folders with images, got none"),
        (("a/b.png",), USERS, "must hold user-class folders with images, got none"),
        (("train/1.png", "test/2.png", "x/3.png"), {}, "splits only, or none .* test beside x"),
        (("train/a/1.png", "Training/a/1.png"), {}, "each split, got Training and train"),
        (("train/a/1.png",), {"splits": ["val"]}, r"splits must be of .*, got \['val'\]"),
        (("cat/1.png", "bat/1.png"), BOTH, r"must hold only the classes .*, got \['bat'\]"),
        (("anna/cat/1.png", "ben/dog/2.png"), {}, "got none; it holds 2 .*--layout user-class"),
        *(((*PEOPLE, "ben/1.png"), asked, EMPTY_USER) for asked in (USERS, USERS | BOTH)),
        *(((*PEOPLE, f"ben/cat/{one}"), USERS, EMPTY_USER) for one in ("notes.txt", ".1.png")),
        *((("cat/1.png", f"dog/{inside}"), {}, EMPTY_CLASS) for inside in INSIDE),
    ],
)
def test_folders_that_are_refused(tmp_path, pictures, names, options, rule) -> None:
    (tmp_path / "x").mkdir()
    with pytest.raises(ValueError, match=rule):
        opened(tmp_path / "x", pictures, *names, **options)
    if rule is EMPTY_CLASS:  # a class that nobody has is declared by name
        declared = open_images(str(tmp_path / "x"), classes=("ape", "cat", "dog"))
        assert (declared.class_names, declared.inferred) == (("ape", "cat", "dog"), False)
        assert declared.labels.tolist() == [1]


def test_a_class_named_like_a_split_is_a_class(tmp_path: Path, pictures) -> None:
    names = [f"{name}/{k}.png" for name in ("bus", "car", "train") for k in range(2)]
    users = [f"u{user}/{name}" for user in range(2) for name in names]
    for layout, held in (("auto", names), ("class", names), ("user-class", users)):
        images = opened(tmp_path / layout, pictures, *held, layout=layout)
        assert (len(images), images.class_names) == (len(held), ("bus", "car", "train"))
        assert not images.split.any()
    names = ["train/1.png", "test/2.png", "x/3.png"]
    for layout in ("class", "flat"):
        mixed = opened(tmp_path / f"mixed {layout}", pictures, *names, layout=layout)
        assert mixed.split.tolist() == [0, 0, 0]


def test_a_user_named_like_a_split_is_a_user(tmp_path: Path, pictures) -> None:
    names = [f"{user}/{c}/1.png" for user in ("Dev", "anna", "ben") for c in ("cat", "dog")]
    images = opened(tmp_path / "some", pictures, *names, layout="user-class")
    assert images.user_names == ("Dev", "anna", "ben")
    assert not images.split.any()
    with pytest.raises(ValueError, match=r"or pass --layout, .*got Dev beside anna"):
        open_images(str(tmp_path / "some"))
    alone = opened(tmp_path / "alone", pictures, *names[:2], layout="user-class")
    assert alone.user_names == ("Dev",)


def test_folders_of_mixed_sizes_need_resize(tmp_path: Path) -> None:
    put(tmp_path / "a" / "0.png")
    put(tmp_path / "a" / "1.png", encoded(np.zeros((12, 30, 3), np.uint8)))
    assert open_images(str(tmp_path), resize=10).images(slice(None)).shape == (2, 3, 10, 10)


def test_both_forms_of_a_name_are_one_class_and_one_user(tmp_path: Path, pictures) -> None:
    composed, apart = (unicodedata.normalize(form, "Entzündung") for form in ("NFC", "NFD"))
    users = [unicodedata.normalize(form, "Zoë") for form in ("NFC", "NFD")]
    names = (f"anna/{composed}/1.png", f"ben/{apart}/2.png", f"{users[0]}/{apart}/3.png")
    names += (f"{users[1]}/{composed}/4.png", f"{users[1]}/ gesund\u00a0/5.png", "ben/gesund/6.png")
    images = opened(tmp_path / "set", pictures, *names, layout="user-class")
    assert images.class_names == (composed, "gesund")
    assert images.user_names == (users[0], "anna", "ben")
    assert np.bincount(images.labels).tolist() == [4, 2]
    assert len(images.images(slice(None))) == 6  # found under the names they have
    name = b"caf\xe9.png".decode("utf-8", "surrogateescape")  # is no Unicode
    images = opened(tmp_path / "other", pictures, f"cat/{name}", "cat/ü.png")
    assert images.image_name(0) == f"cat/{name}"
    assert (images.images(slice(None)) == pictures.pixels[:2]).all()


def test_classes_that_differ_only_in_case(tmp_path: Path, pictures) -> None:
    rule = r"or join them with --ignore-case\), got 'Normal' and 'normal'"
    with pytest.raises(ValueError, match=rule):
        opened(tmp_path, pictures, "Normal/1.png", "normal/2.png", "ill/3.png")
    with pytest.raises(ValueError, match=rule):  # one of them is not enough
        open_images(str(tmp_path), classes=("ill", "normal"))
    both = ("ill", "normal", "Normal")
    assert np.bincount(open_images(str(tmp_path), classes=both).labels).tolist() == [1, 1, 1]
    joined = open_images(str(tmp_path), ignore_case=True)
    assert joined.class_names == ("Normal", "ill")
    assert joined.labels.tolist() == [0, 0, 1]
    spelled = open_images(str(tmp_path), ignore_case=True, classes=("ill", "normal"))
    assert spelled.labels.tolist() == [0, 1, 1]
    put(tmp_path / "NORMAL" / "4.png")
    with pytest.raises(ValueError, match="got 'NORMAL' and 'Normal' and 'normal'"):
        open_images(str(tmp_path), ignore_case=True, classes=both)


@pytest.fixture
def root(tmp_path: Path, pictures) -> Path:
    return lay_out(tmp_path / "set", pictures, "cat/0.png", "dog/1.png", "cat/2.png", "dog/3.png")


def unchanged(images: ImageSet, *skipped: tuple[str, str]) -> None:
    assert images.class_names == ("cat", "dog")
    assert images.labels.tolist() == [0, 0, 1, 1]
    assert sorted(images.skipped) == sorted(skipped)
    assert len(images.images(slice(None))) == 4


@pytest.mark.parametrize("name", ["lost+found", ".Trash-1000"])
def test_folders_of_systems_are_no_classes_unless_declared(root: Path, name: str) -> None:
    shutil.copytree(root / "cat", root / name / "cat")  # thumbnails, or a picture thrown away
    shutil.copytree(root / "cat", root / "dog" / name)
    unchanged(open_images(str(root)), (f"{name}/", LEFT), (f"dog/{name}/", LEFT))
    assert len(open_images(str(root), layout="flat")) == 4
    shutil.rmtree(root / name)
    shutil.copytree(root, root.parent / "users" / "anna")
    shutil.copytree(root, root.parent / "users" / name)
    users = open_images(str(root.parent / "users"), layout="user-class")
    assert users.user_names == ("anna",)
    shutil.copytree(root / "cat", root / name)
    images = open_images(str(root), classes=("cat", "dog", name))
    assert images.labels.tolist() == [0, 0, 1, 1, 2, 2]


def test_files_of_systems_and_pipes_are_no_pictures_and_names_need_no_suffix(root: Path) -> None:
    for name in ("cat/._0.png", "cat/Thumbs.db", ".DS_Store", "cat/README"):
        put(root / name, b"\0\5\x16\7")
    os.mkfifo(root / "cat" / "a.png")
    os.mkfifo(root / "dog" / "pipe")
    shutil.move(root / "cat" / "0.png", root / "cat" / "IMG_0001")
    shutil.move(root / "dog" / "1.png", root / "dog" / "1.2.840.3")
    left = [(name, LEFT) for name in (".DS_Store", "cat/._0.png")]
    left += [(name, "no regular file") for name in ("cat/a.png", "dog/pipe")]
    left += [("cat/README", "no picture by its first bytes")]
    unchanged(open_images(str(root)), *left, ("cat/Thumbs.db", "no picture by its suffix"))


def test_loops_end(root: Path) -> None:
    (root / "latest").symlink_to(".")
    (root / "cat" / "up").symlink_to("..")
    (root / "parent").symlink_to("../..")
    (root / "self").symlink_to("self")
    why = "a link to a folder above it"
    flat = open_images(str(root), layout="flat")
    assert len(flat) == 4
    expected = [(f"{name}/", why) for name in ("cat/up", "latest", "parent")]
    assert sorted(flat.skipped) == [*expected, ("self", "no picture by its first bytes")]
    inside = ("cat/up/", "inside a class folder (--layout user-class reads these)")
    outside = ("self", "not in a class folder")
    unchanged(open_images(str(root)), *expected[1:], inside, outside)


def test_a_folder_by_two_names_is_refused(root: Path) -> None:
    (root / "kitten").symlink_to("cat")
    for layout in ("class", "flat"):
        with pytest.raises(ValueError, match=r"a folder must have one name .*, got cat and kitten"):
            open_images(str(root), layout=layout)
    shutil.move(root / "kitten", root.parent / "kitten")
    (root.parent / "users").mkdir()
    for user in ("anna", "ben"):
        (root.parent / "users" / user).symlink_to(root)
    with pytest.raises(ValueError, match="got anna and ben for one"):
        open_images(str(root.parent / "users"), layout="user-class")


def test_links_to_a_store_are_followed_and_copies_stay_two(root: Path) -> None:
    links = root.parent / "links"
    (links / "dog").mkdir(parents=True)
    (links / "cat").symlink_to(root / "cat")
    for file in (root / "dog").iterdir():
        (links / "dog" / file.name).symlink_to(file)
    unchanged(open_images(str(links)))
    (links / "dog" / "again.png").symlink_to("1.png")
    with pytest.raises(ValueError, match=r"one name, got dog/1.png and dog/again.png for one"):
        open_images(str(links))
    os.link(root / "cat" / "0.png", root / "cat" / "9.png")  # as tools that save space leave them
    assert len(open_images(str(root))) == 5


def test_a_picture_that_cannot_be_opened_is_named(root: Path) -> None:
    (root / "cat" / "9.png").symlink_to("/nowhere/x.png")
    with pytest.raises(UnreadableImage, match=r"cat/9.png must be a readable .*No such file"):
        open_images(str(root)).images(slice(None))
