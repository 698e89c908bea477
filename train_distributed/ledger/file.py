"""An append-only file of lines, each holding the hash of the one before it.

    {"body": {...}, "kind": "reserve", "time": "...", "previous": <64 hex>, "salt": <32 hex>,
     "hash": <64 hex>}

The hash is SHA-256 of all of the line before it. Reports name it, and a line says which rows were
used, so every line has a salt from the operating system that never leaves the file: without it
nobody can try which rows give the hash. Lines of older versions have none.

A line counts once all of it has reached the disk; whoever is killed while writing leaves a torn
one: without the line feed that ends every line. The next writer goes on behind it, never cuts it
off: it ends the torn bytes with CANCEL, which occurs in no line, and a line of kind "torn" that
holds their hash. Anything else that does not follow from the line before it is a broken chain, and
refused.

A chain cannot tell that lines are missing at its end, nor that all of it was made again: there is
no key, and none would be safe from whoever can write the file. Compare `head` with what was printed
or reported before.
"""

import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pretrain.cli.durable import sync_directory
from pretrain.cli.json_text import parsed

START = b'{"body": '
CANCEL = b"\x18"  # control characters are escaped in JSON
GENESIS = hashlib.sha256(b"blind-averaging ledger, version 1").hexdigest()
TORN = "torn"
SALT_BYTES = 16
_SEAL = b', "hash": "%s"}'
_SEAL_BYTES = len(_SEAL) - 2 + 64


@dataclass(frozen=True)
class Line:
    """One link of the chain."""

    kind: str
    body: dict[str, Any]
    time: str
    hash: str


@dataclass(frozen=True)
class Chain:
    """What a file holds, verified."""

    lines: tuple[Line, ...]
    torn: bytes = b""  # what a writer that was killed has left at the end

    @property
    def head(self) -> str:
        """Hash of the last line: of all of them."""
        return self.lines[-1].hash if self.lines else GENESIS


class LedgerFile:
    """The file by its path; it need not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Chain:
        """Reads and verifies all of it; no lines where there is no file.

        Raises:
            ValueError: the chain is broken, or it is no file.
            OSError: it cannot be read.
        """
        self._check()
        try:
            with self.path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH)
                return self._verified(file.read())
        except FileNotFoundError:
            return Chain(())

    @contextmanager
    def locked(self) -> Iterator["Writer"]:
        """The only writer of this file, until the block ends.

        Raises:
            ValueError: the chain is broken.
            OSError: it cannot be read or written.
        """
        self._check()
        try:
            file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        except OSError as error:
            raise _unwritten(error, self.path) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            with open(file, "rb", closefd=False) as content:
                chain = self._verified(content.read())
            yield Writer(self.path, file, chain)
        finally:
            os.close(file)

    def _check(self) -> None:
        if self.path.exists() and not self.path.is_file():
            raise ValueError(f"ledger must be a file, got {self.path}")

    def _verified(self, content: bytes) -> Chain:
        *whole, torn = content.split(b"\n")
        lines, previous = [], GENESIS
        for number, raw in enumerate(whole, 1):
            left, cancel, sealed = raw.rpartition(CANCEL)
            line = _read_line(sealed, previous)
            if line is None or (cancel != b"") != (line.kind == TORN):
                raise self._broken(number)
            if cancel and line.body.get("sha256") != hashlib.sha256(left).hexdigest():
                raise self._broken(number)
            lines.append(line)
            previous = line.hash
        return Chain(tuple(lines), torn)

    def _broken(self, number: int) -> ValueError:
        return ValueError(
            f"ledger must be an unbroken chain of lines, line {number} is altered or does not "
            f"follow from the one before it: {self.path}"
        )


@dataclass
class Writer:
    """Appends to a locked file."""

    path: Path
    file: int  # descriptor
    chain: Chain

    def append(self, kind: str, body: dict[str, Any]) -> Line:
        """Adds a line; returns once it has reached the disk.

        Raises:
            OSError: it could not be written. It may count as torn from then on.
        """
        self._write(b"", kind, body)
        return self.chain.lines[-1]

    def close_torn(self, body: dict[str, Any]) -> None:
        """Ends torn bytes at the end of the file with a line that says what they count as."""
        left = self.chain.torn
        told = {"bytes": len(left), "sha256": hashlib.sha256(left).hexdigest()}
        self._write(CANCEL, TORN, {**body, **told})

    def _write(self, before: bytes, kind: str, body: dict[str, Any]) -> None:
        previous = self.chain.head
        now = datetime.now(UTC).isoformat(timespec="seconds")
        stated = {"body": body, "kind": kind, "time": now, "previous": previous}
        stated |= {"salt": secrets.token_hex(SALT_BYTES)}
        unsealed = json.dumps(stated, allow_nan=False).encode()[:-1]
        digest = hashlib.sha256(unsealed).hexdigest()
        rest = before + unsealed + _SEAL % digest.encode() + b"\n"
        try:
            while rest:
                rest = rest[os.write(self.file, rest) :]
            os.fsync(self.file)
            sync_directory(self.path.parent)
        except OSError as error:
            raise _unwritten(error, self.path) from error
        self.chain = Chain((*self.chain.lines, Line(kind, body, now, digest)))


def _unwritten(error: OSError, path: Path) -> OSError:
    words = f"ledger cannot be written: {error.strerror}; --ledger names another place"
    return OSError(error.errno, words, str(path))


@contextmanager
def locked_directories(directories: Iterable[Path]) -> Iterator[None]:
    """Holds a lock on each of the directories that exist, until the block ends.

    Whoever looks whether a directory holds another ledger of the same rows, and then opens one, is
    alone with it meanwhile. Locks are taken in one order, so that no two wait for each other.
    """
    with ExitStack() as stack:
        for directory in sorted({place.resolve() for place in directories if place.is_dir()}):
            try:
                opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
                stack.callback(os.close, opened)
                fcntl.flock(opened, fcntl.LOCK_EX)
            except OSError as error:
                raise _unwritten(error, directory) from error
        yield


def torn_bodies(torn: bytes) -> Iterator[Any]:
    """The bodies of torn lines, oldest first, as far as all of a body is there."""
    for piece in torn.split(CANCEL):
        if piece.startswith(START):
            with suppress(ValueError):
                yield json.JSONDecoder().raw_decode(piece.decode(), len(START))[0]


def is_ledger(path: Path) -> bool:
    """Whether a file begins as a ledger does; other programs use the name too."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(START)) == START


def _read_line(raw: bytes, previous: str) -> Line | None:
    """A line that follows from the one before it; None otherwise."""
    unsealed = raw[:-_SEAL_BYTES]
    digest = hashlib.sha256(unsealed).hexdigest()
    if raw != unsealed + _SEAL % digest.encode():
        return None
    try:
        stated = parsed(unsealed + b"}")
        follows = stated["previous"] == previous
        line = Line(stated["kind"], stated["body"], stated["time"], digest)
    except (ValueError, TypeError, KeyError):
        return None
    return line if follows and isinstance(line.body, dict) else None
