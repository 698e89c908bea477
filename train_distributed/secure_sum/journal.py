"""Steps that a party takes once per session, ever: also across restarts and races."""

from pathlib import Path
from typing import Protocol

from train_distributed.secure_sum.errors import AlreadyOpened
from train_distributed.store.store import Claimed, Store, make_durable, read_store

FILE = "journal.sqlite"


class Journal(Protocol):
    """Memory of the steps that a party must not take twice."""

    def claim(self, session: bytes, step: str, detail: bytes) -> None:
        """Records a step before it is taken.

        Raises:
            AlreadyOpened: it was recorded before, with whatever detail.
            OSError: it cannot be recorded, so the step must not be taken.
        """
        ...

    def detail(self, session: bytes, step: str) -> bytes | None:
        """Detail that a step was recorded with; None if it was not."""
        ...


class DurableJournal:
    """A directory with a store of claimed steps; what deployments use.

    Raises:
        ValueError: a relative path; from another directory it would be another journal.
    """

    def __init__(self, directory: Path) -> None:
        if not directory.is_absolute():
            raise ValueError(f"journal must be an absolute path, got {directory}")
        self._directory, self._path = directory, directory / FILE

    def claim(self, session: bytes, step: str, detail: bytes) -> None:
        """See `Journal.claim`; returns once the entry has reached the disk."""
        name = f"{session.hex()}.{step}"
        try:
            with self._open() as store:
                store.claim(name, detail)
        except Claimed as error:
            raise AlreadyOpened(
                f"{step} must happen once per session, got session {session.hex()} again"
            ) from error

    def detail(self, session: bytes, step: str) -> bytes | None:
        """See `Journal.detail`."""
        name = f"{session.hex()}.{step}"
        found = [row.content for row in read_store(self._path, "journal") if row.name == name]
        return found[0] if found else None

    def steps(self, session: bytes, begin: str) -> list[str]:
        """The steps that were recorded and whose names begin so."""
        begun = f"{session.hex()}.{begin}"
        names = [row.name for row in read_store(self._path, "journal")]
        return sorted(name.partition(".")[2] for name in names if name.startswith(begun))

    def check(self) -> None:
        """Writes as a claim would; raises OSError where it cannot be written, and says why."""
        with self._open() as store:
            store.check()

    def _open(self) -> Store:
        try:
            make_durable(self._directory)
        except OSError as error:
            words = f"journal cannot be written: {error.strerror}"
            raise OSError(error.errno, words, str(self._directory)) from error
        return Store(self._path, "journal")


class ResumedJournal:
    """For a party that takes up a session where it was killed: the same step again is no step.

    A step that was recorded with another detail is still refused, so a set of users that was
    committed to or opened stays the only one.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def claim(self, session: bytes, step: str, detail: bytes) -> None:
        """See `Journal.claim`; once more with the same detail does nothing."""
        if self._journal.detail(session, step) != detail:
            self._journal.claim(session, step, detail)

    def detail(self, session: bytes, step: str) -> bytes | None:
        """See `Journal.detail`."""
        return self._journal.detail(session, step)
