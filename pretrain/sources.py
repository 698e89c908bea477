"""Image sets by name: npz archives, folders, torchvision's sets, federated EMNIST."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from pretrain.datasets import (
    SPLITS,
    TEST,
    TRAIN,
    ImageSet,
    check_labels,
    concatenate,
    decode,
    open_npz,
    stack_images,
)
from pretrain.federated import open_federated_emnist

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp"}
EMNIST_UPRIGHT = (0, 2, 1)  # the set's images are stored transposed


def open_images(
    source: str,
    *,
    splits: Sequence[str] = (),
    download: bool = False,
    resize: int | None = None,
    classes: Sequence[str] = (),
) -> ImageSet:
    """Opens an image set.

    Args:
        source: an `.npz` file; a folder of class folders (or of train/, test/, val/, evaluation/
            with those); or `cifar10:DIR`, `cifar100:DIR`, `emnist:DIR` (by class),
            `fed-emnist:PATH` (the directory of `fed_emnist_train.h5` and `_test.h5`, or LEAF's
            train/ and test/).
        splits: which of train, test, val, evaluation to read; all that are there by default.
        download: let torchvision fetch a missing set.
        resize: shorter side of an image folder's pictures, cropped to a square; None: their own
            size, which must then be one and the same.
        classes: names of the classes as declared; needed where `source` names none, and for class
            folders, of which some may be missing; elsewhere they must be those of `source`.

    Raises:
        ValueError: nothing of the kind, damaged, or mislabelled.
    """
    images = _opened(source, splits, download, resize, classes)
    if classes and images.class_names != tuple(classes):
        raise ValueError(f"classes must be those of {source}, {images.class_names}, got {classes}")
    return images


def _opened(
    source: str,
    splits: Sequence[str],
    download: bool,
    resize: int | None,
    classes: Sequence[str],
) -> ImageSet:
    if unknown := set(splits) - SPLITS.keys():
        raise ValueError(f"splits must be of {list(SPLITS)}, got {sorted(unknown)}")
    kind, _, rest = source.partition(":")
    if kind in ("cifar10", "cifar100", "emnist") and rest:
        held = ("train", "test")
        if not (chosen := [s for s in splits or held if s in held]):
            raise ValueError(f"splits of {kind} must be of {held}, got {sorted(splits)}")
        return concatenate([_torchvision(kind, Path(rest), s, download) for s in chosen])
    if kind == "fed-emnist" and rest:
        return open_federated_emnist(Path(rest), splits or ("train", "test"))
    path = Path(source)
    if path.is_dir():
        return open_folder(path, splits, resize=resize, classes=classes)
    if not path.is_file():
        kinds = "an npz file, a folder, cifar10:DIR, cifar100:DIR, emnist:DIR or fed-emnist:PATH"
        raise ValueError(f"images must be {kinds}, got {source}")
    return open_npz(path, splits, classes)


def _torchvision(kind: str, root: Path, split: str, download: bool) -> ImageSet:
    from pretrain import torchvision_ops as torchvision_ops  # first, beside a CPU-only torch

    # isort: split
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


def open_folder(
    path: Path,
    splits: Sequence[str] = (),
    *,
    resize: int | None = None,
    classes: Sequence[str] = (),
) -> ImageSet:
    """Opens a folder of class folders, or of train/, test/, val/, evaluation/ with those.

    The folders' names are the classes: whoever lays them out declares them, so an empty one counts
    as well. Users whose folders differ, and whoever keeps a folder only where there is a picture
    for it, must give the `classes` instead, of which folders may be missing.

    Raises:
        ValueError: no images, a class that is not among the declared or the first split's, or mixed
            sizes.
    """
    present = [s for s in SPLITS if (path / s).is_dir()]
    chosen = [s for s in present if not splits or s in splits]
    roots = [(path / s, s) for s in chosen] or [(path, "train")]
    found = sorted(d.name for d in roots[0][0].iterdir() if d.is_dir())
    known = list(classes) or found
    parts = [_folder_split(root, SPLITS[split], known, resize) for root, split in roots]
    return concatenate(parts)


def _folder_split(root: Path, split: int, classes: list[str], resize: int | None) -> ImageSet:
    found = sorted(d.name for d in root.iterdir() if d.is_dir())
    if unknown := set(found) - set(classes):
        raise ValueError(f"{root} must hold only the classes {classes}, got {sorted(unknown)}")
    files = [
        (file, label)
        for label, name in enumerate(classes)
        for file in sorted((root / name).glob("*"))
        if file.suffix.lower() in SUFFIXES
    ]
    if not files:
        raise ValueError(f"{root} must hold class folders with images, got none")
    load: Callable[[Path], np.ndarray] = lambda file: decode(file.read_bytes(), str(file))  # noqa: E731

    def read(rows: np.ndarray) -> np.ndarray:
        images = [load(files[r][0]) for r in rows]
        if resize is not None:
            images = [_squared(image, resize) for image in images]
        return stack_images(images, rows, f"{root} (or pass --resize)")

    return ImageSet(
        name=root.parent.name if root.name in SPLITS else root.name,
        labels=np.array([label for _, label in files], np.int64),
        split=np.full(len(files), split, np.uint8),
        class_names=tuple(classes),
        read=read,
        where=lambda row: str(files[row][0]),
    )


def _squared(image: np.ndarray, size: int) -> np.ndarray:
    """Bicubic: the shorter side becomes `size`, the centre square is kept."""
    picture = Image.fromarray(image)
    scale = size / min(picture.size)
    width, height = (max(size, round(side * scale)) for side in picture.size)
    left, top = (width - size) // 2, (height - size) // 2
    resized = picture.resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(resized.crop((left, top, left + size, top + size)))
