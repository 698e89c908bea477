"""A log of entries under a running hash, in one SQLite file; a name is claimed once.

    entry   number from 1 | name | content | hash of all entries so far
    tip     number and hash of the last entry

A transaction that has ended is on the disk. The file keeps a rollback journal, not a write-ahead
log: a log lies in files of its own, without which a copy of the file lacks what was acknowledged,
and needs memory that machines on one network disk do not share. `synchronous=EXTRA` is FULL, and
syncs the directory once the journal is deleted: with FULL alone a power cut could bring a deleted
journal back, and undo what was acknowledged.

SQLite notices torn writes, not flipped bits or changes by hand. So every entry is sealed with the
hash of the one before it, and the last one is named twice: an entry that was altered, removed or
put between others is an error in one line, and nothing is repaired. A file that was replaced by an
older copy of itself does not show here: whoever must notice keeps the last hash elsewhere.
"""

import errno
import hashlib
import os
import sqlite3
import struct
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pretrain.cli.output import sync_directory
from pretrain.cli.waiting import Waiting

LOCK_SECONDS = 120.0  # for which one writer waits for others
APPLICATION, LAYOUT = 0x424C4156, 1  # "BLAV", which SQLite's header holds
START = b""  # the hash before the first entry
Seal = Callable[[bytes, str, bytes], bytes]  # (hash before, name, content) -> hash
_REASONS = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_PERM: errno.EACCES,
    sqlite3.SQLITE_IOERR: errno.EIO,
    sqlite3.SQLITE_NOMEM: errno.ENOMEM,
}


class NotADatabase(ValueError):
    """A file that is not SQLite's."""


class Database:
    """A connection to one file.

    Args:
        path: of the file; made where it is missing and its directory exists.
        what: the file's name in errors.
        alone: keep the file from all other processes until it is closed. Otherwise writers wait
            for each other.
        hint: end of an error that says that the file cannot be written.

    Raises:
        OSError: it cannot be opened, or another process has it alone.
    """

    def __init__(self, path: Path, what: str, *, alone: bool = False, hint: str = "") -> None:
        self.path, self._what, self._alone, self._hint = path, what, alone, hint
        self._connect()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connect(self) -> None:
        with self.errors():
            self.connection = sqlite3.connect(
                self.path,
                timeout=0 if self._alone else LOCK_SECONDS,
                isolation_level=None,
                check_same_thread=False,
            )
        try:
            with self.errors(), self._turn():
                run = self.connection.execute
                run("PRAGMA synchronous=EXTRA")
                if not self._alone:
                    run("PRAGMA journal_mode=DELETE")
                else:  # a lock that is kept keeps the journal too
                    run("PRAGMA locking_mode=EXCLUSIVE")
                    run("PRAGMA journal_mode=PERSIST")
                    run("BEGIN EXCLUSIVE")
                    run("COMMIT")
                    sync_directory(self.path.parent)
        except BaseException:
            self.close()
            raise

    def _turn(self) -> AbstractContextManager[object]:
        """A block in which SQLite may wait for other commands; those that are alone never do."""
        if self._alone:
            return nullcontext()
        whom = f"another command, which has {self.path} in use"
        return Waiting(whom, "one at a time may write it", most=LOCK_SECONDS)

    def close(self) -> None:
        """Closes the file and releases its locks; what was not committed is undone."""
        self.connection.close()

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One writer at a time; all of the block reaches the disk, or nothing of it.

        Raises:
            OSError: it cannot be written.
            ValueError: the file is damaged.
        """
        with self.errors():
            try:
                with self._turn():
                    self.connection.execute("BEGIN IMMEDIATE")
                yield self.connection
                with self._turn():  # others may still read
                    self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise

    @contextmanager
    def reading(self) -> Iterator[None]:
        """All that is read in the block is of one moment."""
        with self.errors():
            if self.connection.in_transaction:
                yield
                return
            self.connection.execute("BEGIN")
            try:
                yield
            finally:
                if self.connection.in_transaction:
                    self.connection.execute("COMMIT")

    @contextmanager
    def errors(self) -> Iterator[None]:
        """SQLite's errors as those that commands report in one line."""
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                reason = "it must be used by one process at a time, another has it"
                raise self._refused(errno.EAGAIN, reason) from error
            if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
                raise self._refused(*self._why_closed()) from error
            if code in _REASONS:
                number = _REASONS[code]
                raise self._refused(number, os.strerror(number)) from error
            kind = NotADatabase if code == sqlite3.SQLITE_NOTADB else ValueError
            raise kind(f"{self.path} must be as it was written, got: {str(error)!r}") from error

    def _refused(self, number: int, reason: str) -> OSError:
        words = f"{self._what} cannot be written: {reason}{self._hint}"
        return OSError(number, words, str(self.path))

    def _why_closed(self) -> tuple[int, str]:
        """The system's reason for a file that SQLite could not open or write."""
        if not self.path.parent.exists():
            return errno.ENOENT, os.strerror(errno.ENOENT)
        for place in (self.path, self.path.parent):
            if place.exists() and not os.access(place, os.R_OK | os.W_OK, effective_ids=True):
                return errno.EACCES, os.strerror(errno.EACCES)
        return errno.EIO, "it cannot be opened for writing"


def application_of(path: Path) -> int | None:
    """The number in SQLite's header that says whose file it is; None: it is not SQLite's.

    A file that another thread of this process writes through SQLite must be opened by SQLite only:
    to close it otherwise would release that thread's locks.
    """
    try:
        with Database(path, path.name) as database, database.reading():
            return database.connection.execute("PRAGMA application_id").fetchone()[0]
    except NotADatabase:
        return None


