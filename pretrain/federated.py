"""Federated EMNIST with its writers: TensorFlow Federated's HDF5 or LEAF's JSON files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pretrain import check
from pretrain.cli.json_text import parsed
from pretrain.datasets import SPLITS, ImageSet, check_labels, concatenate

CLASSES = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
SIDE = 28


def open_federated_emnist(path: Path, splits: Sequence[str] = ("train", "test")) -> ImageSet:
    """Opens federated EMNIST; a writer has the same user number in every split.

    Strokes are dark on white, as the paper uses EMNIST: nothing is left to invert.

    Args:
        path: a directory with `fed_emnist_train.h5` and `fed_emnist_test.h5`, or with LEAF's
            `train/*.json` and `test/*.json`.
        splits: which of train and test to read.

    Raises:
        ValueError: missing, damaged or mislabelled files, named.
    """
    readers = []
    for split in splits:
        h5, leaf = path / f"fed_emnist_{split}.h5", path / split
        if h5.is_file():
            readers.append((_Hdf5(h5), split))
        elif leaf.is_dir() and any(leaf.glob("*.json")):
            readers.append((_Leaf(leaf), split))
        else:
            raise ValueError(f"{path} must hold {h5.name} or {split}/*.json, got neither")
    writers = sorted({w for reader, _ in readers for w in reader.writers})
    numbers = {writer: number for number, writer in enumerate(writers)}
    return concatenate(
        [
            _image_set(reader, writer, SPLITS[split], numbers[writer])
            for reader, split in readers
            for writer in reader.writers
        ]
    )


def _image_set(reader: "_Hdf5 | _Leaf", writer: str, split: int, number: int) -> ImageSet:
    """Images of one writer; pixels are (n, 784) or (n, 28, 28) floats in [0, 1]."""
    labels, place = reader.labels(writer), f"{reader.path}: writer {writer}"
    check_labels(place, labels, len(labels), len(CLASSES))

    def read(rows: np.ndarray) -> np.ndarray:
        block = reader.pixels(writer)[rows].reshape(len(rows), SIDE, SIDE, 1)
        if not (np.isfinite(block).all() and block.min() >= 0 and block.max() <= 1):
            raise ValueError(f"{place}: pixels must be in [0, 1], got others")
        return np.repeat(np.rint(block * 255).astype(np.uint8), 3, 3)

    return ImageSet(
        name="fed_emnist",
        labels=labels.astype(np.int64),
        split=np.full(len(labels), split, np.uint8),
        class_names=CLASSES,
        users=np.full(len(labels), number),
        read=read,
        where=lambda row: f"{place}, row {row}",
    )


class _Hdf5:
    """`examples/<writer>/pixels` (n, 28, 28) and `/label` (n,)."""

    def __init__(self, path: Path) -> None:
        h5py = check.installed("h5py", f"reading {path}", extra="federated-emnist")
        self.path = path
        try:
            self._examples: Any = h5py.File(path, "r")["examples"]
        except (OSError, KeyError) as error:
            raise ValueError(f"{path} must be a fed_emnist HDF5 file, got: {error}") from error
        self.writers = sorted(self._examples)

    def labels(self, writer: str) -> np.ndarray:
        return np.asarray(self._examples[writer]["label"])

    def pixels(self, writer: str) -> np.ndarray:
        return np.asarray(self._examples[writer]["pixels"])


class _Leaf:
    """`{"users": [...], "user_data": {writer: {"x": [[784 floats]], "y": [...]}}}` per file.

    One file is held in memory at a time.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held: tuple[Path | None, dict[str, Any]] = (None, {})
        self._file_of: dict[str, Path] = {}
        self._labels: dict[str, np.ndarray] = {}
        for file in sorted(path.glob("*.json")):
            for writer, data in self._load(file).items():
                if len(data["x"]) != len(data["y"]):
                    raise ValueError(
                        f"{file}: {writer} must have one label for each of {len(data['x'])} "
                        f"images, got {len(data['y'])}"
                    )
                self._file_of[writer], self._labels[writer] = file, np.asarray(data["y"])
        self.writers = list(self._file_of)

    def _load(self, file: Path) -> dict[str, Any]:
        if self._held[0] != file:
            try:
                data = parsed(file.read_text("utf-8"))["user_data"]
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{file} must be a LEAF JSON file, got: {error!r}") from error
            self._held = (file, data)
        return self._held[1]

    def labels(self, writer: str) -> np.ndarray:
        return self._labels[writer]

    def pixels(self, writer: str) -> np.ndarray:
        return np.asarray(self._load(self._file_of[writer])[writer]["x"], np.float32)
