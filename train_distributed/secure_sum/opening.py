"""Agreement of a window's aggregators on a set of users, whose noised sum they open once.

Each aggregator signs the set it agrees to; it opens only after the other one has signed the same
set. An honest one signs one set per window, ever, and the journal remembers both steps before they
are sent. So with one honest aggregator at most one sum is opened per window: the sums over S and
over S without user i, whose difference is user i's vector and two noises, can never both be.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from train_distributed.proofs import field
from train_distributed.proofs.field import ELEMENT_BYTES, Elements, InvalidShare
from train_distributed.secure_sum.errors import (
    MalformedMessage,
    OutOfOrder,
    SetMismatch,
    check_enough,
)
from train_distributed.secure_sum.journal import ResumedJournal
from train_distributed.secure_sum.keys import EVERYONE, PrivateKeys, name_of
from train_distributed.secure_sum.session import Agreement, count_in, set_bytes, users_in
from train_distributed.secure_sum.wire import Kind, read, write

DIGEST_BYTES = 32


@dataclass(frozen=True)
class Opened:
    """Sum that a session reveals."""

    total: NDArray[np.uint64]  # (d,) modulo 2^64; of a window, the signed sum
    users: frozenset[int]  # whose vectors it contains


@dataclass(frozen=True)
class Opening:
    """One aggregator's part in the agreement; sets of users are bitmaps, as they travel."""

    window: Agreement
    aggregator: int
    keys: PrivateKeys
    journal: ResumedJournal

    def commit(self, bitmap: bytes) -> bytes:
        """Signs a set of users, for everyone.

        Raises:
            MalformedMessage: no set of this window's users.
            TooFewUsers: fewer than the window's minimum.
            AlreadyOpened: this aggregator has signed another set of this window before.
        """
        window = self.window
        check_enough(count_in(window.order, bitmap), window.minimum, "users to be opened")
        self.journal.claim(window.digest, "commit", hashlib.sha256(bitmap).digest())
        return self._write(Kind.COMMIT, bitmap)

    def open(self, sets: Mapping[int, bytes], share: Callable[[], Elements]) -> bytes:
        """The noised share (d,) of the sum over the set that was signed; asked for when allowed.

        Args:
            sets: set that each aggregator has signed, this one's own included.
            share: makes it.

        Raises:
            OutOfOrder: not all aggregators have signed.
            SetMismatch: they have signed different sets.
            AlreadyOpened: this aggregator has signed or opened another set of this window before.
        """
        missing = sorted(self.window.servers.keys() - sets.keys())
        if missing:
            raise OutOfOrder(f"all aggregators must commit first, missing {missing}")
        own = sets[self.aggregator]
        self.commit(own)
        for aggregator, bitmap in sets.items():
            if bitmap != own:
                raise SetMismatch(f"{name_of(aggregator)} must commit to the same users, did not")
        digest = hashlib.sha256(own).digest()
        self.journal.claim(self.window.digest, "open", digest)
        return self._write(Kind.OPENING, digest + field.encode(share()))

    def _write(self, kind: Kind, payload: bytes) -> bytes:
        return write(self.window, kind, self.aggregator, EVERYONE, payload, self.keys.signing)


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
