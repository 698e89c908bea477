"""A party's folder: its private keys, and the public ones that others put into the federation."""

import hashlib
import json
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_public_key,
)

from train_distributed.flower.certificates import write_node_key, write_secret
from train_distributed.secure_sum.keys import KEY_BYTES, PrivateKeys

PRIVATE, PUBLIC, NODE_KEY = "private.json", "public.json", "node-key"


def write_party(folder: Path) -> None:
    """Makes all keys of a party.

    Raises:
        FileExistsError: the folder has keys already; they are never overwritten.
    """
    folder.mkdir(parents=True, exist_ok=True)
    keys = PrivateKeys.generate()
    private = {"signing": keys.signing.hex(), "opening": keys.opening.hex()}
    write_secret(folder / PRIVATE, json.dumps(private).encode())
    write_node_key(folder)
    public = {"verifying": keys.public.verifying.hex(), "sealing": keys.public.sealing.hex()}
    (folder / PUBLIC).write_text(json.dumps(public) + "\n")


def read_private(folder: Path) -> PrivateKeys:
    """Reads a party's private keys.

    Raises:
        ValueError: not such a file.
        OSError: no readable file.
    """
    path = folder / PRIVATE
    try:
        fields = json.loads(path.read_text())
        keys = PrivateKeys(bytes.fromhex(fields["signing"]), bytes.fromhex(fields["opening"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} must hold a party's keys: {error!r}") from error
    if (len(keys.signing), len(keys.opening)) != (KEY_BYTES, KEY_BYTES):
        raise ValueError(f"{path} must hold keys of {KEY_BYTES} bytes")
    return keys


def read_public(folder: Path) -> dict[str, str]:
    """Reads what a party publishes, as it stands in a federation."""
    fields = json.loads((folder / PUBLIC).read_text())
    if set(fields) != {"verifying", "sealing"}:
        raise ValueError(f"{folder / PUBLIC} must hold verifying and sealing, got {sorted(fields)}")
    return fields


def node_fingerprint(path: Path) -> str:
    """SHA-256 of a node-key.pub (its SubjectPublicKeyInfo), hexadecimal.

    Raises:
        ValueError: not such a file.
        OSError: no readable file.
    """
    try:
        key = load_ssh_public_key(path.read_bytes())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ValueError(f"{path} must hold a node's public key: {error}") from error
    spki = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(spki).hexdigest()
