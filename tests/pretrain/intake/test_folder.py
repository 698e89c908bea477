from pathlib import Path

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
