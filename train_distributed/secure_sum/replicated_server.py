"""A computation server of the replicated protocol: takes shares in rounds, agrees, opens once.

A round: users' SHAREs; `hold` tells the other servers whose shares it holds, and under which
hashes; `settle` adds the parts of the users that all servers hold alike, and forgets the messages.
Rounds keep the memory at one batch of messages; the set of users grows from round to round. After
the last one, `commit` signs the set and `open` its sums (`replicated.py` says when it may).
"""

import hashlib
import struct
from collections.abc import Collection

import numpy as np

from train_distributed.secure_sum.errors import (
    MalformedMessage,
    OutOfOrder,
    ReplayedMessage,
    SetMismatch,
    TooFewUsers,
    WrongSender,
)
from train_distributed.secure_sum.journal import Journal
from train_distributed.secure_sum.keys import PrivateKeys, open_seal
from train_distributed.secure_sum.opening import DIGEST_BYTES
from train_distributed.secure_sum.parties import EVERYONE
from train_distributed.secure_sum.prg import SEED_BYTES, add_stream
from train_distributed.secure_sum.replicated import Replicated, manifest_digest
from train_distributed.secure_sum.shares import share_context
from train_distributed.secure_sum.wire import (
    Envelope,
    Kind,
    bytes_to_words,
    read,
    words_to_bytes,
    write,
)

PENDING_BYTES = 2**27  # of shares that a server keeps until the others say that they hold them
_ROUND = struct.Struct(">I")
_HELD = struct.Struct(f">I{DIGEST_BYTES}s")


