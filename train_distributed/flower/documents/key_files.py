"""Files of keys: secret ones for their owner alone, and the keys of Flower nodes."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)

from train_distributed.flower.documents.document import read_file, shown

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
NODE_KEY = "node-key"
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


def write_node_key(folder: Path) -> None:
    """`node-key` and `node-key.pub`: P-384, OpenSSH, as SuperNode authentication wants them."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    write_secret(folder / NODE_KEY, private)
    (folder / f"{NODE_KEY}.pub").write_bytes(_openssh(key.public_key()) + b"\n")


def node_key(folder: Path) -> str:
    """Public half, OpenSSH, of a folder's node key, as a federation states it.

    Raises:
        ValueError: no such key.
    """
    path = folder / NODE_KEY
    content = read_file(path)
    key = parsed(path, "a node's private key", lambda: load_ssh_private_key(content, None))
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP384R1):
        raise ValueError(f"{path} must be a P-384 key, got {type(key).__name__}")
    return _openssh(key.public_key()).decode()


def fingerprint(text: str) -> str:
    """SHA-256, hexadecimal, of a public node key: of its SubjectPublicKeyInfo.

    Raises:
        ValueError: not a P-384 key, written in the one way that OpenSSH has.
    """
    try:
        key = load_ssh_public_key(text.encode())
    except _UNREADABLE as error:
        raise ValueError(f"not an OpenSSH key, {shown(str(error))[:200]}") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or _openssh(key) != text.encode():
        raise ValueError("not a P-384 key without anything around it")
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()


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


def _openssh(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
