"""`hf:DIR`: what the library `datasets` saved, memory-mapped, or its `imagefolder`, streamed.

Nothing is fetched, and nothing is copied to the library's cache.
"""

import tempfile
import threading
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from pretrain import check
from pretrain.datasets import ImageSet, decode_name
from pretrain.intake.files import file_reader, picture_bytes
from pretrain.intake.reading import Reading
from pretrain.intake.table import Table

SAVED = ("dataset_info.json", "dataset_dict.json", "state.json")
BLOCK = 1000  # rows


def open_hugging_face(path: Path, reading: Reading) -> ImageSet:
    """Opens a data set of the library `datasets`, its splits one after the other.

    The directory was written by `save_to_disk`, or holds what `imagefolder` reads: class folders,
    or pictures with a metadata file. Class features declare the classes.

    Raises:
        ValueError: another kind of directory, or a missing column.
    """
    if not path.is_dir():
        raise ValueError(f"hf must be a directory, got {path}")
    saved = any((path / name).exists() for name in SAVED)
    table, parts = Table(str(path)), []
    for split, part in _splits(path, saved=saved).items():
        pictures, columns = _pictures(path, part, reading)
        parts.append((pictures.select_columns([columns["path"]]), columns["path"]))
        try:
            _fill(table, pictures, columns, split)
        except OSError as error:
            raise ValueError(f"{path} must be a data set on disk, got: {error}") from error
    names = table.encoded_names
    fetch = _reader(path, parts) if saved else file_reader(path, names)
    return table.image_set(
        path.name, reading, fetch, lambda row: f"{path}: row {row} ({decode_name(names[row])})"
    )


def _splits(path: Path, *, saved: bool) -> dict[str, Any]:
    """Data sets by the names of their splits; "" for a data set without splits."""
    datasets = check.installed("datasets", "hf", extra="intake")
    silent = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        if saved:
            loaded: Any = datasets.load_from_disk(str(path))
            return {"": loaded} if isinstance(loaded, datasets.Dataset) else dict(loaded)
        with tempfile.TemporaryDirectory() as cache:  # of locks
            options: dict[str, Any] = {"data_dir": str(path), "cache_dir": cache}
            return dict(datasets.load_dataset("imagefolder", streaming=True, **options))
    except Exception as error:  # the library wraps errors of many others
        raise ValueError(f"{path} must be a data set on disk, got: {error}") from error
    finally:
        if not silent:
            datasets.enable_progress_bars()


def _pictures(path: Path, part: Any, reading: Reading) -> tuple[Any, dict[str, str]]:
    """One split with its pictures left encoded, and the column of every part."""
    import datasets

    kinds = part.features
    images = [name for name, kind in kinds.items() if isinstance(kind, datasets.Image)]
    classes = [name for name, kind in kinds.items() if isinstance(kind, datasets.ClassLabel)]
    columns = reading.choose(
        str(path), list(kinds), path=("image", *images, "path"), label=("label", *classes)
    )
    chosen = list(dict.fromkeys(name for name in columns.values() if name))
    encoded = part.select_columns(chosen).cast_column(columns["path"], datasets.Image(decode=False))
    return encoded, columns


def _fill(table: Table, part: Any, columns: dict[str, str], split: str) -> None:
    """Appends the rows of one split; the bytes of their pictures are not read."""
    kind = part.features[columns["label"]] if columns["label"] else None
    declared = tuple(getattr(kind, "names", ()))
    table.declare(declared, "splits")
    given = [name for name in ("label", "user", "split") if columns[name]]
    first = len(table.names)
    for block in part.with_format("arrow").iter(BLOCK):
        pictures = block.column(columns["path"]).chunks
        paths = [path for chunk in pictures for path in chunk.field("path").to_pylist()]
        cells = [block.column(columns[name]).to_pylist() for name in given]
        for path, *values in zip(paths, *cells, strict=True):
            row: dict[str, Any] = {"split": split or None} | dict(zip(given, values, strict=True))
            label = row.get("label")
            if declared and isinstance(label, int):
                row["label"] = declared[label] if 0 <= label < len(declared) else None
            table.add(path or f"{split or 'row'} {len(table.names) - first}", **row)


def _reader(path: Path, parts: list[tuple[Any, str]]) -> Any:
    """Function that gives the pictures of rows, by whichever thread."""
    starts = [0, *accumulate(len(pictures) for pictures, _ in parts)]
    lock = threading.Lock()

    def fetch(rows: np.ndarray) -> Iterator[bytes]:
        for row in rows.tolist():
            part = bisect_right(starts, row) - 1
            pictures, column = parts[part]
            with lock:
                cell = pictures[row - starts[part]][column]
            yield picture_bytes(cell, path, f"{path}: row {row}")

    return fetch
