"""Archives, federated EMNIST, torchvision: declared classes, and users in one split alone."""

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pretrain import datasets
from pretrain.datasets import ImageSet, concatenate, declared_classes, hold_out_users
from pretrain.intake.archive import open_npz
from pretrain.sources import open_images
from tests.pretrain.conftest import encoded, put

RNG = np.random.default_rng(0)
PLAIN = {"x_train": np.zeros((3, 4, 4), np.uint8), "x_test": np.zeros((3, 4, 4), np.uint8)}
PLAIN |= {"y_train": np.arange(3), "y_test": np.arange(3)}
NAMES, NUMBERS = np.array(["a", "b", "c"]), np.arange(3)
LACKING = np.array(["a", "", "c"])
LARGE = NUMBERS.astype(np.uint64) + 2**63


def jpeg_arrays(*sides: int) -> dict[str, np.ndarray]:
    """A picture of each side, picture k all of 20 k."""
    grey = [np.full((side, side, 3), 20 * k, np.uint8) for k, side in enumerate(sides)]
    blobs = [encoded(picture, "JPEG", quality=95) for picture in grey]
    held = {"jpeg_train": np.frombuffer(b"".join(blobs), np.uint8), "names": NAMES}
    held |= {"off_train": np.cumsum([0, *map(len, blobs)])}
    return held | {"y_train": np.arange(len(sides), dtype=np.uint8) % 3}


def pixel_arrays(count: int, split: str = "train") -> dict[str, np.ndarray]:
    pixels, rows = RNG.integers(0, 256, (count, 6, 6), np.uint8), np.arange(count)
    return {f"x_{split}": pixels, f"y_{split}": rows % 4, f"writer_{split}": rows // 2}


def write(path: Path, arrays: dict[str, np.ndarray], *, packed: bool = False) -> Path:
    (np.savez_compressed if packed else np.savez)(path, **arrays)  # pyright: ignore[reportArgumentType]
    return path


JPEGS = jpeg_arrays(8, 8, 8, 8)


@pytest.mark.parametrize("packed", [False, True])
def test_pixels_with_writers(tmp_path: Path, packed: bool) -> None:
    arrays = pixel_arrays(9) | pixel_arrays(4, "test")
    images = open_npz(write(tmp_path / "set.npz", arrays, packed=packed))
    assert len(images) == 13
    assert images.split.tolist() == [0] * 9 + [1] * 4
    assert np.asarray(images.users).tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 0, 0, 1, 1]
    rows = np.array([12, 3, 4, 0, 9])
    found = images.images(rows)
    assert found.shape == (5, 3, 6, 6)
    expected = np.concatenate([arrays["x_train"], arrays["x_test"]])[rows]
    assert (found == expected[:, None]).all()
    assert (images.images(slice(2, 6)) == arrays["x_train"][2:6, None]).all()
    assert images.place(10) == f"{tmp_path / 'set.npz'}: row 1 of test"
    assert images.take(np.array([10, 1])).place(1) == f"{tmp_path / 'set.npz'}: row 1 of train"


def test_jpeg_blobs(tmp_path: Path) -> None:
    arrays = jpeg_arrays(*[8] * 7)
    images = open_npz(write(tmp_path / "set.npz", arrays))
    assert images.class_names == ("a", "b", "c")
    means = images.images(np.array([0, 6, 3])).mean((1, 2, 3))
    assert means == pytest.approx([0, 120, 60], abs=1)
    part = images.take(slice(2, 5)).take(np.array([2, 0]))
    assert part.labels.tolist() == [1, 2]
    assert part.images(slice(None)).mean((1, 2, 3)) == pytest.approx([80, 40], abs=1)
    blob, start = arrays["jpeg_train"].copy(), arrays["off_train"][2]
    blob[start : start + 20] = 0
    images = open_npz(write(tmp_path / "set.npz", arrays | {"jpeg_train": blob}))
    with pytest.raises(ValueError, match=r"set\.npz: row 2 of train must be a readable image"):
        images.images(slice(0, 4))


def test_names_of_splits_in_archives(tmp_path: Path, capsys) -> None:
    x, y = np.zeros((2, 4, 4), np.uint8), np.array([0, 1])
    path = tmp_path / "set.npz"
    for held_out in ("valid", "evaluation"):
        held = {"X_Train": x, "y_TRAIN": y, f"x_{held_out}": x, f"y_{held_out}": y}
        assert open_npz(write(path, held)).split.tolist() == [0, 0, 2, 2]
        assert open_images(str(path), splits=[held_out]).split.tolist() == [2, 2]
    with pytest.raises(ValueError, match=r"must hold images x_ or jpeg_ of \['test'\]"):
        open_images(str(path), splits=["test"])
    medmnist = {"train_images": x, "train_labels": y[:, None]}
    medmnist |= {"val_images": x, "val_labels": y[:, None]}
    assert open_npz(write(path, medmnist)).labels.tolist() == [0, 1, 0, 1]
    extra = write(path, {"x_train": x, "y_train": y, "x_extra": x, "age_train": y})
    with pytest.raises(ValueError, match=r"split must be one of .* pass --splits .*, got 'extra'"):
        open_npz(extra)
    capsys.readouterr()
    assert len(open_images(str(extra), splits=["train"])) == 2
    assert capsys.readouterr().err == f"{extra}: age_train not read\n"


