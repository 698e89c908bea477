"""`hf:DIR`: what the library `datasets` saved, memory-mapped, or its `imagefolder`, streamed.

Nothing is fetched, and nothing is copied to the library's cache.
"""

import tempfile
import threading
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from pretrain import check
from pretrain.cli.json_text import read_object
from pretrain.datasets import ImageSet, decode_name
from pretrain.intake.files import file_reader, found_file, picture_bytes
from pretrain.intake.names import split_named
from pretrain.intake.parquet import class_names, numbers
from pretrain.intake.reading import Reading
from pretrain.intake.table import Table, UnknownSplits, refuse_unknown_splits

OF_SPLITS = "dataset_dict.json"
SAVED = ("dataset_info.json", OF_SPLITS, "state.json")
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
    table, parts = Table(str(path), reading), []
    outside = array("b")  # whether a row's picture is a file
    for split, part in _splits(path, reading, saved=saved).items():
        schema = part.features.arrow_schema
        columns = _columns(table, part.features, schema)
        looked = numbers(schema, columns) if table.seeks_label else []
        table.declare(class_names(schema, columns["label"]), f"split {split}")
        pictures = _pictures(part, columns, looked)
        parts.append((pictures.select_columns([columns["path"]]), columns["path"]))
        try:
            outside.extend(_fill(table, pictures, columns, split, looked))
        except OSError as error:
            raise ValueError(f"{path} must be a data set on disk, got: {error}") from error
    names = table.encoded_names
    fetch = _reader(path, parts) if saved else file_reader(path, names)
    return table.image_set(
        path.name,
        fetch,
        lambda row: f"{path}: row {row} ({decode_name(names[row])})",
        lambda row: found_file(path, decode_name(names[row])) if outside[row] else None,
    )


def _splits(path: Path, reading: Reading, *, saved: bool) -> dict[str, Any]:
    """The data sets that are asked for, by the names of their splits; "" for one without splits."""
    datasets = check.installed("datasets", "hf", extra="intake")
    silent = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        if (path / OF_SPLITS).exists():
            named = read_object(path / OF_SPLITS)["splits"]
            folders = {split: str(path / split) for split in _asked(path, named, reading)}
            return {split: datasets.load_from_disk(folder) for split, folder in folders.items()}
        if saved:
            return {"": datasets.load_from_disk(str(path))}
        with tempfile.TemporaryDirectory() as cache:  # of locks
            options: dict[str, Any] = {"data_dir": str(path), "cache_dir": cache}
            found = dict(datasets.load_dataset("imagefolder", streaming=True, **options))
            return {split: found[split] for split in _asked(path, found, reading)}
    except UnknownSplits:
        raise
    except Exception as error:  # the library wraps errors of many others
        raise ValueError(f"{path} must be a data set on disk, got: {error}") from error
    finally:
        if not silent:
            datasets.enable_progress_bars()


def _asked(path: Path, found: Iterable[str], reading: Reading) -> list[str]:
    """Splits to read, in their order; raises ValueError for unknown ones where all are read."""
    found = list(found)
    if not reading.splits:
        refuse_unknown_splits(str(path), found)
    asked = [split for split in found if not reading.splits or split_named(split) in reading.splits]
    if not asked:
        raise UnknownSplits(f"splits must be of {path}, {found}, got {list(reading.splits)}")
    return asked


def _columns(table: Table, kinds: Any, schema: Any) -> dict[str, str]:
    """The column of every part of a row, of columns of these kinds."""
    import datasets

    images = [name for name, kind in kinds.items() if isinstance(kind, datasets.Image)]
    classes = [name for name in kinds if class_names(schema, name)]
    return table.choose(list(kinds), path=("image", *images, "path"), label=("label", *classes))


def _pictures(part: Any, columns: dict[str, str], more: list[str]) -> Any:
    """One split with its pictures left encoded, and the columns that are read."""
    import datasets

    chosen = list(dict.fromkeys(name for name in (*columns.values(), *more) if name))
    return part.select_columns(chosen).cast_column(columns["path"], datasets.Image(decode=False))


def _fill(
    table: Table,
    part: Any,
    columns: dict[str, str],
    split: str,
    looked: list[str],
) -> Iterator[bool]:
    """Appends the rows of one split, without their pictures; yields whether those are files."""
    given = [name for name in ("label", "user", "split") if columns[name]]
    first = len(table.names)
    for block in part.with_format("arrow").iter(BLOCK):
        pictures = block.column(columns["path"]).chunks
        paths = [path for chunk in pictures for path in chunk.field("path").to_pylist()]
        empty = [none for chunk in pictures for none in chunk.field("bytes").is_null().to_pylist()]
        cells = [block.column(columns[name]).to_pylist() for name in given]
        for path, none, *values in zip(paths, empty, *cells, strict=True):
            row: dict[str, Any] = {"split": split or None} | dict(zip(given, values, strict=True))
            table.add(path or f"{split or 'row'} {len(table.names) - first}", **row)
            yield bool(path and none)
        for name in looked:
            table.flags.note(name, block.column(name).to_pylist())


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
