"""Rows in SQLite or PostgreSQL by the same few statements; a transaction that ends is durable.

SQLite is one file of one process. PostgreSQL is shared by processes and machines, each thread of
which has a connection of its own; it is made again when the server was gone. Statements have `?`
where values go.
"""

import errno
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

from pretrain import check
from pretrain.cli.waiting import Waiting
from train_distributed.store.store import Database, make_durable

POSTGRESQL = "postgresql://"
CONNECT_SECONDS = 10
Run = Callable[..., Any]  # (statement, values) -> cursor


class Sql(ABC):
    """A database."""

    writers: ClassVar[int]  # transactions that may change different rows at the same time
    blob: ClassVar[str]  # type of a column of bytes
    lock: ClassVar[str] = ""  # end of a SELECT whose rows others must not change meanwhile
    skip: ClassVar[str] = ""  # the same, without those that others have locked
    alone: ClassVar[tuple[str, ...]] = ()  # statements that begin a transaction which makes tables

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Run]:
        """All of the block reaches the disk, or nothing of it.

        Raises:
            OSError: the database is gone, or cannot be written.
        """

    @abstractmethod
    def held(self) -> AbstractContextManager[Any]:
        """A block in which this thread keeps its row locks, where there are other processes."""

    @abstractmethod
    def close(self) -> None:
        """Closes this thread's connection."""


class Sqlite(Sql):
    """One file, kept from all other processes until it is closed.

    Args:
        path: of the file; its directory is made.
        what: its name in errors.

    Raises:
        OSError: another process has it, or it cannot be opened.
    """

    writers, blob = 1, "BLOB"

    def __init__(self, path: Path, what: str) -> None:
        make_durable(path.parent.resolve())
        self._database = Database(path, what, alone=True)
        self._turn = threading.RLock()

    @contextmanager
    def transaction(self) -> Iterator[Run]:
        """See `Sql.transaction`; threads wait for each other."""
        with self._turn, self._database.writing() as connection:
            yield connection.execute

    def held(self) -> AbstractContextManager[Any]:
        """Nothing: there is one process, whose one thread takes rows."""
        return nullcontext()

    def close(self) -> None:
        """Closes the file and releases its lock."""
        self._database.close()


class Postgresql(Sql):
    """A database of a server.

    Args:
        url: postgresql://USER@HOST/DATABASE, as libpq takes it.
        schema: of the tables; made where it is missing.

    Raises:
        ValueError: psycopg is not installed.
        OSError: the server cannot be reached.
    """

    writers, blob, lock, skip = 16, "BYTEA", " FOR UPDATE", " FOR UPDATE SKIP LOCKED"
    alone = ("SELECT pg_advisory_xact_lock(7233173)",)  # any number that all agree on

    def __init__(self, url: str, schema: str) -> None:
        self._driver = check.installed("psycopg", "PostgreSQL", extra="postgresql")
        self._url, self._schema, self._own = url, schema, threading.local()
        with self.transaction() as run:
            for statement in self.alone:
                with Waiting("others that make tables in the database", "one at a time may"):
                    run(statement)
            run(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')

    @contextmanager
    def transaction(self) -> Iterator[Run]:
        """See `Sql.transaction`; inside `held` it is part of that block.

        A connection that was lost before the transaction began is made again, once.
        """
        depth = getattr(self._own, "depth", 0)
        self._own.depth = depth + 1
        try:
            with ExitStack() as stack:
                connection = self._begun(stack, depth > 0)

                def run(statement: str, values: Sequence[Any] = ()) -> Any:
                    return connection.execute(statement.replace("?", "%s"), values)

                yield run
        except (self._driver.OperationalError, self._driver.InterfaceError) as error:
            self.close()
            raise OSError(errno.EIO, f"database must answer: {error}") from error
        finally:
            self._own.depth = depth

    def _begun(self, stack: ExitStack, inside: bool) -> Any:
        """A connection that has begun a transaction, which ends with the stack."""
        known = getattr(self._own, "connection", None)
        if inside and known is None:  # with it went what the block has locked
            raise self._driver.OperationalError("the connection of this block was lost")
        try:
            connection = self._connection()
            stack.enter_context(connection.transaction())
        except (self._driver.OperationalError, self._driver.InterfaceError):
            if inside or known is None:
                raise
            self.close()
            connection = self._connection()
            stack.enter_context(connection.transaction())
        return connection

    def held(self) -> AbstractContextManager[Any]:
        """A transaction around those of the block."""
        return self.transaction()

    def close(self) -> None:
        """Closes this thread's connection; the next statement makes another."""
        connection, self._own.connection = getattr(self._own, "connection", None), None
        if connection is not None:
            connection.close()

    def _connection(self) -> Any:
        if getattr(self._own, "connection", None) is None:
            path = f"-c search_path={self._schema} -c synchronous_commit=on"
            with Waiting("the database", "no connection yet", most=CONNECT_SECONDS):
                self._own.connection = self._driver.connect(
                    self._url, autocommit=True, connect_timeout=CONNECT_SECONDS, options=path
                )
        return self._own.connection


def open_sql(place: str | Path, name: str, what: str) -> Sql:
    """The database at a URL of PostgreSQL, in a schema of this name; or that in a directory."""
    if isinstance(place, str) and place.startswith(POSTGRESQL):
        return Postgresql(place, name)
    return Sqlite(Path(place) / f"{name}.sqlite", what)
