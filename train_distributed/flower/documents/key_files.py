"""Files of keys: secret ones for their owner alone; what a library cannot read, by name."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

from train_distributed.flower.documents.document import shown

_UNREADABLE = (  # what the library may raise for a file that is not what it should be
    ValueError,
    TypeError,
    AssertionError,
    LookupError,
    ArithmeticError,
    NotImplementedError,
    UnsupportedAlgorithm,
    InvalidSignature,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.ExtensionNotFound,
    x509.UnsupportedGeneralNameType,
)
T = TypeVar("T")


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


def parsed(path: Path, rule: str, parse: Callable[[], T]) -> T:
    """Parses a file; what the library cannot read is refused by name.

    Raises:
        ValueError: naming file and rule.
    """
    try:
        return parse()
    except _UNREADABLE as error:
        words = shown(" ".join(str(error).split()))[:200] or type(error).__name__
        raise ValueError(f"{path} must be {rule}, got: {words}") from error
