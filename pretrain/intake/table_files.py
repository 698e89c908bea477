"""Files of tables: `csv:FILE`, `parquet:FILES`, and `hf:DIR` as the library `datasets` has it.

Parquet files are read in one pass. The library `datasets` reads these files as well, but a row
group at a time: 1 GB of pictures in one group takes it 2.2 to 3.2 GB of memory, and this module
0.3. What it saved is memory-mapped, its `imagefolder` streamed; nothing is fetched, and nothing is
copied to the library's cache.
"""

import codecs
import contextlib
import csv
import re
import tempfile
import threading
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import IO, Any

import numpy as np

from pretrain import check
from pretrain.cli.json_text import parsed, read_object
from pretrain.datasets import ImageSet, decode_name
from pretrain.intake.files import file_reader, found_file, matching_files, picture_bytes
from pretrain.intake.reading import (
    Reading,
    UnknownSplits,
    canonical_name,
    refuse_unknown_splits,
    split_named,
)
from pretrain.intake.table import Table

DELIMITERS = ",;\t"
IN_QUOTES = re.compile(r'"(?:[^"]|"")*("|$)')
SEPARATOR_LINE = re.compile(r"sep=(.)?\s*", re.IGNORECASE)  # as Excel reads and writes it
MARKS = {  # byte order marks; the longer one of two that begin alike comes first
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
WORKBOOKS = (b"PK\3\4", b"\xd0\xcf\x11\xe0")  # of Excel and LibreOffice, and of old Excel
ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)


def open_csv(path: Path, reading: Reading) -> ImageSet:
    """Opens a table whose first row names the columns; paths are relative to its folder.

    Columns are separated by commas, semicolons or tabs, whichever the first row has most of
    outside quotes, or as a line `sep=;` before it says. Rows without any cell are skipped.

    Raises:
        ValueError: a damaged table or another encoding, with file and row, or a missing column.
    """
    table, rows = Table(str(path), reading), _rows(path, reading)
    header = next(rows, [])
    _check_header(path, header)
    columns = table.choose(header)
    table.join_rows(header, columns)
    places = {part: header.index(name) for part, name in columns.items() if name}
    others = [place for place, name in enumerate(header) if name not in columns.values()]
    for number, row in enumerate(rows):
        if len(row) != len(header):
            counts = f"{len(header)} columns in every row, got {len(row)} in row {number}"
            raise ValueError(f"{path} must have {counts}")
        cells = {part: row[place] for part, place in places.items()}
        name = cells.pop("path")
        if not name or ADDRESS.match(name):
            got = f"{name or 'none'} in row {number}"
            rule = "must name a file in every row" + " (download it first)" * bool(name)
            raise ValueError(f"{path} {rule}, got {got}")
        table.add(name, **cells)
        for place in others:
            table.flags.note(header[place], (row[place],))
    names = table.encoded_names
    return table.image_set(
        path.stem,
        lambda rows: (
            picture_bytes(decode_name(names[row]), path.parent, f"{path}: row {row}")
            for row in rows.tolist()
        ),
        lambda row: f"{path.parent / decode_name(names[row])}",
        lambda row: found_file(path.parent, decode_name(names[row])),
    )


def _rows(path: Path, reading: Reading) -> Iterator[list[str]]:
    """Rows with some cell that is not empty; the first has the columns' names."""
    with path.open("rb") as raw:
        start = raw.read(4)
    if start.startswith(WORKBOOKS):
        raise ValueError(
            f"{path} must be a table as text (save the workbook as CSV), got a workbook"
        )
    marked = next((name for mark, name in MARKS.items() if start.startswith(mark)), "utf-8")
    encoding = reading.encoding or marked
    if encoding == "utf-8" and b"\0" in start:
        raise ValueError(
            f"{path} must be text (or pass --encoding, such as utf-16), got null bytes"
        )
    try:
        with path.open(newline="", encoding=encoding) as file:
            for row in csv.reader(file, delimiter=_delimiter(file), strict=True):
                if any(cells := [cell.strip() for cell in row]):
                    yield cells
    except UnicodeError as error:
        raise ValueError(
            f"{path} must be a table in {encoding.upper()}, got: {error} (or pass --encoding, such "
            "as cp1252)"
        ) from error
    except csv.Error as error:
        raise ValueError(f"{path} must be a table in {encoding.upper()}, got: {error}") from error


def _delimiter(file: IO[str]) -> str:
    """Separator of the columns; the file is then at the row with their names."""
    start, first = 0, file.readline()
    said = SEPARATOR_LINE.fullmatch(first)
    if said:
        start, first = file.tell(), file.readline()
    file.seek(start)
    if said and said[1]:
        return said[1]
    bare = IN_QUOTES.sub("", first)
    return max(DELIMITERS, key=bare.count)


