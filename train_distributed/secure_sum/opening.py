"""Agreement of a window's aggregators on a set of users, whose noised sum they open once.

Each aggregator signs the set it agrees to; it opens only after the other one has signed the same
set. An honest one signs one set per window, ever, and the journal remembers both steps before they
are sent. So with one honest aggregator at most one sum is opened per window: the sums over S and
over S without user i, whose difference is user i's vector and two noises, can never both be.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from train_distributed.proofs import field
from train_distributed.proofs.field import ELEMENT_BYTES, Elements, InvalidShare
from train_distributed.secure_sum.errors import (
    MalformedMessage,
    OutOfOrder,
    SetMismatch,
    TooFewUsers,
)
from train_distributed.secure_sum.journal import Journal
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.parties import EVERYONE, name_of
from train_distributed.secure_sum.session import Agreement, count_in, set_bytes, users_in
from train_distributed.secure_sum.wire import Envelope, Kind, read, write

DIGEST_BYTES = 32


@dataclass(frozen=True)
class Opened:
    """Sum that a session reveals."""

    total: NDArray[np.uint64]  # (d,) modulo 2^64; of a window, the signed sum
    users: frozenset[int]  # whose vectors it contains


class Opening:
    """One aggregator's part in the agreement; sets of users are bitmaps, as they travel."""

    def __init__(
        self, window: Agreement, aggregator: int, keys: PrivateKeys, journal: Journal
    ) -> None:
        self._window, self._aggregator, self._keys = window, aggregator, keys
        self._journal = journal
        self._seen: dict[int, bytes] = {}
        self._set: bytes | None = None

    def commit(self, bitmap: bytes) -> bytes:
        """Signs a set of users, for everyone.

        Raises:
            MalformedMessage: no set of this window's users.
            TooFewUsers: fewer than the window's minimum.
            AlreadyOpened: this aggregator has signed a set of this window before.
        """
        window = self._window
        users = count_in(window.order, bitmap)
        if users < window.minimum:
            raise TooFewUsers(f"users must be >= {window.minimum} to be opened, got {users}")
        self._journal.claim(window.digest, "commit", hashlib.sha256(bitmap).digest())
        self._set = bitmap
        return write(window, Kind.COMMIT, self._aggregator, EVERYONE, bitmap, self._keys.signing)

    def receive(self, envelope: Envelope) -> None:
        """Takes the other aggregator's COMMIT.

        Raises:
            WrongSender: not from an aggregator.
            ReplayedMessage: a second one from the same aggregator.
            SetMismatch: it differs from the set this aggregator has signed.
        """
        envelope.check_server(self._window)
        envelope.check_once(self._seen)
        order, bitmap = self._window.order, envelope.payload
        users = count_in(order, bitmap)
        if self._set is not None and bitmap != self._set:
            odd = sorted(users_in(order, bitmap) ^ users_in(order, self._set))[:10]
            raise SetMismatch(
                f"{name_of(envelope.sender)} must commit to the same "
                f"{count_in(order, self._set)} users, got {users}, difference {odd}"
            )
        self._seen[envelope.sender] = bitmap

    def open(self, share: Callable[[], Elements]) -> bytes:
        """The noised share (d,) of the sum over the set that was signed; asked for when allowed.

        Raises:
            OutOfOrder: not all aggregators have signed.
            SetMismatch: they have signed different sets.
            AlreadyOpened: this aggregator has opened another sum of this window before.
        """
        missing = set(self._window.servers) - set(self._seen) - {self._aggregator}
        if self._set is None or missing:
            raise OutOfOrder(f"all aggregators must commit first, missing {sorted(missing)}")
        if any(bitmap != self._set for bitmap in self._seen.values()):
            raise SetMismatch("all aggregators must commit to the same users, they did not")
        digest = hashlib.sha256(self._set).digest()
        self._journal.claim(self._window.digest, "open", digest)
        payload = digest + field.encode(share())
        window, signing = self._window, self._keys.signing
        return write(window, Kind.OPENING, self._aggregator, EVERYONE, payload, signing)


def combine(window: Agreement, commit: bytes, openings: Sequence[bytes]) -> Opened:
    """Adds the noised shares in all OPENINGs; any COMMIT names the users. Anyone may.

    Raises:
        ProtocolError: a message that is not valid, missing, twice, or of another set.
    """
    reader = EVERYONE  # not a party, so any sender is another party
    named = read(window, commit, reader, {Kind.COMMIT: set_bytes(window)})
    named.check_server(window)
    size = DIGEST_BYTES + ELEMENT_BYTES * window.dimension
    total = np.zeros(window.dimension, np.uint64)
    missing = set(window.servers)
    for message in openings:
        envelope = read(window, message, reader, {Kind.OPENING: size})
        envelope.check_server(window)
        envelope.check_once(window.servers.keys() - missing)
        if envelope.payload[:DIGEST_BYTES] != hashlib.sha256(named.payload).digest():
            raise SetMismatch(
                f"{name_of(envelope.sender)} must open the committed set, got another"
            )
        try:
            field.check_length(size, opening=envelope.payload)
            total = field.add(total, field.decode(envelope.payload[DIGEST_BYTES:]))
        except InvalidShare as error:
            raise MalformedMessage(f"share of {name_of(envelope.sender)}: {error}") from error
        missing.remove(envelope.sender)
    if missing:
        raise OutOfOrder(f"all aggregators must open, missing {sorted(missing)}")
    return Opened(field.to_integers(total).view(np.uint64), users_in(window.order, named.payload))
