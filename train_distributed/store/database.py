"""One SQLite file whose transactions have reached the disk when they end.

It keeps a rollback journal, not a write-ahead log: a log lies in files of its own, without which a
copy of the file lacks what was acknowledged, and needs memory that machines on one network disk do
not share. `synchronous=EXTRA` is FULL, and syncs the directory once the journal is deleted:
with FULL alone a power cut could bring a deleted journal back, and undo what was acknowledged.
"""

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Self

from pretrain.cli.output import sync_directory
from pretrain.cli.waiting import Waiting

LOCK_SECONDS = 120.0  # for which one writer waits for others
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
            raise kind(f"{self.path} must be as it was written, got: {error}") from error

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
