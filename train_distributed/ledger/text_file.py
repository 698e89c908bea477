"""Ledgers of versions before, which were files of text: a line, its hash, a line feed.

Whoever was killed while writing left a torn line, without the line feed. The next writer ended it
with CANCEL, which occurs in no line, and a line of kind "torn" with the hash of the torn bytes and
the entry in them, as far as it could be read. Here a torn line at the end is closed in this way.
"""

import hashlib
import json
from contextlib import suppress

from train_distributed.ledger.entry import Entry, read_fields, to_words
from train_distributed.ledger.line import GENESIS, broken, line_hash, new_line, read_line

START = b'{"body": '
CANCEL = b"\x18"  # control characters are escaped in JSON
TORN = "torn"
_SEAL = b', "hash": "%s"}'
_SEAL_BYTES = len(_SEAL) - 2 + 64


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
