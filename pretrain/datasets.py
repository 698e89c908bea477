"""Labelled images, read lazily as uint8 and never unpickled."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from pretrain.npz import Npz, Rows

TRAIN, TEST, EVALUATION = 0, 1, 2
SPLITS = {"train": TRAIN, "test": TEST, "val": TEST, "evaluation": EVALUATION}


@dataclass(frozen=True, kw_only=True)
class ImageSet:
    """N labelled images; only labels, users and splits are held in memory."""

    name: str
    labels: np.ndarray  # (N,) int64
    split: np.ndarray  # (N,) uint8: 0 train, 1 test, 2 evaluation
    class_names: tuple[str, ...]
    read: Callable[[np.ndarray], np.ndarray]  # (b,) row numbers -> (b, h, w, 3) uint8
    users: np.ndarray | None = None  # (N,) int64
    inferred: bool = False  # class_names are numbers counted from the labels that occur
    where: Callable[[int], str] | None = None  # a row's place in its file, for errors

    def __len__(self) -> int:
        return len(self.labels)

    def images(self, rows: np.ndarray | slice) -> np.ndarray:
        """The images of the given rows, (b, 3, h, w) uint8."""
        index = np.arange(len(self))[rows]
        return np.ascontiguousarray(self.read(index).transpose(0, 3, 1, 2))

    def place(self, row: int) -> str:
        """Which image a row is, for errors."""
        return f"{self.name}: row {row}" if self.where is None else self.where(row)

    def take(self, rows: np.ndarray | slice) -> "ImageSet":
        """The set restricted to the given rows, in the given order."""
        index = np.arange(len(self))[rows]
        return replace(
            self,
            labels=self.labels[index],
            split=self.split[index],
            users=None if self.users is None else self.users[index],
            read=lambda inner: self.read(index[inner]),
            where=lambda row: self.place(int(index[row])),
        )


def concatenate(parts: Sequence[ImageSet]) -> ImageSet:
    """One set with the rows of all parts in order; users only if every part has them."""
    starts = np.cumsum([0] + [len(part) for part in parts])

    def read(rows: np.ndarray) -> np.ndarray:
        where = np.searchsorted(starts, rows, side="right") - 1
        pieces = [(where == k).nonzero()[0] for k in range(len(parts))]
        blocks = [
            (at, part.read(rows[at] - starts[k]))
            for k, (part, at) in enumerate(zip(parts, pieces, strict=True))
            if len(at)
        ]
        if len({block.shape[1:] for _, block in blocks}) > 1:
            raise ValueError(f"{parts[0].name}: all images must have one size, got mixed sizes")
        out = np.empty((len(rows), *blocks[0][1].shape[1:]), np.uint8)
        for at, block in blocks:
            out[at] = block
        return out

    def where(row: int) -> str:
        part = int(np.searchsorted(starts, row, side="right")) - 1
        return parts[part].place(row - int(starts[part]))

    users = [part.users for part in parts if part.users is not None]
    return ImageSet(
        name=parts[0].name,
        labels=np.concatenate([part.labels for part in parts]),
        split=np.concatenate([part.split for part in parts]),
        class_names=max((part.class_names for part in parts), key=len),
        users=np.concatenate(users) if len(users) == len(parts) else None,
        inferred=any(part.inferred for part in parts),
        read=read,
        where=where,
    )


def declared_classes(num_classes: int | None, names: Sequence[str] = ()) -> tuple[str, ...]:
    """The names of the classes as a command declares them: given, or numbers; none if not at all.

    Raises:
        ValueError: both, fewer than two classes, or a name twice.
    """
    if num_classes is None and not names:
        return ()
    if num_classes is not None and names:
        raise ValueError(f"only one of num_classes and class_names must be given, got {names} too")
    declared = tuple(names) or tuple(map(str, range(num_classes or 0)))
    if len(declared) < 2:
        raise ValueError(f"classes must be >= 2, got {names or num_classes}")
    if len(set(declared)) < len(declared):
        raise ValueError(f"class_names must be distinct, got {declared}")
    return declared


def open_npz(path: Path, splits: Sequence[str] = (), classes: Sequence[str] = ()) -> ImageSet:
    """Opens `x_train, y_train, ...` arrays or `jpeg_train, off_train, y_train, ...` blobs.

    Image i of a blob is `jpeg[off[i]:off[i + 1]]`. Optional: `writer_<split>` (users) and the
    class names `names` or `wnids`. `val` counts as a test split. Without names, and with no
    `classes` declared either, the classes are those that occur, and the set says so.

    Args:
        path: the archive; its checksums are verified.
        splits: which of train, test, val, evaluation to read, in this order; all that are there if
            left out.
        classes: names of the classes, where the archive has none.

    Raises:
        ValueError: naming file, row and rule where the archive is damaged or mislabelled.
    """
    archive = Npz(path)
    present = [s for s in SPLITS if f"x_{s}" in archive or f"jpeg_{s}" in archive]
    chosen = list(splits) or present
    if not chosen or set(chosen) - set(present):
        found = ", ".join(archive.names)
        raise ValueError(
            f"{path} must hold images x_ or jpeg_ of {chosen or 'a split'}, got {found}"
        )
    held = next((archive.array(n) for n in ("names", "wnids") if n in archive), None)
    names = tuple(classes) if held is None else tuple(map(str, held))
    if classes and names != tuple(classes):
        raise ValueError(f"{path}: classes must be {names}, the archive's names, got {classes}")
    parts = [_npz_split(archive, split, names) for split in chosen]
    return concatenate(parts) if len(parts) > 1 else parts[0]


def _npz_split(archive: Npz, split: str, names: tuple[str, ...]) -> ImageSet:
    path = archive.path
    if f"jpeg_{split}" in archive:
        blob, offsets = archive.member(f"jpeg_{split}"), archive.array(f"off_{split}")
        count, read = _jpeg_reader(path, split, blob, offsets)
    else:
        images = archive.member(f"x_{split}")
        count, read = len(images), _array_reader(path, split, images)
    labels = archive.array(f"y_{split}")
    check_labels(f"{path}: y_{split}", labels, count, len(names) or None)
    users = archive.array(f"writer_{split}") if f"writer_{split}" in archive else None
    if users is not None and users.shape != (count,):
        raise ValueError(f"{path}: writer_{split} must have {count} entries, got {users.shape}")
    return ImageSet(
        name=path.stem,
        labels=labels.astype(np.int64),
        split=np.full(count, SPLITS[split], np.uint8),
        class_names=names or tuple(map(str, range(int(labels.max()) + 1))),
        users=None if users is None else users.astype(np.int64),
        inferred=not names,
        read=read,
        where=lambda row: f"{path}: row {row} of {split}",
    )


def check_labels(where: str, labels: np.ndarray, count: int, num_classes: int | None) -> None:
    """Checks that there is one integer label in [0, num_classes) for each image.

    Raises:
        ValueError: naming `where`, the first offending row and the rule.
    """
    if labels.shape != (count,):
        raise ValueError(
            f"{where} must have one label for each of {count} images, got {labels.shape}"
        )
    if not count:
        raise ValueError(f"{where} must label at least one image, got 0")
    if not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"{where} must be integers, got {labels.dtype}")
    bad = labels.astype(np.int64) < 0
    if num_classes is not None:
        bad |= labels.astype(np.int64) >= num_classes
    if bad.any():
        row = int(bad.argmax())
        upper = "" if num_classes is None else f" and < {num_classes}"
        raise ValueError(f"{where}: row {row} must be >= 0{upper}, got {labels[row]}")


def _array_reader(path: Path, split: str, images: Rows) -> Callable[[np.ndarray], np.ndarray]:
    if (
        images.dtype != np.uint8
        or len(images.shape) not in (3, 4)
        or images.shape[3:]
        not in (
            (),
            (1,),
            (3,),
        )
    ):
        raise ValueError(
            f"{path}: x_{split} must be uint8 of shape (N, h, w), (N, h, w, 1) or (N, h, w, 3), "
            f"got {images.dtype} of shape {images.shape}"
        )

    def read(rows: np.ndarray) -> np.ndarray:
        if len(rows) and np.array_equal(rows, np.arange(rows[0], rows[0] + len(rows))):
            block = images.rows(int(rows[0]), int(rows[0]) + len(rows))
        else:
            block = np.concatenate([images.rows(int(r), int(r) + 1) for r in rows])
        block = block.reshape(*block.shape[:3], -1)
        return np.broadcast_to(block, (*block.shape[:3], 3))

    return read


def _jpeg_reader(
    path: Path, split: str, blob: Rows, offsets: np.ndarray
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

    def read(rows: np.ndarray) -> np.ndarray:
        images = [
            decode(blob.rows(int(offsets[r]), int(offsets[r + 1])).tobytes(), f"{path}: row {r}")
            for r in rows
        ]
        return stack_images(images, rows, f"{path}: jpeg_{split}")

    return len(steps), read


def decode(data: bytes, where: str) -> np.ndarray:
    """Decodes one JPEG or PNG to (h, w, 3) uint8; `where` names it in errors."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            return np.asarray(image.convert("RGB"))
    except (UnidentifiedImageError, OSError, SyntaxError) as error:
        raise ValueError(f"{where} must be a readable image, got: {error}") from error


def stack_images(images: list[np.ndarray], rows: np.ndarray, where: str) -> np.ndarray:
    """Stacks images of one size, (b, h, w, 3).

    Raises:
        ValueError: naming the first row whose size differs.
    """
    for row, image in zip(rows, images, strict=True):
        if image.shape != images[0].shape:
            raise ValueError(
                f"{where}: all images must have one size, got {image.shape[:2]} at row {row} "
                f"and {images[0].shape[:2]} at row {rows[0]}"
            )
    return np.stack(images)
