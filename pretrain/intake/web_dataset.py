"""`wds:SHARDS`: WebDataset's tar files, indexed once and then read at a picture's offset.

The library `datasets` reads them as well, but takes a truncated shard for a whole one, infers types
from the first five samples, and holds whole members in memory.
"""

import re
import tarfile
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pretrain.cli.json_text import parsed
from pretrain.datasets import ImageSet, decode_name
from pretrain.intake.decode import SUFFIXES
from pretrain.intake.files import matching_files
from pretrain.intake.labels import Cell, as_cell
from pretrain.intake.reading import Reading, Skipped, canonical_name, left_by_systems
from pretrain.intake.table import USUAL, Table, folded

OF_ROWS = ("label", "user", "split")
NAME = re.compile(r"((?:.*/)?[^./][^.]*)\.([^/]*)")  # key and extension of a member
LONGEST = 1 << 20  # bytes of a member that is not a picture
PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


def open_web_dataset(pattern: str, reading: Reading) -> ImageSet:
    """Opens shards in the order given, samples in the order of the tar files.

    A sample is the members of a shard whose names are equal up to the first dot of their last part,
    wherever they are in it. Its picture is the member that `columns` names as path, else the one
    with a picture's suffix; its columns are the other members by their extension (`cls`, `user`,
    ...) and the fields of its `json`. Memory holds the offsets of pictures only.

    Raises:
        ValueError: a damaged shard, a sample of several pictures, pictures without labels and
            labels without pictures, or a column that no sample has.
    """
    shards = matching_files(pattern)
    table = Table(pattern, reading)
    places = (array("q"), array("q"), array("q"))
    columns: dict[str, list[Cell]] = {}  # of samples with a picture, up to the last that has a cell
    alone: dict[str, str] = {}  # column -> first sample that has it and no picture
    for number, shard in enumerate(shards):
        for sample in _samples(shard, reading):
            if sample.picture is None:
                table.skipped.append(Skipped(f"{shard.name}/{sample.key}", "without a picture"))
                alone = dict.fromkeys(sample.columns, f"{shard.name}/{sample.key}") | alone
                continue
            for name, value in sample.columns.items():
                column = columns.setdefault(name, [])
                column += [""] * (len(table.names) - len(column))
                column.append(as_cell(value) if _is_wanted(name, reading) else "")
                table.flags.note(name, (value,), len(table.names))
            name, offset, size = sample.picture
            for held, value in zip(places, (number, offset, size), strict=True):
                held.append(value)
            table.names.append(f"{shard.name}/{name}")
    found = [*columns, *(name for name in alone if name not in columns)]
    _fill(table, found, columns, alone)
    names = table.encoded_names

    def fetch(rows: np.ndarray) -> Iterator[bytes]:
        for row in rows.tolist():
            number, offset, size = (column[row] for column in places)
            with shards[number].open("rb", buffering=0) as file:
                file.seek(offset)
                yield file.read(size)

    def where(row: int) -> str:
        return f"{shards[places[0][row]].parent / decode_name(names[row])}"

    return table.image_set(shards[0].stem, fetch, where)


def _fill(
    table: Table, found: list[str], columns: dict[str, list[Cell]], alone: dict[str, str]
) -> None:
    """Adds the columns that are labels, users and splits to the names."""
    picture = table.reading.named_columns.get("path") or "image"
    chosen = table.choose(list(dict.fromkeys([*found, picture])), path=(picture,))
    for part in OF_ROWS:
        column = columns.get(chosen[part], [])
        column += [""] * (len(table.names) - len(column))
        if chosen[part] and chosen[part] in alone and "" in column:
            lacking = column.index("")
            raise ValueError(
                f"{table.source}: members of a sample must have one name up to its first dot, got "
                f"{table.names[lacking]} without {chosen[part]} and {alone[chosen[part]]} with it "
                "but without a picture"
            )
        columns[part] = column
    names, table.names = table.names, []
    for name, *cells in zip(names, *(columns[part] for part in OF_ROWS), strict=True):
        table.add(name, *cells)


