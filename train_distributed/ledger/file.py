"""The file of a ledger: a store of lines, whose running hash names the whole ledger.

A line is JSON that names the line before it by its hash:

    {"body": {...}, "kind": "reserve", "time": "...", "previous": <64 hex>, "salt": <32 hex>,
     "place": "/..."}

Its own hash is SHA-256 of the text without the closing brace. Reports name it, and a line says
which rows were used, so every line has a salt from the operating system that never leaves the
ledger: without it nobody can try which rows give the hash. It also says where the ledger lay, so
that a copy knows its original. Lines that version 0.1 wrote have neither.

A chain cannot tell that lines are missing at its end, nor that all of it was made again: there is
no key, and none would be safe from whoever can write the file. Compare `head` with what was printed
or reported before.
"""

import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pretrain.cli.json_text import parsed
from pretrain.cli.waiting import lock
from train_distributed.store.store import APPLICATION, NotADatabase, Store, application_of

HINT = "; --ledger names another place"
GENESIS = hashlib.sha256(b"blind-averaging ledger, version 1").hexdigest()
SALT_BYTES = 16
ID_DIGITS = 16
TEXT = b'{"body": '  # how a ledger of version 0.1 begins, a file of text


@dataclass(frozen=True)
class LedgerLine:
    """One line, verified."""

    kind: str
    body: dict[str, Any]
    time: str
    hash: str
    stated: dict[str, Any]  # all of it

    @property
    def place(self) -> str:
        """Path of the ledger that the line was written to; empty where it does not say."""
        place = self.stated.get("place")
        return place if isinstance(place, str) else ""

    @property
    def id(self) -> str:
        """Id of the entry that it reserves."""
        return self.hash[:ID_DIGITS]


Append = Callable[[str, dict[str, Any]], LedgerLine]  # (kind, body) -> the line


class LedgerFile:
    """The file by its path; it need not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[LedgerLine]:
        """Reads and verifies all of it; no lines where there is no file.

        Raises:
            ValueError: a line was altered or removed, or it is no ledger of this version.
            OSError: it cannot be read.
        """
        if not self.path.exists():
            return []
        with self._store() as store:
            return self._lines([row.content for row in store.scan()], GENESIS)

    @contextmanager
    def locked(self) -> Iterator[tuple[list[LedgerLine], Append]]:
        """All lines, and how the only writer adds one; it is on the disk when the block ends.

        Raises:
            ValueError: a line was altered or removed, or it is no ledger of this version.
            OSError: it cannot be read or written, and nothing was added.
        """
        with self._store() as store, store.transaction() as rows:
            lines = self._lines([row.content for row in rows], GENESIS)

            def append(kind: str, body: dict[str, Any]) -> LedgerLine:
                previous = lines[-1].hash if lines else GENESIS
                content = self._text(kind, body, previous)
                store.append(content)
                lines.extend(self._lines([content], previous))
                return lines[-1]

            yield lines, append

    @contextmanager
    def _store(self) -> Iterator[Store]:
        if self.path.exists() and not self.path.is_file():
            raise ValueError(f"ledger must be a file, got {self.path}")
        try:
            with Store(self.path, "ledger", seal=_line_hash, hint=HINT) as store:
                yield store
        except NotADatabase as error:
            if not _is_text(self.path):
                raise self._broken(1) from error
            raise ValueError(
                f"ledger must be of version 0.2 or later, got one of version 0.1: {self.path} "
                "(write to it with version 0.2 first, such as by `ledger limit`: all its lines are "
                "carried over)"
            ) from error

    def _text(self, kind: str, body: dict[str, Any], previous: str) -> bytes:
        """A line that follows the one of this hash, at this moment."""
        stated = {
            "body": body,
            "kind": kind,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "previous": previous,
            "salt": secrets.token_hex(SALT_BYTES),
            "place": os.fspath(self.path.resolve()),
        }
        return json.dumps(stated, allow_nan=False).encode()

    def _lines(self, contents: Iterable[bytes], previous: str) -> list[LedgerLine]:
        """Lines, oldest first, from the one that follows `previous` on; raises as `read`."""
        lines: list[LedgerLine] = []
        for content in contents:
            line = _read(content, lines[-1].hash if lines else previous)
            if line is None:
                raise self._broken(len(lines) + 1)
            lines.append(line)
        return lines

    def _broken(self, number: int) -> ValueError:
        return ValueError(
            f"ledger must be an unbroken chain of lines, line {number} is altered or does not "
            f"follow from the one before it: {self.path}"
        )


@contextmanager
def locked_directories(directories: Iterable[Path]) -> Iterator[None]:
    """Holds a lock on each of the directories that exist, until the block ends.

    Whoever looks whether a directory holds another ledger of the same rows, and then opens one, is
    alone with it meanwhile. Locks are taken in one order, so that no two wait for each other.

    Raises:
        OSError: a directory cannot be locked.
    """
    with ExitStack() as stack:
        for directory in sorted({place.resolve() for place in directories if place.is_dir()}):
            try:
                opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
                stack.callback(os.close, opened)
                lock(opened, fcntl.LOCK_EX, f"the ledgers in {directory} in use")
            except OSError as error:
                words = f"ledger cannot be written: {error.strerror}{HINT}"
                raise OSError(error.errno, words, str(directory)) from error
        yield


def is_ledger(path: Path) -> bool:
    """Whether a file begins as a ledger does, of any version; other programs use the name too."""
    if not path.is_file():
        return False
    application = application_of(path)
    return _is_text(path) if application is None else application == APPLICATION


def _is_text(path: Path) -> bool:
    """Whether a file that is not SQLite's is a ledger of version 0.1."""
    with path.open("rb") as file:
        return file.read(len(TEXT)) == TEXT


def _line_hash(_previous: bytes, _name: str, content: bytes) -> bytes:
    """Hash of a line; the text names the line before it."""
    return hashlib.sha256(content[:-1]).digest()


def _read(content: bytes, previous: str) -> LedgerLine | None:
    """A line that follows from the one before it; None otherwise."""
    try:
        stated = parsed(content)
        follows = stated["previous"] == previous
        named = _line_hash(b"", "", content).hex()
        line = LedgerLine(stated["kind"], stated["body"], stated["time"], named, stated)
    except (ValueError, TypeError, KeyError):
        return None
    return line if follows and isinstance(line.body, dict) else None
