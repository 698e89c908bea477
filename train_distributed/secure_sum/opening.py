"""Agreement of computation servers on a set of users, whose sum they open once.

Each server signs the set it agrees to; it opens only after every other server has signed the same
set. An honest server signs one set per session, ever, and the journal remembers both steps before
they are sent. So with one honest server at most one sum is opened per session: the sums over S and
over S without user i, whose difference is user i's vector, can never both be.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from train_distributed.secure_sum.errors import (
    OutOfOrder,
    SetMismatch,
    TooFewUsers,
)
from train_distributed.secure_sum.journal import Journal
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.parties import EVERYONE, name_of
from train_distributed.secure_sum.session import Agreement, count_in, set_bytes, users_in
from train_distributed.secure_sum.wire import (
    Envelope,
    Kind,
    bytes_to_words,
    read,
    words_to_bytes,
    write,
)

DIGEST_BYTES = 32


@dataclass(frozen=True)
class Opened:
    """Sum that a session reveals."""

    total: NDArray[np.uint64]  # (d,) modulo 2^64; of narrower words, the signed sum
    users: frozenset[int]  # whose vectors it contains


class Opening:
    """One server's part in the agreement; sets of users are bitmaps, as they travel."""

    def __init__(
        self, session: Agreement, server: int, keys: PrivateKeys, journal: Journal
    ) -> None:
        self._session, self._server, self._keys, self._journal = session, server, keys, journal
        self._seen: dict[int, bytes] = {}
        self._set: bytes | None = None

    @property
    def proposed(self) -> bytes:
        """The set that the last server, the one that holds the vectors, has signed.

        Raises:
            OutOfOrder: it has not yet.
        """
        last = max(self._session.servers)
        if last not in self._seen:
            raise OutOfOrder(f"server {last} must commit first, has not")
        return self._seen[last]

    def commit(self, bitmap: bytes) -> bytes:
        """Signs a set of users, for everyone.

        Raises:
            MalformedMessage: no set of this session's users.
            TooFewUsers: fewer than the session's minimum.
            AlreadyOpened: this server has signed a set of this session before.
        """
        session = self._session
        users = count_in(session.order, bitmap)
        if users < session.minimum:
            raise TooFewUsers(f"users must be >= {session.minimum} to be opened, got {users}")
        self._journal.claim(session.digest, "commit", hashlib.sha256(bitmap).digest())
        self._set = bitmap
        return write(session, Kind.COMMIT, self._server, EVERYONE, bitmap, self._keys.signing)

    def receive(self, envelope: Envelope) -> None:
        """Takes another server's COMMIT.

        Raises:
            WrongSender: not from a server.
            ReplayedMessage: a second one from the same server.
            SetMismatch: it differs from the set this server has signed.
        """
        envelope.check_server(self._session)
        envelope.check_once(self._seen)
        order, bitmap = self._session.order, envelope.payload
        users = count_in(order, bitmap)
        if self._set is not None and bitmap != self._set:
            odd = sorted(users_in(order, bitmap) ^ users_in(order, self._set))[:10]
            raise SetMismatch(
                f"{name_of(envelope.sender)} must commit to the same "
                f"{count_in(order, self._set)} users, got {users}, difference {odd}"
            )
        self._seen[envelope.sender] = bitmap

    def open(self, partial: NDArray[np.unsignedinteger]) -> bytes:
        """The partial sum (d,) over the set that this server signed; once per session, ever.

        Raises:
            OutOfOrder: not all servers have signed.
            SetMismatch: they have signed different sets.
            AlreadyOpened: this server has opened this session before.
        """
        missing = set(self._session.servers) - set(self._seen) - {self._server}
        if self._set is None or missing:
            raise OutOfOrder(f"all servers must commit first, missing {sorted(missing)}")
        if any(bitmap != self._set for bitmap in self._seen.values()):
            raise SetMismatch("all servers must commit to the same users, they did not")
        digest = hashlib.sha256(self._set).digest()
        self._journal.claim(self._session.digest, "open", digest)
        payload = digest + words_to_bytes(partial)
        session, signing = self._session, self._keys.signing
        return write(session, Kind.OPENING, self._server, EVERYONE, payload, signing)


def combine(session: Agreement, commit: bytes, openings: Sequence[bytes]) -> Opened:
    """Adds the partial sums in every server's OPENING; any COMMIT names the users. Anyone may.

    Raises:
        ProtocolError: a message that is not valid, missing, twice, or of another set.
    """
    reader = EVERYONE  # not a party, so any sender is another party
    named = read(session, commit, reader, {Kind.COMMIT: set_bytes(session)})
    named.check_server(session)
    size = DIGEST_BYTES + session.word.itemsize * session.dimension
    total = np.zeros(session.dimension, session.word)
    missing = set(session.servers)
    for message in openings:
        envelope = read(session, message, reader, {Kind.OPENING: size})
        envelope.check_server(session)
        envelope.check_once(session.servers.keys() - missing)
        if envelope.payload[:DIGEST_BYTES] != hashlib.sha256(named.payload).digest():
            raise SetMismatch(
                f"{name_of(envelope.sender)} must open the committed set, got another"
            )
        total += bytes_to_words(envelope.payload[DIGEST_BYTES:], session.dimension, session.word)
        missing.remove(envelope.sender)
    if missing:
        raise OutOfOrder(f"all servers must open, missing {sorted(missing)}")
    signed = total.view(f"<i{session.word.itemsize}").astype(np.int64)
    return Opened(signed.view(np.uint64), users_in(session.order, named.payload))
