"""A line of a ledger: JSON that names the line before it by its hash.

    {"body": {...}, "kind": "reserve", "time": "...", "previous": <64 hex>, "salt": <32 hex>,
     "place": "/..."}

Its own hash is SHA-256 of the text without the closing brace. Reports name it, and a line says
which rows were used, so every line has a salt from the operating system that never leaves the
ledger: without it nobody can try which rows give the hash. It also says where the ledger lay, so
that a copy knows its original. Lines of older versions have neither.

Ledgers of version 0.1 were files of text: a line, its hash, a line feed. Whoever was killed while
writing left a torn line, without the line feed. The next writer ended it with CANCEL, which occurs
in no line, and a line of kind "torn" with the hash of the torn bytes and the entry in them, as far
as it could be read. Here a torn line at the end is closed in this way.
"""

import hashlib
import json
import secrets
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pretrain.cli.json_text import parsed
from train_distributed.ledger.entry import Entry, read_fields, to_words

GENESIS = hashlib.sha256(b"blind-averaging ledger, version 1").hexdigest()
SALT_BYTES = 16
ID_DIGITS = 16
START = b'{"body": '
CANCEL = b"\x18"  # control characters are escaped in JSON
TORN = "torn"
_SEAL = b', "hash": "%s"}'
_SEAL_BYTES = len(_SEAL) - 2 + 64


@dataclass(frozen=True)
class Line:
    """One line, verified."""

    kind: str
    body: dict[str, Any]
    time: str
    hash: str
    stated: dict[str, Any]  # all of it

    @property
    def place(self) -> str:
        """Path of the ledger that the line was written to; empty where it does not say."""
        place = self.stated.get("place")
        return place if isinstance(place, str) else ""

    @property
    def id(self) -> str:
        """Id of the entry that it reserves."""
        return self.hash[:ID_DIGITS]


def new_line(kind: str, body: dict[str, Any], previous: str, place: str = "") -> bytes:
    """The text of a line that follows the one of this hash, at this moment."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    stated = {"body": body, "kind": kind, "time": now, "previous": previous}
    stated |= {"salt": secrets.token_hex(SALT_BYTES)} | ({"place": place} if place else {})
    return json.dumps(stated, allow_nan=False).encode()


def line_hash(_previous: bytes, _name: str, content: bytes) -> bytes:
    """Hash of a line; the text names the line before it."""
    return hashlib.sha256(content[:-1]).digest()


def read_line(content: bytes, previous: str) -> Line | None:
    """A line that follows from the one before it; None otherwise."""
    try:
        stated = parsed(content)
        follows = stated["previous"] == previous
        named = line_hash(b"", "", content).hex()
        line = Line(stated["kind"], stated["body"], stated["time"], named, stated)
    except (ValueError, TypeError, KeyError):
        return None
    return line if follows and isinstance(line.body, dict) else None


def read_lines(contents: Iterable[bytes], name: str, previous: str = GENESIS) -> list[Line]:
    """Lines of a ledger, oldest first, from the one that follows `previous` on.

    Raises:
        ValueError: one does not follow from the one before it.
    """
    lines: list[Line] = []
    for content in contents:
        line = read_line(content, lines[-1].hash if lines else previous)
        if line is None:
            raise broken(len(lines) + 1, name)
        lines.append(line)
    return lines


def broken(number: int, name: str) -> ValueError:
    """Refusal of a line that is not as it was written."""
    return ValueError(
        f"ledger must be an unbroken chain of lines, line {number} is altered or does not "
        f"follow from the one before it: {name}"
    )


def text_lines(content: bytes, name: str) -> list[bytes]:
    """The lines of such a file, verified, without their hashes; a torn one at the end is closed.

    Raises:
        ValueError: a line was altered or does not follow from the one before it.
    """
    *whole, torn = content.split(b"\n")
    lines, previous = list[bytes](), GENESIS
    for number, raw in enumerate(whole, 1):
        left, cancel, sealed = raw.rpartition(CANCEL)
        text = sealed[:-_SEAL_BYTES] + b"}"
        line = read_line(text, previous)
        hashed = text[:-1] + _SEAL % line_hash(b"", "", text).hex().encode()
        if line is None or sealed != hashed or (cancel != b"") != (line.kind == TORN):
            raise broken(number, name)
        if cancel and line.body.get("sha256") != hashlib.sha256(left).hexdigest():
            raise broken(number, name)
        lines.append(text)
        previous = line.hash
    if not whole and torn[: len(START)] != START[: len(torn)]:
        raise broken(1, name)  # nothing that a writer of text has begun, such as a damaged store
    if torn:
        entry, digest = torn_entry(torn), hashlib.sha256(torn).hexdigest()
        body = {"entry": None if entry is None else to_words(entry)}
        lines.append(new_line(TORN, {**body, "bytes": len(torn), "sha256": digest}, previous))
    return lines


def torn_entry(torn: bytes) -> Entry | None:
    """The oldest entry that a killed writer has written to its end, or nearly."""
    for piece in torn.split(CANCEL):
        with suppress(ValueError):
            if piece.startswith(START):
                body = json.JSONDecoder().raw_decode(piece.decode(), len(START))[0]
                if isinstance(body, dict) and body.get("entry") is not None:
                    return read_fields(Entry, body["entry"])
    return None
