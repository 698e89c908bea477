"""State of an aggregator: reports, its share of their sum, and what it has signed and opened.

Everything is in a database, so that any process that has it goes on where another was killed. What
a call writes is on the disk when it returns: only then may it be acknowledged.

A report waits at the leader until the helper has decided; then its vector is in the total and only
a line of it stays. The helper keeps the seed of its share, with which it takes a report back that
the leader's set lacks. The noised share is drawn once, in the transaction that stores it: whoever
asks again, after whatever kill, is given the same.

A total carries its hash: what does not fit is an error in one line. A database from a backup must
never be used: what was signed since would be forgotten.
"""

import hashlib
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from train_distributed.proofs import field
from train_distributed.proofs.field import Elements
from train_distributed.secure_sum.errors import AlreadyOpened, OutOfOrder
from train_distributed.secure_sum.session import Agreement
from train_distributed.store.sql import Run, Sql

WAITING, ADDED, REFUSED = range(3)
PIECE = 2**16  # users that are read together
_GATE, _NOISED = "gate", "noised share"
_OPEN, _CLOSED = b"open", b"closed"
_TABLES = (
    "CREATE TABLE IF NOT EXISTS fact (name TEXT PRIMARY KEY, content {blob} NOT NULL)",
    "CREATE TABLE IF NOT EXISTS total (place INTEGER PRIMARY KEY, content {blob} NOT NULL)",
    "CREATE TABLE IF NOT EXISTS report (person BIGINT PRIMARY KEY, digest {blob} NOT NULL, "
    "state INTEGER NOT NULL, content {blob} NOT NULL)",
    "CREATE INDEX IF NOT EXISTS waiting ON report (person) WHERE state = 0",
)


@dataclass(frozen=True)
class Line:
    """The row of one report in an aggregator's database."""

    digest: bytes  # SHA-256 of the report, or of the helper's message
    state: int
    content: bytes  # leader: the report while it waits; helper: verdict and seed


