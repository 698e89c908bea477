"""JSON that somebody else wrote: every field has a type, every refusal names file, field, value.

A document is a `msgspec.Struct`: unknown fields, other types and numbers out of range are refused.
What is read is bounded before it is parsed. Of a name that is there twice the last value counts, so
digests and signatures are over the values as they are written again, never over the bytes received.
Secrets are written for their owner alone.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    NoReturn,
    Self,
    TypeVar,
    get_args,
    get_type_hints,
)

import msgspec

from pretrain.cli.output import new_file
from train_distributed.secure_sum.errors import BadSignature
from train_distributed.secure_sum.keys import (
    FIRST_SERVER,
    KEY_BYTES,
    SIGNATURE_BYTES,
    PrivateKeys,
    sign,
    verify,
)

SMALL, LARGE = 1 << 20, 1 << 28  # bytes of one party's files; of a federation of 100,000 users
SHOWN = 60  # characters of a refused value
LONGEST = 300  # characters from the network that are shown
MOST_ROWS = 2**40
NAME = re.compile("[a-z0-9][a-z0-9._-]{0,39}")
NAME_RULE = "1 to 40 of a-z 0-9 . _ -, the first a letter or digit"
KEY = re.compile(f"[0-9a-f]{{{2 * KEY_BYTES}}}")
ADDRESS = re.compile(r"[A-Za-z0-9._\-\[\]:]{1,255}:[0-9]{1,5}")
_SIGNATURE = re.compile(f"([0-9a-f]{{{2 * SIGNATURE_BYTES}}})?")
_BYTES = re.compile("([0-9a-f]{2}){0,1024}")
_CERTIFICATE = re.compile(
    "(-----BEGIN CERTIFICATE-----\n[A-Za-z0-9+/=\n]{1,4000}-----END CERTIFICATE-----\n)?"
)
_RULES = {
    KEY: f"{KEY_BYTES} bytes in hexadecimal",
    NAME: NAME_RULE,
    ADDRESS: "HOST:PORT",
    _SIGNATURE: f"{SIGNATURE_BYTES} bytes in hexadecimal",
    _BYTES: "bytes in hexadecimal",
    _CERTIFICATE: "a certificate in PEM",
}


def _whole(pattern: re.Pattern[str]) -> msgspec.Meta:
    return msgspec.Meta(pattern=rf"\A(?:{pattern.pattern})\Z")


Key = Annotated[str, _whole(KEY)]  # or a SHA-256
Name = Annotated[str, _whole(NAME)]
HostPort = Annotated[str, _whole(ADDRESS)]
Signature = Annotated[str, _whole(_SIGNATURE)]  # empty: not signed
Bytes = Annotated[str, _whole(_BYTES)]
Certificate = Annotated[str, _whole(_CERTIFICATE)]  # empty: none
Rows = Annotated[int, msgspec.Meta(ge=1, le=MOST_ROWS)]
Count = Annotated[int, msgspec.Meta(ge=1, le=FIRST_SERVER)]
UserNumber = Annotated[int, msgspec.Meta(ge=0, lt=FIRST_SERVER)]
PartyNumber = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
_WORDS = {  # of the library -> ours
    **{f"`str` matching regex {_whole(each).pattern!r}": rule for each, rule in _RULES.items()},
    "`int`": "a whole number",
    "`float`": "a number",
    "`str`": "text",
    "`object`": "an object",
    "`array`": "a list",
}
MADE_BY = {  # file of a folder that may be the wrong one -> what makes the right one
    "private.json": "a party's `federation join`, or the operator's `federation init`,",
    "federation.json": "the operator's `federation init`",
    "operator.json": "the operator's `federation init`, in the folder `invitation` of its own,",
    "window.json": "the operator's `federation window`, in a folder of its own,",
    "server.pem": "the operator's `federation init`, in the folder `tls` of its own,",
    "roll": "the operator's `federation window`, beside window.json,",
}
T = TypeVar("T")


class Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A JSON file, or a part of one. Only what is read is checked, not what is constructed."""

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads the file; raises ValueError naming file, field, rule and value."""
        return read_as(path, cls)

    def save(self, path: Path) -> None:
        """Writes the file, whole or not at all."""
        with new_file(path) as partial:
            partial.write_bytes(self.text)

    def checked(self) -> Self:
        """Checks all fields as if read from a file; raises ValueError naming field and rule."""
        return converted(self.fields, type(self), Path("federation"))

    @property
    def fields(self) -> dict[str, Any]:
        """JSON-ready fields."""
        return msgspec.to_builtins(self, str_keys=True)

    @property
    def text(self) -> bytes:
        """Content of the JSON file."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"

    @property
    def canonical(self) -> bytes:
        """The one form of these values, which is hashed and signed."""
        return msgspec.json.encode(self.fields, order="sorted")


