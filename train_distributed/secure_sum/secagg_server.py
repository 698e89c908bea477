"""The server of protocol B, as a state machine: bytes in, bytes out, one vector of memory."""

from collections.abc import Callable, Iterable

import numpy as np

from train_distributed.secure_sum.errors import (
    InconsistentShares,
    MalformedMessage,
    OutOfOrder,
    ReplayedMessage,
    SetMismatch,
    TooFewUsers,
    WrongSender,
)
from train_distributed.secure_sum.fixed_point import WORD
from train_distributed.secure_sum.journal import Journal
from train_distributed.secure_sum.keys import KEY_BYTES, PrivateKeys, exchange_key
from train_distributed.secure_sum.opening import Opened
from train_distributed.secure_sum.prg import add_stream, subtract_stream
from train_distributed.secure_sum.secagg import (
    ADVERTISE_BYTES,
    AGREED_BYTES,
    SEALED_BYTES,
    SERVER,
    SecAgg,
    pack_entries,
    unpack_entries,
)
from train_distributed.secure_sum.shamir import SHARE_BYTES, reconstruct
from train_distributed.secure_sum.wire import Kind, bytes_to_words, payload_of, read, write

_ROUNDS = (Kind.ADVERTISE, Kind.KEY_SHARES, Kind.MASKED, Kind.AGREED, Kind.REVEAL)


