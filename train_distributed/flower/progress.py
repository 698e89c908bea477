"""Progress of a session: a line per stage for people, `status.json` for programs."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from train_distributed.flower.documents.federation import name_of
from train_distributed.flower.escape import safe

MOST_REFUSED = 200  # kept
MOST_SHOWN = 5  # names and refusals in a line
STATUS = "status.json"


@dataclass
class Log:
    """Faults of a session: identities and words, nothing of anyone's data."""

    missing: dict[int, str] = field(default_factory=dict)  # user -> where it was lost
    refused: list[str] = field(default_factory=list)
    session: str = field(default="", compare=False)  # nonce, hexadecimal
    received: int = field(default=0, compare=False)  # bytes of answers
    sent: int = field(default=0, compare=False)  # bytes of requests
    seconds: float = field(default=0.0, compare=False)
    bytes_of: dict[int, int] = field(default_factory=dict, compare=False)  # party -> of its answers

    sent_after: list[int] = field(default_factory=list, compare=False)  # most so far, by round

    def lost(self, users: Iterable[int], step: str) -> None:
        """Notes users that did not get past a step; the first note stays."""
        for user in sorted(users):
            self.missing.setdefault(user, step)

    def refuse(self, who: str, why: bytes | str) -> None:
        """Notes a refusal, printable; beyond `MOST_REFUSED` they are not kept."""
        if len(self.refused) < MOST_REFUSED:
            self.refused.append(f"{who}: {safe(why)}")


class Progress:
    """Tells people and programs.

    Nobody reads half a file: it is written aside and renamed.
    """

    def __init__(
        self,
        log: Log,
        directory: Path | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Says nothing yet.

        Args:
            log: of the session.
            directory: where `status.json` is kept; None: nowhere.
            say: takes a line.
        """
        self._log, self._directory, self._say = log, directory, say
        self._start = time.monotonic()
        self._seen = 0  # refusals that were in a line
        self._told: tuple[list[str], list[str]] | None = None
        self._fields: dict[str, Any] = {"stage": "gather", "outcome": None}

    def stage(self, name: str, asked: Iterable[int]) -> None:
        """A question goes out."""
        self._write(stage=name, asked=[name_of(party) for party in sorted(asked)], answered=None)

    def answered(self, count: int, asked: int) -> None:
        """The answers have come."""
        self._write(answered=count)
        fresh = self._log.refused[self._seen :]
        self._seen += len(fresh)
        self._line("; ".join([f"{self._fields['stage']}: {count} of {asked}", *fresh[:MOST_SHOWN]]))

    def present(self, parties: Iterable[int], of: int, missing: Iterable[str] = ()) -> None:
        """Notes which parties are connected and, while some are not, which, and who refused why.

        Args:
            parties: that are here and can take part.
            of: number of all.
            missing: names of those who have not come.
        """
        names, refused = [name_of(party) for party in sorted(parties)], self._log.refused[:]
        if (names, refused) == self._told:
            return
        self._told, self._seen = (names, refused), len(refused)
        self._write(present=names)
        absent = list(missing)
        shown = ", ".join(absent[:MOST_SHOWN]) + ", ..." * (len(absent) > MOST_SHOWN)
        words = [f"{len(names)} of {of} present", *refused[-MOST_SHOWN:]]
        self._line("; ".join(words + ([f"waiting for {shown}"] if absent else [])))

    def outcome(self, words: str) -> None:
        """How it ended."""
        self._write(outcome=safe(words, 2000))
        self._line(safe(words, 2000))

    def _line(self, text: str) -> None:
        self._log.seconds = time.monotonic() - self._start
        self._say(f"{self._log.seconds:7.1f} s  {text}")

    def _write(self, **fields: Any) -> None:
        self._fields |= fields
        if self._directory is None:
            return
        log = self._log
        content = self._fields | {
            "session": log.session,
            "seconds": round(time.monotonic() - self._start, 2),
            "missing": {name_of(user): step for user, step in sorted(log.missing.items())},
            "refused": log.refused,
            "bytes_received": log.received,
            "bytes_sent": log.sent,
        }
        partial = self._directory / f".{STATUS}.partial"
        partial.write_text(json.dumps(content, indent=2) + "\n")
        os.replace(partial, self._directory / STATUS)


def to_terminal(line: str) -> None:
    """Prints a line: the default place of a log."""
    print(line, file=sys.stderr, flush=True)