class Signed(Document, frozen=True, kw_only=True):
    """A file of one party that others carry."""

    kind: ClassVar[str]  # of file, which is signed as well
    if TYPE_CHECKING:  # a field of each kind, for the layout in memory
        signature: Signature

    def signed(self, keys: PrivateKeys) -> Self:
        """The file with its signature."""
        return msgspec.structs.replace(self, signature=sign(keys.signing, self._message).hex())

    def check_signature(self, path: Path, verifying: str, whose: str) -> None:
        """Raises ValueError, naming file and signer, unless this key (hexadecimal) signed it."""
        try:
            verify(bytes.fromhex(verifying), bytes.fromhex(self.signature), self._message)
        except BadSignature as error:
            raise ValueError(f"{path}: signature must be {whose}, got: {error}") from error

    @property
    def _message(self) -> bytes:
        unsigned = msgspec.structs.replace(self, signature="").canonical
        return f"blind averaging, {self.kind}, version 2\n".encode() + unsigned


def read_as(path: Path, kind: type[T], largest: int = LARGE, *, secret: bool = False) -> T:
    """Reads a JSON file.

    Args:
        path: of the file.
        kind: what it must hold.
        largest: bytes.
        secret: whether no value may be shown.

    Raises:
        ValueError: naming the file; and field, rule and value where it is JSON.
    """
    content = read_file(path, largest)
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError as error:
        try:
            values = msgspec.json.decode(content)
        except (ValueError, RecursionError):  # a number out of any range; too many levels
            values = None
        _refuse(path, "", str(error), values, kind, secret)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} must be strict JSON, got: {_cut(str(error))}") from error


def converted(
    values: Any, kind: type[T], path: Path, inside: str = "", *, strict: bool = True
) -> T:
    """Converts JSON-ready values to a document, with the checks of `read_as`.

    Args:
        values: JSON-ready.
        kind: what they must be.
        path: of the file that they come from, for errors.
        inside: where in the file, "task.".
        strict: whether numbers must not be text.

    Raises:
        ValueError: naming file, field, rule and value.
    """
    try:
        return msgspec.convert(values, kind, strict=strict, str_keys=True)
    except msgspec.ValidationError as error:
        _refuse(path, inside, str(error), values, kind, secret=False)


def _refuse(path: Path, inside: str, error: str, values: Any, kind: type, secret: bool) -> NoReturn:
    """Raises ValueError in our words for a refusal of the library's."""
    words, _, place = error.rpartition(" - at ") if " - at " in error else (error, "", "")
    steps, found = [], values
    for step in re.findall(r"(?<=\.)\w+|(?<=\[)(?:\d+|\.{3})(?=\])", place.rpartition("$")[2]):
        if step == "..." and isinstance(found, dict):
            step = _odd(values, found, kind, error)
        steps.append(step)
        found = _within(found, step)
    if place.startswith("`key`") and isinstance(found, dict):
        steps.append(found := _odd(values, found, kind, error))
    if lacking := re.fullmatch(r"Object (missing required|contains unknown) field `(.*)`", words):
        given = lacking[1] != "missing required"
        steps.append(lacking[2][:SHOWN])
        words, found = ("left out", "a value") if given else ("given", "nothing")
    elif words.startswith("Invalid enum value"):
        choices = _choices(get_type_hints(kind).get(steps[-1]))
        words = f"one of {', '.join(map(str, choices))}"
    elif words.startswith("Expected "):
        words = words.removeprefix("Expected ").partition(", got")[0]
        for theirs, ours in _WORDS.items():
            words = words.replace(theirs, ours)
    elif words.endswith("out of range"):
        words = "a number of usual size"
    else:  # a rule of the struct's own, which names its field
        where = f"{inside}{''.join(f'{step}.' for step in steps)}"
        raise ValueError(f"{path}: {shown(where + words)}")
    where = inside + ".".join(steps) if steps else "content"
    got = "something else" if secret and found != "nothing" else _cut(found)
    raise ValueError(f"{path}: {shown(where)} must be {shown(words)}, got {shown(got)}")


def _odd(values: Any, part: dict[str, Any], kind: type, error: str) -> str:
    """Key of an entry of `part`, which is in `values`, that is refused: all others are removed."""
    while len(part) > 1:
        entries = list(part.items())
        for half in (entries[: len(entries) // 2], entries[len(entries) // 2 :]):
            part.clear()
            part.update(half)
            try:
                msgspec.convert(values, kind, str_keys=True)
            except msgspec.ValidationError as again:
                if str(again) == error:
                    break
    return next(iter(part))


def _within(value: Any, step: str) -> Any:
    if isinstance(value, dict):
        return value.get(step)
    return value[int(step)] if isinstance(value, list | tuple) else value


def _choices(hint: Any) -> list[Any]:
    """Values of the literals of a type."""
    parts = get_args(hint)
    return [each for part in parts for each in _choices(part) or [part] if each is not None]


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
