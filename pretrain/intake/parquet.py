"""`parquet:FILES`: pictures as bytes, as Hugging Face writes them, or as paths; read in passing."""

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pretrain.cli.json_text import parsed
from pretrain.datasets import ImageSet
from pretrain.intake.decode import UnreadableImage
from pretrain.intake.patterns import matching_files
from pretrain.intake.reading import Reading
from pretrain.intake.table import Table, choose_column
from pretrain.names import decode_name

INSTALL = "parquet must have pyarrow installed: pip install 'blind-averaging[intake]'"
IMAGE_COLUMNS = ("image", "img", "path", "bytes", "file_name")
BATCH = 64  # rows decoded at a time
BUFFER = 1 << 20  # bytes of the file
KEPT = 4  # of the largest requests: as many as are decoded ahead, and the one being used


def open_parquet(pattern: str, reading: Reading) -> ImageSet:
    """Opens Parquet files, one table together.

    The column of images holds bytes, structs of `bytes` and `path`, or paths relative to the
    file's folder. Other columns are read whole, images in passing: memory follows the batch.

    Raises:
        ValueError: naming the file that is damaged or the column that is missing.
    """
    files = [_File(path) for path in matching_files(pattern)]
    table = Table(pattern)
    for file in files:
        columns = file.columns(reading)
        names = file.names(columns["path"], alone=len(files) == 1)
        parts = [part for part in ("label", "user", "split") if columns[part]]
        values = [file.values(columns[part]) for part in parts]
        for name, *cells in zip(names, *values, strict=True):
            table.add(name, **dict(zip(parts, cells, strict=True)))
        names_of_classes = file.class_names(columns["label"])
        if table.class_names not in ((), names_of_classes):
            raise ValueError(f"{file.path}: classes must be {table.class_names} in all files")
        table.class_names = names_of_classes
    window = _Window(files, [file.columns(reading)["path"] for file in files])
    named = table.encoded_names
    return table.image_set(
        files[0].path.stem,
        reading,
        window.read,
        lambda row: f"{window.place(row)} ({decode_name(named[row])})",
    )


class _File:
    """One Parquet file."""

    def __init__(self, path: Path) -> None:
        try:
            import pyarrow.parquet
        except ImportError as error:
            raise ValueError(INSTALL) from error
        self.path = path
        try:
            with pyarrow.parquet.ParquetFile(path) as opened:
                self.schema, self.rows = opened.schema_arrow, opened.metadata.num_rows
                groups = range(opened.num_row_groups)
                self.groups = [opened.metadata.row_group(k).num_rows for k in groups]
        except (pyarrow.ArrowException, OSError) as error:
            raise ValueError(f"{path} must be a Parquet file, got: {error}") from error

    def columns(self, reading: Reading) -> dict[str, str]:
        """The column of every part; empty where there is none."""
        usual = {"path": IMAGE_COLUMNS, "label": ("label",), "user": ("user",), "split": ("split",)}
        try:
            found = {
                part: choose_column(part, getattr(reading.columns, part), names, self.schema.names)
                for part, names in usual.items()
            }
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from error
        if not found["path"]:
            raise ValueError(
                f"path_column must be given for {self.path}, which has no 'image', "
                f"got columns {', '.join(self.schema.names)}"
            )
        return found

    def values(self, column: str) -> list[Any]:
        """All cells of a small column."""
        import pyarrow
        import pyarrow.parquet

        try:
            with pyarrow.parquet.ParquetFile(self.path) as opened:
                return opened.read(columns=[column]).column(0).to_pylist()
        except (pyarrow.ArrowException, OSError) as error:
            raise ValueError(f"{self.path} must be a Parquet file, got: {error}") from error

    def names(self, column: str, *, alone: bool) -> list[str]:
        """Every image's path as the file gives it, else file and row."""
        import pyarrow

        kind = self.schema.field(column).type
        paths: list[Any] = [None] * self.rows
        if pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind):
            paths = self.values(column)
        elif pyarrow.types.is_struct(kind) and kind.get_field_index("path") >= 0:
            paths = [cell and cell["path"] for cell in self.values(f"{column}.path")]
        stem = "row" if alone else self.path.name
        return [path or f"{stem} {row}" for row, path in enumerate(paths)]

    def class_names(self, column: str) -> tuple[str, ...]:
        """As Hugging Face keeps them beside the table."""
        try:
            kept = parsed((self.schema.metadata or {})[b"huggingface"])
            return tuple(map(str, kept["info"]["features"][column]["names"]))
        except (KeyError, ValueError, TypeError):
            return ()


class _Window:
    """Cells around those asked for last: a pass forward that may step back a little.

    A row group may be as large as its file, and is never read whole.
    """

    def __init__(self, files: list[_File], columns: list[str]) -> None:
        self.files, self.columns = files, columns
        self.starts = np.cumsum([0] + [file.rows for file in files]).tolist()
        sizes = [size for file in files for size in file.groups]
        self.group_starts = np.cumsum([0, *sizes]).tolist()
        self.group_places = [
            (k, g) for k, file in enumerate(files) for g in range(len(file.groups))
        ]
        self.lock = threading.Lock()
        self.batches: deque[tuple[int, Any]] = deque()  # first row, cells
        self.stream: Iterator[tuple[int, Any]] = iter(())
        self.end = 0  # of the last batch
        self.largest = 1  # request

    def place(self, row: int) -> str:
        """File and row of it."""
        part = bisect_right(self.starts, row) - 1
        return f"{self.files[part].path}: row {row - self.starts[part]}"

    def read(self, rows: np.ndarray) -> list[bytes]:
        """The pictures of some rows, (b,)."""
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
        import pyarrow.parquet

        start = self.group_starts[group]
        first, within = self.group_places[group]
        for file, column in zip(self.files[first:], self.columns[first:], strict=True):
            groups, within = list(range(within, len(file.groups))), 0
            try:
                opened = pyarrow.parquet.ParquetFile(
                    file.path, buffer_size=BUFFER, pre_buffer=False
                )
                with opened:
                    for batch in opened.iter_batches(
                        BATCH, row_groups=groups, columns=[column], use_threads=False
                    ):
                        yield start, batch.column(0)
                        start += batch.num_rows
            except (pyarrow.ArrowException, OSError) as error:
                raise ValueError(f"{file.path} must be a Parquet file, got: {error}") from error

    def _bytes(self, cell: Any, row: int) -> bytes:
        part = bisect_right(self.starts, row) - 1
        return picture_bytes(cell, self.files[part].path.parent, self.place(row))


def picture_bytes(cell: Any, folder: Path, where: str) -> bytes:
    """What a cell holds: bytes, a path, or a dict with either.

    Raises:
        UnreadableImage: nothing of the kind.
    """
    if isinstance(cell, dict):
        cell = cell.get("bytes") or cell.get("path")
    if isinstance(cell, str):
        try:
            return (folder / cell).read_bytes()
        except OSError as error:
            reason = error.strerror or error
            raise UnreadableImage(f"{folder / cell} must be a readable image: {reason}") from error
    if not isinstance(cell, bytes):
        got = type(cell).__name__
        raise UnreadableImage(f"{where} must hold an image's bytes or its path, got {got}")
    return cell
