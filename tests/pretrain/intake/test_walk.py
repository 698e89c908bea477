"""What lies beside pictures: folders of systems, links, pipes, and files of other kinds."""

import os
import shutil
from pathlib import Path

import pytest

from pretrain.datasets import ImageSet, UnreadableImage
from pretrain.sources import open_images


@pytest.fixture
def root(tmp_path: Path, pictures) -> Path:
    """Two classes with two pictures each."""
    for k in range(4):
        file = tmp_path / "set" / ("cat", "dog")[k % 2] / f"{k}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(pictures.files[k])
    return tmp_path / "set"


def unchanged(images: ImageSet, *skipped: tuple[str, str]) -> None:
    assert images.class_names == ("cat", "dog")
    assert images.labels.tolist() == [0, 0, 1, 1]
    assert sorted(images.skipped) == sorted(skipped)
    assert len(images.images(slice(None))) == 4


LEFT = "hidden, or left by a system"
SYSTEMS = ("__MACOSX", "@eaDir", "$RECYCLE.BIN", "System Volume Information", "lost+found")
SYSTEMS += (".Trash-1000", ".ipynb_checkpoints", "#recycle", "._cat", "@Recycle")


@pytest.mark.parametrize("name", SYSTEMS)
def test_folders_of_systems_are_no_classes(root: Path, name: str) -> None:
    shutil.copytree(root / "cat", root / name / "cat")  # thumbnails, or a picture thrown away
    shutil.copytree(root / "cat", root / "dog" / name)
    unchanged(open_images(str(root)), (f"{name}/", LEFT), (f"dog/{name}/", LEFT))
    assert len(open_images(str(root), layout="flat")) == 4
    shutil.rmtree(root / name)
    shutil.copytree(root, root.parent / "users" / "anna")
    shutil.copytree(root, root.parent / "users" / name)
    users = open_images(str(root.parent / "users"), layout="user-class")
    assert users.user_names == ("anna",)


def test_a_declared_class_may_have_such_a_name(root: Path) -> None:
    shutil.copytree(root / "cat", root / "lost+found")
    images = open_images(str(root), classes=("cat", "dog", "lost+found"))
    assert images.labels.tolist() == [0, 0, 1, 1, 2, 2]


def test_files_of_systems_are_no_pictures(root: Path) -> None:
    (root / "cat" / "._0.png").write_bytes(b"\0\5\x16\7")
    (root / "cat" / "Thumbs.db").write_bytes(b"x")
    (root / ".DS_Store").write_bytes(b"x")
    kinds = [("._0.png", LEFT), ("Thumbs.db", "no picture by its suffix")]
    unchanged(open_images(str(root)), *((f"cat/{n}", why) for n, why in kinds), (".DS_Store", LEFT))


def test_names_without_a_suffix_are_looked_into(root: Path) -> None:
    shutil.move(root / "cat" / "0.png", root / "cat" / "IMG_0001")
    shutil.move(root / "dog" / "1.png", root / "dog" / "1.2.840.3")
    (root / "cat" / "README").write_text("pictures of cats")
    unchanged(open_images(str(root)), ("cat/README", "no picture by its first bytes"))


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
    inside = "inside a class folder (--layout user-class reads these)"
    unchanged(
        open_images(str(root)),
        ("latest/", why),
        ("parent/", why),
        ("cat/up/", inside),
        ("self", "not in a class folder"),
    )


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


def test_links_to_a_store_are_followed(root: Path) -> None:
    links = root.parent / "links"
    links.mkdir()
    (links / "cat").symlink_to(root / "cat")
    (links / "dog").mkdir()
    for file in (root / "dog").iterdir():
        (links / "dog" / file.name).symlink_to(file)
    unchanged(open_images(str(links)))
    (links / "dog" / "again.png").symlink_to("1.png")
    with pytest.raises(ValueError, match=r"one name, got dog/1.png and dog/again.png for one"):
        open_images(str(links))


def test_equal_files_of_two_names_stay_two(root: Path) -> None:
    os.link(root / "cat" / "0.png", root / "cat" / "9.png")  # as tools that save space leave them
    assert len(open_images(str(root))) == 5


def test_only_regular_files_are_opened(root: Path) -> None:
    os.mkfifo(root / "cat" / "a.png")
    os.mkfifo(root / "dog" / "pipe")
    why = "no regular file"
    unchanged(open_images(str(root)), ("cat/a.png", why), ("dog/pipe", why))


@pytest.mark.parametrize("kind", ["dangling", "empty", "circle"])
def test_pictures_that_cannot_be_opened_are_named(root: Path, kind: str) -> None:
    file = root / "cat" / "9.png"
    if kind == "empty":
        file.write_bytes(b"")
    else:
        file.symlink_to("9.png" if kind == "circle" else "/nowhere/x.png")
    reason = {"dangling": "No such file", "empty": "an empty file", "circle": "Too many levels"}
    with pytest.raises(UnreadableImage, match=rf"cat/9.png must be a readable .*{reason[kind]}"):
        open_images(str(root)).images(slice(None))
