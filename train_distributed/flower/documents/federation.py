"""Agreement of all parties of a federation: one JSON file, the same copy at every party."""

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pretrain.cli.output import new_file
from train_distributed.flower.documents.document import LARGE, Document, read_document
from train_distributed.flower.documents.party import KEY, KEY_RULE, NAME, NAME_RULE
from train_distributed.secure_sum.errors import BadSeal
from train_distributed.secure_sum.keys import KEY_BYTES, PublicKeys, check_order
from train_distributed.secure_sum.parties import FIRST_SERVER, name_of
from train_distributed.secure_sum.secagg import SERVER, SecAgg
from train_distributed.secure_sum.session import Session

__all__ = ["Federation", "name_of"]

SERVERS = {"shares": 2, "secagg": 1}  # of each protocol, the operator's among them
MOST_NUMBERS = 2**28  # of a vector: 2 GiB
ROUNDS = ("rounds", "round_dimension")
_PRINT, _PRINT_RULE = re.compile("[0-9a-f]{64}"), "a fingerprint of 32 bytes in hexadecimal"


@dataclass(frozen=True, kw_only=True)
class Federation:
    """Federation: its parties, its protocol and its task.

    Raises:
        ValueError: a field out of range.
    """

    protocol: Literal["shares", "secagg"]
    dimension: int  # d, numbers that every user submits
    minimum: int  # m_min, fewest users whose sum may be opened
    users: dict[int, str]  # identity -> Ed25519 public key, hexadecimal
    servers: tuple[dict[str, str], ...]  # "verifying" and "sealing" keys; the operator's first
    sessions: int = 1  # sums a user takes part in, retries included: the compositions accounted for
    corrupt_fraction: float = 0.1  # protocol "secagg"
    dropout_fraction: float = 0.2  # protocol "secagg"
    task: dict[str, Any] = field(default_factory=dict)  # what is submitted, see `Terms`
    nodes: dict[int, str] = field(default_factory=dict)  # party -> fingerprint of its node's key
    names: dict[int, str] = field(default_factory=dict)  # party -> what it calls itself
    rounds: int = 0  # T further sums that belong to every session
    round_dimension: int = 0  # numbers that every user submits in one of them

    def __post_init__(self) -> None:
        if self.protocol not in SERVERS:
            raise ValueError(f"protocol must be one of {[*SERVERS]}, got {self.protocol!r}")
        if len(self.servers) != SERVERS[self.protocol]:
            raise ValueError(f"servers must be 2 for shares, 1 for secagg, got {len(self.servers)}")
        for name in ("dimension", "minimum", "sessions"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be >= 1, got {value!r}")
        if (self.rounds > 0) != (self.round_dimension > 0) or self.rounds < 0:
            raise ValueError(
                "rounds and round_dimension must be > 0 together, "
                f"got {self.rounds} and {self.round_dimension}"
            )
        if self.protocol == "shares" and self.rounds:
            raise ValueError(f"rounds must be 0 with protocol shares, got {self.rounds}")
        for key in (*self.users.values(), *(k for keys in self.servers for k in keys.values())):
            if not KEY.fullmatch(key):
                raise ValueError(f"keys must be {KEY_BYTES} bytes in hexadecimal, got {key!r}")
        for server, keys in enumerate(self.servers, FIRST_SERVER):
            try:
                check_order(bytes.fromhex(keys["sealing"]))
            except BadSeal as error:
                raise ValueError(f"sealing key of {name_of(server)} must fit: {error}") from error
        self._check_distinct()

    def _check_distinct(self) -> None:
        """No two parties share a key, a node or a name, and all of them exist."""
        keys = self.verifying
        for what, given in {"key": keys, "node": self.nodes, "name": self.names}.items():
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

    def holder(self, verifying: str) -> int | None:
        """The party with this key; None for a stranger."""
        return next((party for party, key in self.verifying.items() if key == verifying), None)

    def display_name(self, party: int) -> str:
        """A party as people know it: "user 3 (hospital-a)"."""
        name = self.names.get(party)
        return name_of(party) + (f" ({name})" if name else "")

    @staticmethod
    def load(path: Path) -> "Federation":
        """Reads the JSON file.

        Raises:
            ValueError: naming file, field, rule and value.
        """
        document = read_document(path, LARGE)
        document.only([f.name for f in fields(Federation) if f.name not in ROUNDS], ROUNDS)
        users, servers = document.part("users"), document.list("servers", SERVERS["shares"])
        try:
            federation = Federation(
                protocol=document.text("protocol"),  # pyright: ignore[reportArgumentType]
                dimension=document.whole("dimension", 1, MOST_NUMBERS),
                minimum=document.whole("minimum", 1, FIRST_SERVER),
                users=_by_party(users, KEY, KEY_RULE),
                servers=tuple(_server(servers.part(place)) for place in servers.values),
                sessions=document.whole("sessions", 1, 2**31),
                task=document.part("task").values,
                corrupt_fraction=document.number("corrupt_fraction", -1.0, 1.0),
                dropout_fraction=document.number("dropout_fraction", -1.0, 1.0),
                nodes=_by_party(document.part("nodes"), _PRINT, _PRINT_RULE),
                names=_by_party(document.part("names"), NAME, NAME_RULE),
                **{
                    name: document.whole(name, 1, MOST_NUMBERS)
                    for name in ROUNDS
                    if name in document.values
                },
            )
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

    def at(self, number: int, chain: bytes, weights: bytes) -> "Federation":
        """The federation of one further round: another digest, so no message is of two rounds.

        Args:
            number: of the round, from 1 to T.
            chain: of the session that it belongs to.
            weights: as they were published: other weights are another federation.
        """
        return replace(
            self,
            dimension=self.round_dimension,
            sessions=1,
            rounds=0,
            round_dimension=0,
            task={
                "round": number,
                "chain": chain.hex(),
                "weights": hashlib.sha256(weights).hexdigest(),
                "of": self.digest.hex(),
            },
        )

    def _stated(self) -> dict[str, Any]:
        """All fields; without rounds as before there were any."""
        left_out = () if self.rounds else ROUNDS
        return {name: value for name, value in asdict(self).items() if name not in left_out}

    @property
    def largest_frame(self) -> int:
        """Bytes that one request or answer may have: a vector, and what names users."""
        return 2**16 + 2**10 * len(self.users) + 16 * self.dimension

    def poll_seconds(self, party: int) -> float:
        """Between a node's looks for a question: all users look 50 times a second, all servers too.

        Servers are asked one after another, round by round: what they wait, everybody waits.
        """
        alike = len(self.users) if party < FIRST_SERVER else len(self.servers)
        return max(0.2, alike / 50)

    @property
    def longest_poll(self) -> float:
        """Seconds between two looks of those that look least often."""
        return max(map(self.poll_seconds, (0, FIRST_SERVER)))

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
        """The session with this nonce.

        Raises:
            ValueError: keys or numbers that no session can have.
        """
        if self.protocol == "secagg":
            return self.secagg(nonce).session
        return self._shares(nonce)

    def secagg(self, nonce: bytes) -> SecAgg:
        """The session of protocol B with this nonce."""
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

    def _shares(self, nonce: bytes) -> Session:
        return Session(
            nonce=nonce,
            dimension=self.dimension,
            minimum=self.minimum,
            users={user: bytes.fromhex(key) for user, key in self.users.items()},
            servers={FIRST_SERVER + j: _public(keys) for j, keys in enumerate(self.servers)},
            context=b"shares" + self.digest,
        )


def _by_party(part: Document, pattern: re.Pattern[str], rule: str) -> dict[int, str]:
    return {party: part.text(name, pattern, rule) for party, name in part.identities()}


def _server(keys: Document) -> dict[str, str]:
    keys.only(["verifying", "sealing"])
    return {name: keys.text(name, KEY, KEY_RULE) for name in ("verifying", "sealing")}


def _public(keys: dict[str, str]) -> PublicKeys:
    return PublicKeys(bytes.fromhex(keys["verifying"]), bytes.fromhex(keys["sealing"]))
