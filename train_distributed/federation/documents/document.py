"""JSON that somebody else wrote: every field is looked at, every refusal names file, field, value.

Stricter than JSON: UTF-8 only, no name twice, no NaN or infinity, no number of hundreds of digits,
no unknown fields. What is read is bounded before it is parsed. Secrets are written for their owner
alone.
"""

import json
import math
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pretrain.cli.json_text import parsed
from train_distributed.secure_sum.errors import BadSignature
from train_distributed.secure_sum.keys import SIGNATURE_BYTES, sign, verify

SMALL, LARGE = 1 << 20, 1 << 28  # bytes of one party's files; of a federation of 100,000 users
DIGITS = 20  # of a whole number
SHOWN = 60  # characters of a refused value
LONGEST = 300  # characters from the network that are shown
ANY_TEXT = re.compile(r".{1,200}")
T = TypeVar("T")
SIGNATURE = "signature"  # of files of one party that others carry
_SIGNATURE = re.compile(f"[0-9a-f]{{{2 * SIGNATURE_BYTES}}}")
MADE_BY = {  # file of a folder that may be the wrong one -> what makes the right one
    "private.json": "a party's `federation join`, or the operator's `federation init`,",
    "federation.json": "the operator's `federation init`",
    "operator.json": "the operator's `federation init`, in the folder `invitation` of its own,",
    "window.json": "the operator's `federation window`, in a folder of its own,",
    "server.pem": "the operator's `federation init`, in the folder `tls` of its own,",
    "roll": "the operator's `federation window`, beside window.json,",
}


@dataclass(frozen=True)
class Document:
    """A JSON object of a file, or a part of one."""

    path: Path
    values: dict[str, Any]
    inside: str = ""  # where in the file, "task."

    def only(self, required: Collection[str], optional: Collection[str] = ()) -> None:
        """Raises ValueError for a field that is missing or unknown."""
        for name in required:
            if name not in self.values:
                self.refuse(name, "given", "nothing")
        for name in self.values:
            if name not in required and name not in optional:
                self.refuse(
                    name, f"left out: fields are {sorted({*required, *optional})}", "a value"
                )

    def text(self, name: str, pattern: re.Pattern[str] = ANY_TEXT, rule: str = "") -> str:
        """A string that can be printed and matches the pattern from end to end."""
        value = self._of(name)
        if not isinstance(value, str) or not value.isprintable() or not pattern.fullmatch(value):
            self.refuse(name, rule or "a line of text", value)
        return value

    def whole(self, name: str, least: int, most: int) -> int:
        """A whole number, no truth value, in a closed range."""
        value = self._of(name)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            self.refuse(name, f"a whole number from {least} to {most}", value)
        return value

    def number(self, name: str, above: float, below: float) -> float:
        """A number in an open range."""
        value = self._of(name)
        real = isinstance(value, int | float) and not isinstance(value, bool)
        if not real or not above < value < below:
            self.refuse(name, f"a number between {above:g} and {below:g}", value)
        return float(value)

    def part(self, name: str) -> "Document":
        """An object within."""
        value = self._of(name)
        if not isinstance(value, dict):
            self.refuse(name, "an object", value)
        return Document(self.path, value, f"{self.inside}{name}.")

    def list(self, name: str, most: int) -> "Document":
        """A list within, as a part whose fields are its places: "0", "1", ..."""
        value = self._of(name)
        if not isinstance(value, list | tuple) or len(value) > most:
            self.refuse(name, f"a list of at most {most}", value)
        values = {str(place): each for place, each in enumerate(value)}
        return Document(self.path, values, f"{self.inside}{name}.")

    def identities(self) -> Iterator[tuple[int, str]]:
        """Number and field of every field that is a party's."""
        return self.numbers(2**32 - 1, "the number of a party")

    def numbers(self, most: int, rule: str = "") -> Iterator[tuple[int, str]]:
        """Number and field of every field; numbers of at most `most`, written in one way only."""
        for name in self.values:
            if not re.fullmatch(f"0|[1-9][0-9]{{0,{DIGITS}}}", name) or int(name) > most:
                self.refuse(name, rule or f"a number of at most {most}", name)
            yield int(name), name

    def refuse(self, name: str, rule: str, value: object) -> NoReturn:
        """Raises the ValueError that names file, field, rule and value."""
        raise ValueError(
            f"{self.path}: {self.inside}{shown(name[:SHOWN])} must be {rule}, got {_cut(value)}"
        )

    def _of(self, name: str) -> Any:
        if name not in self.values:
            self.refuse(name, "given", "nothing")
        return self.values[name]


