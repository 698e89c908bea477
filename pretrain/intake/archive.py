"""`FILE.npz`: arrays of pixels, or JPEG blobs with their offsets.

Rows of members that are not compressed are read on demand: memory follows the batch.
"""

import math
import re
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from pretrain.datasets import SPLITS, ImageSet, concatenate
from pretrain.intake.decode import Pictures, squared
from pretrain.intake.labels import (
    Cells,
    Say,
    as_cell,
    as_word,
    numbered,
    unlabelled_rows,
    unlabelled_where_findings,
    user_numbers,
)
from pretrain.intake.reading import Reading, print_all, refuse_unknown_splits, split_named

LOCAL_HEADER = 30  # bytes before the file name in a zip entry's local header


@dataclass(frozen=True)
class StoredArray:
    """Array in an uncompressed npz member; any thread may read rows of it."""

    path: Path
    offset: int  # of the first element, in the file
    dtype: np.dtype
    shape: tuple[int, ...]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        """Successive rows, (b, ...)."""
        start, stop, _ = rows.indices(len(self))
        width = self.dtype.itemsize * math.prod(self.shape[1:])
        with self.path.open("rb", buffering=0) as file:
            file.seek(self.offset + start * width)
            data = file.read((stop - start) * width)
        if len(data) != (stop - start) * width:
            raise ValueError(f"{self.path} must not change while it is read, got a short read")
        return np.frombuffer(data, self.dtype).reshape(stop - start, *self.shape[1:])


Rows = StoredArray | np.ndarray


class Npz:
    """An npz archive whose checksums have been verified.

    Raises:
        ValueError: not a zip archive, truncated, or a member whose CRC does not match.
    """

    def __init__(self, path: Path, named: Callable[[str], str] = str) -> None:
        """Verifies it. `named`: what a member is called -> its name, one for one member only."""
        self.path = path
        try:
            with zipfile.ZipFile(path) as archive:
                damaged = archive.testzip()
                members = archive.namelist()
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
            raise ValueError(f"{path} must be a complete npz archive, got: {error}") from error
        if damaged is not None:
            raise ValueError(f"{path}: the checksum of every member must match, got {damaged}")
        self._stored: dict[str, str] = {}
        for member in (name.removesuffix(".npy") for name in members):
            if (first := self._stored.setdefault(named(member), member)) != member:
                raise ValueError(f"{path} must hold {named(member)} once, got {first} and {member}")
        self.names = list(self._stored)

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def array(self, name: str) -> np.ndarray:
        """The whole member `name`, in memory."""
        return self.member(name)[:]

    def member(self, name: str) -> Rows:
        """The member `name`; its rows stay on disk unless it is compressed, then in memory."""
        if name not in self:
            raise ValueError(f"{self.path} must hold {name!r}, got {', '.join(self.names)}")
        with zipfile.ZipFile(self.path) as archive:
            info = archive.getinfo(f"{self._stored[name]}.npy")
            with archive.open(info) as stream:
                shape, dtype = self._header(stream, name)
                if info.compress_type != zipfile.ZIP_STORED:
                    values = np.frombuffer(stream.read(), dtype)
                    self._check_size(values.size == math.prod(shape), shape, name)
                    return values.reshape(shape)
                start = stream.tell()
        with self.path.open("rb") as file:
            file.seek(info.header_offset)
            local = file.read(LOCAL_HEADER)
        names = int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little")
        stored = info.header_offset + LOCAL_HEADER + names
        size = math.prod(shape) * dtype.itemsize
        self._check_size(start + size == info.file_size, shape, name)
        return StoredArray(self.path, stored + start, dtype, shape)

    def _header(self, stream: IO[bytes], name: str) -> tuple[tuple[int, ...], np.dtype]:
        try:
            version = np.lib.format.read_magic(stream)
            read = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }[version]
            shape, fortran, dtype = read(stream)
        except (ValueError, KeyError) as error:
            raise ValueError(f"{self.path}: {name} must be an npy array, got: {error}") from error
        if dtype.hasobject or fortran or not shape:
            raise ValueError(
                f"{self.path}: {name} must be a plain row-major array of numbers or strings, "
                f"got dtype {dtype}, shape {shape}"
            )
        return shape, dtype

    def _check_size(self, fills: bool, shape: tuple[int, ...], name: str) -> None:
        if not fills:
            raise ValueError(f"{self.path}: {name} must fill its header's shape {shape}")


