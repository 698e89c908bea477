"""A party's private keys: private.json, for its owner alone, and encrypted if it has a passphrase.

Without a passphrase it holds both seeds in hexadecimal. With one it holds each as encrypted PKCS #8
(RFC 5958) and the public keys beside them, so that what needs no secret asks for no passphrase.
"""

import getpass
import sys
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from train_distributed.federation.documents.document import (
    KEY,
    SMALL,
    Document,
    read_as,
    read_file,
    write_secret,
)
from train_distributed.federation.documents.party import Keys
from train_distributed.secure_sum.keys import KEY_BYTES, PrivateKeys, PublicKeys

PRIVATE = "private.json"
OTHERS = 0o077  # bits of a mode: whatever others than the owner may do
MOST_PASSPHRASE = 1000  # bytes, of 1,023 that OpenSSL takes
_KINDS = {"signing": Ed25519PrivateKey, "opening": X25519PrivateKey}


class _Private(Document, frozen=True, kw_only=True, omit_defaults=True):
    signing: str  # Ed25519, a seed in hexadecimal, or encrypted as text of PEM
    opening: str  # X25519, the same
    public: Keys | None = None  # of encrypted keys

    def __post_init__(self) -> None:
        for name in _KINDS:
            if self.public is None and not KEY.fullmatch(getattr(self, name)):
                raise ValueError(f"{name} must be {KEY_BYTES} bytes in hexadecimal, is not")


def write_party(folder: Path, passphrase_file: Path | None = None) -> PrivateKeys:
    """Makes all keys of a party.

    Args:
        folder: where to.
        passphrase_file: with the passphrase that encrypts them; None: they are not encrypted.

    Raises:
        FileExistsError: the folder has keys already; they are never overwritten.
        ValueError: no passphrase in the file.
    """
    keys = PrivateKeys.generate()
    stated, public = {name: getattr(keys, name).hex() for name in _KINDS}, None
    if passphrase_file is not None:
        algorithm = BestAvailableEncryption(_passphrase(passphrase_file))
        form = Encoding.PEM, PrivateFormat.PKCS8, algorithm
        for name, kind in _KINDS.items():
            key = kind.from_private_bytes(getattr(keys, name))
            stated[name] = key.private_bytes(*form).decode()
        public = Keys.of(keys.public)
    folder.mkdir(parents=True, exist_ok=True)
    write_secret(folder / PRIVATE, _Private(**stated, public=public).text)
    return keys


def read_private(folder: Path, passphrase_file: Path | None = None) -> PrivateKeys:
    """Reads a party's private keys; the passphrase is asked for at a terminal if it has no file.

    Raises:
        ValueError: not such a file, others may read it, or the passphrase is missing or another;
            what it holds is never shown.
    """
    path, stated = folder / PRIVATE, _stated(folder)
    if stated.public is None:
        if passphrase_file is not None:
            raise ValueError(f"passphrase_file must be left out, as {path} is not encrypted")
        return PrivateKeys(*(bytes.fromhex(getattr(stated, name)) for name in _KINDS))
    if passphrase_file is not None:
        passphrase = _passphrase(passphrase_file)
    elif sys.stdin is not None and sys.stdin.isatty():
        passphrase = getpass.getpass(f"Passphrase of {path}: ").encode()
    else:
        raise ValueError(f"passphrase_file must be given, as {path} is encrypted, got none")
    seeds = list[bytes]()
    for name in _KINDS:
        try:
            key = load_pem_private_key(getattr(stated, name).encode(), passphrase)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise ValueError(f"passphrase must be the one that encrypts {path}, is not") from error
        if isinstance(key, Ed25519PrivateKey | X25519PrivateKey):
            seeds.append(key.private_bytes_raw())
    if len(seeds) != 2 or (keys := PrivateKeys(*seeds)).public != stated.public.public:
        raise ValueError(f"{path} must hold the private keys of its public ones, holds others")
    return keys


def read_public(folder: Path) -> PublicKeys:
    """Public keys of a party's folder, without its passphrase.

    Raises:
        ValueError: not such a file, or others may read it.
    """
    public = _stated(folder).public
    return read_private(folder).public if public is None else public.public


def _stated(folder: Path) -> _Private:
    stated = read_as(path := folder / PRIVATE, _Private, SMALL, secret=True)
    if (mode := path.stat().st_mode & 0o777) & OTHERS:
        raise ValueError(f"{path} must be its owner's alone, has mode {mode:o}: chmod 600 {path}")
    return stated


def _passphrase(path: Path) -> bytes:
    """First line of a file, at any mode: systems that hand out secrets choose their own."""
    line = read_file(path).partition(b"\n")[0].rstrip(b"\r")
    if not 0 < len(line) <= MOST_PASSPHRASE:
        raise ValueError(
            f"{path} must hold a passphrase of 1 to {MOST_PASSPHRASE} bytes, got {len(line)}"
        )
    return line
