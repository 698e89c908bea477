"""`FILE.npz`: arrays of pixels, or JPEG blobs with their offsets."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from pretrain.datasets import SPLITS, UNLABELLED, ImageSet, check_labels, concatenate
from pretrain.intake.decode import Pictures, squared
from pretrain.intake.reading import Reading
from pretrain.intake.table import as_word
from pretrain.npz import Npz, Rows

# names in the archives of MedMNIST (medmnist.com)
MEDMNIST = {
    f"{split}_{what}": f"{x}_{split}"
    for split in ("train", "val", "test")
    for what, x in (("images", "x"), ("labels", "y"))
}


def open_npz(path: Path, reading: Reading | None = None) -> ImageSet:
    """Opens `x_train, y_train, ...` arrays or `jpeg_train, off_train, y_train, ...` blobs.

    MedMNIST's names are understood: `train_images`, `train_labels` (n, 1), and so on.

    Image i of a blob is `jpeg[off[i]:off[i + 1]]`. Labels are numbers, or names of classes; without
    any `y_` the images are unlabelled. Optional: `writer_<split>`, users as numbers or names, and
    the class names `names` or `wnids`. `val` is a test split. Without class names in the archive or
    in `classes` they are counted from the labels, and the set is marked as inferred.

    Args:
        path: the archive; its checksums are verified.
        reading: splits, classes (if the archive has none), `resize` and `max_pixels` are used.

    Raises:
        ValueError: a damaged or mislabelled archive, with file, row and rule.
    """
    archive, reading = Npz(path, MEDMNIST), reading or Reading()
    present = [s for s in SPLITS if f"x_{s}" in archive or f"jpeg_{s}" in archive]
    chosen, classes = list(reading.splits) or present, reading.classes
    if not chosen or set(chosen) - set(present):
        found = ", ".join(archive.names)
        raise ValueError(
            f"{path} must hold images x_ or jpeg_ of {chosen or 'a split'}, got {found}"
        )
    held = next((archive.array(n) for n in ("names", "wnids") if n in archive), None)
    names = classes if held is None else tuple(map(str, held))
    if classes and names != classes:
        raise ValueError(f"{path}: classes must be {names}, the archive's names, got {classes}")
    words = () if names else _words(archive, chosen)
    parts = [_split(archive, split, names or words, reading) for split in chosen]
    if words:
        parts = [replace(part, inferred=True) for part in parts]
    return concatenate(parts) if len(parts) > 1 else parts[0]


def _split(archive: Npz, split: str, names: tuple[str, ...], reading: Reading) -> ImageSet:
    path = archive.path
    if f"jpeg_{split}" in archive:
        blob, offsets = archive.member(f"jpeg_{split}"), archive.array(f"off_{split}")
        count, read = _jpegs(path, split, blob, offsets, reading)
    else:
        images = archive.member(f"x_{split}")
        count, read = len(images), _pixels(path, split, images, reading.resize)
    labels = np.full(count, UNLABELLED)
    if f"y_{split}" in archive:
        labels = archive.array(f"y_{split}")
        if labels.ndim == 2 and labels.shape[1] == 1:  # as MedMNIST has them
            labels = labels[:, 0]
        if _is_text(labels) and labels.ndim == 1:
            labels = _numbers(f"{path}: y_{split}", labels, names)
        check_labels(f"{path}: y_{split}", labels, count, len(names) or None)
    users, user_names = _users(archive, split, count)
    return ImageSet(
        name=path.stem,
        labels=labels.astype(np.int64),
        split=np.full(count, SPLITS[split], np.uint8),
        class_names=names or tuple(map(str, range(int(labels.max()) + 1))),
        users=users,
        user_names=user_names,
        inferred=f"y_{split}" in archive and not names,
        read=read,
        seen=(read.seen,) if isinstance(read, Pictures) else (),
        where=lambda row: f"{path}: row {row} of {split}",
    )


def _is_text(labels: np.ndarray) -> bool:
    return labels.dtype.kind in "SU"


def _words(archive: Npz, splits: Sequence[str]) -> tuple[str, ...]:
    """Distinct labels of an archive whose labels are names, sorted."""
    labels = [archive.array(f"y_{split}") for split in splits if f"y_{split}" in archive]
    return tuple(sorted({word for each in labels if _is_text(each) for word in _decoded(each)}))


def _decoded(words: np.ndarray) -> list[str]:
    return [as_word(word) for word in words.tolist()]


def _numbers(where: str, labels: np.ndarray, names: tuple[str, ...]) -> np.ndarray:
    """(N,) int64 labels of names."""
    place = {name: number for number, name in enumerate(names)}
    numbers = np.array([place.get(word, -1) for word in _decoded(labels)], np.int64)
    if (numbers < 0).any():
        row = int((numbers < 0).argmax())
        raise ValueError(f"{where}: row {row} must be one of {names}, got {labels[row]}")
    return numbers


def _users(archive: Npz, split: str, count: int) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """(N,) int64 numbers; names are numbered as they are sorted."""
    if f"writer_{split}" not in archive:
        return None, ()
    users, what = archive.array(f"writer_{split}"), f"{archive.path}: writer_{split}"
    if users.shape != (count,):
        raise ValueError(f"{what} must have {count} entries, got {users.shape}")
    if users.dtype.kind in "SU":
        words, numbers = np.unique(users, return_inverse=True)
        decoded = _decoded(words)
        if "" in decoded:
            raise ValueError(f"{what} must name a user in every row, got an empty name")
        return numbers.astype(np.int64), tuple(decoded)
    if users.dtype.kind not in "iu":
        raise ValueError(f"{what} must be integers or names, got {users.dtype}")
    return users.astype(np.int64), ()


def _pixels(
    path: Path, split: str, images: Rows, resize: int | None
) -> Callable[[np.ndarray], np.ndarray]:
    channels = images.shape[3:] in ((), (1,), (3,))
    if images.dtype != np.uint8 or len(images.shape) not in (3, 4) or not channels:
        raise ValueError(
            f"{path}: x_{split} must be uint8 of shape (N, h, w), (N, h, w, 1) or (N, h, w, 3), "
            f"got {images.dtype} of shape {images.shape}"
        )

    def read(rows: np.ndarray) -> np.ndarray:
        if len(rows) and np.array_equal(rows, np.arange(rows[0], rows[0] + len(rows))):
            block = images[int(rows[0]) : int(rows[0]) + len(rows)]
        else:
            block = np.concatenate([images[r : r + 1] for r in rows.tolist()])
        block = block.reshape(*block.shape[:3], -1)
        block = np.broadcast_to(block, (*block.shape[:3], 3))
        return block if resize is None else np.stack([squared(image, resize) for image in block])

    return read


def _jpegs(
    path: Path, split: str, blob: Rows, offsets: np.ndarray, reading: Reading
) -> tuple[int, Callable[[np.ndarray], np.ndarray]]:
    steps = np.diff(offsets.astype(np.int64))
    if blob.dtype != np.uint8 or offsets.ndim != 1 or not len(steps) or offsets[0] != 0:
        raise ValueError(f"{path}: off_{split} must start at 0 and jpeg_{split} must be bytes")
    if (steps <= 0).any():
        row = int((steps <= 0).argmax())
        raise ValueError(f"{path}: off_{split} must increase, got {steps[row]} bytes at row {row}")
    if offsets[-1] != len(blob):
        raise ValueError(
            f"{path}: off_{split} must end at the {len(blob)} bytes of jpeg_{split}, "
            f"got {offsets[-1]}"
        )
    return len(steps), Pictures(
        fetch=lambda rows: (blob[int(offsets[r]) : int(offsets[r + 1])].tobytes() for r in rows),
        where=lambda row: f"{path}: row {row} of {split}",
        source=f"{path}: jpeg_{split}",
        reading=reading,
    )