class ReportStore:
    """The state of one aggregator in one window; also the `Journal` of what it signed.

    Raises:
        ValueError: the database is of another window or aggregator.
        OSError: it cannot be reached or written.
    """

    def __init__(self, sql: Sql, window: Agreement, aggregator: int) -> None:
        self._sql, self._window = sql, window
        owner = window.digest + aggregator.to_bytes(4, "big")
        none = _sealed(np.zeros(window.dimension, np.uint64))
        with sql.transaction() as run:
            for statement in (*sql.alone, *_TABLES):
                run(statement.format(blob=sql.blob))
            for name, content in (("owner", owner), (_GATE, _OPEN)):
                run("INSERT INTO fact VALUES (?, ?) ON CONFLICT DO NOTHING", (name, content))
            for place in range(sql.writers):
                run("INSERT INTO total VALUES (?, ?) ON CONFLICT DO NOTHING", (place, none))
            if self._fact(run, "owner") != owner:
                raise ValueError("state must be of this window and aggregator, is of another")

    def close(self) -> None:
        """Closes the database."""
        self._sql.close()

    @property
    def closed(self) -> bool:
        """Whether no more reports are taken."""
        with self._sql.transaction() as run:
            return self._fact(run, _GATE) == _CLOSED

    def counts(self) -> dict[int, int]:
        """Reports by their state."""
        with self._sql.transaction() as run:
            found = run("SELECT state, count(*) FROM report GROUP BY state").fetchall()
        return {WAITING: 0, ADDED: 0, REFUSED: 0} | dict(found)

    def held(self) -> NDArray[np.bool_]:
        """(w,) whose reports are in the total; read piece by piece, however many there are."""
        query = "SELECT person FROM report WHERE state = ? AND person >= ? ORDER BY person LIMIT ?"
        held, start = np.zeros(len(self._window.users), bool), 0
        with self._sql.transaction() as run:
            while found := [user for (user,) in run(query, (ADDED, start, PIECE)).fetchall()]:
                held[found] = True
                start = found[-1] + 1
        return held

    def refused(self) -> dict[int, str]:
        """User -> why its report was refused."""
        query = "SELECT person, content FROM report WHERE state = ? ORDER BY person"
        with self._sql.transaction() as run:
            found = run(query, (REFUSED,)).fetchall()
        return {user: bytes(why).decode() for user, why in found}

    def lines(self, users: Sequence[int]) -> dict[int, Line]:
        """User -> row of its report, of those of these users whose reports are known."""
        with self._sql.transaction() as run:
            return self._lines(run, users)

    def keep(self, reports: Sequence[tuple[int, bytes, bytes]]) -> dict[int, bytes]:
        """Keeps (user, SHA-256, report) of distinct users, unless one is kept of that user.

        Returns:
            User -> SHA-256 of the report that is kept of it.

        Raises:
            OutOfOrder: no more reports are taken.
        """
        with self._sql.transaction() as run:
            self._check_gate(run)
            for user, digest, report in reports:
                run(
                    "INSERT INTO report VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
                    (user, digest, WAITING, report),
                )
            kept = self._lines(run, [user for user, *_ in reports])
        return {user: line.digest for user, line in kept.items()}

    @contextmanager
    def waiting(self, most: int) -> Iterator[dict[int, bytes]]:
        """Up to so many reports that wait, which no other process takes until the block ends.

        Processes share them by users' numbers: each begins at one that it draws, and goes round.
        """
        query = "SELECT person, content FROM report WHERE state = 0 AND person >= ? "
        query += f"ORDER BY person LIMIT ?{self._sql.skip}"
        drawn = secrets.randbelow(len(self._window.users)) if self._sql.skip else 0
        with self._sql.held():
            with self._sql.transaction() as run:
                found = run(query, (drawn, most)).fetchall()
                if not found and drawn:
                    found = run(query, (0, most)).fetchall()
            yield {user: bytes(report) for user, report in found}

    def decide(self, verdicts: Mapping[int, str], total: Elements) -> None:
        """Notes what became of reports that waited: why one is refused; empty: it is in `total`."""
        lines = [(REFUSED if why else ADDED, why.encode(), user) for user, why in verdicts.items()]
        query = "UPDATE report SET state = ?, content = ? WHERE person = ? AND state = 0"
        with self._sql.transaction() as run:
            for line in lines:
                if run(query, line).rowcount != 1:
                    raise OutOfOrder(f"report of user {line[-1]} must wait, was decided before")
            self._add(run, total)

    def add(self, lines: Mapping[int, Line], total: Elements) -> bool:
        """Adds the helper's lines, and their out shares; False: one of a user was added before.

        Raises:
            OutOfOrder: a set was signed.
        """
        query = "INSERT INTO report VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
        with self._sql.transaction() as run:
            self._check_gate(run)
            if self._lines(run, list(lines)):
                return False
            for user, line in lines.items():
                if run(query, (user, line.digest, line.state, line.content)).rowcount != 1:
                    raise OSError(f"report of user {user} was added by another process meanwhile")
            self._add(run, total)
        return True

    def set_gate(self, *, open: bool) -> None:
        """From now on reports are taken, if no set was signed; or none is."""
        with self._sql.transaction() as run:
            state = _OPEN if open else _CLOSED
            run("UPDATE fact SET content = ? WHERE name = ?", (state, _GATE))

    def noised(self, draw: Callable[[Elements], Elements]) -> Elements:
        """This aggregator's share of the sum with its noise: drawn once, then always the same.

        `draw` makes it of the share without noise (d,).
        """
        with self._sql.transaction() as run:
            self._fact(run, _GATE, self._sql.lock)  # one process draws
            found = self._fact(run, _NOISED)
            if found is None:
                total = np.zeros(self._window.dimension, np.uint64)
                for (content,) in run("SELECT content FROM total").fetchall():
                    total = field.add(total, _opened(content))
                found = _sealed(draw(total))
                run("INSERT INTO fact VALUES (?, ?)", (_NOISED, found))
        return _opened(found)

    def claim(self, session: bytes, step: str, detail: bytes) -> None:
        """See `Journal.claim`; with the first step no more reports are taken."""
        assert session == self._window.digest
        with self._sql.transaction() as run:
            run("UPDATE fact SET content = ? WHERE name = ?", (_CLOSED, _GATE))
            query = "INSERT INTO fact VALUES (?, ?) ON CONFLICT DO NOTHING"
            if run(query, (step, detail)).rowcount != 1:
                raise AlreadyOpened(f"{step} must happen once per window, was done before")

    def detail(self, session: bytes, step: str) -> bytes | None:
        """See `Journal.detail`."""
        assert session == self._window.digest
        with self._sql.transaction() as run:
            return self._fact(run, step)

    def _check_gate(self, run: Run) -> None:
        lock = self._sql.lock and " FOR SHARE"
        if self._fact(run, _GATE, lock) != _OPEN:
            raise OutOfOrder("report must come before the window is closed, came late")

    def _fact(self, run: Run, name: str, lock: str = "") -> bytes | None:
        found = run(f"SELECT content FROM fact WHERE name = ?{lock}", (name,)).fetchone()
        return None if found is None else bytes(found[0])

    def _lines(self, run: Run, users: Sequence[int]) -> dict[int, Line]:
        marks = ", ".join("?" * len(users))
        query = f"SELECT person, digest, state, content FROM report WHERE person IN ({marks})"
        found = run(query, users).fetchall() if users else []
        return {user: Line(bytes(d), state, bytes(c)) for user, d, state, c in found}

    def _add(self, run: Run, total: Elements) -> None:
        place = secrets.randbelow(self._sql.writers)
        query = f"SELECT content FROM total WHERE place = ?{self._sql.lock}"
        (before,) = run(query, (place,)).fetchone()
        content = _sealed(field.add(_opened(before), total))
        run("UPDATE total SET content = ? WHERE place = ?", (content, place))


def _sealed(total: Elements) -> bytes:
    octets = field.encode(total)
    return hashlib.sha256(octets).digest() + octets


def _opened(content: bytes) -> Elements:
    digest, octets = bytes(content[:32]), bytes(content[32:])
    if hashlib.sha256(octets).digest() != digest:
        raise ValueError("state must be as it was written, a total in it is damaged")
    return field.decode(octets)
