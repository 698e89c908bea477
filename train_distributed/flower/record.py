"""A session as far as it has come, on the operator's disk: what a restart continues from.

Every answer of a party is written down, and reaches the disk before anything that follows from it
is sent. The operator's side of the protocol is a function of the nonce and these answers, so a
restart repeats it from the start with the same answers, sends the same messages, and goes on where
it was killed. An entry that a crash has torn was never acted on and is cut off.

    kind u8 | call u32 | party u32 | length u64 | CRC-32 u32 | content
"""

import fcntl
import hashlib
import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Self

from pretrain.cli.output import new_file
from train_distributed.flower.documents.document import read_document
from train_distributed.flower.escape import safe
from train_distributed.secure_sum.journal import make_durable, sync_directory

_ENTRY = struct.Struct(">BIIQI")
_SESSION, _ASKED, _ANSWER, _COMPLETE = 1, 2, 3, 4
LONGEST_FAULT = 200  # characters
NAME, LEFT_OUT = "session", "left-out.json"


class CannotResume(ValueError):
    """What was written down does not lead to what would be asked now."""


class Record:
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
        self._answers: dict[int, dict[int, tuple[int, int]]] = {}  # call -> party -> place, length
        self._next = 0
        self.left_out: dict[int, str] = {}  # user -> by what fault of it a session has failed

    def __enter__(self) -> Self:
        make_durable(self._directory)
        self._file: BinaryIO = open(self._path, "a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.close()
            raise ValueError(f"{self._directory} must be one operator's, another runs") from error
        sync_directory(self._directory)
        try:
            self._read()
            self.left_out = _left_out(self._directory / LEFT_OUT)
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def begin(self, session: bytes) -> None:
        """A session starts; `session` is all that is needed to start it again."""
        self.forget()
        self.session = session
        self._append(_SESSION, 0, 0, session)
        self.sync()

    def rewind(self) -> None:
        """The next call is the first again."""
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
            self._append(_ASKED, number, 0, digest.digest())
        elif self._calls[number] != digest.digest():
            raise CannotResume(f"call {number} must be the one before the restart, is another")
        return number

    def complete(self, call: int) -> bool:
        """Whether all answers of a call have been taken."""
        return call in self._complete

    def answers(self, call: int) -> Iterator[tuple[int, bytes]]:
        """(party, answer) of a call, in the order they came."""
        for party, (place, length) in list(self._answers.get(call, {}).items()):
            self._file.seek(place)
            yield party, self._file.read(length)

    def answers_of(self, party: int) -> Iterator[bytes]:
        """All answers of one party in this session, in the order of the calls."""
        for call in sorted(self._answers):
            if party in self._answers[call]:
                place, length = self._answers[call][party]
                self._file.seek(place)
                yield self._file.read(length)

    def answered(self, call: int) -> set[int]:
        """Whose answers to a call are written down."""
        return set(self._answers.get(call, {}))

    def add(self, call: int, party: int, answer: bytes) -> None:
        """Writes an answer down."""
        place = self._append(_ANSWER, call, party, answer)
        self._answers.setdefault(call, {})[party] = (place, len(answer))

    def finish(self, call: int) -> None:
        """No more answers of this call are taken."""
        self._append(_COMPLETE, call, 0, b"")
        self._complete.add(call)

    def sync(self) -> None:
        """Returns once everything written down has reached the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def forget(self) -> None:
        """The session is over, or given up."""
        self._file.seek(0)
        self._file.truncate()
        self.sync()
        self.session, self._next = None, 0
        self._calls, self._complete, self._answers = {}, set(), {}

    def leave_out(self, culprits: Mapping[int, str]) -> None:
        """Keeps users out of what follows; returns once that has reached the disk.

        Args:
            culprits: user -> what it did, in words.
        """
        self.left_out |= {user: safe(what, LONGEST_FAULT) for user, what in culprits.items()}
        with new_file(self._directory / LEFT_OUT) as partial, partial.open("w") as file:
            json.dump({"left_out": self.left_out}, file)
            file.flush()
            os.fsync(file.fileno())
        sync_directory(self._directory)

    def pardon(self) -> None:
        """Nobody is left out any more."""
        self.left_out = {}
        (self._directory / LEFT_OUT).unlink(missing_ok=True)
        sync_directory(self._directory)

    def _append(self, kind: int, call: int, party: int, content: bytes) -> int:
        place = self._file.seek(0, os.SEEK_END) + _ENTRY.size
        head = _ENTRY.pack(kind, call, party, len(content), zlib.crc32(content))
        self._file.write(head + content if len(content) < 2**16 else head)
        if len(content) >= 2**16:
            self._file.write(content)
        return place

    def _read(self) -> None:
        size, at = self._file.seek(0, os.SEEK_END), 0
        while at + _ENTRY.size <= size:
            self._file.seek(at)
            kind, call, party, length, check = _ENTRY.unpack(self._file.read(_ENTRY.size))
            if at + _ENTRY.size + length > size:
                break
            content = self._file.read(length)
            if zlib.crc32(content) != check:
                break
            self._take(kind, call, party, content, at + _ENTRY.size)
            at += _ENTRY.size + length
        self._file.truncate(at)

    def _take(self, kind: int, call: int, party: int, content: bytes, place: int) -> None:
        if kind == _SESSION:
            self.session = content
        elif kind == _ASKED:
            self._calls[call] = content
        elif kind == _ANSWER:
            self._answers.setdefault(call, {})[party] = (place, len(content))
        else:
            self._complete.add(call)


def settle(state: Path) -> None:
    """The released model is saved: the session it came from is forgotten.

    Until then the operator, started again, opens the same sum again and asks nobody.

    Args:
        state: directory of the operator's state.
    """
    with Record(state) as record:
        record.forget()
        record.pardon()


def _left_out(path: Path) -> dict[int, str]:
    if not path.exists():
        return {}
    document = read_document(path)
    document.only(["left_out"])
    users = document.part("left_out")
    return {user: users.text(name) for user, name in users.identities()}
