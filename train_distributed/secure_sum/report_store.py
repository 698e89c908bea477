"""State of an aggregator on its disk: reports, their sum, and the set that it has signed.

One SQLite file. Whatever a batch of reports changes is one transaction, and is on the disk when
`add` returns: only then may the reports be acknowledged. Killed at any moment, the file holds all
of a batch or nothing of it (SQLite's rollback journal; a write-ahead log could be lost beside an
intact file, and with it reports that were acknowledged).

SQLite notices torn writes, not flipped bits. So the state's row carries a hash of itself, and with
it the sum modulo 2^256 of the hashes of all reports' rows: what does not fit is an error in one
line. Nothing is repaired, and a file from a backup must never be used: what the aggregator signed
since would be forgotten.
"""

import hashlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from train_distributed.secure_sum.errors import AlreadyOpened
from train_distributed.secure_sum.prg import Words
from train_distributed.secure_sum.reports import TAG_BYTES, Part
from train_distributed.secure_sum.session import Agreement
from train_distributed.secure_sum.wire import bytes_to_words, words_to_bytes
from train_distributed.store.database import Database, make_durable

FILE, LAYOUT = "holdings.sqlite", 1
_STATE = ("session", "adder", "clock", "closed", "reports", "mark", "total", "commit", "open")
_COLUMNS = ", ".join(f'"{name}"' for name in _STATE)
_MODULUS = 1 << 256


@dataclass(frozen=True)
class _State:
    """The one row besides the reports."""

    session: bytes
    adder: int  # number of the aggregator; the column keeps its name
    clock: float  # decides nothing: files of 0.1.0 have a time here
    closed: int
    reports: int
    mark: bytes  # sum of the rows' hashes
    total: bytes
    commit: bytes  # SHA-256 of the set that was signed; empty: none was
    open: bytes  # of the set that was opened

    def seal(self) -> bytes:
        digest = hashlib.sha256(struct.pack(">I", LAYOUT))
        for name in _STATE:
            value = getattr(self, name)
            content = value if isinstance(value, bytes) else repr(value).encode()
            digest.update(struct.pack(">Q", len(content)) + content)
        return digest.digest()