def test_users_of_some_splits_do_not_vanish(tmp_path: Path) -> None:
    arrays = pixel_arrays(4) | pixel_arrays(4, "test")
    del arrays["writer_test"]
    path = write(tmp_path / "set.npz", arrays)
    rule = r"in every split or in none \(or pass --splits train\), got .*none in test"
    with pytest.raises(ValueError, match=rule):
        open_npz(path)
    assert open_images(str(path), splits=["train"]).users is not None
    assert open_images(str(path), columns="user=").users is None


@pytest.mark.parametrize("packed", [False, True])
def test_a_wrong_checksum_is_an_error(tmp_path: Path, packed: bool) -> None:
    path = write(tmp_path / "set.npz", pixel_arrays(50), packed=packed)
    data = bytearray(path.read_bytes())
    data[400] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"checksum of every member|complete npz archive"):
        open_npz(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x_train.npy", b"hello")
    with pytest.raises(ValueError, match="x_train must be an npy array"):
        open_npz(path)


def test_mixed_sizes_are_an_error(tmp_path: Path) -> None:
    images = open_npz(write(tmp_path / "set.npz", jpeg_arrays(8, 8, 16)))
    with pytest.raises(ValueError, match=r"one size, got \(16, 16\) at row 2"):
        images.images(slice(0, 3))
    one = open_npz(write(tmp_path / "one.npz", jpeg_arrays(8, 8)))
    with pytest.raises(ValueError, match="mixed sizes"):
        concatenate([one, images.take(slice(2, 3))]).images(slice(None))


@pytest.mark.parametrize(
    ("arrays", "changes", "rule"),
    [
        (JPEGS, {"y_train": np.array([0, 1, 7, 0])}, "< 3, got 7 in row 2 of y_train"),
        (JPEGS, {"y_train": np.array([0, np.nan, 0, 0])}, "names, got float64"),
        (JPEGS, {"off_train": np.array([0, 5, 5, 9, 10])}, "got 0 bytes at row 1"),
        (JPEGS, {"off_train": np.array([0, 5, 6, 9, 10])}, "must end at the"),
        (JPEGS, {"off_train": np.array([1, 5, 6, 9, 10])}, "must start at 0"),
        (JPEGS, {"writer_train": np.zeros(3, np.int64)}, "one entry for each of 4"),
        (JPEGS, {"jpeg_train": np.zeros(9)}, "jpeg_train must be bytes"),
        ({}, {"x_train": NUMBERS, "x_val": NUMBERS, "x_dev": NUMBERS}, "got x_val and x_dev"),
        (PLAIN, {"writer_train": NAMES, "writer_test": NUMBERS}, "names in every split, or number"),
        (PLAIN, {"writer_train": NUMBERS / 2}, "must be integers or names, got float64"),
        (PLAIN, {"writer_train": LACKING, "writer_test": LACKING}, "none in row 1 of writer_train"),
        (PLAIN, {"writer_train": NUMBERS - 1, "writer_test": NUMBERS}, r"2\^63\), got -1 to 1"),
        (PLAIN, {"writer_train": LARGE, "writer_test": NUMBERS}, r"2\^63\), got 922\d+ to 922"),
        (PLAIN, {"names": np.array(["cat", "dog", "cat "])}, "must be distinct, got .*'cat'"),
    ],
)
def test_mislabelled_archives(tmp_path: Path, arrays: Any, changes: Any, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        open_npz(write(tmp_path / "set.npz", arrays | changes))


@pytest.mark.parametrize("kind", ["U", "S"])
def test_writers_and_labels_by_name_in_an_archive(tmp_path: Path, kind: str) -> None:
    train, test = np.array(["Zoe", "Ann", "Zoe"], kind), np.array(["Bob", "Ann", "Bob"], kind)
    labels = {"y_train": np.array(["owl", "cat", "owl"], kind), "y_test": np.array([b"dog"] * 3)}
    held = PLAIN | labels | {"writer_train": train, "writer_test": test}
    path = write(tmp_path / "a.npz", held)
    images = open_npz(path)
    assert images.user_names == ("Ann", "Bob", "Zoe")
    assert np.asarray(images.users).tolist() == [2, 0, 2, 1, 0, 1]
    assert datasets.users_in_both(images) == [0]
    assert images.take(np.array([5])).user_names == images.user_names
    assert open_images(str(path), splits=["train"]).user_names == ("Ann", "Zoe")
    assert (images.class_names, images.inferred) == (("cat", "dog", "owl"), True)
    assert images.labels.tolist() == [2, 0, 2, 1, 1, 1]
    declared = open_images(str(path), classes=("owl", "dog", "cat", "elk"))
    assert (declared.labels.tolist(), declared.inferred) == ([0, 2, 0, 1, 1, 1], False)
    rule = r"a\.npz: label must be one of \('owl', 'cat'\), got 'dog' in row 0 of y_test"
    with pytest.raises(ValueError, match=rule):
        open_images(str(path), classes=("owl", "cat"))
    named = open_npz(write(path, held | {"names": np.array(["cat", "owl", "dog"])}))
    assert (named.labels.tolist(), named.inferred) == ([1, 0, 1, 2, 2, 2], False)


def test_one_record_adds_no_class_where_they_are_declared(tmp_path: Path) -> None:
    for labels, counted in (([0, 1, 1], 3), ([0, 1, 7], 8)):
        path = str(write(tmp_path / "set.npz", PLAIN | {"y_train": np.array(labels)}))
        images = open_images(path, classes=declared_classes(10))
        assert (images.class_names, images.inferred) == (tuple("0123456789"), False)
        found = open_images(path)
        assert (len(found.class_names), found.inferred) == (counted, True)
    with pytest.raises(ValueError, match=r"label must be >= 0 and < 2, got 2 in row 2 of y_test"):
        open_images(path, splits=["test"], classes=("cat", "dog"))


def test_names_in_the_file_are_a_declaration(tmp_path: Path) -> None:
    names = ("a", "b", "c", "d")
    path = write(tmp_path / "set.npz", PLAIN | {"names": np.array(names)})
    images = open_npz(path)
    assert (images.class_names, images.inferred) == (names, False)
    assert open_images(str(path), classes=names).class_names == names
    for classes in (names[:3], ("a", "b", "d", "c"), declared_classes(4)):
        with pytest.raises(ValueError, match=r"classes must be \('a', 'b', 'c', 'd'\)"):
            open_images(str(path), classes=classes)
    with pytest.raises(ValueError, match="only one of num_classes and class_names"):
        declared_classes(3, ("a", "b", "c"))
    with pytest.raises(ValueError, match="class_names must be two or more"):
        declared_classes(None, ("a",))


def leaf(path: Path, data: dict[str, tuple[int, int]]) -> None:
    users = {
        w: {"x": [[k / 255] * 784 for k in range(n)], "y": [label] * n}
        for w, (n, label) in data.items()
    }
    put(path, json.dumps({"users": list(users), "user_data": users}).encode())


def test_leaf_files(tmp_path: Path) -> None:
    leaf(tmp_path / "train" / "a.json", {"w1": (3, 5), "w0": (2, 61)})
    leaf(tmp_path / "train" / "b.json", {"w2": (1, 0)})
    leaf(tmp_path / "test" / "a.json", {"w2": (2, 1)})
    images = open_images(f"fed-emnist:{tmp_path}")
    assert images.labels.tolist() == [5, 5, 5, 61, 61, 0, 1, 1]
    assert np.asarray(images.users).tolist() == [1, 1, 1, 0, 0, 2, 2, 2]
    assert images.images(slice(None))[:, 0, 3, 3].tolist() == [0, 1, 2, 0, 1, 0, 0, 1]


def test_hdf5_files(tmp_path: Path) -> None:
    h5py: Any = pytest.importorskip("h5py")
    for split, count in (("train", 3), ("test", 1)):
        with h5py.File(tmp_path / f"fed_emnist_{split}.h5", "w") as file:
            for k, writer in enumerate(("f0", "f1")):
                group = file.create_group(f"examples/{writer}")
                group["pixels"] = np.full((count, 28, 28), k / 2, np.float32)
                group["label"] = np.full(count, 10 + k, np.int32)
    images = open_images(f"fed-emnist:{tmp_path}")
    assert images.labels.tolist() == [10] * 3 + [11] * 3 + [10, 11]
    assert np.asarray(images.users).tolist() == [0] * 3 + [1] * 3 + [0, 1]
    assert images.images(np.array([0, 5, 7]))[:, 0, 0, 0].tolist() == [0, 128, 128]
    (tmp_path / "fed_emnist_test.h5").write_bytes(b"no")
    with pytest.raises(ValueError, match="must be a fed_emnist HDF5 file"):
        open_images(f"fed-emnist:{tmp_path}", splits=["test"])


@pytest.mark.parametrize(
    ("source", "splits", "rule"),
    [
        ("fed-emnist", ("train",), "row 0 must be >= 0 and < 62, got 62"),
        ("fed-emnist", ("val",), r"a\.json must be a LEAF JSON file"),
        ("fed-emnist", ("test",), r"must hold fed_emnist_test\.h5 or test/\*\.json"),
        ("cifar10", ("evaluation",), r"splits of cifar10 must be of \('train', 'test'\), got"),
        *((kind, (), rf"hold {kind} \(or pass --d") for kind in ("cifar100", "emnist")),
    ],
)
def test_sets_that_are_not_there_or_damaged(tmp_path, source, splits, rule) -> None:
    leaf(tmp_path / "train" / "a.json", {"w": (1, 62)})
    put(tmp_path / "val" / "a.json", b"{")
    with pytest.raises(ValueError, match=rule):
        open_images(f"{source}:{tmp_path}", splits=splits)


def a_set(users: list[int] | None, split: list[int] | None = None, **changes) -> ImageSet:
    count = 60 if users is None else len(users)
    changes |= {"name": "set", "labels": np.zeros(count, np.int64), "class_names": ("a", "b")}
    changes |= {"users": None if users is None else np.array(users)}
    changes |= {"read": lambda rows: np.zeros((len(rows), 2, 2, 3), np.uint8)}
    return ImageSet(split=np.array(split or [0] * count, np.uint8), **changes)


def test_whole_users_are_held_out_whatever_order_the_rows_are_in() -> None:
    users = [k // 3 for k in range(60)]
    held = hold_out_users(a_set(users), 0.25)
    assert not datasets.users_in_both(held)
    assert held.users is not None
    assert len(set(held.users[held.split == 1].tolist())) == 5
    assert (held.split == 1).sum() == 15
    order = np.random.default_rng(0).permutation(60)
    again = hold_out_users(a_set([users[k] for k in order]), 0.25)
    assert (again.split == held.split[order]).all()
    held = hold_out_users(a_set([0, 1, 2, 3], [0, 0, 2, 2]), 0.5)
    assert held.split.tolist()[2:] == [2, 2]  # rows held out for evaluation stay so
    assert sorted(held.split.tolist()[:2]) == [0, 1]


def test_it_is_names_that_decide_not_their_numbers() -> None:
    names = tuple(f"clinic {k}" for k in range(20))
    users = [k % 20 for k in range(60)]
    first = hold_out_users(a_set(users, user_names=names), 0.3)
    other = hold_out_users(a_set([19 - k for k in users], user_names=names[::-1]), 0.3)
    assert (first.split == other.split).all()
    assert (first.split == 1).sum() == 18
    numbered = hold_out_users(a_set(users), 0.3)
    assert (numbered.split != first.split).any()


def test_shares_that_cannot_be() -> None:
    for images, share, rule in (
        (a_set([0, 0, 1]), 0.001, "take some of 2 users and leave some, got 0.001, none of them"),
        (a_set([0, 0, 1]), 0.999, "take some of 2 users and leave some, got 0.999, all of them"),
        (a_set([0, 1], [0, 1]), 0.5, "be left out for set, which has test images"),
        (a_set([7, 7]), 0.5, "have two or more users to divide, got 1"),
    ):
        with pytest.raises(ValueError, match=f"test_share must {rule}"):
            hold_out_users(images, share)


def test_users_in_both_splits_are_named() -> None:
    datasets.refuse_users_in_both(a_set([0, 1, 2], [0, 0, 1]))
    datasets.refuse_users_in_both(a_set([0, 0, 0], [0, 2, 2]))  # evaluation is of a user's own rows
    datasets.refuse_users_in_both(a_set(None, [0] * 30 + [1] * 30))
    rule = r"users of set must not be in train and test both .* got 4 who are: 0, 1, 2, \.\.\."
    with pytest.raises(ValueError, match=rule):
        datasets.refuse_users_in_both(a_set([0, 1, 2, 3] * 2, [0] * 4 + [1] * 4))
    with pytest.raises(ValueError, match="got 1 who are: Zoe"):
        datasets.refuse_users_in_both(a_set([1, 1], [0, 1], user_names=("Ann", "Zoe")))


def test_parts_with_names_are_numbered_together() -> None:
    one = a_set([0, 1], user_names=("m", "z"))
    two = a_set([0, 1, 1], user_names=("a", "m"))
    whole = concatenate([one, replace(two, skipped=("x",)), two])
    assert whole.user_names == ("a", "m", "z")
    assert np.asarray(whole.users).tolist() == [1, 2, 0, 1, 1, 0, 1, 1]
    assert whole.skipped == ("x",)
