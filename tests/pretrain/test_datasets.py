import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pretrain.datasets import concatenate
from pretrain.intake.archive import open_npz
from pretrain.sources import open_images

RNG = np.random.default_rng(0)


def jpeg_arrays(count: int, side: int = 8, split: str = "train") -> dict[str, np.ndarray]:
    blobs = []
    for k in range(count):
        buffer = io.BytesIO()
        pixels = np.full((side, side, 3), 20 * k, np.uint8)
        Image.fromarray(pixels).save(buffer, "JPEG", quality=95)
        blobs.append(buffer.getvalue())
    return {
        f"jpeg_{split}": np.frombuffer(b"".join(blobs), np.uint8),
        f"off_{split}": np.cumsum([0, *map(len, blobs)]),
        f"y_{split}": np.arange(count, dtype=np.uint8) % 3,
        "names": np.array(["a", "b", "c"]),
    }


def pixel_arrays(count: int, split: str = "train") -> dict[str, np.ndarray]:
    return {
        f"x_{split}": RNG.integers(0, 256, (count, 6, 6), np.uint8),
        f"y_{split}": np.arange(count) % 4,
        f"writer_{split}": np.arange(count) // 2,
    }


def write(path: Path, arrays: dict[str, np.ndarray], *, packed: bool = False) -> Path:
    (np.savez_compressed if packed else np.savez)(path, **arrays)  # pyright: ignore[reportArgumentType]
    return path


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


def test_jpeg_blobs(tmp_path: Path) -> None:
    images = open_npz(write(tmp_path / "set.npz", jpeg_arrays(7)))
    assert images.class_names == ("a", "b", "c")
    means = images.images(np.array([0, 6, 3])).mean((1, 2, 3))
    assert means == pytest.approx([0, 120, 60], abs=1)
    part = images.take(slice(2, 5)).take(np.array([2, 0]))
    assert part.labels.tolist() == [1, 2]
    assert part.images(slice(None)).mean((1, 2, 3)) == pytest.approx([80, 40], abs=1)


def test_splits_are_chosen_in_order(tmp_path: Path) -> None:
    path = write(tmp_path / "set.npz", jpeg_arrays(4) | jpeg_arrays(2, split="val"))
    assert open_images(str(path), splits=["val"]).split.tolist() == [2, 2]
    with pytest.raises(ValueError, match=r"must hold images x_ or jpeg_ of \['test'\]"):
        open_images(str(path), splits=["test"])


def test_rows_held_out_for_an_evaluation(tmp_path: Path) -> None:
    archive = write(tmp_path / "set.npz", pixel_arrays(9) | pixel_arrays(4, "evaluation"))
    assert open_npz(archive).split.tolist() == [0] * 9 + [2] * 4
    for split, kind in (("train", "a"), ("evaluation", "a"), ("evaluation", "b")):
        folder = tmp_path / "folder" / split / kind
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(folder / "0.png")
    found = open_images(str(tmp_path / "folder"), classes=("a", "b"))
    assert (found.split.tolist(), found.labels.tolist()) == ([0, 2, 2], [0, 0, 1])
    with pytest.raises(ValueError, match=r"splits of cifar10 must be of \('train', 'test'\), got"):
        open_images(f"cifar10:{tmp_path}", splits=("evaluation",))


def test_names_of_splits_in_archives(tmp_path: Path, capsys) -> None:
    x, y = np.zeros((2, 4, 4), np.uint8), np.array([0, 1])
    path = write(tmp_path / "set.npz", {"X_Train": x, "y_TRAIN": y, "x_valid": x, "y_valid": y})
    assert open_npz(path).split.tolist() == [0, 0, 2, 2]
    medmnist = {
        "train_images": x,
        "train_labels": y[:, None],
        "val_images": x,
        "val_labels": y[:, None],
    }
    assert open_npz(write(path, medmnist)).labels.tolist() == [0, 1, 0, 1]
    with pytest.raises(ValueError, match="must hold x_val once, got x_val and x_dev"):
        open_npz(write(path, {"x_train": x, "x_val": x, "x_dev": x}))
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
    with pytest.raises(
        ValueError, match=r"in every split or in none \(or pass --splits train\), got"
    ):
        open_npz(path)
    assert open_images(str(path), splits=["train"]).users is not None
    assert open_images(str(path), columns="user=").users is None


def test_reference_archives(reference_data: Path) -> None:
    cifar = open_npz(reference_data / "data" / "cifar10_jpeg.npz")
    assert cifar.split.sum() == 10_000
    assert cifar.images(np.array([0, 59_999])).shape == (2, 3, 32, 32)
    writers = open_npz(reference_data / "data" / "mnist_writers.npz")
    assert writers.users is not None
    assert len(np.unique(writers.users[writers.split == 0])) == 539


@pytest.mark.parametrize("packed", [False, True])
def test_a_wrong_checksum_is_an_error(tmp_path: Path, packed: bool) -> None:
    path = write(tmp_path / "set.npz", pixel_arrays(50), packed=packed)
    data = bytearray(path.read_bytes())
    data[400] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"checksum of every member|complete npz archive"):
        open_npz(path)


def test_a_damaged_image_names_its_row(tmp_path: Path) -> None:
    arrays = jpeg_arrays(4)
    blob, start = arrays["jpeg_train"].copy(), arrays["off_train"][2]
    blob[start : start + 20] = 0
    images = open_npz(write(tmp_path / "set.npz", arrays | {"jpeg_train": blob}))
    with pytest.raises(ValueError, match=r"set\.npz: row 2 of train must be a readable image"):
        images.images(slice(0, 4))