class ReplicaServer:
    """One of S servers; number j of them lacks part j."""

    def __init__(self, setup: Replicated, server: int, keys: PrivateKeys, journal: Journal) -> None:
        session = setup.session
        if session.servers.get(server) != keys.public:
            raise ValueError(f"keys must be those that the session pins for server {server}")
        self._setup, self._session, self._server = setup, session, server
        self._keys, self._journal = keys, journal
        self._totals = {j: np.zeros(session.dimension, np.uint64) for j in setup.parts_of(server)}
        self._users: dict[int, bytes] = {}  # user in the sum -> digest of its hashes
        self._pending: dict[int, tuple[bytes, bytes]] = {}  # user -> (that digest, its parts)
        self._round, self._held = 0, False
        self._holdings: dict[int, dict[int, bytes]] = {}  # other servers', this round
        self._lost: frozenset[int] = frozenset()
        self._committed: bytes | None = None
        self._commits: dict[int, bytes] = {}
        self._witnesses: set[int] = set()

    def receive(self, message: bytes) -> None:
        """Takes a SHARE, another server's HOLDING or COMMIT, or a user's WITNESS.

        Raises:
            ProtocolError: the message is refused; nothing has changed.
        """
        setup = self._setup
        largest = {
            Kind.SHARE: setup.share_bytes(self._server),
            Kind.HOLDING: holding_bytes(len(self._session.users)),
            Kind.COMMIT: setup.commit_bytes,
            Kind.WITNESS: DIGEST_BYTES,
        }
        envelope = read(self._session, message, self._server, largest)
        from_user = envelope.sender in self._session.users
        if from_user != (envelope.kind in (Kind.SHARE, Kind.WITNESS)):
            wanted = "a server" if from_user else "a user"
            raise WrongSender(
                f"{envelope.kind.name} must come from {wanted}, got {envelope.sender}"
            )
        {
            Kind.SHARE: self._receive_share,
            Kind.HOLDING: self._receive_holding,
            Kind.COMMIT: self._receive_commit,
            Kind.WITNESS: self._receive_witness,
        }[envelope.kind](envelope)

    def hold(self) -> bytes:
        """Takes no more shares in this round; says whose it holds, for everyone.

        Raises:
            OutOfOrder: it has said so, or has committed.
        """
        if self._held or self._committed:
            raise OutOfOrder(f"HOLDING must come once per round, got round {self._round} again")
        self._held = True
        held = [_HELD.pack(user, digest) for user, (digest, _) in sorted(self._pending.items())]
        payload = b"".join((_ROUND.pack(self._round), *held))
        session, signing = self._session, self._keys.signing
        return write(session, Kind.HOLDING, self._server, EVERYONE, payload, signing)

    def settle(self, lost: Collection[int] = ()) -> frozenset[int]:
        """Ends a round: adds the users whom all servers hold alike, returns and forgets others.

        It goes on without the servers that are `lost`, at most one in a session.

        Raises:
            OutOfOrder: not every server left has sent its HOLDING, or more than one is lost.
        """
        gone = self._lost | frozenset(lost)
        if len(gone) > 1 or not gone <= set(self._setup.servers) - {self._server}:
            raise OutOfOrder(f"lost servers must be one other at most, got {sorted(gone)}")
        missing = set(self._setup.servers) - {self._server} - gone - set(self._holdings)
        if missing or not self._held:
            raise OutOfOrder(f"all servers must send HOLDING first, missing {sorted(missing)}")
        others = [held for server, held in self._holdings.items() if server not in gone]
        dropped = set[int]()
        for user, (digest, parts) in self._pending.items():
            if all(held.get(user) == digest for held in others):
                self._add(parts)
                self._users[user] = digest
            else:
                dropped.add(user)
        self._pending.clear()
        self._holdings.clear()
        self._lost, self._round, self._held = gone, self._round + 1, False
        return frozenset(dropped)

    def commit(self) -> bytes:
        """Takes no more shares; signs the set of users and what it has added of them.

        Raises:
            OutOfOrder: a round is open, or this server has committed.
            TooFewUsers: fewer than the session's minimum.
            AlreadyOpened: this server has signed a set of this session before.
        """
        session = self._session
        if self._committed or self._pending or self._held:
            raise OutOfOrder("commit must come once, after settle")
        if len(self._users) < session.minimum:
            raise TooFewUsers(
                f"users must be >= {session.minimum} to be opened, got {len(self._users)}"
            )
        added = hashlib.sha256(b"".join(_HELD.pack(u, self._users[u]) for u in sorted(self._users)))
        payload = session.bitmap(self._users) + added.digest()
        self._journal.claim(session.digest, "commit", hashlib.sha256(payload).digest())
        self._committed = payload
        return write(session, Kind.COMMIT, self._server, EVERYONE, payload, self._keys.signing)

    def open(self) -> bytes:
        """The sums of its parts, for everyone; once per session, ever.

        Raises:
            OutOfOrder: there is no certificate over this server's set.
            AlreadyOpened: this server has opened this session before.
        """
        session, committed = self._session, self._committed
        agreed = {s for s, payload in self._commits.items() if payload == committed}
        if committed is None or not self._setup.agrees(1 + len(agreed), len(self._witnesses)):
            missing = sorted(set(self._setup.servers) - agreed - {self._server})
            raise OutOfOrder(
                f"set must be signed by all servers, or by all but one and "
                f"{self._setup.witnesses} users; missing {missing}, users {len(self._witnesses)}"
            )
        digest = hashlib.sha256(committed).digest()
        self._journal.claim(session.digest, "open", digest)
        payload = b"".join((digest, *map(words_to_bytes, self._totals.values())))
        return write(session, Kind.OPENING, self._server, EVERYONE, payload, self._keys.signing)

    def _receive_share(self, envelope: Envelope) -> None:
        user, payload, setup = envelope.sender, envelope.payload, self._setup
        if self._held or self._committed:
            raise OutOfOrder(f"SHARE of user {user} must come before HOLDING, came late")
        if user in self._users or user in self._pending:
            raise ReplayedMessage(f"SHARE must come once, got another from {user}")
        if len(payload) != setup.share_bytes(self._server):
            raise MalformedMessage(
                f"share must be {setup.share_bytes(self._server)} bytes, got {len(payload)}"
            )
        limit = max(PENDING_BYTES // setup.share_bytes(self._server), 1)
        if len(self._pending) >= limit:
            raise OutOfOrder(f"shares of a round must be <= {limit}, got one more from {user}")
        hashes = payload[: DIGEST_BYTES * len(setup.servers)]
        context = share_context(self._session, user, self._server)
        content = open_seal(self._keys.opening, payload[len(hashes) :], context)
        for part, piece in self._split(content).items():
            expected = hashes[DIGEST_BYTES * part : DIGEST_BYTES * (part + 1)]
            if setup.hash_of(user, part, piece) != expected:
                raise MalformedMessage(f"part {part} of user {user} must have its hash, has not")
        self._pending[user] = (manifest_digest(setup, payload), content)

    def _receive_holding(self, envelope: Envelope) -> None:
        number, held = holding_of(self._setup, envelope.payload)
        if number < self._round or envelope.sender in self._holdings:
            raise ReplayedMessage(f"HOLDING must come once, got another from {envelope.sender}")
        if number > self._round or self._committed:
            raise OutOfOrder(f"HOLDING must be of round {self._round}, got {number}")
        self._holdings[envelope.sender] = held

    def _receive_commit(self, envelope: Envelope) -> None:
        envelope.check_once(self._commits)
        self._setup.users_of(envelope.payload)
        if self._committed not in (None, envelope.payload):
            raise SetMismatch(f"server {envelope.sender} must commit to this set, signed another")
        self._commits[envelope.sender] = envelope.payload

    def _receive_witness(self, envelope: Envelope) -> None:
        if self._committed is None:
            raise OutOfOrder("WITNESS must come after COMMIT")
        envelope.check_once(self._witnesses)
        if envelope.payload != hashlib.sha256(self._committed).digest():
            raise SetMismatch(f"user {envelope.sender} must be witness to this set, signed another")
        self._witnesses.add(envelope.sender)

    def _split(self, content: bytes) -> dict[int, bytes]:
        """Part -> what is held of it."""
        pieces, at = {}, 0
        for part in self._totals:
            pieces[part] = content[at : (at := at + self._setup.part_bytes(part))]
        return pieces

    def _add(self, content: bytes) -> None:
        for part, piece in self._split(content).items():
            if len(piece) == SEED_BYTES:
                add_stream(self._totals[part], piece)
            else:
                self._totals[part] += bytes_to_words(piece[SEED_BYTES:], self._session.dimension)


def holding_bytes(users: int) -> int:
    """Length of a HOLDING's payload that lists so many users."""
    return _ROUND.size + _HELD.size * users


def holding_of(setup: Replicated, payload: bytes) -> tuple[int, dict[int, bytes]]:
    """A HOLDING's payload: round, and user -> digest of the hashes it is held under.

    Raises:
        MalformedMessage: not such a payload, or users that are unknown or not rising.
    """
    size = len(payload) - _ROUND.size
    if size < 0 or size % _HELD.size:
        raise MalformedMessage(f"HOLDING must list whole users, got {len(payload)} bytes")
    held = list(_HELD.iter_unpack(payload[_ROUND.size :]))
    users = [user for user, _ in held]
    if users != sorted(set(users)) or not setup.session.users.keys() >= set(users):
        raise MalformedMessage("HOLDING must list users of the session, rising, does not")
    return _ROUND.unpack_from(payload)[0], dict(held)
