"""`csv:FILE`: table with a row per picture file."""

import codecs
import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from pretrain.datasets import ImageSet, decode_name
from pretrain.intake.files import found_file, picture_bytes
from pretrain.intake.reading import Reading
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
