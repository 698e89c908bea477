"""What all parties of a federation have agreed on: one JSON file, the same copy at every party."""

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pretrain.output import new_file
from train_distributed.secure_sum.keys import KEY_BYTES, PublicKeys
from train_distributed.secure_sum.replicated import Replicated
from train_distributed.secure_sum.secagg import SERVER, SecAgg
from train_distributed.secure_sum.session import FIRST_SERVER, Session, name_of

__all__ = ["Federation", "name_of"]

SERVERS = {"shares": (2, 2**16), "shares-replicated": (3, 2**16), "secagg": (1, 1)}  # of each
BATCH_BYTES = 2**25  # of users' shares that a request to a computation server carries
REFUSALS_BYTES = 2**20  # of its refusals of the messages in one
_KEY = re.compile(f"[0-9a-f]{{{2 * KEY_BYTES}}}")


@dataclass(frozen=True, kw_only=True)
class Federation:
    """Who takes part, in which protocol, and in what.

    Raises:
        ValueError: a field out of range.
    """

    protocol: Literal["shares", "shares-replicated", "secagg"]
    dimension: int  # d, numbers that every user submits
    minimum: int  # m_min, fewest users whose sum may be opened
    users: dict[int, str]  # identity -> Ed25519 public key, hexadecimal
    servers: tuple[dict[str, str], ...]  # "verifying" and "sealing" keys; the operator's first
    sessions: int = 1  # sums a user takes part in, retries included: the compositions accounted for
    corrupt_fraction: float = 0.1  # protocols "secagg" and "shares-replicated"
    dropout_fraction: float = 0.2  # protocol "secagg"
    nodes: dict[int, str] = field(default_factory=dict)  # party -> its node key's fingerprint
    task: dict[str, Any] = field(default_factory=dict)  # what is submitted, see `ModelTask`

    def __post_init__(self) -> None:
        if self.protocol not in SERVERS:
            raise ValueError(f"protocol must be one of {[*SERVERS]}, got {self.protocol!r}")
        least, most = SERVERS[self.protocol]
        if not least <= len(self.servers) <= most:
            raise ValueError(
                f"servers must be >= 2 for shares, >= 3 for shares-replicated and 1 for secagg, "
                f"got {len(self.servers)}"
            )
        for name in ("dimension", "minimum", "sessions"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be >= 1, got {value!r}")
        for key in (*self.users.values(), *(k for keys in self.servers for k in keys.values())):
            if not _KEY.fullmatch(key):
                raise ValueError(f"keys must be {KEY_BYTES} bytes in hexadecimal, got {key!r}")
        for party, fingerprint in self.nodes.items():
            if self.verifying_key(party) is None or not _KEY.fullmatch(fingerprint):
                raise ValueError(f"nodes must be fingerprints of parties, got {party}")

    @staticmethod
    def load(path: Path) -> "Federation":
        """Reads the JSON file.

        Raises:
            ValueError: a field missing, unknown or out of range.
            OSError: no readable file.
        """
        try:
            fields = json.loads(path.read_text())
            fields["users"] = {int(user): key for user, key in fields["users"].items()}
            fields["servers"] = tuple(fields["servers"])
            fields["nodes"] = {int(p): key for p, key in fields.get("nodes", {}).items()}
            return Federation(**fields)
        except (TypeError, KeyError, AttributeError, json.JSONDecodeError) as error:
            raise ValueError(
                f"federation must have the fields of a Federation, {path}: {error}"
            ) from error

    def save(self, path: Path) -> None:
        """Writes the JSON file, whole or not at all."""
        with new_file(path) as partial:
            partial.write_text(json.dumps(asdict(self), indent=2) + "\n")

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of all of the above; part of every session."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).digest()

    @property
    def may_be_absent(self) -> int:
        """Computation servers that a session can do without."""
        return 1 if self.protocol == "shares-replicated" else 0

    @property
    def largest_frame(self) -> int:
        """Bytes that one request or answer may have: a vector per server, and what names users.

        Shares go to a server in batches, with what names their users and a list of refusals.
        """
        vectors = 2**10 * len(self.users) + 8 * self.dimension * (len(self.servers) + 1)
        if self.protocol == "secagg":
            return 2**16 + vectors
        return 2**16 + max(vectors, BATCH_BYTES) + REFUSALS_BYTES

    @property
    def poll_seconds(self) -> float:
        """How often a node asks whether there is a question: all together 50 times a second."""
        return max(0.2, len(self.users) / 50)

    def verifying_key(self, party: int) -> bytes | None:
        """The key that must have signed a party's messages; None for a stranger."""
        if party in self.users:
            return bytes.fromhex(self.users[party])
        place = party - FIRST_SERVER
        if 0 <= place < len(self.servers):
            return bytes.fromhex(self.servers[place]["verifying"])
        return None

    def session(self, nonce: bytes) -> Session:
        """The session with this nonce.

        Raises:
            ValueError: keys or numbers that no session can have.
        """
        if self.protocol == "secagg":
            return self.secagg(nonce).session
        if self.protocol == "shares-replicated":
            return self.replicated(nonce).session
        return self._shares(nonce)

    def replicated(self, nonce: bytes) -> Replicated:
        """The session of replicated shares with this nonce."""
        return Replicated.agree_on(
            nonce=nonce,
            dimension=self.dimension,
            minimum=self.minimum,
            users={user: bytes.fromhex(key) for user, key in self.users.items()},
            servers={FIRST_SERVER + j: _public(keys) for j, keys in enumerate(self.servers)},
            corrupt_fraction=self.corrupt_fraction,
            context=self.digest,
        )

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


def _public(keys: dict[str, str]) -> PublicKeys:
    return PublicKeys(bytes.fromhex(keys["verifying"]), bytes.fromhex(keys["sealing"]))
