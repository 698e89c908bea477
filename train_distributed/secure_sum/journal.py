"""Steps that a party takes once per session, ever: also across restarts and races.

An entry is a file that appears whole or not at all, and whose creation fails where it exists: it
is written aside, flushed, and hard-linked to its name, which is atomic on POSIX file systems.
"""

import contextlib
import os
import secrets
from pathlib import Path
from typing import Protocol

from pretrain.cli.durable import sync_directory
from train_distributed.secure_sum.errors import AlreadyOpened


class Journal(Protocol):
    """Where a party remembers what it must not do twice."""

    def claim(self, session: bytes, step: str, detail: bytes) -> None:
        """Records a step before it is taken.

        Raises:
            AlreadyOpened: it was recorded before, with whatever detail.
            OSError: it cannot be recorded, so the step must not be taken.
        """
        ...

    def detail(self, session: bytes, step: str) -> bytes | None:
        """What a step was recorded with; None if it was not."""
        ...


class DurableJournal:
    """A directory with one file per claimed step; what deployments use.

    Raises:
        ValueError: a relative path; from another directory it would be another journal.
    """

    def __init__(self, directory: Path) -> None:
        if not directory.is_absolute():
            raise ValueError(f"journal must be an absolute path, got {directory}")
        self._directory = directory

    def claim(self, session: bytes, step: str, detail: bytes) -> None:
        """See `Journal.claim`; returns once the entry has reached the disk."""
        try:
            self._write(self._entry(session, step), detail.hex().encode())
        except FileExistsError as error:
            raise _already(session, step) from error

    def detail(self, session: bytes, step: str) -> bytes | None:
        """See `Journal.detail`."""
        try:
            return bytes.fromhex(self._entry(session, step).read_text())
        except FileNotFoundError:
            return None

    def steps(self, session: bytes, begin: str) -> list[str]:
        """The steps that were recorded and whose names begin so."""
        found = self._directory.glob(f"{session.hex()}.{begin}*")
        return sorted(path.name.partition(".")[2] for path in found)

    def check(self) -> None:
        """Writes an entry and takes it away, as a claim would.

        Raises:
            OSError: this journal cannot be written, and why.
        """
        probe = self._directory / f".{secrets.token_hex(8)}.probe"
        self._write(probe, bytes(64))
        probe.unlink()

    def _entry(self, session: bytes, step: str) -> Path:
        return self._directory / f"{session.hex()}.{step}"

    def _write(self, entry: Path, content: bytes) -> None:
        aside = self._directory / f".{secrets.token_hex(8)}.partial"
        try:
            make_durable(self._directory)
            with aside.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.link(aside, entry)
            sync_directory(self._directory)
        except FileExistsError:
            raise
        except OSError as error:
            words = f"journal cannot be written: {error.strerror}"
            raise OSError(error.errno, words, str(self._directory)) from error
        finally:
            with contextlib.suppress(OSError):
                aside.unlink()


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


class VolatileJournal:
    """Forgets when its process ends: for simulations in one process."""

    def __init__(self) -> None:
        self._claimed: dict[tuple[bytes, str], bytes] = {}

    def claim(self, session: bytes, step: str, detail: bytes) -> None:
        """See `Journal.claim`."""
        if (session, step) in self._claimed:
            raise _already(session, step)
        self._claimed[session, step] = detail

    def detail(self, session: bytes, step: str) -> bytes | None:
        """See `Journal.detail`."""
        return self._claimed.get((session, step))


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


def _already(session: bytes, step: str) -> AlreadyOpened:
    return AlreadyOpened(f"{step} must happen once per session, got session {session.hex()} again")
