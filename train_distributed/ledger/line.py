"""A line of a ledger: JSON that names the line before it by its hash.

    {"body": {...}, "kind": "reserve", "time": "...", "previous": <64 hex>, "salt": <32 hex>}

Its own hash is SHA-256 of the text without the closing brace. Reports name it, and a line says
which rows were used, so every line has a salt from the operating system that never leaves the
ledger: without it nobody can try which rows give the hash. Lines of older versions have none.
"""

import hashlib
import json
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pretrain.cli.json_text import parsed

GENESIS = hashlib.sha256(b"blind-averaging ledger, version 1").hexdigest()
SALT_BYTES = 16


@dataclass(frozen=True)
class Line:
    """One line, verified."""

    kind: str
    body: dict[str, Any]
    time: str
    hash: str
    stated: dict[str, Any]  # all of it


def new_line(kind: str, body: dict[str, Any], previous: str) -> bytes:
    """The text of a line that follows the one of this hash, at this moment."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    stated = {"body": body, "kind": kind, "time": now, "previous": previous}
    stated |= {"salt": secrets.token_hex(SALT_BYTES)}
    return json.dumps(stated, allow_nan=False).encode()


def line_hash(_previous: bytes, _name: str, content: bytes) -> bytes:
    """Hash of a line; the text names the line before it."""
    return hashlib.sha256(content[:-1]).digest()


def read_line(content: bytes, previous: str) -> Line | None:
    """A line that follows from the one before it; None otherwise."""
    try:
        stated = parsed(content)
        follows = stated["previous"] == previous
        line = Line(
            stated["kind"],
            stated["body"],
            stated["time"],
            line_hash(b"", "", content).hex(),
            stated,
        )
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