def test_mixed_sizes_are_an_error(tmp_path: Path) -> None:
    small, large = jpeg_arrays(2), jpeg_arrays(1, side=16)
    mixed = {
        "jpeg_train": np.concatenate([small["jpeg_train"], large["jpeg_train"]]),
        "off_train": np.append(small["off_train"], small["off_train"][-1] + large["off_train"][-1]),
        "y_train": np.zeros(3, np.uint8),
    }
    images = open_npz(write(tmp_path / "set.npz", mixed))
    with pytest.raises(ValueError, match=r"one size, got \(16, 16\) at row 2"):
        images.images(slice(0, 3))
    one = open_npz(write(tmp_path / "one.npz", small))
    with pytest.raises(ValueError, match="mixed sizes"):
        concatenate([one, images.take(slice(2, 3))]).images(slice(None))


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"y_train": np.array([0, 1, 7, 0])}, "must be >= 0 and < 3, got 7 in row 2 of y_train"),
        ({"y_train": np.array([0, np.nan, 0, 0])}, "must be integers or names, got float64"),
        ({"off_train": np.array([0, 5, 5, 9, 10])}, "must increase, got 0 bytes at row 1"),
        ({"off_train": np.array([0, 5, 6, 9, 10])}, "must end at the"),
        ({"off_train": np.array([1, 5, 6, 9, 10])}, "must start at 0"),
        ({"writer_train": np.zeros(3, np.int64)}, "writer_train must have one entry for each of 4"),
        ({"jpeg_train": np.zeros(9)}, "jpeg_train must be bytes"),
    ],
)
def test_mislabelled_archives(tmp_path: Path, changes: dict[str, np.ndarray], rule: str) -> None:
    path = write(tmp_path / "set.npz", jpeg_arrays(4) | changes)
    with pytest.raises(ValueError, match=rule):
        open_npz(path)


def test_a_member_that_is_no_array(tmp_path: Path) -> None:
    path = tmp_path / "set.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x_train.npy", b"hello")
    with pytest.raises(ValueError, match="x_train must be an npy array"):
        open_npz(path)


def picture(path: Path, height: int, width: int, value: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((height, width, 3), value, np.uint8)).save(path)


def test_folders(tmp_path: Path) -> None:
    for split in ("train", "val"):
        for value, name in enumerate(("cat", "dog")):
            picture(tmp_path / split / name / "0.png", 8, 8, 100 * value)
    images = open_images(str(tmp_path))
    assert images.class_names == ("cat", "dog")
    assert images.labels.tolist() == [0, 1, 0, 1]
    assert images.split.tolist() == [0, 0, 2, 2]
    assert images.images(slice(None))[:, 0, 0, 0].tolist() == [0, 100, 0, 100]
    assert len(open_images(str(tmp_path / "train"))) == 2


def test_folders_of_mixed_sizes_need_resize(tmp_path: Path) -> None:
    picture(tmp_path / "a" / "0.png", 8, 8, 7)
    picture(tmp_path / "a" / "1.png", 12, 30, 9)
    assert open_images(str(tmp_path), resize=10).images(slice(None)).shape == (2, 3, 10, 10)


@pytest.mark.parametrize("kind", ["cifar10", "cifar100", "emnist"])
def test_missing_torchvision_sets_are_not_downloaded(tmp_path: Path, kind: str) -> None:
    with pytest.raises(ValueError, match=f"must hold {kind} \\(or pass --download\\)"):
        open_images(f"{kind}:{tmp_path}")


def leaf(path: Path, data: dict[str, tuple[int, int]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    users = {
        w: {"x": [[k / 255] * 784 for k in range(n)], "y": [label] * n}
        for w, (n, label) in data.items()
    }
    path.write_text(json.dumps({"users": list(users), "user_data": users}))


def test_leaf_files(tmp_path: Path) -> None:
    leaf(tmp_path / "train" / "a.json", {"w1": (3, 5), "w0": (2, 61)})
    leaf(tmp_path / "train" / "b.json", {"w2": (1, 0)})
    leaf(tmp_path / "test" / "a.json", {"w2": (2, 1)})
    images = open_images(f"fed-emnist:{tmp_path}")
    assert images.labels.tolist() == [5, 5, 5, 61, 61, 0, 1, 1]
    assert np.asarray(images.users).tolist() == [1, 1, 1, 0, 0, 2, 2, 2]
    assert images.images(slice(None))[:, 0, 3, 3].tolist() == [0, 1, 2, 0, 1, 0, 0, 1]


def test_bad_leaf_files(tmp_path: Path) -> None:
    leaf(tmp_path / "train" / "a.json", {"w": (1, 62)})
    with pytest.raises(ValueError, match="row 0 must be >= 0 and < 62, got 62"):
        open_images(f"fed-emnist:{tmp_path}", splits=["train"])
    (tmp_path / "train" / "a.json").write_text("{")
    with pytest.raises(ValueError, match=r"a\.json must be a LEAF JSON file"):
        open_images(f"fed-emnist:{tmp_path}", splits=["train"])
    with pytest.raises(ValueError, match=r"must hold fed_emnist_test\.h5 or test/\*\.json"):
        open_images(f"fed-emnist:{tmp_path}", splits=["test"])


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


def test_a_damaged_hdf5_file(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    (tmp_path / "fed_emnist_test.h5").write_bytes(b"no")
    with pytest.raises(ValueError, match="must be a fed_emnist HDF5 file"):
        open_images(f"fed-emnist:{tmp_path}", splits=["test"])
