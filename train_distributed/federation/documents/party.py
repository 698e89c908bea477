"""A party: its folder of private keys, and the one file that it gives out."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pretrain.cli.output import new_file
from train_distributed.federation.documents.document import (
    SIGNATURE,
    Document,
    check_signature,
    read_document,
    with_signature,
    write_secret,
)
from train_distributed.secure_sum.errors import BadSeal
from train_distributed.secure_sum.keys import (
    KEY_BYTES,
    PrivateKeys,
    PublicKeys,
    check_order,
)

PRIVATE, SUFFIX = "private.json", ".party.json"
MOST_ROWS = 2**40
NAME = re.compile("[a-z0-9][a-z0-9._-]{0,39}")
NAME_RULE = "1 to 40 of a-z 0-9 . _ -, the first a letter or digit"
KEY = re.compile(f"[0-9a-f]{{{2 * KEY_BYTES}}}")
KEY_RULE = f"{KEY_BYTES} bytes in hexadecimal"
PARTY_FILE = "party file"


@dataclass(frozen=True)
class Party:
    """Public file of a party, signed by it: nobody can offer another's keys as his own."""

    name: str
    role: Literal["user", "server"]  # "server": a computation server
    rows: int  # training rows of a user, public; 0 for a server
    verifying: str  # Ed25519, hexadecimal
    sealing: str  # X25519, hexadecimal

    @staticmethod
    def read(path: Path) -> "Party":
        """Reads a party file.

        Raises:
            ValueError: naming file, field, rule and value.
        """
        return Party.of(read_document(path))

    @staticmethod
    def of(document: Document) -> "Party":
        """Reads the fields of a party file.

        Raises:
            ValueError: naming file, field, rule and value.
        """
        document.only([*Party.__dataclass_fields__, SIGNATURE])
        role = document.text("role", re.compile("user|server"), '"user" or "server"')
        party = Party(
            name=document.text("name", NAME, NAME_RULE),
            role="user" if role == "user" else "server",
            rows=document.whole("rows", 1, MOST_ROWS)
            if role == "user"
            else document.whole("rows", 0, 0),
            verifying=document.text("verifying", KEY, KEY_RULE),
            sealing=document.text("sealing", KEY, KEY_RULE),
        )
        try:
            check_order(bytes.fromhex(party.sealing))
        except BadSeal as error:
            document.refuse("sealing", "a key of full order", str(error))
        own = "the party's own, by its verifying key"
        check_signature(document, PARTY_FILE, party.verifying, own)
        return party

    def write(self, path: Path, keys: PrivateKeys) -> None:
        """Writes the file, signed, whole or not at all."""
        with new_file(path) as partial:
            partial.write_text(json.dumps(self.signed(keys), indent=1) + "\n")

    def signed(self, keys: PrivateKeys) -> dict[str, Any]:
        """All fields, and their signature."""
        return with_signature(vars(self), PARTY_FILE, keys.signing)


def write_party(folder: Path) -> PrivateKeys:
    """Makes all keys of a party.

    Raises:
        FileExistsError: the folder has keys already; they are never overwritten.
    """
    folder.mkdir(parents=True, exist_ok=True)
    keys = PrivateKeys.generate()
    private = {"signing": keys.signing.hex(), "opening": keys.opening.hex()}
    write_secret(folder / PRIVATE, json.dumps(private).encode())
    return keys


def read_private(folder: Path) -> PrivateKeys:
    """Reads a party's private keys.

    Raises:
        ValueError: not such a file; what it holds is never shown.
    """
    document = read_document(folder / PRIVATE)
    document.only(["signing", "opening"])
    return PrivateKeys(_secret(document, "signing"), _secret(document, "opening"))


def public_keys(keys: PublicKeys) -> dict[str, str]:
    """Public keys as the JSON of a federation has them."""
    return {"verifying": keys.verifying.hex(), "sealing": keys.sealing.hex()}


def _secret(document: Document, name: str) -> bytes:
    value = document.values[name]
    if not isinstance(value, str) or not KEY.fullmatch(value):
        document.refuse(name, KEY_RULE, "something else")
    return bytes.fromhex(value)
