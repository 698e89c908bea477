"""Agreement of all parties of a federation: one JSON file, the same copy at every party.

With protocol `secagg` it names every user. With `shares` there may be very many: it has the hash of
their roll and how many have how many rows, which is all that noise and promise depend on. A user
has its own line of the roll with a proof of its place, the operator and the aggregators all lines.
"""

import hashlib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Self

import msgspec
from msgspec import Meta, field

from pretrain import check
from train_distributed.federation.documents.document import (
    LARGE,
    Count,
    Document,
    Key,
    Name,
    PartyNumber,
    Rows,
    UserNumber,
    read_as,
)
from train_distributed.federation.documents.party import Keys
from train_distributed.secure_sum.keys import FIRST_SERVER, PublicKeys, name_of
from train_distributed.secure_sum.roll import User
from train_distributed.secure_sum.secagg import SERVER, SecAgg
from train_distributed.secure_sum.session import Session

VERSION = 3  # of the file; the digests of older ones, by which their sessions are counted, differ
SERVERS = {"shares": 2, "secagg": 1}  # of each protocol, the operator's among them
MOST_NUMBERS = 2**28  # of a vector: 2 GiB
Seconds = Annotated[float, Meta(ge=0, le=2**20)]
Share = Annotated[float, Meta(gt=-1, lt=1)]


class Deadlines(Document, frozen=True, kw_only=True):
    """Seconds that parties of `secagg` have; a slow carrier needs more."""

    come: Seconds = 300.0  # to come, since the operator listens
    present: Seconds = 10.0  # to answer whether they are here
    answer: Seconds = 300.0  # to answer each question of the protocol
    send: Seconds = 120.0  # to bring an answer whose first byte has arrived
    goodbye: Seconds = 5.0  # to hear that it is over
    again: Seconds = 15.0  # to come once more after a restart, if only to hear that it is over

    @property
    def words(self) -> str:
        """The deadlines that matter to a party, as a sentence that commands print."""
        return (
            f"parties have {self.come:g} s to come, {self.answer:g} s to answer each question and "
            f"{self.send:g} s to send an answer"
        )


class Enrolment(Document, frozen=True):
    """Users of protocol `shares`, whom the roll names."""

    root: Key  # hash of the roll, see `secure_sum.roll`
    sizes: dict[Rows, Count]  # rows -> number of users that have so many


class Federation(Document, frozen=True, kw_only=True, dict=True):
    """Federation: its parties, its protocol and its task.

    Raises:
        ValueError: fields that do not fit each other.
    """

    version: Literal[3]  # required, so that a file without one is refused
    protocol: Literal["shares", "secagg"]
    dimension: Annotated[int, Meta(ge=1, le=MOST_NUMBERS)]  # d, numbers that every user submits
    minimum: Count  # m_min, fewest users whose sum may be opened
    servers: tuple[Keys, ...]  # the operator's first
    # `secagg`: identity -> Ed25519 public key
    users: dict[UserNumber, Key] = field(default_factory=dict)
    roll: Enrolment | None = None  # `shares`
    sessions: Count = 1  # sums a user takes part in, retries included: compositions accounted for
    corrupt_fraction: Share = 0.1  # protocol "secagg"
    dropout_fraction: Share = 0.2  # protocol "secagg"
    task: dict[str, Any] = field(default_factory=dict)  # what is submitted, see `Terms`
    names: dict[PartyNumber, Name] = field(default_factory=dict)  # party -> what it calls itself
    # SHA-256 of the services' certificates, ca.pem of the invitation; None: proxies have TLS
    certificates: Key | None = None
    deadlines: Deadlines = Deadlines()  # protocol "secagg"
    # numbers of a second sum, about the first one's centre; 0: there is none
    second_dimension: Annotated[int, Meta(ge=0, le=MOST_NUMBERS)] = 0
    # lines of the roll that are at hand, see `knowing`; no part of what was agreed on
    known: ClassVar[Mapping[int, User]] = MappingProxyType({})

    def __post_init__(self) -> None:
        if len(self.servers) != SERVERS.get(self.protocol):
            raise ValueError(f"servers must be 2 for shares, 1 for secagg, got {len(self.servers)}")
        on_a_roll = self.roll is not None
        if (self.protocol == "shares") != on_a_roll or bool(self.users) == on_a_roll:
            raise ValueError("users must be on a roll with protocol shares, listed with secagg")
        check.at_most(self.enrolled, minimum=self.minimum)
        self._check_distinct()

    def knowing(self, lines: Mapping[int, User]) -> Self:
        """This federation with lines of its roll at hand, which are no part of the agreement."""
        found = msgspec.structs.replace(self)
        msgspec.structs.force_setattr(found, "known", lines)
        return found

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
        servers = enumerate(self.servers, FIRST_SERVER)
        return self.users | {server: keys.verifying for server, keys in servers}

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

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads the JSON file.

        Raises:
            ValueError: naming file, field, rule and value.
        """
        federation = read_as(path, cls, LARGE)
        try:
            _ = federation.digest  # numbers of a task have a form in JSON
            if federation.protocol == "secagg":
                federation.session(bytes(32))
        except (ValueError, OverflowError, RecursionError) as error:
            raise ValueError(f"{path}: {error}") from error
        return federation

    def at(self, centre: bytes) -> "Federation":
        """`secagg`: that of the second sum at a centre, as published: each has its own digest."""
        return msgspec.structs.replace(
            self,
            dimension=self.second_dimension,
            sessions=1,
            second_dimension=0,
            task={"centre": hashlib.sha256(centre).hexdigest(), "of": self.digest.hex()},
        )

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
        return hashlib.sha256(self.canonical).digest()

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
        return {server: keys.public for server, keys in enumerate(self.servers, FIRST_SERVER)}

    def secagg(self, nonce: bytes) -> SecAgg:
        """The session of protocol `secagg` with this nonce."""
        return SecAgg.agree_on(
            nonce=nonce,
            dimension=self.dimension,
            minimum=self.minimum,
            users={user: bytes.fromhex(key) for user, key in self.users.items()},
            server=self.servers[SERVER - FIRST_SERVER].public,
            corrupt_fraction=self.corrupt_fraction,
            dropout_fraction=self.dropout_fraction,
            context=self.digest,
        )