def _check_header(path: Path, header: list[str]) -> None:
    if not header:
        raise ValueError(f"{path} must have a first row with the columns' names, got an empty file")
    named = [name for name in header if name]
    if len(set(named)) < len(named):
        raise ValueError(f"{path} must name every column once, got {', '.join(header)}")


IMAGE_COLUMNS = ("image", "img", "path", "bytes", "file_name")
BATCH = 64  # rows decoded at a time
BUFFER = 1 << 20  # bytes of the file
KEPT = 4  # of the largest requests: as many as are decoded ahead, and the one being used


def open_parquet(pattern: str, reading: Reading) -> ImageSet:
    """Opens Parquet files as one table.

    The column of images holds bytes, structs of `bytes` and `path`, or paths relative to the
    file's folder. Other columns are read whole, images in batches: memory follows the batch.

    Raises:
        ValueError: a damaged file, or a missing column.
    """
    table = Table(pattern, reading)
    files = [_File(path, table) for path in matching_files(pattern)]
    for file in files:
        table.declare(class_names(file.schema, file.columns["label"]), str(file.path))
        parts = [part for part in ("label", "user", "split") if file.columns[part]]
        values = [file.values(file.columns[part]) for part in parts]
        for name, *cells in zip(file.names(alone=len(files) == 1), *values, strict=True):
            table.add(name, **dict(zip(parts, cells, strict=True)))
        for column in table.looked_at(numbers(file.schema, file.columns)):
            table.flags.note(column, file.values(column), len(table.names) - file.rows)
    window = _Window(files)
    named = table.encoded_names
    return table.image_set(
        files[0].path.stem,
        window.read,
        lambda row: f"{window.place(row)} ({decode_name(named[row])})",
        lambda row: window.file(row, decode_name(named[row])),
    )


class _File:
    """One Parquet file: rows, row groups and the columns of every part."""

    def __init__(self, path: Path, table: Table) -> None:
        self.path = path
        with _opened(path) as opened:
            self.schema, self.rows = opened.schema_arrow, opened.metadata.num_rows
            groups = range(opened.num_row_groups)
            self.groups = [opened.metadata.row_group(k).num_rows for k in groups]
        self.columns = table.choose(self.schema.names, str(path), path=IMAGE_COLUMNS)
        self.of_paths = self._holds_paths()

    def values(self, column: str) -> list[Any]:
        """All cells of a small column."""
        with _opened(self.path) as opened:
            return opened.read(columns=[column]).column(0).to_pylist()

    def names(self, *, alone: bool) -> list[str]:
        """Path of every image as the file gives it, else file and row."""
        column, paths = self.columns["path"], [None] * self.rows
        kind = self.schema.field(column).type
        if _is_text(kind):
            paths = self.values(column)
        elif "path" in _fields(kind):
            paths = [cell and cell["path"] for cell in self.values(f"{column}.path")]
        stem = "row" if alone else self.path.name
        return [path or f"{stem} {row}" for row, path in enumerate(paths)]

    def _holds_paths(self) -> bool:
        """Whether pictures are other files, not bytes in this one."""
        kind = self.schema.field(self.columns["path"]).type
        return _is_text(kind) or ("path" in _fields(kind) and self._without_bytes())

    def _without_bytes(self) -> bool:
        """Whether no picture's bytes are in this file, by its type or statistics."""
        from pyarrow import types

        kind = self.schema.field(self.columns["path"]).type
        if "bytes" in _fields(kind) and types.is_null(kind.field("bytes").type):
            return True
        with _opened(self.path) as opened:
            groups = [opened.metadata.row_group(k) for k in range(opened.num_row_groups)]
        leaves = [group.column(k) for group in groups for k in range(group.num_columns)]
        held = [each for each in leaves if each.path_in_schema == f"{self.columns['path']}.bytes"]
        return all(
            each.statistics is not None and each.statistics.null_count == each.num_values
            for each in held
        )


def class_names(schema: Any, column: str) -> tuple[str, ...]:
    """Classes that the metadata of the library `datasets` declare for a column, or its lists."""
    try:
        kept = parsed((schema.metadata or {})[b"huggingface"])
        feature = kept["info"]["features"][column]
        names = feature["names"] if "names" in feature else feature["feature"]["names"]
        return tuple(map(canonical_name, names))
    except (KeyError, ValueError, TypeError):
        return ()


def numbers(schema: Any, columns: Mapping[str, str]) -> list[str]:
    """Columns of numbers that are none of the given ones."""
    from pyarrow import types

    tests = (types.is_boolean, types.is_integer, types.is_floating)
    found = [each.name for each in schema if any(test(each.type) for test in tests)]
    return [name for name in found if name not in columns.values()]