class ReportStore:
    """The state of one aggregator in one window; also the `Journal` of what it signed."""

    def __init__(self, directory: Path, window: Agreement, aggregator: int) -> None:
        """Opens the file, or makes it, and verifies all of it.

        Raises:
            ValueError: it is of another window or aggregator, or damaged.
            OSError: another process has it, or it cannot be read or written.
        """
        self._window, self._path = window, directory / FILE
        make_durable(directory.resolve())
        self._database = Database(self._path, "reports", alone=True)
        self._file = self._database.connection
        try:
            self._create(aggregator)
            with self._database.errors():
                self._state = self._read(aggregator)
        except (IndexError, TypeError, OverflowError, struct.error) as error:  # another type, size
            self._database.close()
            raise ValueError(f"{self._path} must be as it was written, got: {error}") from error
        except BaseException:
            self._database.close()
            raise
        self.total: Words = bytes_to_words(self._state.total, window.dimension, window.word).copy()

    def close_file(self) -> None:
        """Closes the file and releases its lock."""
        self._database.close()

    @property
    def closed(self) -> bool:
        """Whether a set was signed, so that no more reports are taken."""
        return bool(self._state.closed)

    @property
    def count(self) -> int:
        """Reports held."""
        return self._state.reports

    def bitmap(self) -> bytes:
        """Users whose reports are held, one bit each."""
        return np.packbits(self.held, bitorder="little").tobytes()

    def receipt_of(self, user: int) -> tuple[bytes, bytes]:
        """Tag of the report held of a user, and SHA-256 of its message."""
        line = self._line(user)
        return line[:TAG_BYTES], line[TAG_BYTES : TAG_BYTES + 32]

    def seeds(self, users: Sequence[int]) -> Iterator[bytes]:
        """The seeds of users whose reports are held."""
        for user in users:
            yield self._line(user)[TAG_BYTES + 32 :]

    def _line(self, user: int) -> bytes:
        with self._database.errors():
            query = self._file.execute("SELECT line FROM report WHERE user = ?", (user,))
            return query.fetchone()[0]

    def add(self, parts: Sequence[Part], total: Words) -> None:
        """Adds reports of distinct users of whom none is held; durable when it returns.

        `total` (d,) is their sum.

        Raises:
            OSError: it cannot be written, and nothing was added.
        """
        lines = [(part.user, part.tag + part.message + part.seed) for part in parts]
        mark = int.from_bytes(self._state.mark, "big")
        mark = (mark + sum(_hash(*line) for line in lines)) % _MODULUS
        new = replace(
            self._state,
            reports=self._state.reports + len(parts),
            mark=mark.to_bytes(32, "big"),
            total=words_to_bytes(self.total + total),
        )
        self._write(new, lines)
        self.total += total
        self.held[[part.user for part in parts]] = True

    def claim(self, session: bytes, step: str, detail: bytes) -> None:
        """See `Journal.claim`; the steps are "commit", with which no more is taken, and "open"."""
        if self.detail(session, step) is not None:
            raise AlreadyOpened(f"{step} must happen once per window, got {session.hex()} again")
        self._write(replace(self._state, closed=1, **{step: detail}))

    def detail(self, session: bytes, step: str) -> bytes | None:
        """See `Journal.detail`."""
        assert session == self._state.session
        return getattr(self._state, step) or None

    def _write(self, state: _State, lines: Sequence[tuple[int, bytes]] = ()) -> None:
        """One transaction; in memory nothing has changed until it is on the disk."""
        with self._database.transaction() as run:
            run.executemany("INSERT INTO report VALUES (?, ?)", lines)
            self._keep(state)
        self._state = state

    def _keep(self, state: _State) -> None:
        values, places = [getattr(state, name) for name in _STATE], ", ".join("?" * len(_STATE))
        self._file.execute("DELETE FROM state")
        self._file.execute(f"INSERT INTO state VALUES ({places}, ?)", [*values, state.seal()])

    def _create(self, aggregator: int) -> None:
        with self._database.errors():
            tables = self._file.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            layout = self._file.execute("PRAGMA user_version").fetchone()[0]
        if tables or layout:
            return
        window = self._window
        none = words_to_bytes(np.zeros(window.dimension, window.word))
        with self._database.transaction() as run:
            run.execute(f"PRAGMA user_version = {LAYOUT}")
            run.execute("CREATE TABLE report (user INTEGER PRIMARY KEY, line BLOB NOT NULL)")
            run.execute(f"CREATE TABLE state ({_COLUMNS}, seal)")
            self._keep(_State(window.digest, aggregator, 0.0, 0, 0, bytes(32), none, b"", b""))

    def _read(self, aggregator: int) -> _State:
        """Everything, verified; `held` is made of it."""
        (layout,) = self._file.execute("PRAGMA user_version").fetchone()
        if layout != LAYOUT:
            raise ValueError(f"{self._path} must be of layout {LAYOUT}, is of {layout}")
        rows = self._file.execute(f"SELECT {_COLUMNS}, seal FROM state").fetchall()
        if len(rows) != 1 or (state := _State(*rows[0][:-1])).seal() != rows[0][-1]:
            raise ValueError(f"{self._path} must be as it was written, its state is damaged")
        if (state.session, state.adder) != (self._window.digest, aggregator):
            raise ValueError(f"{self._path} must be of this window and aggregator, is of another")
        self.held: NDArray[np.bool_] = np.zeros(len(self._window.users), bool)
        mark = count = 0
        for user, line in self._file.execute("SELECT user, line FROM report"):
            mark, count = mark + _hash(user, line), count + 1
            self.held[user] = True
        if (mark % _MODULUS).to_bytes(32, "big") != state.mark or count != state.reports:
            raise ValueError(f"{self._path} must be as it was written, its reports are damaged")
        return state


def _hash(user: int, line: bytes) -> int:
    digest = hashlib.sha256(struct.pack(">I", user) + line).digest()
    return int.from_bytes(digest, "big")
