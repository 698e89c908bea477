"""Agreement of all parties of a federation: one JSON file, the same copy at every party.

With protocol `secagg` it names every user. With `shares` there may be very many: it has the hash of
their roll and how many have how many rows, which is all that noise and promise depend on. A user
has its own line of the roll with a proof of its place, the operator and the aggregators all lines.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pretrain import check
from pretrain.cli.output import new_file
from train_distributed.federation.documents.document import LARGE, Document, read_document
from train_distributed.federation.documents.party import KEY, KEY_RULE, MOST_ROWS, NAME, NAME_RULE
from train_distributed.secure_sum.errors import BadSeal
from train_distributed.secure_sum.keys import (
    FIRST_SERVER,
    KEY_BYTES,
    PublicKeys,
    check_order,
    name_of,
)
from train_distributed.secure_sum.roll import User
from train_distributed.secure_sum.secagg import SERVER, SecAgg
from train_distributed.secure_sum.session import Session

SERVERS = {"shares": 2, "secagg": 1}  # of each protocol, the operator's among them
MOST_NUMBERS = 2**28  # of a vector: 2 GiB
SECOND = "second_dimension"
OF_SECAGG = ("users", "corrupt_fraction", "dropout_fraction")


@dataclass(frozen=True)
class Enrolment:
    """Users of protocol `shares`, whom the roll names."""

    root: str  # hash of the roll, see `secure_sum.roll`, hexadecimal
    sizes: dict[int, int]  # rows -> number of users that have so many


@dataclass(frozen=True, kw_only=True)
class Federation:
    """Federation: its parties, its protocol and its task.

    Raises:
        ValueError: a field out of range.
    """

    protocol: Literal["shares", "secagg"]
    dimension: int  # d, numbers that every user submits
    minimum: int  # m_min, fewest users whose sum may be opened
    servers: tuple[dict[str, str], ...]  # "verifying" and "sealing" keys; the operator's first
    users: dict[int, str] = field(default_factory=dict)  # `secagg`: identity -> Ed25519 public key
    roll: Enrolment | None = None  # `shares`
    sessions: int = 1  # sums a user takes part in, retries included: the compositions accounted for
    corrupt_fraction: float = 0.1  # protocol "secagg"
    dropout_fraction: float = 0.2  # protocol "secagg"
    task: dict[str, Any] = field(default_factory=dict)  # what is submitted, see `Terms`
    names: dict[int, str] = field(default_factory=dict)  # party -> what it calls itself
    second_dimension: int = 0  # numbers of a second sum, about the first one's centre; 0: no such
    known: Mapping[int, User] = field(default_factory=dict, compare=False, repr=False)
    """Lines of the roll that are at hand; no part of what was agreed on."""

    def __post_init__(self) -> None:
        if self.protocol not in SERVERS:
            raise ValueError(f"protocol must be one of {[*SERVERS]}, got {self.protocol!r}")
        if len(self.servers) != SERVERS[self.protocol]:
            raise ValueError(f"servers must be 2 for shares, 1 for secagg, got {len(self.servers)}")
        for name in ("dimension", "minimum", "sessions"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be >= 1, got {value!r}")
        if self.protocol == "shares" and self.second_dimension:
            raise ValueError(
                f"{SECOND} must be 0 with protocol shares, got {self.second_dimension}"
            )
        for key in (*self.users.values(), *(k for keys in self.servers for k in keys.values())):
            if not KEY.fullmatch(key):
                raise ValueError(f"keys must be {KEY_BYTES} bytes in hexadecimal, got {key!r}")
        for server, keys in enumerate(self.servers, FIRST_SERVER):
            try:
                check_order(bytes.fromhex(keys["sealing"]))
            except BadSeal as error:
                raise ValueError(f"sealing key of {name_of(server)} must fit: {error}") from error
        on_a_roll = self.roll is not None
        if (self.protocol == "shares") != on_a_roll or bool(self.users) == on_a_roll:
            raise ValueError("users must be on a roll with protocol shares, listed with secagg")
        check.at_most(self.enrolled, minimum=self.minimum)
        self._check_distinct()

    def _check_distinct(self) -> None:
        """No two parties share a key or a name, and all of them exist."""
        keys = self.verifying
        for what, given in {"key": keys, "name": self.names}.items():
            owner: dict[str, int] = {}
            for party, value in given.items():
                if party not in keys:
                    raise ValueError(f"{what}s must be of parties of the federation, got {party}")
                other = owner.setdefault(value, party)
                if other != party:
                    raise ValueError(
                        f"every party must have a {what} of its own, got one of "
                        f"{self.display_name(other)} and {self.display_name(party)}"
                    )

    @cached_property
    def verifying(self) -> dict[int, str]:
        """Party -> Ed25519 public key, users and servers."""
        servers = enumerate(self.servers)
        return self.users | {FIRST_SERVER + j: keys["verifying"] for j, keys in servers}

    @property
    def enrolled(self) -> int:
        """Number of users."""
        return sum(self.roll.sizes.values()) if self.roll else len(self.users)

    def holder(self, verifying: str) -> int | None:
        """The party with this key, of those that are known here; None for a stranger."""
        known = {user: line.key.hex() for user, line in self.known.items()}
        every = self.verifying | known
        return next((party for party, key in every.items() if key == verifying), None)

    def display_name(self, party: int) -> str:
        """A party as people know it: "user 3 (hospital-a)"."""
        name = self.known[party].name if party in self.known else self.names.get(party)
        return name_of(party) + (f" ({name})" if name else "")

    @staticmethod
    def load(path: Path) -> "Federation":
        """Reads the JSON file.

        Raises:
            ValueError: naming file, field, rule and value.
        """
        document = read_document(path, LARGE)
        protocol = document.text("protocol", re.compile("|".join(SERVERS)), f"one of {[*SERVERS]}")
        others = (SECOND, "known", *(OF_SECAGG if protocol == "shares" else ("roll",)))
        document.only([f.name for f in fields(Federation) if f.name not in others], [SECOND])
        servers = document.list("servers", SERVERS["shares"])
        given = _enrolment(document.part("roll")) if protocol == "shares" else _listed(document)
        if SECOND in document.values:
            given[SECOND] = document.whole(SECOND, 1, MOST_NUMBERS)
        try:
            federation = Federation(
                protocol=protocol,  # pyright: ignore[reportArgumentType]
                dimension=document.whole("dimension", 1, MOST_NUMBERS),
                minimum=document.whole("minimum", 1, FIRST_SERVER),
                servers=tuple(_server(servers.part(place)) for place in servers.values),
                sessions=document.whole("sessions", 1, 2**31),
                task=document.part("task").values,
                names=_by_party(document.part("names"), NAME, NAME_RULE),
                **given,
            )
            if protocol == "secagg":
                federation.session(bytes(32))
            return federation
        except ValueError as error:
            if str(error).startswith(str(path)):
                raise
            raise ValueError(f"{path}: {error}") from error

    def save(self, path: Path) -> None:
        """Writes the JSON file, whole or not at all."""
        with new_file(path) as partial:
            partial.write_text(json.dumps(self._stated(), indent=2) + "\n")

    def at(self, centre: bytes) -> "Federation":
        """The federation of the second sum at a centre, as published: each has its own digest."""
        return replace(
            self,
            dimension=self.second_dimension,
            sessions=1,
            second_dimension=0,
            task={"centre": hashlib.sha256(centre).hexdigest(), "of": self.digest.hex()},
        )

    def _stated(self) -> dict[str, Any]:
        """All that was agreed on."""
        left_out = {"known", *(() if self.second_dimension else (SECOND,))}
        left_out |= {*OF_SECAGG} if self.roll else {"roll"}
        stated = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in left_out}
        return stated | ({"roll": asdict(self.roll)} if self.roll else {})

    @property
    def largest_frame(self) -> int:
        """Bytes that one request or answer may have: a vector, and what names users."""
        return 2**16 + 2**10 * len(self.users) + 16 * max(self.dimension, self.second_dimension)

    def verifying_key(self, party: int) -> bytes | None:
        """The key that must have signed a party's messages; None for a stranger."""
        key = self.verifying.get(party)
        return None if key is None else bytes.fromhex(key)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of all of the above; part of every session."""
        return hashlib.sha256(json.dumps(self._stated(), sort_keys=True).encode()).digest()

    @cached_property
    def certain(self) -> int:
        """Users that an opened sum is sure to hold: what the noise is planned for."""
        return self.secagg(bytes(32)).graph.certain if self.protocol == "secagg" else self.minimum

    def session(self, nonce: bytes) -> Session:
        """The session of `secagg` with this nonce; `shares` are summed in windows.

        Raises:
            ValueError: keys or numbers that no session can have.
        """
        return self.secagg(nonce).session

    @property
    def server_keys(self) -> dict[int, PublicKeys]:
        """Computation server -> its keys."""
        return {FIRST_SERVER + j: _public(keys) for j, keys in enumerate(self.servers)}

    def secagg(self, nonce: bytes) -> SecAgg:
        """The session of protocol `secagg` with this nonce."""
        return SecAgg.agree_on(
            nonce=nonce,
            dimension=self.dimension,
            minimum=self.minimum,
            users={user: bytes.fromhex(key) for user, key in self.users.items()},
            server=_public(self.servers[SERVER - FIRST_SERVER]),
            corrupt_fraction=self.corrupt_fraction,
            dropout_fraction=self.dropout_fraction,
            context=self.digest,
        )


def _by_party(part: Document, pattern: re.Pattern[str], rule: str) -> dict[int, str]:
    return {party: part.text(name, pattern, rule) for party, name in part.identities()}


def _listed(document: Document) -> dict[str, Any]:
    """Fields of protocol `secagg`."""
    return {
        "users": _by_party(document.part("users"), KEY, KEY_RULE),
        "corrupt_fraction": document.number("corrupt_fraction", -1.0, 1.0),
        "dropout_fraction": document.number("dropout_fraction", -1.0, 1.0),
    }


def _enrolment(part: Document) -> dict[str, Any]:
    """Field of protocol `shares`."""
    part.only(["root", "sizes"])
    sizes = part.part("sizes")
    return {
        "roll": Enrolment(
            part.text("root", KEY, KEY_RULE),
            {rows: sizes.whole(n, 1, FIRST_SERVER) for rows, n in sizes.numbers(MOST_ROWS)},
        )
    }


def _server(keys: Document) -> dict[str, str]:
    keys.only(["verifying", "sealing"])
    return {name: keys.text(name, KEY, KEY_RULE) for name in ("verifying", "sealing")}


def _public(keys: dict[str, str]) -> PublicKeys:
    return PublicKeys(bytes.fromhex(keys["verifying"]), bytes.fromhex(keys["sealing"]))