def _is_wanted(name: str, reading: Reading) -> bool:
    """Whether a column may be one that is used; the cells of others are not kept."""
    usual = {folded(each) for part in OF_ROWS for each in USUAL[part]}
    names = (*reading.named_columns.values(), reading.label_is)
    named = {folded(each) for each in (*names, *reading.classes * reading.findings) if each}
    return folded(name) in usual | named


@dataclass
class _Sample:
    """The members of one key."""

    key: str
    picture: tuple[str, int, int] | None = None  # name, offset, size
    columns: dict[str, Any] = field(default_factory=dict)
    extensions: set[str] = field(default_factory=set)


def _samples(shard: Path, reading: Reading) -> Iterator[_Sample]:
    samples: dict[str, _Sample] = {}
    asked = reading.named_columns.get("path")
    asked = asked and asked.lower()
    for tar, member in _members(shard):
        hidden = any(map(left_by_systems, Path(member.name).parts))
        parts = None if hidden else NAME.fullmatch(member.name)
        key, extension = parts.groups() if parts else (member.name, "")
        sample = samples.setdefault(canonical_name(key), _Sample(key))
        extension = extension.lower()
        if extension in sample.extensions:
            rule = "must hold every name once, in any case"
            raise ValueError(f"{shard} {rule}, got {member.name} again")
        sample.extensions.add(extension)
        suffix = f".{extension.rpartition('.')[2]}"
        if extension == asked or (asked is None and suffix in SUFFIXES):
            if sample.picture:
                raise ValueError(
                    f"{shard}: a sample must have one picture (or pass --columns path=NAME with "
                    f"the extension of those to read), got {sample.picture[0]} and {member.name}, "
                    f"which are one since the key {key!r} ends at the first dot"
                )
            sample.picture = (member.name, member.offset_data, member.size)
        elif extension == "json" or _is_wanted(extension, reading):
            _note(sample, extension, _content(shard, tar, member), f"{shard}: {member.name}")
    yield from samples.values()


def _members(shard: Path) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """Files of an uncompressed tar, one after the other."""
    length = shard.stat().st_size
    with shard.open("rb") as raw:
        start = raw.read(6)
    if packed := next((name for mark, name in PACKED.items() if start.startswith(mark)), None):
        raise ValueError(f"{shard} must be a whole tar file, uncompressed: unpack this {packed}")
    try:
        with tarfile.open(shard, "r:") as tar:
            while (member := tar.next()) is not None:
                tar.members = []  # pyright: ignore[reportAttributeAccessIssue]
                if member.offset_data + member.size > length:
                    raise ValueError(f"{shard} must be a whole tar file: {member.name} is cut")
                if member.isreg():
                    yield tar, member
            if tar.offset + tarfile.BLOCKSIZE > length:  # no empty block at the end
                raise ValueError(f"{shard} must be a whole tar file: its end is missing")
    except tarfile.TarError as error:
        raise ValueError(f"{shard} must be a whole tar file, uncompressed: {error}") from error


def _content(shard: Path, tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    if member.size > LONGEST:
        raise ValueError(f"{shard}: {member.name} must have <= {LONGEST} bytes, got {member.size}")
    with tar.extractfile(member) as file:  # pyright: ignore[reportOptionalContextManager]
        return file.read()


def _note(sample: _Sample, extension: str, content: bytes, where: str) -> None:
    try:
        fields = parsed(content) if extension == "json" else {extension: content.decode().strip()}
    except ValueError as error:
        raise ValueError(f"{where} must be text, got: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError(f"{where} must be a JSON object, got {type(fields).__name__}")
    for name in fields.keys() & sample.columns.keys():
        values = as_cell(sample.columns[name]), as_cell(fields[name])
        if values[0] != values[1]:
            rule = f"must have the {name} of the sample's other member"
            raise ValueError(f"{where} {rule}, {values[0]}, got {values[1]}")
    sample.columns |= fields