@contextlib.contextmanager
def _opened(path: Path, **options: Any) -> Iterator[Any]:
    """A `pyarrow.parquet.ParquetFile`; whatever pyarrow refuses is one ValueError."""
    library = check.installed("pyarrow.parquet", "parquet", package="pyarrow", extra="intake")
    from pyarrow import ArrowException

    try:
        with library.ParquetFile(path, **options) as file:
            yield file
    except (ArrowException, OSError) as error:
        raise ValueError(f"{path} must be a Parquet file, got: {error}") from error


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


def _fields(kind: Any) -> list[str]:
    """Names of a struct's fields; none for another type."""
    from pyarrow import types

    return [kind.field(k).name for k in range(kind.num_fields)] if types.is_struct(kind) else []


class _Window:
    """Cells around the last request: a pass forward that may step back a little.

    A row group may be as large as its file, and is never read whole.
    """

    def __init__(self, files: list[_File]) -> None:
        self.files = files
        self.starts = np.cumsum([0] + [file.rows for file in files]).tolist()
        sizes = [size for file in files for size in file.groups]
        self.group_starts = np.cumsum([0, *sizes]).tolist()
        self.group_places = [
            (k, g) for k, file in enumerate(files) for g in range(len(file.groups))
        ]
        self.lock = threading.Lock()
        self.batches: deque[tuple[int, Any]] = deque()  # first row, cells
        self.stream: Iterator[tuple[int, Any]] = iter(())
        self.end = 0  # row after the last batch
        self.largest = 1  # rows of the largest request

    def place(self, row: int) -> str:
        """File and row number in it."""
        part = bisect_right(self.starts, row) - 1
        return f"{self.files[part].path}: row {row - self.starts[part]}"

    def file(self, row: int, name: str) -> Path | None:
        """File of a picture; None if the table holds its bytes."""
        held = self.files[bisect_right(self.starts, row) - 1]
        return found_file(held.path.parent, name) if held.of_paths else None

    def read(self, rows: np.ndarray) -> list[bytes]:
        """Bytes of the pictures of some rows, (b,)."""
        with self.lock:
            self.largest = max(self.largest, len(rows))
            return [self._bytes(self._cell(row), row) for row in rows.tolist()]

    def _cell(self, row: int) -> Any:
        group = bisect_right(self.group_starts, row) - 1
        behind = not self.batches or row < self.batches[0][0]
        if behind or self.group_starts[group] > self.end:
            self.batches.clear()
            self.stream, self.end = self._streamed(group), self.group_starts[group]
        while row >= self.end:
            start, cells = next(self.stream)
            self.batches.append((start, cells))
            self.end = start + len(cells)
            while len(self.batches) > 1 and self.batches[1][0] < self.end - KEPT * self.largest:
                self.batches.popleft()
        start, cells = next(b for b in reversed(self.batches) if b[0] <= row)
        return cells[row - start].as_py()

    def _streamed(self, group: int) -> Iterator[tuple[int, Any]]:
        """First row and cells of batches, from the start of a row group on."""
        start = self.group_starts[group]
        first, within = self.group_places[group]
        for file in self.files[first:]:
            groups, within = list(range(within, len(file.groups))), 0
            with _opened(file.path, buffer_size=BUFFER, pre_buffer=False) as opened:
                columns = [file.columns["path"]]
                for batch in opened.iter_batches(
                    BATCH, row_groups=groups, columns=columns, use_threads=False
                ):
                    yield start, batch.column(0)
                    start += batch.num_rows

    def _bytes(self, cell: Any, row: int) -> bytes:
        part = bisect_right(self.starts, row) - 1
        return picture_bytes(cell, self.files[part].path.parent, self.place(row))


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
    datasets = check.installed("datasets", "hf", extra="intake")
    saved = any((path / name).exists() for name in SAVED)
    table, parts = Table(str(path), reading), []
    outside = array("b")  # whether a row's picture is a file
    for split, part in _splits(datasets, path, reading, saved=saved).items():
        schema = part.features.arrow_schema
        images = [name for name, kind in part.features.items() if isinstance(kind, datasets.Image)]
        classes = [name for name in schema.names if class_names(schema, name)]
        usual: dict[str, Any] = {"path": ("image", *images, "path"), "label": ("label", *classes)}
        columns = table.choose(schema.names, **usual)
        looked = table.looked_at(numbers(schema, columns))
        table.declare(class_names(schema, columns["label"]), f"split {split}")
        chosen = list(dict.fromkeys(name for name in (*columns.values(), *looked) if name))
        encoded = datasets.Image(decode=False)
        pictures = part.select_columns(chosen).cast_column(columns["path"], encoded)
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


def _splits(datasets: Any, path: Path, reading: Reading, *, saved: bool) -> dict[str, Any]:
    """The data sets that are asked for, by the names of their splits; "" for one without splits."""
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
            values = block.column(name).to_pylist()
            table.flags.note(name, values, len(table.names) - len(values))


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