def make_durable(directory: Path) -> None:
    """Makes a directory and those above it, each on the disk before this returns.

    Raises:
        OSError: it cannot be made.
    """
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
        sync_directory(path)
        sync_directory(path.parent)


class Claimed(ValueError):
    """A name that was claimed before."""


@dataclass(frozen=True)
class Row:
    """One entry."""

    name: str  # empty: it has none
    content: bytes
    hash: bytes


def running_hash(previous: bytes, name: str, content: bytes) -> bytes:
    """SHA-256 of an entry and the hash of the one before it."""
    named = name.encode()
    head = struct.pack(">II", len(previous), len(named))
    return hashlib.sha256(head + previous + named + content).digest()


class Store(Database):
    """The log in one file.

    Entries are hashed by `seal`; all other arguments and errors are those of `Database`.

    Examples:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "store"
        >>> with Store(path, "store") as store:
        ...     store.claim("open", b"set")
        ...     [row.content for row in store.scan()]
        [b'set']
    """

    def __init__(
        self,
        path: Path,
        what: str,
        *,
        alone: bool = False,
        seal: Seal = running_hash,
        hint: str = "",
    ) -> None:
        super().__init__(path, what, alone=alone, hint=hint)
        self._seal, self._tip = seal, (0, START)

    def scan(self) -> Iterator[Row]:
        """All entries, oldest first, each verified; to be read to the end.

        Raises:
            ValueError: an entry was altered or removed, or the file is no store.
            OSError: it cannot be read.
        """
        run = self.connection.execute
        self._tip = last = (0, START)
        with self.reading():
            if self._exists():
                query = "SELECT number, name, content, hash FROM entry ORDER BY number"
                for number, name, content, found in run(query):
                    sealed = isinstance(name, str) and isinstance(content, bytes)
                    follows = number == last[0] + 1 and sealed
                    if not follows or self._seal(last[1], name, content) != found:
                        raise self._damaged(last[0] + 1)
                    self._tip = last = (number, found)
                    yield Row(name, content, found)
                if run("SELECT number, hash FROM tip").fetchall() != [last]:
                    raise self._damaged(last[0] + 1)

    def claim(self, name: str, content: bytes) -> None:
        """Adds an entry with a name; returns once it has reached the disk.

        Raises:
            Claimed: the name was claimed before, with whatever content.
            OSError: it cannot be written.
        """
        with self.transaction() as rows:
            if any(row.name == name for row in rows):
                raise Claimed(name)
            self.append(content, name)

    @contextmanager
    def transaction(self) -> Iterator[list[Row]]:
        """The only writer until the block ends, given all entries; then the disk has what it adds.

        Raises:
            OSError: it cannot be written, and nothing was added.
            ValueError: an entry was altered or removed.
        """
        with self.writing():
            self._create()
            yield list(self.scan())

    def commit(self) -> None:
        """Returns once all that was appended has reached the disk."""
        with self.errors():
            if self.connection.in_transaction:
                self.connection.execute("COMMIT")

    def append(self, content: bytes, name: str = "") -> Row:
        """Adds an entry to the transaction under way, which begins if there is none.

        Raises:
            OSError: it cannot be written.
        """
        with self.errors():
            run = self.connection.execute
            if not self.connection.in_transaction:
                run("BEGIN IMMEDIATE")
                self._create()
            number, previous = self._tip
            row = Row(name, content, self._seal(previous, name, content))
            run("INSERT INTO entry VALUES (?, ?, ?, ?)", (number + 1, name, content, row.hash))
            run("UPDATE tip SET number = ?, hash = ?", (number + 1, row.hash))
        self._tip = (number + 1, row.hash)
        return row

    @property
    def length(self) -> int:
        """Number of the last entry that was read or added."""
        return self._tip[0]

    def content(self, number: int) -> bytes:
        """Content of an entry that was verified before, by its number."""
        with self.errors():
            query = "SELECT content FROM entry WHERE number = ?"
            return self.connection.execute(query, (number,)).fetchone()[0]

    def clear(self) -> None:
        """Removes the file with all entries and begins another; durable when it returns."""
        self.close()
        for path in (self.path, Path(f"{self.path}-journal")):
            path.unlink(missing_ok=True)
        sync_directory(self.path.parent)
        self._connect()
        self._tip = (0, START)

    def check(self) -> None:
        """Writes a page and frees it, as an entry would need it.

        Raises:
            OSError: it cannot be written.
        """
        with self.writing() as connection:
            self._create()
            connection.execute("CREATE TABLE probe (content BLOB)")
            connection.execute("INSERT INTO probe VALUES (zeroblob(4096))")
        with self.writing() as connection:
            connection.execute("DROP TABLE probe")

    def _exists(self) -> bool:
        run = self.connection.execute
        found = [run(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
        if found == [0, 0] and not run("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            return False
        if found != [APPLICATION, LAYOUT]:
            raise ValueError(f"{self.path} must be a store of layout {LAYOUT}, is another file")
        return True

    def _create(self) -> None:
        if not self._exists():
            run = self.connection.execute
            run(f"PRAGMA application_id = {APPLICATION}")
            run(f"PRAGMA user_version = {LAYOUT}")
            run("CREATE TABLE entry (number INTEGER PRIMARY KEY, name, content, hash)")
            run("CREATE TABLE tip (number, hash)")
            run("INSERT INTO tip VALUES (0, ?)", (START,))

    def _damaged(self, number: int) -> ValueError:
        return ValueError(
            f"{self.path} must be an unbroken chain of entries, entry {number} is altered or "
            "does not follow from the one before it"
        )


def read_store(path: Path, what: str) -> list[Row]:
    """All entries of a file, verified; none where there is no file."""
    if not path.exists():
        return []
    with Store(path, what) as store:
        return list(store.scan())
