"""A session as far as it has come, on the operator's disk: what a restart continues from.

Every answer of a party is written down, and reaches the disk before anything that follows from it
is sent. The operator's side of the protocol is a function of the nonce and these answers, so a
restart repeats it from the start with the same answers, sends the same messages, and goes on where
it was killed.

Entries of the store are named session, asked/CALL, answer/CALL/PARTY and complete/CALL.
"""

import hashlib
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Self

from msgspec import Meta

from pretrain.cli.output import new_file, sync_directory
from train_distributed.federation.documents.document import (
    SMALL,
    Document,
    PartyNumber,
    read_as,
    safe,
)
from train_distributed.store.store import NotADatabase, Store, make_durable

LONGEST_FAULT = 200  # characters
NAME, LEFT_OUT = "session", "left-out.json"


class CannotResume(ValueError):
    """The record does not lead to the request that would be sent now."""


class SessionLog:
    """One file, of one process at a time; and a second one, of users left out of what follows.

    Raises:
        ValueError: another operator works with it, or the second file was changed.
        OSError: it cannot be read or written.
    """

    def __init__(self, directory: Path) -> None:
        self._directory, self._path = directory, directory / NAME
        self.session: bytes | None = None  # what `begin` was given, of a session under way
        self._calls: dict[int, bytes] = {}  # call -> hash of its requests
        self._complete: set[int] = set()
        self._answers: dict[int, dict[int, int]] = {}  # call -> party -> number of the entry
        self._next = 0
        self.left_out: dict[int, str] = {}  # user -> by what fault of it a session has failed

    def __enter__(self) -> Self:
        make_durable(self._directory)
        try:
            self._store = Store(self._path, "record of the session", alone=True)
        except NotADatabase as error:
            raise ValueError(f"{self._path} must be a session's, got another file") from error
        except BlockingIOError as error:
            raise ValueError(f"{self._directory} must be one operator's, another runs") from error
        try:
            for row in self._store.scan():
                self._take(row.name, row.content)
            self.left_out = _left_out(self._directory / LEFT_OUT)
        except BaseException:
            self._store.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.sync()
        finally:
            self._store.close()

    def begin(self, session: bytes) -> None:
        """A session starts; `session` is all that is needed to start it again."""
        self.forget()
        self.session = session
        self._store.append(session, "session")
        self.sync()

    def rewind(self) -> None:
        """Starts over: the next call is call 0."""
        self._next = 0

    def call(self, requests: Mapping[int, bytes]) -> int:
        """The number of the next call.

        Args:
            requests: by party.

        Raises:
            CannotResume: another was made in its place before.
        """
        number, digest = self._next, hashlib.sha256()
        self._next += 1
        for party in sorted(requests):
            digest.update(struct.pack(">IQ", party, len(requests[party])))
            digest.update(requests[party])
        if number not in self._calls:
            self._calls[number] = digest.digest()
            self._store.append(digest.digest(), f"asked/{number}")
        elif self._calls[number] != digest.digest():
            raise CannotResume(f"call {number} must be the one before the restart, is another")
        return number

    def complete(self, call: int) -> bool:
        """Whether all answers of a call have been taken."""
        return call in self._complete

    def answers(self, call: int) -> Iterator[tuple[int, bytes]]:
        """(party, answer) of a call, in the order they came."""
        for party, number in list(self._answers.get(call, {}).items()):
            yield party, self._store.content(number)

    def answers_of(self, party: int) -> Iterator[bytes]:
        """All answers of one party in this session, in the order of the calls."""
        for call in sorted(self._answers):
            if party in self._answers[call]:
                yield self._store.content(self._answers[call][party])

    def answered(self, call: int) -> set[int]:
        """Parties whose answers to a call are written down."""
        return set(self._answers.get(call, {}))

    def add(self, call: int, party: int, answer: bytes) -> None:
        """Writes an answer down."""
        self._store.append(answer, f"answer/{call}/{party}")
        self._answers.setdefault(call, {})[party] = self._store.length

    def finish(self, call: int) -> None:
        """No more answers of this call are taken."""
        self._store.append(b"", f"complete/{call}")
        self._complete.add(call)

    def sync(self) -> None:
        """Returns once everything written down has reached the disk."""
        self._store.commit()

    def forget(self) -> None:
        """The session is over, or given up."""
        self._store.clear()
        self.session, self._next = None, 0
        self._calls, self._complete, self._answers = {}, set(), {}

    def leave_out(self, culprits: Mapping[int, str]) -> None:
        """Keeps users out of what follows; returns once that has reached the disk.

        Args:
            culprits: user -> what it did, in words.
        """
        self.left_out |= {user: safe(what, LONGEST_FAULT) for user, what in culprits.items()}
        with new_file(self._directory / LEFT_OUT) as partial, partial.open("wb") as file:
            file.write(_LeftOut(self.left_out).text)
            file.flush()
            os.fsync(file.fileno())
        sync_directory(self._directory)

    def pardon(self) -> None:
        """Nobody is left out any more."""
        self.left_out = {}
        (self._directory / LEFT_OUT).unlink(missing_ok=True)
        sync_directory(self._directory)

    def _take(self, name: str, content: bytes) -> None:
        kind, *numbers = name.split("/")
        call, party = (*map(int, numbers), 0, 0)[:2]
        if kind == "session":
            self.session = content
        elif kind == "asked":
            self._calls[call] = content
        elif kind == "answer":
            self._answers.setdefault(call, {})[party] = self._store.length
        else:
            self._complete.add(call)


def settle(state: Path) -> None:
    """The released model is saved: the session it came from is forgotten.

    Until then the operator, started again, opens the same sum again and asks nobody.

    Args:
        state: directory of the operator's state.
    """
    with SessionLog(state) as record:
        record.forget()
        record.pardon()


class _LeftOut(Document, frozen=True):
    left_out: dict[PartyNumber, Annotated[str, Meta(pattern=r"\A[ -~]{1,200}\Z")]]


def _left_out(path: Path) -> dict[int, str]:
    return read_as(path, _LeftOut, SMALL).left_out if path.exists() else {}
