"""`csv:FILE`: table with a row per picture file."""

import csv
from collections.abc import Iterator
from pathlib import Path

from pretrain.datasets import ImageSet, decode_name
from pretrain.intake.files import file_reader
from pretrain.intake.reading import Reading
from pretrain.intake.table import Table

DELIMITERS = ",;\t"
PATH_COLUMNS = ("path", "image", "file", "file_name", "filename")


def open_csv(path: Path, reading: Reading) -> ImageSet:
    """Opens a table whose first row names the columns; paths are relative to its folder.

    Columns are separated by commas, semicolons or tabs, whichever the first row has most of.

    Raises:
        ValueError: a damaged table, with file and row, or a missing column.
    """
    table = Table(str(path))
    rows = _rows(path)
    header = next(rows, [])
    columns = _columns(path, header, reading)
    for number, row in enumerate(rows):
        if len(row) != len(header):
            counts = f"{len(header)} columns in every row, got {len(row)} in row {number}"
            raise ValueError(f"{path} must have {counts}")
        cells = {part: row[place] for part, place in columns.items()}
        if not cells["path"]:
            raise ValueError(f"{path} must name a file in every row, got none in row {number}")
        table.add(cells.pop("path"), **cells)
    names = table.encoded_names
    return table.image_set(
        path.stem,
        reading,
        file_reader(path.parent, names),
        lambda row: f"{path.parent / decode_name(names[row])}",
    )


def _rows(path: Path) -> Iterator[list[str]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            first = file.readline()
            file.seek(0)
            delimiter = max(DELIMITERS, key=first.count)
            for row in csv.reader(file, delimiter=delimiter, strict=True):
                if row:
                    yield [cell.strip() for cell in row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} must be a table in UTF-8, got: {error}") from error


def _columns(path: Path, header: list[str], reading: Reading) -> dict[str, int]:
    """Position of the column of every part that has one."""
    if not header:
        raise ValueError(f"{path} must have a first row with the columns' names, got an empty file")
    if len(set(header)) < len(header):
        raise ValueError(f"{path} must name every column once, got {', '.join(header)}")
    chosen = reading.choose(str(path), header, path=PATH_COLUMNS)
    return {part: header.index(name) for part, name in chosen.items() if name}
