"""Members of `.npz` files whose rows are read on demand: memory follows the batch."""

import math
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

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
