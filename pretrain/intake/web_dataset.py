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
from pretrain.intake.names import Skipped
from pretrain.intake.reading import Reading
from pretrain.intake.table import Table

USUAL = {"label": ("label", "cls"), "user": ("user",), "split": ("split",)}
NAME = re.compile(r"((?:.*/)?[^.]+)\.([^/]*)")  # key and extension of a member
LONGEST = 1 << 20  # bytes of a member that is not a picture


def open_web_dataset(pattern: str, reading: Reading) -> ImageSet:
    """Opens shards in the order given, samples in the order of the tar files.

    A sample is the members of one key. Its picture is the member that `path_column` names, else the
    first with a picture's suffix; its columns are the other members by their extension (`cls`,
    `user`, ...) and the fields of its `json`. Memory holds the offsets of pictures only.

    Raises:
        ValueError: a damaged shard, or a column that no sample has.
    """
    shards = matching_files(pattern)
    table, places = Table(pattern), (array("q"), array("q"), array("q"))
    seen: set[str] = set()
    for number, shard in enumerate(shards):
        for sample in _samples(shard, reading):
            if sample.picture is None:
                table.skipped.append(Skipped(f"{shard.name}/{sample.key}", "without a picture"))
                continue
            cells = {part: _cell(sample, part, reading) for part in USUAL}
            seen |= sample.columns.keys()
            name, offset, size = sample.picture
            for column, value in zip(places, (number, offset, size), strict=True):
                column.append(value)
            table.add(f"{shard.name}/{name}", **cells)
    for part, name in reading.columns.items():
        if part != "path" and table.names and name not in seen:
            found = ", ".join(sorted(seen)) or "none"
            raise ValueError(f"{pattern}: {part}_column must be one of {found}, got {name!r}")
    names = table.encoded_names

    def fetch(rows: np.ndarray) -> Iterator[bytes]:
        for row in rows.tolist():
            number, offset, size = (column[row] for column in places)
            with shards[number].open("rb", buffering=0) as file:
                file.seek(offset)
                yield file.read(size)

    def where(row: int) -> str:
        return f"{shards[places[0][row]].parent / decode_name(names[row])}"

    return table.image_set(shards[0].stem, reading, fetch, where)


@dataclass
class _Sample:
    """The members of one key."""

    key: str
    picture: tuple[str, int, int] | None = None  # name, offset, size
    columns: dict[str, Any] = field(default_factory=dict)


def _samples(shard: Path, reading: Reading) -> Iterator[_Sample]:
    wanted = {"json", *(name for names in USUAL.values() for name in names)}
    wanted |= set(reading.columns.values())
    sample: _Sample | None = None
    for tar, member in _members(shard):
        parts = NAME.fullmatch(member.name)
        key, extension = parts.groups() if parts else (member.name, "")
        if sample is None or key != sample.key:
            if sample is not None:
                yield sample
            sample = _Sample(key)
        asked = reading.path_column
        suffix = f".{extension.rpartition('.')[2].lower()}"
        if extension == asked or (asked is None and suffix in SUFFIXES and not sample.picture):
            sample.picture = (member.name, member.offset_data, member.size)
        elif extension in wanted:
            _note(sample, extension, _content(shard, tar, member), f"{shard}: {member.name}")
    if sample is not None:
        yield sample


def _members(shard: Path) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """Files of an uncompressed tar, one after the other."""
    length = shard.stat().st_size
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
        if extension != "json":
            sample.columns[extension] = content.decode().strip()
            return
        fields = parsed(content)
    except ValueError as error:
        raise ValueError(f"{where} must be text, got: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError(f"{where} must be a JSON object, got {type(fields).__name__}")
    sample.columns |= fields


def _cell(sample: _Sample, part: str, reading: Reading) -> Any:
    names = (reading.columns[part],) if part in reading.columns else USUAL[part]
    return next((sample.columns[name] for name in names if name in sample.columns), None)