class SecAggServer:
    """Collects one message per user and round; `advance` ends a round.

    Raises:
        ValueError: keys that are not those the session pins.
    """

    def __init__(self, setup: SecAgg, keys: PrivateKeys, journal: Journal) -> None:
        if setup.session.servers[SERVER] != keys.public:
            raise ValueError("keys must be those that the session pins for the server")
        self._setup, self._session, self._keys, self._journal = setup, setup.session, keys, journal
        self._round = 0
        self._open = True
        self._invited = frozenset(self._session.users)
        self._here: set[int] = set()
        self._adverts: dict[int, bytes] = {}
        self._outbox: dict[int, dict[int, bytes]] = {}  # receiver -> sender -> both shares, sealed
        self._sharing = frozenset[int]()  # who shared keys
        self._survivors = frozenset[int]()  # who sent a masked vector
        self._total = np.zeros(self._session.dimension, np.uint64)
        self._agreed: dict[int, bytes] = {}
        self._revealed: dict[int, dict[int, bytes]] = {}  # owner -> holder's point -> share
        degree = setup.graph.degree
        self._sizes = {
            Kind.ADVERTISE: ADVERTISE_BYTES,
            Kind.KEY_SHARES: degree * (4 + SEALED_BYTES),
            Kind.MASKED: WORD.itemsize * self._session.dimension,
            Kind.AGREED: AGREED_BYTES,
            Kind.REVEAL: degree * (4 + SHARE_BYTES),
        }
        self._take: dict[Kind, Callable[[int, bytes, bytes], None]] = {
            Kind.ADVERTISE: self._take_advert,
            Kind.KEY_SHARES: self._take_key_shares,
            Kind.MASKED: self._take_masked,
            Kind.AGREED: self._take_agreed,
            Kind.REVEAL: self._take_reveal,
        }

    @property
    def waiting_for(self) -> frozenset[int]:
        """Users that this round's message was asked of and has not come from."""
        return self._invited - self._here

    def receive(self, message: bytes) -> None:
        """Takes one user's message of the current round.

        Raises:
            ProtocolError: the message is refused; nothing has changed.
        """
        envelope = read(self._session, message, SERVER, self._sizes)
        kind = _ROUNDS[self._round]
        if not self._open or envelope.kind > kind:
            raise OutOfOrder(f"{envelope.kind.name} does not belong to the round of {kind.name}")
        if envelope.kind < kind or envelope.sender in self._here:
            raise ReplayedMessage(
                f"{envelope.kind.name} of user {envelope.sender} came late or again"
            )
        if envelope.sender not in self._invited:
            raise WrongSender(f"user {envelope.sender} has dropped out, got {kind.name}")
        self._take[kind](envelope.sender, envelope.payload, message)
        self._here.add(envelope.sender)

    def advance(self) -> dict[int, bytes]:
        """Ends the round; whoever has not answered has dropped out.

        Returns:
            User -> the message for it.

        Raises:
            TooFewUsers: the session cannot be completed; it is closed, nothing is released.
            OutOfOrder: the last round is ended by `finish`.
        """
        ends = (self._send_neighbours, self._send_inboxes, self._send_survivors, self._send_unmask)
        if not self._open or self._round >= len(ends):
            raise OutOfOrder("advance must come before the last round")
        self._check_minimum(self._here)
        messages = ends[self._round]()
        self._check_minimum(messages)
        self._invited, self._here = frozenset(messages), set()
        self._round += 1
        return messages

    def finish(self) -> Opened:
        """Takes all masks off the sum of the survivors; once per session, ever.

        Raises:
            OutOfOrder: before the last round, or a second time.
            TooFewUsers: too few shares of some secret; nothing is released.
            InconsistentShares: shares that do not give the secret; nothing is released.
            AlreadyOpened: this session was opened before.
        """
        if not self._open or _ROUNDS[self._round] != Kind.REVEAL:
            raise OutOfOrder("finish must come once, after the last round")
        self._open = False
        secrets = {user: self._secret(user) for user in sorted(self._sharing)}
        bitmap = self._session.bitmap(self._survivors)
        self._journal.claim(self._session.digest, "open", self._setup.agreed(bitmap))
        for user, secret in secrets.items():
            if user in self._survivors:
                subtract_stream(self._total, secret)
            else:
                self._cancel(user, secret)
        return Opened(self._total, self._survivors)

    def _take_advert(self, user: int, payload: bytes, message: bytes) -> None:
        if len(payload) != ADVERTISE_BYTES:
            raise MalformedMessage(f"ADVERTISE must be {ADVERTISE_BYTES} bytes, got {len(payload)}")
        self._adverts[user] = message

    def _take_key_shares(self, user: int, payload: bytes, message: bytes) -> None:
        entries = unpack_entries(payload, SEALED_BYTES)
        self._check_peers(user, entries, self._invited)
        for peer, sealed in entries.items():
            self._outbox.setdefault(peer, {})[user] = sealed

    def _take_masked(self, user: int, payload: bytes, message: bytes) -> None:
        self._total += bytes_to_words(payload, self._session.dimension)

    def _take_agreed(self, user: int, payload: bytes, message: bytes) -> None:
        if payload != self._setup.agreed(self._session.bitmap(self._survivors)):
            raise SetMismatch(f"user {user} must sign the survivors it was told, signed others")
        self._agreed[user] = message

    def _take_reveal(self, user: int, payload: bytes, message: bytes) -> None:
        entries = unpack_entries(payload, SHARE_BYTES)
        self._check_peers(user, entries, self._sharing)
        for owner, share in entries.items():
            self._revealed.setdefault(owner, {})[user + 1] = share

    def _send_neighbours(self) -> dict[int, bytes]:
        users = self._connected(self._here)
        return {
            user: self._write(
                Kind.NEIGHBOURS,
                user,
                b"".join(self._adverts[peer] for peer in sorted(self._near(user, users))),
            )
            for user in users
        }

    def _send_inboxes(self) -> dict[int, bytes]:
        users = self._connected(self._here)
        self._sharing = users
        messages = {}
        for user in users:
            inbox = {p: s for p, s in self._outbox.pop(user).items() if p in users}
            messages[user] = self._write(Kind.INBOX, user, pack_entries(inbox))
        self._outbox.clear()
        return messages

    def _send_survivors(self) -> dict[int, bytes]:
        self._survivors = frozenset(self._here)
        bitmap = self._session.bitmap(self._survivors)
        return {user: self._write(Kind.SURVIVORS, user, bitmap) for user in self._survivors}

    def _send_unmask(self) -> dict[int, bytes]:
        dropped = self._sharing - self._survivors
        sets = self._session.bitmap(self._survivors) + self._session.bitmap(dropped)
        threshold, messages = self._setup.graph.threshold, {}
        for user in self._here:
            signers = sorted(self._near(user, self._here))[:threshold]
            if len(signers) == threshold:
                signed = b"".join(self._agreed[peer] for peer in signers)
                messages[user] = self._write(Kind.UNMASK, user, sets + signed)
        return messages

    def _near(self, user: int, users: Iterable[int]) -> frozenset[int]:
        return self._setup.neighbours[user].intersection(users)

    def _connected(self, users: Iterable[int]) -> frozenset[int]:
        """The users left when those with too few neighbours are taken out, again and again."""
        left = frozenset(users)
        while True:
            keep = {u for u in left if len(self._near(u, left)) >= self._setup.graph.threshold}
            if len(keep) == len(left):
                return left
            left = frozenset(keep)

    def _check_peers(self, user: int, entries: dict[int, bytes], among: frozenset[int]) -> None:
        expected = self._near(user, among)
        if set(entries) != expected:
            wrong = sorted(set(entries) ^ expected)
            raise SetMismatch(f"user {user} must name each peer once, differs in {wrong[:10]}")

    def _check_minimum(self, users: Iterable[int]) -> None:
        count, minimum = len(set(users)), self._session.minimum
        if count < minimum:
            self._open = False
            kind = _ROUNDS[self._round].name
            raise TooFewUsers(f"users must be >= {minimum} after {kind}, got {count}")

    def _secret(self, user: int) -> bytes:
        """A survivor's self-mask seed or a dropped user's masking key, checked."""
        shares = self._revealed.get(user, {})
        try:
            secret = reconstruct(shares, self._setup.graph.threshold)
        except (TooFewUsers, InconsistentShares) as error:
            raise type(error)(f"secret of user {user}: {error}") from error
        advert = self._advertised(user)
        if user in self._survivors:
            good = self._setup.commitment(user, secret) == advert[2 * KEY_BYTES :]
        else:
            public = exchange_key(secret).public_key().public_bytes_raw()
            good = public == advert[KEY_BYTES : 2 * KEY_BYTES]
        if not good:
            raise InconsistentShares(f"shares must give what user {user} advertised, they do not")
        return secret

    def _cancel(self, dropped: int, key: bytes) -> None:
        """Takes out what the survivors added for the masks they share with a dropped user."""
        private = exchange_key(key)
        for peer in self._near(dropped, self._survivors):
            public = self._advertised(peer)[KEY_BYTES : 2 * KEY_BYTES]
            seed = self._setup.pair_seed(private, public, dropped, peer)
            (subtract_stream if peer < dropped else add_stream)(self._total, seed)

    def _advertised(self, user: int) -> bytes:
        return payload_of(self._adverts[user])

    def _write(self, kind: Kind, user: int, payload: bytes) -> bytes:
        return write(self._session, kind, SERVER, user, payload, self._keys.signing)
