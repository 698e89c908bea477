"""A party's public keys, and the one file that it gives out."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

import msgspec

from train_distributed.federation.documents.document import (
    MOST_ROWS,
    SMALL,
    Certificate,
    Document,
    Key,
    Name,
    Signature,
    Signed,
    converted,
    read_as,
)
from train_distributed.secure_sum.keys import PublicKeys, check_order

SUFFIX = ".party.json"


class Keys(Document, frozen=True, kw_only=True):
    """Public keys of a party, hexadecimal.

    Raises:
        ValueError: a sealing key of small order, with which anybody could open what is sealed.
    """

    verifying: Key  # Ed25519
    sealing: Key  # X25519

    def __post_init__(self) -> None:
        try:
            check_order(bytes.fromhex(self.sealing))
        except ValueError as error:
            raise ValueError(f"sealing must be a key of full order, got: {error}") from error

    @staticmethod
    def of(keys: PublicKeys) -> "Keys":
        """The keys as a file has them."""
        return Keys(verifying=keys.verifying.hex(), sealing=keys.sealing.hex())

    @property
    def public(self) -> PublicKeys:
        """The keys as others pin them."""
        return PublicKeys(bytes.fromhex(self.verifying), bytes.fromhex(self.sealing))


class Party(Keys, Signed, frozen=True, kw_only=True):
    """Public file of a party, signed by it: nobody can offer another's keys as his own."""

    kind: ClassVar[str] = "party file"
    name: Name
    role: Literal["user", "server"]  # "server": a computation server
    rows: Annotated[int, msgspec.Meta(ge=0, le=MOST_ROWS)]  # training rows of a user; a server: 0
    certificate: Certificate = ""  # of a server that has TLS
    signature: Signature = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.role == "user") != (self.rows > 0):
            rule = "of a user must be >= 1" if self.role == "user" else "of a server must be 0"
            raise ValueError(f"rows {rule}, got {self.rows}")
        if self.role == "user" and self.certificate:
            raise ValueError("certificate of a user must be left out, got one")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads a party file.

        Raises:
            ValueError: naming file, field, rule and value.
        """
        return read_as(path, cls, SMALL)._checked(path)

    @staticmethod
    def of_line(values: dict[str, str], source: Path) -> "Party":
        """A party from its line of a table; raises as `load`."""
        return converted(values, Party, source, strict=False)._checked(source)

    def _checked(self, path: Path) -> Self:
        self.check_signature(path, self.verifying, "the party's own, by its verifying key")
        return self
