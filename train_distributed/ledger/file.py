"""The file of a ledger: a store of lines, whose running hash names the whole ledger.

A chain cannot tell that lines are missing at its end, nor that all of it was made again: there is
no key, and none would be safe from whoever can write the file. Compare `head` with what was printed
or reported before.
"""

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pretrain.cli.waiting import lock
from train_distributed.ledger.line import (
    GENESIS,
    START,
    Line,
    line_hash,
    new_line,
    read_lines,
    text_lines,
)
from train_distributed.store.database import application_of
from train_distributed.store.store import APPLICATION, Store, replace_file

HINT = "; --ledger names another place"
SQLITE = b"SQLite format 3"
_STORES: list[ExitStack] = []  # opened as text, see `LedgerFile._text`
Append = Callable[[str, dict[str, Any]], Line]  # (kind, body) -> the line


class LedgerFile:
    """The file by its path; it need not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[Line]:
        """Reads and verifies all of it; no lines where there is no file.

        Raises:
            ValueError: a line was altered or removed, or it is no ledger.
            OSError: it cannot be read.
        """
        if not self._exists():
            return []
        if self._is_text():
            with self._text("rb", fcntl.LOCK_SH) as lines:
                if lines is not None:
                    return read_lines(lines, str(self.path))
        with self._store(self.path) as store:
            contents = [row.content for row in store.scan()]
        return read_lines(contents, str(self.path))

    @contextmanager
    def locked(self) -> Iterator[tuple[list[Line], Append]]:
        """All lines, and how the only writer adds one; it is on the disk when the block ends.

        Raises:
            ValueError: a line was altered or removed, or it is no ledger.
            OSError: it cannot be read or written, and nothing was added.
        """
        if self._exists() and self._is_text():
            self._carry_over()
        with self._store(self.path) as store, store.transaction() as rows:
            lines = read_lines([row.content for row in rows], str(self.path))

            def append(kind: str, body: dict[str, Any]) -> Line:
                previous = lines[-1].hash if lines else GENESIS
                content = new_line(kind, body, previous, os.fspath(self.path.resolve()))
                store.append(content)
                lines.extend(read_lines([content], str(self.path), previous))
                return lines[-1]

            yield lines, append

    def _store(self, path: Path) -> Store:
        return Store(path, "ledger", seal=line_hash, hint=HINT)

    def _exists(self) -> bool:
        if self.path.exists() and not self.path.is_file():
            raise ValueError(f"ledger must be a file, got {self.path}")
        return self.path.exists()

    def _is_text(self) -> bool:
        return application_of(self.path) is None

    def _carry_over(self) -> None:
        """Puts a store with all lines of a file of text in its place, wholly or not at all.

        Lines keep their hashes, which reports name. Writers of text wait for the same lock.
        """
        try:
            with self._text("r+b", fcntl.LOCK_EX) as lines:
                if lines is not None:
                    replace_file(self.path.resolve(), self._store, (("", line) for line in lines))
        except OSError as error:
            raise _unwritten(error, self.path) from error

    @contextmanager
    def _text(self, mode: str, kind: int) -> Iterator[list[bytes] | None]:
        """Lines of a file of text, locked; None: another process has put a store in its place.

        A store that was opened here stays open: closing it would release the locks that other
        threads hold through SQLite.
        """
        path = self.path.resolve()
        with ExitStack() as stack:
            file = stack.enter_context(path.open(mode))
            lock(file.fileno(), kind, f"{path} in use")
            content = file.read()
            if content.startswith(SQLITE):
                fcntl.flock(file, fcntl.LOCK_UN)
                _STORES.append(stack.pop_all())
                yield None
            elif not os.path.samestat(os.fstat(file.fileno()), path.stat()):
                yield None
            else:
                yield text_lines(content, str(self.path))


def _unwritten(error: OSError, path: Path) -> OSError:
    if HINT in str(error.strerror):
        return error
    words = f"ledger cannot be written: {error.strerror}{HINT}"
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
                lock(opened, fcntl.LOCK_EX, f"the ledgers in {directory} in use")
            except OSError as error:
                raise _unwritten(error, directory) from error
        yield


def is_ledger(path: Path) -> bool:
    """Whether a file begins as a ledger does; other programs use the name too."""
    if not path.is_file():
        return False
    application = application_of(path)
    if application is not None:
        return application == APPLICATION
    with path.open("rb") as file:
        return file.read(len(START)) == START