USUAL = re.compile(r"(x|jpeg|off|y|writer)_(\w+)", re.IGNORECASE)
MEDMNIST = re.compile(r"(\w+)_(images|labels)")  # medmnist.com
CLASSES = ("names", "wnids")

Read = Callable[[np.ndarray], np.ndarray]


def open_npz(path: Path, reading: Reading | None = None) -> ImageSet:
    """Opens `x_train, y_train, ...` arrays or `jpeg_train, off_train, y_train, ...` blobs.

    MedMNIST's names are understood: `train_images`, `train_labels` (n, 1), and so on.

    Image i of a blob is `jpeg[off[i]:off[i + 1]]`. Labels are numbers, or names of classes, or
    (n, K) numbers 0 and 1 that are `findings`, or of which `label_is` takes one column; without
    any `y_` the images are unlabelled. Optional: `writer_<split>`, users as numbers or names, and
    the class names `names` or `wnids`. `val` is held out for an evaluation. Without class names in
    the archive or in `classes` they are counted from the labels: the set is marked as inferred.

    Args:
        path: the archive; its checksums are verified.
        reading: options.

    Raises:
        ValueError: a damaged or mislabelled archive, with file, row and rule.
    """
    archive, reading = Npz(path, _usual_name), reading or Reading()
    notes: list[str] = []
    chosen = _splits(archive, reading, notes.append)
    stored = next((archive.array(name) for name in CLASSES if name in archive), ())
    names = tuple(as_word(name) for name in np.asarray(stored).tolist())
    if names and reading.classes not in ((), names):
        got = f"the archive's names, got {reading.classes}"
        raise ValueError(f"{path}: classes must be {names}, {got}")
    whole = {split: _images(archive, split, reading) for split in chosen}
    cells = {split: _labels(archive, split, whole[split][0], reading) for split in chosen}
    if len({type(cell) for part in cells.values() for cell in part.distinct if cell != ""}) > 1:
        raise ValueError(
            f"{path}: y_ must be (n,) in every split or (n, K) in every split, got both"
        )
    labels, splits = Cells.joined(list(cells.values())), Cells.numbered(cells)
    kept = ~unlabelled_rows(labels, splits, str(path), names or reading.classes, notes.append)
    numbers, classes, inferred = numbered(
        labels.taken(kept), str(path), names, reading, notes.append
    )
    chosen = [str(split) for split in splits.taken(kept).distinct]
    users, user_names = _users(
        archive, {split: whole[split][0] for split in chosen}, reading, notes.append
    )
    parts, start = [], 0
    for split in chosen:
        count, read = whole[split]
        rows = slice(start, start + count)
        start += count
        parts.append(
            ImageSet(
                name=path.stem,
                labels=unlabelled_where_findings(numbers[rows]),
                findings=numbers[rows] if numbers.ndim == 2 else None,
                split=np.full(count, SPLITS[split], np.uint8),
                class_names=classes,
                users=None if users is None else users[rows],
                user_names=user_names,
                inferred=inferred,
                read=read,
                seen=(read.seen,) if isinstance(read, Pictures) else (),
                where=_place(path, split),
            )
        )
    print_all(notes)
    return concatenate(parts) if len(parts) > 1 else parts[0]


def _usual_name(member: str) -> str:
    """Name of a member: `x_train` for `train_images`, `X_Train` and the like."""
    if swapped := MEDMNIST.fullmatch(member):
        member = f"{'x' if swapped[2] == 'images' else 'y'}_{swapped[1]}"
    if usual := USUAL.fullmatch(member):
        return f"{usual[1].lower()}_{split_named(usual[2]) or usual[2]}"
    return member


def _place(path: Path, split: str) -> Callable[[int], str]:
    return lambda row: f"{path}: row {row} of {split}"


