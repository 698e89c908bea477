"""Invitation: the folder that the operator hands to every party, and who a party is in it."""

import hashlib
import json
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from pretrain.cli.output import new_file
from train_distributed.federation.documents.certificates import CA, read_authority
from train_distributed.federation.documents.document import (
    SIGNATURE,
    check_signature,
    read_document,
    with_signature,
)
from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.documents.party import KEY
from train_distributed.federation.documents.place import PLACES, at_place, place_path
from train_distributed.federation.documents.terms import agreed_file
from train_distributed.secure_sum.keys import FIRST_SERVER, PrivateKeys

FEDERATION, OPERATOR = "federation.json", "operator.json"
LEAST_TOLD = 16  # characters of a digest: nobody finds another federation that begins with 64 bits
ADDRESS = re.compile(r"[A-Za-z0-9._\-\[\]:]{1,255}:[0-9]{1,5}")


@dataclass(frozen=True)
class Invitation:
    """The federation, the transform, the authority, and where the operator listens."""

    folder: Path
    federation: Federation
    address: str  # host:port of the operator

    @property
    def ca(self) -> Path:
        """The authority's certificate."""
        return self.folder / CA

    @property
    def agreed(self) -> Path:
        """The one file that was agreed on: the public transform, or the model to be evaluated."""
        return self.folder / agreed_file(self.federation.task)

    def write(self, ca: Path, agreed: Path, keys: PrivateKeys) -> None:
        """Writes the folder, which must not exist; the keys are the operator's."""
        self.folder.mkdir()
        self.federation.save(self.folder / FEDERATION)
        shutil.copyfile(ca, self.ca)
        shutil.copyfile(agreed, self.agreed)
        self.sign(keys)

    def sign(self, keys: PrivateKeys) -> None:
        """Signs, as the operator, where it listens and by which authority."""
        told = {"address": self.address, "federation": self.federation.digest.hex()}
        told |= {"ca": hashlib.sha256(self.ca.read_bytes()).hexdigest()}
        signed = with_signature(told, OPERATOR, keys.signing)
        with new_file(self.folder / OPERATOR) as partial:
            partial.write_text(json.dumps(signed, indent=1) + "\n")

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
        document = read_document(folder / OPERATOR)
        document.only(["address", "federation", "ca", SIGNATURE])
        told = document.text("federation", KEY, "a SHA-256 in hexadecimal")
        federation = Federation.load(folder / FEDERATION)
        found = federation.digest.hex()
        if digest and len(digest) < LEAST_TOLD:
            raise ValueError(
                f"accept must be {LEAST_TOLD} characters of the digest or more, got {len(digest)}"
            )
        for what, expected in {f"{OPERATOR} says": told, "you were told": digest.lower()}.items():
            if not found.startswith(expected):  # its own is not shown: it must not be copied
                raise ValueError(
                    f"{folder / FEDERATION} must have the digest that {what}, {expected}, "
                    "has another: ask the operator for the invitation of that federation"
                )
        read_authority(folder / CA)
        operator = federation.servers[0]["verifying"]
        check_signature(document, OPERATOR, operator, "the operator's")
        if document.values["ca"] != hashlib.sha256((folder / CA).read_bytes()).hexdigest():
            raise ValueError(f"{folder / CA} must be the one that the operator signed, is not")
        address = document.text("address", ADDRESS, "HOST:PORT")
        return Invitation(folder, federation, address)

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
        if party > FIRST_SERVER:
            sealing = federation.servers[party - FIRST_SERVER]["sealing"]
            if sealing != public.sealing.hex():
                raise ValueError(f"sealing key in {folder} must be the registered one, is another")
        return party
