"""`hf:DIR`: what Hugging Face `datasets` saved, or its `imagefolder`."""

import tempfile
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pretrain.datasets import ImageSet
from pretrain.intake.parquet import picture_bytes
from pretrain.intake.reading import Reading
from pretrain.intake.table import Table, choose_column
from pretrain.names import decode_name

INSTALL = "hf must have datasets installed: pip install 'blind-averaging[intake]'"
SAVED = ("dataset_info.json", "dataset_dict.json", "state.json")


def open_hugging_face(path: Path, reading: Reading) -> ImageSet:
    """Opens a data set of the library `datasets`, its splits one after the other.

    `save_to_disk` made the directory, or it is what `imagefolder` reads: class folders, or
    pictures with a metadata file. Class features declare the classes. Nothing is fetched.

    Raises:
        ValueError: nothing of the kind, or the column that is missing.
    """
    try:
        import datasets
    except ImportError as error:
        raise ValueError(INSTALL) from error
    if not path.is_dir():
        raise ValueError(f"hf must be a directory, got {path}")
    try:
        loaded, cache = _loaded(path)
    except Exception as error:  # the library wraps errors of many others
        raise ValueError(f"{path} must be a data set on disk, got: {error}") from error
    single = isinstance(loaded, datasets.Dataset)
    parts: dict[str, Any] = {"": loaded} if single else dict(loaded)
    table, readers = Table(str(path)), []
    for split, part in parts.items():
        columns = _columns(path, part, reading)
        pictures = part.cast_column(columns["path"], datasets.Image(decode=False)).select_columns(
            [columns["path"]]
        )
        readers.append((pictures, columns["path"]))
        _fill(table, part, pictures, columns, split)
    names = table.encoded_names
    starts = np.cumsum([0] + [len(part) for part in parts.values()]).tolist()
    fetch = _reader(path, readers, starts)
    images = table.image_set(
        path.name, reading, fetch, lambda row: f"{path}: row {row} ({decode_name(names[row])})"
    )
    if cache is not None:
        weakref.finalize(fetch, cache.cleanup)
    return images


def _loaded(path: Path) -> tuple[Any, "tempfile.TemporaryDirectory[str] | None"]:
    """The data set, and the place of the table that the library makes of a folder."""
    import datasets

    if any((path / name).exists() for name in SAVED):
        return datasets.load_from_disk(str(path)), None
    cache = tempfile.TemporaryDirectory(prefix="imagefolder-")
    silent = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        return datasets.load_dataset("imagefolder", data_dir=str(path), cache_dir=cache.name), cache
    except BaseException:
        cache.cleanup()
        raise
    finally:
        if not silent:
            datasets.enable_progress_bars()


def _columns(path: Path, part: Any, reading: Reading) -> dict[str, str]:
    import datasets

    kinds = part.features
    images = [name for name, kind in kinds.items() if isinstance(kind, datasets.Image)]
    classes = [name for name, kind in kinds.items() if isinstance(kind, datasets.ClassLabel)]
    usual = {
        "path": (*images, "image", "path"),
        "label": ("label", *classes),
        "user": ("user",),
        "split": ("split",),
    }
    try:
        found = {
            part_: choose_column(part_, getattr(reading.columns, part_), names, list(kinds))
            for part_, names in usual.items()
        }
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if not found["path"]:
        raise ValueError(f"{path} must have a column of images, got columns {', '.join(kinds)}")
    return found


def _fill(table: Table, part: Any, pictures: Any, columns: dict[str, str], split: str) -> None:
    """Appends the rows of one split."""
    import datasets

    kind = part.features[columns["label"]] if columns["label"] else None
    declared: tuple[str, ...] = ()
    if isinstance(kind, datasets.ClassLabel):
        declared = tuple(kind.names)
    if table.class_names not in ((), declared):
        raise ValueError(f"{table.source}: classes must be {table.class_names} in all splits")
    table.class_names = declared
    column = columns["path"]
    chosen = [columns[name] for name in ("label", "user", "split") if columns[name]]
    small = part.select_columns(chosen) if chosen else None
    for start in range(0, len(part), BLOCK):
        stop = min(len(part), start + BLOCK)
        paths = _paths(pictures, column, start, stop)
        cells = small[start:stop] if small is not None else {}
        for k, path in enumerate(paths):
            given = {
                name: cells[columns[name]][k]
                for name in ("label", "user", "split")
                if columns[name]
            }
            label = given.get("label")
            if declared and isinstance(label, int):
                given["label"] = declared[label] if 0 <= label < len(declared) else None
            given.setdefault("split", split or None)
            table.add(path or f"{split or 'row'} {start + k}", **given)


BLOCK = 1000  # rows


def _paths(pictures: Any, column: str, start: int, stop: int) -> list[str]:
    """The paths that the pictures came with, their bytes left where they are."""
    cells = pictures.with_format("arrow")[start:stop].column(column)
    return [path for chunk in cells.chunks for path in chunk.field("path").to_pylist()]


def _reader(path: Path, readers: list[tuple[Any, str]], starts: list[int]) -> Any:
    lock = threading.Lock()

    def fetch(rows: np.ndarray) -> Iterator[bytes]:
        for row in rows.tolist():
            part = int(np.searchsorted(starts, row, side="right")) - 1
            pictures, column = readers[part]
            with lock:
                cell = pictures[row - starts[part]][column]
            yield picture_bytes(cell, path, f"{path}: row {row}")

    return fetch
