"""Progress of a session: a line per stage for people, `status.json` for programs."""

import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from train_distributed.federation.documents.document import safe
from train_distributed.secure_sum.keys import name_of

MOST_REFUSED = 200  # kept
MOST_SHOWN = 5  # names and refusals in a line
STATUS = "status.json"


@dataclass
class Log:
    """Progress and faults of a session: identities and words, nothing of anyone's data.

    Args:
        directory: where `status.json` is kept; None: nowhere.
        say: takes a line.
    """

    directory: Path | None = None
    say: Callable[[str], None] = lambda line: None
    missing: dict[int, str] = field(default_factory=dict)  # user -> where it was lost
    refused: list[str] = field(default_factory=list)
    session: str = ""  # nonce, hexadecimal
    received: int = 0  # bytes of answers
    sent: int = 0  # bytes of requests
    bytes_of: dict[int, int] = field(default_factory=dict)  # party -> of its answers

    def __post_init__(self) -> None:
        self._start = time.monotonic()
        self._seen = 0  # refusals that were in a line
        self._told: tuple[list[str], list[str]] | None = None
        self._fields: dict[str, Any] = {"stage": "gather", "outcome": None}

    def lost(self, users: Iterable[int], step: str) -> None:
        """Notes users that did not get past a step; the first note stays."""
        for user in sorted(users):
            self.missing.setdefault(user, step)

    def refuse(self, who: str, why: bytes | str) -> None:
        """Notes a refusal, printable; beyond `MOST_REFUSED` they are not kept."""
        if len(self.refused) < MOST_REFUSED:
            self.refused.append(f"{who}: {safe(why)}")

    def stage(self, name: str, asked: Iterable[int]) -> None:
        """A question goes out."""
        self._write(stage=name, asked=[name_of(party) for party in sorted(asked)], answered=None)

    def answered(self, count: int, asked: int) -> None:
        """The answers have come."""
        self._write(answered=count)
        fresh = self.refused[self._seen :]
        self._seen += len(fresh)
        self._line("; ".join([f"{self._fields['stage']}: {count} of {asked}", *fresh[:MOST_SHOWN]]))

    def present(self, parties: Iterable[int], of: int, missing: Iterable[str] = ()) -> None:
        """Notes which parties are connected and, while some are not, which, and who refused why.

        Args:
            parties: that are here and can take part.
            of: number of all.
            missing: names of those who have not come.
        """
        names, refused = [name_of(party) for party in sorted(parties)], self.refused[:]
        if (names, refused) == self._told:
            return
        self._told, self._seen = (names, refused), len(refused)
        self._write(present=names)
        absent = list(missing)
        shown = ", ".join(absent[:MOST_SHOWN]) + ", ..." * (len(absent) > MOST_SHOWN)
        words = [f"{len(names)} of {of} present", *refused[-MOST_SHOWN:]]
        self._line("; ".join(words + ([f"waiting for {shown}"] if absent else [])))

    def outcome(self, words: str) -> None:
        """Words for the end of the session."""
        self._write(outcome=safe(words, 2000))
        self._line(safe(words, 2000))

    def _line(self, text: str) -> None:
        self.say(f"{time.monotonic() - self._start:7.1f} s  {text}")

    def _write(self, **fields: Any) -> None:
        """Keeps `status.json`; nobody reads half a file: it is written aside and renamed."""
        self._fields |= fields
        if self.directory is None:
            return
        content = self._fields | {
            "session": self.session,
            "seconds": round(time.monotonic() - self._start, 2),
            "missing": {name_of(user): step for user, step in sorted(self.missing.items())},
            "refused": self.refused,
            "bytes_received": self.received,
            "bytes_sent": self.sent,
        }
        partial = self.directory / f".{STATUS}.partial"
        partial.write_text(json.dumps(content, indent=2) + "\n")
        os.replace(partial, self.directory / STATUS)
