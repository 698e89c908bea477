"""Steps that a party takes once per session, ever: also across restarts and races.

An entry is a file that appears whole or not at all, and whose creation fails where it exists: it
is written aside, flushed, and hard-linked to its name, which is atomic on POSIX file systems.
"""

import contextlib
import os
import secrets
from pathlib import Path
from typing import Protocol

from train_distributed.secure_sum.errors import AlreadyOpened


class Journal(Protocol):
    """Where a party remembers what it must not do twice."""

    def claim(self, session: bytes, step: str, detail: bytes) -> None:
        """Records a step before it is taken.

        Raises:
            AlreadyOpened: it was recorded before, with whatever detail.
        """
        ...


class DurableJournal:
    """A directory with one file per claimed step; what deployments use."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def claim(self, session: bytes, step: str, detail: bytes) -> None:
        """See `Journal.claim`; returns once the entry has reached the disk."""
        self._directory.mkdir(parents=True, exist_ok=True)
        entry = self._directory / f"{session.hex()}.{step}"
        aside = self._directory / f".{secrets.token_hex(8)}.partial"
        try:
            with aside.open("xb") as file:
                file.write(detail.hex().encode())
                file.flush()
                os.fsync(file.fileno())
            os.link(aside, entry)
        except FileExistsError as error:
            raise _already(session, step) from error
        finally:
            with contextlib.suppress(FileNotFoundError):
                aside.unlink()
        folder = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class VolatileJournal:
    """Forgets when its process ends: for simulations in one process."""

    def __init__(self) -> None:
        self._claimed: set[tuple[bytes, str]] = set()

    def claim(self, session: bytes, step: str, detail: bytes) -> None:
        """See `Journal.claim`."""
        if (session, step) in self._claimed:
            raise _already(session, step)
        self._claimed.add((session, step))


def _already(session: bytes, step: str) -> AlreadyOpened:
    return AlreadyOpened(f"{step} must happen once per session, got session {session.hex()} again")
