"""A log of entries under a running hash; an entry with a name is a claim, made once.

    entry   number from 1 | name | content | hash of all entries so far
    tip     number and hash of the last entry

SQLite notices torn writes, not flipped bits or changes by hand. So every entry is sealed with the
hash of the one before it, and the last one is named twice: an entry that was altered, removed or
put between others is an error in one line, and nothing is repaired. A file that was replaced by an
older copy of itself does not show here: whoever must notice keeps the last hash elsewhere.
"""

import hashlib
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pretrain.cli.output import sync_directory
from train_distributed.store.database import Database

APPLICATION, LAYOUT = 0x424C4156, 1  # "BLAV", which SQLite's header holds
START = b""  # the hash before the first entry
Seal = Callable[[bytes, str, bytes], bytes]  # (hash before, name, content) -> hash


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


def read_store(path: Path, what: str, seal: Seal = running_hash) -> list[Row]:
    """All entries of a file, verified; none where there is no file."""
    if not path.exists():
        return []
    with Store(path, what, seal=seal) as store:
        return list(store.scan())
