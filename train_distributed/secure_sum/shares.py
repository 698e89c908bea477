"""Protocol A: J computation servers, one message per user (Bogetoft et al. 2009).

User i draws a 32-byte seed for each of the first J-1 servers and sends the last one its vector
minus all their streams; every part is sealed to its server's pinned key, so a relay learns
nothing. The parts of any J-1 servers are independent of the vector: without the last they are
seeds, without an earlier one its stream masks every word.

Order: the first servers take seeds, `close` and say whose they hold; the last one takes vectors of
users whom all of them hold, and commits to those it received; the others check that set and commit
to it; all open (`opening.py`). The last server adds vectors as they arrive, the others expand
seeds as they arrive and take back those of users left out: one vector of memory however many users.

**Servers must follow it.** Secrecy needs one honest server; the sum needs all of them. A server
that adds anything to its part changes the sum by as much and nobody notices, since no other server
holds that part; one that is silent, or signs another set, ends the session: it is named, nothing is
released, and a retry is a new session. `replicated.py` has each part at several servers instead.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from pretrain import check
from train_distributed.secure_sum.errors import (
    MalformedMessage,
    OutOfOrder,
    SetMismatch,
    WrongSender,
)
from train_distributed.secure_sum.journal import Journal
from train_distributed.secure_sum.keys import SEAL_BYTES, PrivateKeys, open_seal, seal
from train_distributed.secure_sum.opening import Opening
from train_distributed.secure_sum.parties import EVERYONE
from train_distributed.secure_sum.prg import SEED_BYTES, WORD, add_stream, new_seed, subtract_stream
from train_distributed.secure_sum.session import Agreement, Session, set_bytes
from train_distributed.secure_sum.wire import (
    Envelope,
    Kind,
    bytes_to_words,
    check_vector,
    read,
    words_to_bytes,
    write,
)


class SharesUser:
    """A user: one call, one message per server; it waits for no answer."""

    def __init__(self, session: Session, user: int, keys: PrivateKeys, journal: Journal) -> None:
        check.at_least(2, servers=len(session.servers))
        self._session, self._user, self._keys, self._journal = session, user, keys, journal

    def submit(self, vector: NDArray[np.uint64]) -> Iterator[tuple[int, bytes]]:
        """Splits a vector (d,) uint64, integers plus noise, into a sealed message per server.

        Returns:
            (server identity, signed message) of every server, each made when it is asked for. The
            last one takes its message only after the others have said that they hold theirs.

        Raises:
            ValueError: a vector of another shape or type.
            AlreadyOpened: this user has submitted to this session before.
        """
        check_vector(vector, self._session.dimension)
        self._journal.claim(self._session.digest, "submit", b"")
        *first, last = sorted(self._session.servers)
        return self._messages(vector, {server: new_seed() for server in first}, last)

    def _messages(
        self, vector: NDArray[np.uint64], seeds: dict[int, bytes], last: int
    ) -> Iterator[tuple[int, bytes]]:
        for server, seed in seeds.items():
            yield server, self._message(server, seed)
        masked = vector.copy()
        for seed in seeds.values():
            subtract_stream(masked, seed)
        yield last, self._message(last, words_to_bytes(masked))

    def _message(self, server: int, part: bytes) -> bytes:
        context = share_context(self._session, self._user, server)
        sealed = seal(self._session.servers[server].sealing, part, context)
        return write(self._session, Kind.SHARE, self._user, server, sealed, self._keys.signing)


class _SharesServer:
    """Common part of both kinds of server: the partial sum, the parts taken, the agreement."""

    part_bytes: int

    def __init__(self, session: Session, server: int, keys: PrivateKeys, journal: Journal) -> None:
        if session.servers.get(server) != keys.public:
            raise ValueError(f"keys must be those that the session pins for server {server}")
        self._session, self._server, self._keys = session, server, keys
        self._opening = Opening(session, server, keys, journal)
        self._total = np.zeros(session.dimension, np.uint64)
        self._committed = False

    def open(self) -> bytes:
        """The OPENING for everyone; see `Opening.open`."""
        return self._opening.open(self._total)

    def _read(self, message: bytes, *others: Kind) -> Envelope:
        sets = dict.fromkeys(others, set_bytes(self._session))
        return read(
            self._session, message, self._server, {Kind.SHARE: SEAL_BYTES + self.part_bytes, **sets}
        )

    def _part(self, envelope: Envelope) -> bytes:
        if envelope.sender not in self._session.users:
            raise WrongSender(f"SHARE must come from a user, got {envelope.sender}")
        context = share_context(self._session, envelope.sender, self._server)
        part = open_seal(self._keys.opening, envelope.payload, context)
        if len(part) != self.part_bytes:
            raise MalformedMessage(f"share must be {self.part_bytes} bytes, got {len(part)}")
        return part


class SeedServer(_SharesServer):
    """One of the first J-1 servers: holds a seed per user and the sum of their streams."""

    part_bytes = SEED_BYTES

    def __init__(self, session: Session, server: int, keys: PrivateKeys, journal: Journal) -> None:
        super().__init__(session, server, keys, journal)
        self._seeds: dict[int, bytes] = {}
        self._closed = False

    def receive(self, message: bytes) -> None:
        """Takes a user's SHARE while open for them, and other servers' COMMITs afterwards.

        Raises:
            ProtocolError: the message is refused; nothing has changed.
        """
        envelope = self._read(message, Kind.COMMIT)
        if envelope.kind == Kind.COMMIT:
            self._opening.receive(envelope)
            return
        if self._closed:
            raise OutOfOrder(f"SHARE of user {envelope.sender} must come before HOLDING, came late")
        envelope.check_once(self._seeds)
        seed = self._part(envelope)
        add_stream(self._total, seed)
        self._seeds[envelope.sender] = seed

    def close(self) -> bytes:
        """Takes no more shares; says whose it holds."""
        self._closed = True
        held = self._session.bitmap(self._seeds)
        return write(self._session, Kind.HOLDING, self._server, EVERYONE, held, self._keys.signing)

    def commit(self) -> bytes:
        """Checks the last server's set and signs it.

        Raises:
            OutOfOrder: the last server has not committed, or this one is still open for shares.
            SetMismatch: the set has users whose share this server does not hold.
            TooFewUsers: see `Opening.commit`.
        """
        bitmap = self._opening.proposed
        users = self._session.users_of(bitmap)
        if not self._closed or self._committed:
            raise OutOfOrder("commit must come once, after close")
        unknown = users - set(self._seeds)
        if unknown:
            raise SetMismatch(f"set must have users held here, got others {sorted(unknown)[:10]}")
        message = self._opening.commit(bitmap)
        self._committed = True
        for user in set(self._seeds) - users:
            subtract_stream(self._total, self._seeds[user])
        self._seeds.clear()
        return message


class VectorServer(_SharesServer):
    """The last server: adds masked vectors of users whom all other servers hold."""

    def __init__(self, session: Session, server: int, keys: PrivateKeys, journal: Journal) -> None:
        super().__init__(session, server, keys, journal)
        self.part_bytes = WORD.itemsize * session.dimension
        self._holdings: dict[int, frozenset[int]] = {}
        self._users: set[int] = set()

    @property
    def eligible(self) -> frozenset[int]:
        """Users whose seeds all other servers hold.

        Raises:
            OutOfOrder: a server has not said whose it holds.
        """
        missing = set(self._session.servers) - set(self._holdings) - {self._server}
        if missing:
            raise OutOfOrder(
                f"all other servers must send HOLDING first, missing {sorted(missing)}"
            )
        return frozenset.intersection(*self._holdings.values())

    def receive(self, message: bytes) -> None:
        """Takes the others' HOLDINGs, then users' SHAREs, then the others' COMMITs.

        Raises:
            ProtocolError: the message is refused; nothing has changed.
        """
        envelope = self._read(message, Kind.HOLDING, Kind.COMMIT)
        if envelope.kind == Kind.COMMIT:
            if not self._committed:
                raise OutOfOrder(f"server {self._server} must commit before the others do")
            self._opening.receive(envelope)
        elif envelope.kind == Kind.HOLDING:
            self._receive_holding(envelope)
        else:
            self._receive_share(envelope)

    def commit(self) -> bytes:
        """Takes no more shares; signs the set of users received.

        Raises:
            OutOfOrder: a server has not said whose it holds, or this one has committed.
            TooFewUsers: see `Opening.commit`.
        """
        if self._committed or not self._users <= self.eligible:
            raise OutOfOrder("commit must come once")
        message = self._opening.commit(self._session.bitmap(self._users))
        self._committed = True
        return message

    def _receive_holding(self, envelope: Envelope) -> None:
        envelope.check_server(self._session)
        envelope.check_once(self._holdings)
        self._holdings[envelope.sender] = self._session.users_of(envelope.payload)

    def _receive_share(self, envelope: Envelope) -> None:
        if self._committed:
            raise OutOfOrder(f"SHARE of user {envelope.sender} must come before COMMIT, came late")
        envelope.check_once(self._users)
        if envelope.sender in self._session.users and envelope.sender not in self.eligible:
            raise SetMismatch(f"user {envelope.sender} must be held by all other servers, is not")
        self._total += bytes_to_words(self._part(envelope), self._session.dimension)
        self._users.add(envelope.sender)


def share_context(session: Agreement, user: int, server: int) -> bytes:
    """Bytes that a sealed share is bound to."""
    return session.digest + user.to_bytes(4, "big") + server.to_bytes(4, "big")