def _splits(archive: Npz, reading: Reading, say: Say) -> list[str]:
    """Splits to read; `say` receives which members nothing reads."""
    held = [USUAL.fullmatch(name) for name in archive.names]
    found = list(dict.fromkeys(m[2] for m in held if m and m[1] in ("x", "jpeg")))
    if not reading.splits:
        refuse_unknown_splits(str(archive.path), found)
    chosen = list(reading.splits) or [split for split in SPLITS if split in found]
    if not chosen or set(chosen) - set(found):
        raise ValueError(
            f"{archive.path} must hold images x_ or jpeg_ of {chosen or 'a split'}, "
            f"got {', '.join(archive.names)}"
        )
    known = {*CLASSES, *(m[0] for m in held if m and m[2] in found)}
    if unread := [name for name in archive.names if name not in known]:
        say(f"{archive.path}: {', '.join(unread)} not read")
    return chosen


def _images(archive: Npz, split: str, reading: Reading) -> tuple[int, Read]:
    """Number of images of a split, and the function that reads them."""
    if f"jpeg_{split}" in archive:
        blob, offsets = archive.member(f"jpeg_{split}"), archive.array(f"off_{split}")
        return _jpegs(archive.path, split, blob, offsets, reading)
    images = archive.member(f"x_{split}")
    return len(images), _pixels(archive.path, split, images, reading.resize)


def _labels(archive: Npz, split: str, count: int, reading: Reading) -> Cells:
    """Labels of a split; empty cells if it has none."""
    name = f"y_{split}"
    if not count:
        raise ValueError(f"{archive.path}: {name} must label at least one image, got 0")
    none = name not in archive or reading.named_columns.get("label") == ""
    if none:
        return _cells(np.full(count, ""), name)
    return _cells(_column(archive, name, count, wide=True, unknown=reading.findings), name)


def _column(
    archive: Npz, name: str, count: int, *, wide: bool = False, unknown: bool = False
) -> np.ndarray:
    """(n,) numbers or names; if it may be `wide` also (n, K) of 0 and 1, or -1 and NaN: unknown."""
    values, what = archive.array(name), f"{archive.path}: {name}"
    if values.ndim == 2 and values.shape[1] == 1:  # as MedMNIST has them
        values = values[:, 0]
    if len(values) != count or values.ndim > 1 + wide:
        raise ValueError(
            f"{what} must have one entry for each of {count} images, got {values.shape}"
        )
    if values.ndim == 1 and values.dtype.kind not in "iuSU":
        raise ValueError(f"{what} must be integers or names, got {values.dtype}")
    if values.ndim == 2:
        known = np.isin(values, (0, 1, -1) if unknown else (0, 1))
        if unknown and values.dtype.kind == "f":
            known |= np.isnan(values)
        if not known.all():
            row = int(known.all(1).argmin())
            rule = "must be 0 and 1 for every class"
            raise ValueError(f"{what} {rule}, got {values[row]} in row {row}")
    return values


def _cells(values: np.ndarray, name: str) -> Cells:
    distinct, codes = np.unique(values, axis=0, return_inverse=True)
    cells, rows = [as_cell(value) for value in distinct.tolist()], np.arange(len(values))
    return Cells(cells, codes.ravel(), rows, lambda row: f"row {row} of {name}")


def _users(
    archive: Npz, counts: dict[str, int], reading: Reading, say: Say
) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """(N,) int64 users of all splits; names are numbered as they are sorted."""
    held = {split: f"writer_{split}" for split in counts if f"writer_{split}" in archive}
    if not held or reading.named_columns.get("user") == "":
        return None, ()
    arrays = {name: _column(archive, name, counts[split]) for split, name in held.items()}
    if lacking := [split for split in counts if split not in held]:
        raise ValueError(
            f"{archive.path} must have users writer_ in every split or in none (or pass --splits "
            f"{' '.join(held)}), got none in {', '.join(lacking)}"
        )
    if len({users.dtype.kind in "SU" for users in arrays.values()}) > 1:
        raise ValueError(f"{archive.path}: users must be names in every split, or numbers")
    if all(users.dtype.kind in "iu" for users in arrays.values()):
        for name, users in arrays.items():
            if not 0 <= users.min() <= users.max() < 1 << 63:
                got = f"{users.min()} to {users.max()}"
                raise ValueError(f"{archive.path}: {name} must be in [0, 2^63), got {got}")
        return np.concatenate([users.astype(np.int64) for users in arrays.values()]), ()
    cells = Cells.joined([_cells(users, name) for name, users in arrays.items()])
    return user_numbers(cells, str(archive.path), say)


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
