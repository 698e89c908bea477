"""Invitation: the folder that the operator hands to every party, and who a party is in it."""

import hashlib
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from train_distributed.federation.documents.certificates import AGREED, read_certificates
from train_distributed.federation.documents.document import (
    SMALL,
    HostPort,
    Key,
    Signature,
    Signed,
    read_as,
    read_file,
)
from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.documents.place import PLACES, at_place, place_path
from train_distributed.federation.documents.terms import agreed_file
from train_distributed.secure_sum.keys import FIRST_SERVER, PrivateKeys

FEDERATION, OPERATOR = "federation.json", "operator.json"
LEAST_TOLD = 16  # characters of a digest: nobody finds another federation that begins with 64 bits


class Operator(Signed, frozen=True, kw_only=True):
    """File signed by the operator: its address, and the digest of its federation."""

    kind: ClassVar[str] = OPERATOR
    address: HostPort
    federation: Key  # its digest
    signature: Signature = ""


@dataclass(frozen=True)
class Invitation:
    """The federation, the transform, certificates, and where the operator listens."""

    folder: Path
    federation: Federation
    address: str  # host:port of the operator

    @property
    def certificates(self) -> Path | None:
        """The services' certificates; None: the system's authorities, as proxies have TLS."""
        return self.folder / AGREED if self.federation.certificates else None

    @property
    def agreed(self) -> Path:
        """The one file that was agreed on: the public transform, or the model to be evaluated."""
        return self.folder / agreed_file(self.federation.task)

    def write(self, certificates: bytes, agreed: Path, keys: PrivateKeys) -> None:
        """Writes the folder, which must not exist; the keys are the operator's."""
        self.folder.mkdir()
        self.federation.save(self.folder / FEDERATION)
        if self.certificates is not None:
            self.certificates.write_bytes(certificates)
        shutil.copyfile(agreed, self.agreed)
        self.sign(keys)

    def sign(self, keys: PrivateKeys) -> None:
        """Signs, as the operator, where it listens."""
        told = Operator(address=self.address, federation=self.federation.digest.hex())
        told.signed(keys).save(self.folder / OPERATOR)

    @staticmethod
    def read(folder: Path, digest: str = "") -> "Invitation":
        """Reads the folder.

        Args:
            folder: what the operator handed out.
            digest: the federation's, as heard over a second channel, or how it begins.

        Raises:
            ValueError: naming the file that is missing, bad, not signed by the operator, or of
                another federation.
        """
        told = read_as(folder / OPERATOR, Operator, SMALL)
        federation = Federation.load(folder / FEDERATION)
        found = federation.digest.hex()
        if digest and len(digest) < LEAST_TOLD:
            raise ValueError(
                f"accept must be {LEAST_TOLD} characters of the digest or more, got {len(digest)}"
            )
        told_so = {f"{OPERATOR} says": told.federation, "you were told": digest.lower()}
        for what, expected in told_so.items():
            if not found.startswith(expected):  # its own is not shown: it must not be copied
                raise ValueError(
                    f"{folder / FEDERATION} must have the digest that {what}, {expected}, "
                    "has another: ask the operator for the invitation of that federation"
                )
        if federation.certificates is not None:
            content = read_file(folder / AGREED)
            if hashlib.sha256(content).hexdigest() != federation.certificates:
                raise ValueError(f"{folder / AGREED} must be what was agreed on, is not")
            read_certificates(folder / AGREED)
        operator = federation.servers[0].verifying
        told.check_signature(folder / OPERATOR, operator, "the operator's")
        return Invitation(folder, federation, told.address)

    def placed(self, keys: PrivateKeys) -> "Invitation":
        """Invitation whose federation knows the user with these keys, if its place is here.

        Raises:
            ValueError: a place that is not proved.
        """
        path = place_path(self.folder / PLACES, key := keys.public.verifying)
        if self.federation.roll is None or not path.exists():
            return self
        return replace(self, federation=at_place(self.federation, path, key))

    def identify(self, keys: PrivateKeys, folder: Path) -> int:
        """Number of the party that has these keys.

        Args:
            keys: the party's own.
            folder: the party's.

        Raises:
            ValueError: none, or it was registered with another sealing key.
        """
        federation, public = self.federation, keys.public
        party = federation.holder(public.verifying.hex())
        if party is None:
            raise ValueError(
                f"keys in {folder} must be registered in {self.folder}, are not: ask the operator "
                f"for an invitation made with the party file of this folder"
                + (", or for the link to it" if federation.roll else "")
            )
        if party == FIRST_SERVER:
            raise ValueError(f"{folder} must be a party's, is the operator's: leave out invitation")
        if party > FIRST_SERVER and federation.servers[party - FIRST_SERVER].public != public:
            raise ValueError(f"sealing key in {folder} must be the registered one, is another")
        return party
