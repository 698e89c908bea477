"""Image sets by name: npz archives, tables, folders, shards, torchvision's sets, fed. EMNIST."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from pretrain import check
from pretrain.cli.json_text import parsed
from pretrain.datasets import SPLITS, TEST, TRAIN, ImageSet, check_labels, concatenate, decode_name
from pretrain.intake.archive import open_npz
from pretrain.intake.decode import squared
from pretrain.intake.files import refuse_unreadable, unreadable_suffixes
from pretrain.intake.folder import open_images_folder
from pretrain.intake.labels import against_rest, as_findings, is_against_rest
from pretrain.intake.reading import Reading
from pretrain.intake.table_files import open_csv, open_hugging_face, open_parquet
from pretrain.intake.web_dataset import open_web_dataset
from pretrain.preprocess import Size

EMNIST_CLASSES = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")  # classes
EMNIST_SIDE = 28  # pixels of EMNIST

TORCHVISION = ("cifar10", "cifar100", "emnist")
EMNIST_UPRIGHT = (0, 2, 1)  # the set's images are stored transposed

TABLES: dict[str, Callable[[str, Reading], ImageSet]] = {
    "csv": lambda place, reading: open_csv(Path(place), reading),
    "parquet": open_parquet,
    "hf": lambda place, reading: open_hugging_face(Path(place), reading),
    "wds": open_web_dataset,
}


def open_images(
    source: str, reading: Reading | None = None, *, size: Size | None = None, **options: Any
) -> ImageSet:
    """Opens an image set.

    Args:
        source: an `.npz` file; a folder; `csv:FILE`, `parquet:FILES`, `hf:DIR`, `wds:SHARDS`; or
            `cifar10:DIR`, `cifar100:DIR`, `emnist:DIR` (by class), `fed-emnist:PATH` (the directory
            of `fed_emnist_train.h5` and `_test.h5`, or LEAF's train/ and test/).
        reading: how to read it.
        size: to which pictures are brought, in place of `resize`; None: as `reading` says.
        **options: fields of `Reading`, instead of it.

    Raises:
        ValueError: another kind of source, a damaged or mislabelled one, classes that are not
            those of the source, or pictures in formats that cannot be read.
    """
    reading = reading or Reading(**options)
    if size is not None:
        reading = replace(reading, resize=size if isinstance(size, int) else None)
    max_pixels, classes = reading.max_pixels, reading.classes
    if Image.MAX_IMAGE_PIXELS is not None and max_pixels > Image.MAX_IMAGE_PIXELS:
        Image.MAX_IMAGE_PIXELS = max_pixels  # Pillow refuses what is twice as large
    images = _opened(source, reading)
    done = reading.label_is is not None and is_against_rest(images)
    if classes and images.class_names != classes and not done:
        raise ValueError(f"classes must be those of {source}, {images.class_names}, got {classes}")
    if images.names is not None and not reading.skip_unreadable:
        foreign = unreadable_suffixes(map(decode_name, images.names))
        refuse_unreadable(source, foreign, len(images))
    if reading.findings and images.findings is None:
        images = as_findings(images)
    images = replace(images, unknown=reading.unknown or "negative") if reading.findings else images
    images = images if done or reading.label_is is None else against_rest(images, reading)
    return resized(images, size) if isinstance(size, tuple) else images


def _opened(source: str, reading: Reading) -> ImageSet:
    kind, _, rest = source.partition(":")
    path = Path(source)
    if reading.layout != "auto" and not path.is_dir() and (path.exists() or rest):
        raise ValueError(f"layout must be left out for {source}, which is no folder")
    if reading.encoding is not None and kind != "csv":
        raise ValueError(f"encoding must be left out for {source}, which is no csv file")
    given = {part: name for part, name in reading.named_columns.items() if name}
    if given and kind not in TABLES:
        raise ValueError(f"columns must be left out for {source}, which is no table, got {given}")
    if kind in TABLES and rest:
        return TABLES[kind](rest, reading)
    if kind in TORCHVISION and rest:
        held = ("train", "test")
        if not (chosen := [s for s in reading.splits or held if s in held]):
            raise ValueError(f"splits of {kind} must be of {held}, got {sorted(reading.splits)}")
        parts = [_torchvision(kind, Path(rest), s, reading.download) for s in chosen]
        return resized(concatenate(parts), reading.resize)
    if kind == "fed-emnist" and rest:
        whole = open_federated_emnist(Path(rest), reading.splits or ("train", "test"))
        return resized(whole, reading.resize)
    if path.is_dir() and source:
        return open_images_folder(path, reading)
    if not path.is_file():
        kinds = "an npz file, a folder, csv:FILE, parquet:FILES, hf:DIR, wds:SHARDS"
        named = "cifar10:DIR, cifar100:DIR, emnist:DIR or fed-emnist:PATH"
        raise ValueError(f"images must be {kinds}, {named}, got {source or 'nothing'}")
    return open_npz(path, reading)


def resized(images: ImageSet, size: Size | None) -> ImageSet:
    """The set, with its pictures brought to one size as `resize` does; None: as they are.

    For a (height, width), pictures may be of several sizes.
    """
    if size is None:
        return images

    def read(rows: np.ndarray) -> np.ndarray:
        one_by_one = (images.read(rows[i : i + 1])[0] for i in range(len(rows)))
        block = images.read(rows) if isinstance(size, int) else one_by_one
        return np.stack([squared(np.ascontiguousarray(image), size) for image in block])

    return replace(images, read=read)


def _torchvision(kind: str, root: Path, split: str, download: bool) -> ImageSet:
    import torchvision

    train = split == "train"
    options: dict[str, Any] = {"root": root, "train": train, "download": download}
    try:
        if kind == "emnist":
            held: Any = torchvision.datasets.EMNIST(split="byclass", **options)
        else:
            names = {"cifar10": "CIFAR10", "cifar100": "CIFAR100"}
            held = getattr(torchvision.datasets, names[kind])(**options)
    except (RuntimeError, OSError, EOFError) as error:
        raise ValueError(f"{root} must hold {kind} (or pass --download), got: {error}") from error
    pixels, labels = np.asarray(held.data), np.asarray(held.targets)
    check_labels(f"{root}: {kind} {split}", labels, len(pixels), len(held.classes))

    def read(rows: np.ndarray) -> np.ndarray:
        block = pixels[rows]
        if block.ndim == 4:
            return block
        return np.broadcast_to(block.transpose(EMNIST_UPRIGHT)[..., None], (*block.shape, 3))

    return ImageSet(
        name=kind,
        labels=labels.astype(np.int64),
        split=np.full(len(pixels), TRAIN if train else TEST, np.uint8),
        class_names=tuple(map(str, held.classes)),
        read=read,
        where=lambda row: f"{root}: row {row} of {kind} {split}",
    )


def open_federated_emnist(path: Path, splits: Sequence[str] = ("train", "test")) -> ImageSet:
    """Opens federated EMNIST; a writer has the same user number in every split.

    Strokes are dark on white, as the paper uses EMNIST: nothing is left to invert. Pixels are held
    in memory, 784 bytes an image, as torchvision holds those of EMNIST.

    Args:
        path: a directory with `fed_emnist_train.h5` and `fed_emnist_test.h5`, or with LEAF's
            `train/*.json` and `test/*.json`.
        splits: which of train and test to read.

    Raises:
        ValueError: missing, damaged or mislabelled files, named.
    """
    writers, places, held = list[str](), list[str](), list[int]()
    blocks, labels = list[np.ndarray](), list[np.ndarray]()
    for split in splits:
        h5, leaf = path / f"fed_emnist_{split}.h5", sorted((path / split).glob("*.json"))
        if not h5.is_file() and not leaf:
            raise ValueError(f"{path} must hold {h5.name} or {split}/*.json, got neither")
        for file, writer, x, y in _hdf5(h5) if h5.is_file() else _leaf(leaf):
            place = f"{file}: writer {writer}"
            check_labels(place, y, len(x), len(EMNIST_CLASSES))
            if not (np.isfinite(x).all() and x.min() >= 0 and x.max() <= 1):
                raise ValueError(f"{place}: pixels must be in [0, 1], got others")
            blocks.append(np.rint(x * 255).astype(np.uint8).reshape(-1, EMNIST_SIDE, EMNIST_SIDE))
            labels.append(y.astype(np.int64))
            writers.append(writer)
            places.append(place)
            held.append(SPLITS[split])
    if not blocks:
        raise ValueError(f"{path} must hold pictures of writers, got none")
    counts, pixels = [len(each) for each in labels], np.concatenate(blocks)
    starts, numbers = np.cumsum([0, *counts]), np.unique(writers, return_inverse=True)[1]

    def where(row: int) -> str:
        part = int(np.searchsorted(starts, row, side="right")) - 1
        return f"{places[part]}, row {row - starts[part]}"

    return ImageSet(
        name="fed_emnist",
        labels=np.concatenate(labels),
        split=np.repeat(np.array(held, np.uint8), counts),
        class_names=EMNIST_CLASSES,
        users=np.repeat(numbers, counts),
        read=lambda rows: np.repeat(pixels[rows][..., None], 3, 3),
        where=where,
    )


Written = tuple[Path, str, np.ndarray, np.ndarray]  # file, writer, pixels in [0, 1], labels


def _hdf5(path: Path) -> Iterator[Written]:
    """`examples/<writer>/pixels` (n, 28, 28) and `/label` (n,), by the names of the writers."""
    h5py = check.installed("h5py", f"reading {path}", extra="federated-emnist")
    try:
        with h5py.File(path, "r") as file:
            for writer, held in sorted(file["examples"].items()):
                yield path, writer, np.asarray(held["pixels"]), np.asarray(held["label"])
    except (OSError, KeyError) as error:
        raise ValueError(f"{path} must be a fed_emnist HDF5 file, got: {error}") from error


def _leaf(files: Sequence[Path]) -> Iterator[Written]:
    """`{"user_data": {writer: {"x": [[784 floats]], "y": [...]}}}` of every file."""
    for file in files:
        try:
            for writer, held in parsed(file.read_text("utf-8"))["user_data"].items():
                with np.errstate(over="ignore"):  # infinite pixels are refused
                    pixels = np.asarray(held["x"], np.float32)
                if pixels.shape[1:] != (EMNIST_SIDE**2,):
                    raise ValueError(f"x must be (n, {EMNIST_SIDE**2}), got {pixels.shape}")
                yield file, writer, pixels, np.asarray(held["y"])
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"{file} must be a LEAF JSON file, got: {error!r:.200}") from error