def read_document(path: Path, largest: int = SMALL) -> Document:
    """Reads a file that must hold one JSON object.

    Raises:
        ValueError: no such file, longer than `largest` bytes, or not such JSON.
    """
    content = read_file(path, largest)
    try:
        values = parsed(
            content.decode(),
            object_pairs_hook=_distinct,
            parse_int=_whole,
            parse_float=_finite,
            parse_constant=_finite,
        )
    except ValueError as error:
        raise ValueError(f"{path} must be strict JSON, got: {_cut(str(error))}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold a JSON object, got {_cut(values)}")
    return Document(path, values)


def read_file(path: Path, largest: int = SMALL) -> bytes:
    """The bytes of a file.

    Raises:
        ValueError: there is none, it is not an ordinary one, or longer than `largest` bytes.
    """
    try:
        if not path.is_file():
            kind = "something else" if path.exists() else "nothing there"
            made = MADE_BY.get(path.name)
            remedy = f"; {made} makes it" if made and kind == "nothing there" else ""
            raise ValueError(f"{path} must be a file, got {kind}{remedy}")
        with path.open("rb") as file:
            content = file.read(largest + 1)
    except OSError as error:
        raise ValueError(f"{path} must be a readable file, got: {error.strerror}") from error
    if len(content) > largest:
        raise ValueError(f"{path} must be at most {largest} bytes, got more")
    return content


def load_file(path: Path, load: Callable[[Path], T], what: str) -> T:
    """Loads a file from elsewhere, of at most `LARGE` bytes.

    Raises:
        ValueError: naming the file and what it must be, whatever it holds.
    """
    read_file(path, LARGE)
    try:
        return load(path)
    except (TypeError, ArithmeticError, RuntimeError, ValueError) as error:
        words = " ".join(str(error).split())[:300]
        raise ValueError(f"{path} must be {what}, got: {shown(words)}") from error


def write_secret(path: Path, content: bytes) -> None:
    """A new file that only its owner can read.

    Raises:
        FileExistsError: a secret is never overwritten.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def replace_secret(path: Path, content: bytes) -> None:
    """Writes a file that only its owner can read, whole or not at all, over an older one."""
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    write_secret(partial, content)
    partial.replace(path)


def with_signature(values: Mapping[str, Any], what: str, signing: bytes) -> dict[str, Any]:
    """The fields and their signature; `what` names the kind of file, which is signed as well."""
    return {**values, SIGNATURE: sign(signing, _signed(values, what)).hex()}


def check_signature(document: Document, what: str, verifying: str, whose: str) -> None:
    """Refuses a file that is not signed by this key (hexadecimal).

    Raises:
        ValueError: naming the file, and whose signature is missing.
    """
    given = document.text(SIGNATURE, _SIGNATURE, f"{SIGNATURE_BYTES} bytes in hexadecimal")
    values = {name: value for name, value in document.values.items() if name != SIGNATURE}
    try:
        verify(bytes.fromhex(verifying), bytes.fromhex(given), _signed(values, what))
    except BadSignature as error:
        document.refuse(SIGNATURE, whose, str(error))


def _signed(values: Mapping[str, Any], what: str) -> bytes:
    head = f"blind averaging, {what}, version 1\n"
    return head.encode() + json.dumps(dict(values), sort_keys=True).encode()


def shown(text: str) -> str:
    """Text from elsewhere, safe to print on a terminal: control characters are escaped."""
    return text if text.isprintable() else repr(text)[1:-1]


def safe(content: bytes | str, longest: int = LONGEST) -> str:
    """Bytes or words from the network as printable ASCII of limited length, the rest escaped."""
    text = content.decode(errors="backslashreplace") if isinstance(content, bytes) else content
    escaped = ascii(text[: longest + 1])[1:-1]
    return escaped if len(escaped) <= longest else escaped[: longest - 3] + "..."


def _cut(value: object) -> str:
    text = value if isinstance(value, str) and value.isprintable() else repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]} ..."


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise ValueError(f"field {_cut(twice)} twice")
    return fields


def _whole(digits: str) -> int:
    if len(digits) > DIGITS:
        raise ValueError(f"a whole number of {len(digits)} digits")
    return int(digits)


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{_cut(number)}, which is not finite")
    return value
