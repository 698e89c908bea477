"""A user of protocol B, as a state machine: bytes in, bytes out."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from train_distributed.secure_sum.errors import (
    ContradictoryRequest,
    OutOfOrder,
    ReplayedMessage,
    SetMismatch,
    TooFewUsers,
    WrongSender,
)
from train_distributed.secure_sum.journal import Journal
from train_distributed.secure_sum.keys import KEY_BYTES, PrivateKeys, decrypt, encrypt, exchange_key
from train_distributed.secure_sum.opening import set_bytes
from train_distributed.secure_sum.prg import add_stream, new_seed, subtract_stream
from train_distributed.secure_sum.secagg import (
    ADVERTISE_BYTES,
    AGREED_BYTES,
    SEALED_BYTES,
    SERVER,
    SecAgg,
    pack_entries,
    unpack_entries,
    unpack_messages,
)
from train_distributed.secure_sum.session import EVERYONE
from train_distributed.secure_sum.shamir import SHARE_BYTES, split
from train_distributed.secure_sum.wire import (
    OVERHEAD,
    Kind,
    check_vector,
    read,
    words_to_bytes,
    write,
)


@dataclass(frozen=True)
class _Peer:
    """A neighbour's advertised keys."""

    sealing: bytes
    masking: bytes


class SecAggUser:
    """Answers each of the server's messages once, in order."""

    def __init__(
        self,
        setup: SecAgg,
        user: int,
        keys: PrivateKeys,
        vector: NDArray[np.uint64] | Callable[[], NDArray[np.uint64]],
        journal: Journal,
    ) -> None:
        """Draws this session's keys; nothing is recorded or revealed yet.

        Args:
            setup: what was agreed.
            user: this user's identity.
            keys: its own.
            vector: (d,) uint64, or what makes it: called once, at MASKED, the first message that
                reveals anything.
            journal: its own.

        Raises:
            ValueError: a vector that is not (d,) uint64.
        """
        if not callable(vector):
            check_vector(vector, setup.session.dimension)
        self._setup, self._session = setup, setup.session
        self._user, self._keys, self._vector, self._journal = user, keys, vector, journal
        self._sealing, self._masking = exchange_key(new_seed()), exchange_key(new_seed())
        self._seed = new_seed()
        self._peers: dict[int, _Peer] = {}
        self._inbox: dict[int, bytes] = {}
        self._survivors = frozenset[int]()
        self._expected: Kind | None = None
        most = setup.graph.degree
        sets = set_bytes(self._session)
        self._largest = {
            Kind.NEIGHBOURS: most * (OVERHEAD + ADVERTISE_BYTES),
            Kind.INBOX: most * (4 + SEALED_BYTES),
            Kind.SURVIVORS: sets,
            Kind.UNMASK: 2 * sets + most * (OVERHEAD + AGREED_BYTES),
        }
        self._answers: dict[Kind, Callable[[bytes], bytes]] = {
            Kind.NEIGHBOURS: self._share_keys,
            Kind.INBOX: self._mask,
            Kind.SURVIVORS: self._agree,
            Kind.UNMASK: self._reveal,
        }

    def start(self) -> bytes:
        """ADVERTISE."""
        self._expected = Kind.NEIGHBOURS
        keys = [key.public_key().public_bytes_raw() for key in (self._sealing, self._masking)]
        commitment = self._setup.commitment(self._user, self._seed)
        return self._write(Kind.ADVERTISE, b"".join([*keys, commitment]), EVERYONE)

    def receive(self, message: bytes) -> bytes:
        """The answer to the server's next message.

        Raises:
            ProtocolError: the message is refused; nothing was revealed, nothing has changed.
        """
        envelope = read(self._session, message, self._user, self._largest)
        if envelope.sender != SERVER:
            raise WrongSender(f"sender must be the server, got {envelope.sender}")
        if self._expected is None:
            raise OutOfOrder(f"{envelope.kind.name} came outside a session")
        if envelope.kind < self._expected:
            raise ReplayedMessage(f"{envelope.kind.name} must come once, came again")
        if envelope.kind > self._expected:
            raise OutOfOrder(f"{self._expected.name} must come next, got {envelope.kind.name}")
        answer = self._answers[envelope.kind](envelope.payload)
        self._expected = Kind(envelope.kind + 2) if envelope.kind < Kind.UNMASK else None
        return answer

    def _share_keys(self, payload: bytes) -> bytes:
        peers: dict[int, _Peer] = {}
        for message in unpack_messages(payload, ADVERTISE_BYTES):
            advert = read(self._session, message, self._user, {Kind.ADVERTISE: ADVERTISE_BYTES})
            self._check_neighbour(advert.sender, peers)
            keys = advert.payload
            peers[advert.sender] = _Peer(keys[:KEY_BYTES], keys[KEY_BYTES : 2 * KEY_BYTES])
        self._check_enough(len(peers), "neighbours")
        points = [peer + 1 for peer in peers]
        threshold = self._setup.graph.threshold
        both = zip(
            split(self._seed, threshold, points),
            split(self._masking.private_bytes_raw(), threshold, points),
            strict=True,
        )
        sealed = {
            peer: encrypt(self._sealing_key(peer, outgoing=True, peers=peers), seed + key)
            for peer, (seed, key) in zip(peers, both, strict=True)
        }
        self._peers = peers
        return self._write(Kind.KEY_SHARES, pack_entries(sealed))

    def _mask(self, payload: bytes) -> bytes:
        entries = unpack_entries(payload, SEALED_BYTES)
        strangers = set(entries) - set(self._peers)
        if strangers:
            raise WrongSender(f"shares must come from neighbours, got {sorted(strangers)}")
        self._check_enough(len(entries), "neighbours that shared keys")
        inbox = {
            peer: decrypt(self._sealing_key(peer, outgoing=False, peers=self._peers), sealed)
            for peer, sealed in entries.items()
        }
        self._journal.claim(self._session.digest, "submit", b"")
        vector = self._vector() if callable(self._vector) else self._vector
        check_vector(vector, self._session.dimension)
        masked = vector.copy()
        add_stream(masked, self._seed)
        for peer in inbox:
            key = self._peers[peer].masking
            seed = self._setup.pair_seed(self._masking, key, self._user, peer)
            (add_stream if self._user < peer else subtract_stream)(masked, seed)
        self._inbox, self._vector = inbox, np.zeros(0, np.uint64)
        return self._write(Kind.MASKED, words_to_bytes(masked))

    def _agree(self, payload: bytes) -> bytes:
        survivors = self._session.users_of(payload)
        if len(survivors) < self._session.minimum:
            raise TooFewUsers(f"survivors must be >= {self._session.minimum}, got {len(survivors)}")
        alive = survivors & self._setup.neighbours[self._user]
        if self._user not in survivors or not alive <= set(self._inbox):
            raise SetMismatch("survivors must include this user, and only neighbours that shared")
        self._check_enough(len(alive), "surviving neighbours")
        self._survivors = survivors
        return self._write(Kind.AGREED, self._setup.agreed(payload), EVERYONE)

    def _reveal(self, payload: bytes) -> bytes:
        sets = set_bytes(self._session)
        alive = self._session.users_of(payload[:sets])
        dropped = self._session.users_of(payload[sets : 2 * sets])
        if alive & dropped:
            raise ContradictoryRequest(
                f"peers must be alive or dropped, got both for {sorted(alive & dropped)[:10]}"
            )
        if alive != self._survivors or not set(self._inbox) <= alive | dropped:
            raise SetMismatch("request must name the agreed survivors, and every peer once")
        self._check_agreement(payload[2 * sets :], alive)
        shares = {
            peer: both[:SHARE_BYTES] if peer in alive else both[SHARE_BYTES:]
            for peer, both in self._inbox.items()
        }
        self._forget()
        return self._write(Kind.REVEAL, pack_entries(shares))

    def _check_agreement(self, messages: bytes, alive: frozenset[int]) -> None:
        """Checks that `threshold` surviving neighbours signed the same set."""
        expected = self._setup.agreed(self._session.bitmap(alive))
        signers: set[int] = set()
        for message in unpack_messages(messages, AGREED_BYTES):
            agreed = read(self._session, message, self._user, {Kind.AGREED: AGREED_BYTES})
            self._check_neighbour(agreed.sender, signers)
            if agreed.payload != expected or agreed.sender not in alive:
                raise SetMismatch(f"user {agreed.sender} must have signed the same survivors")
            signers.add(agreed.sender)
        self._check_enough(len(signers), "neighbours that signed the survivors")

    def _check_neighbour(self, sender: int, known: set[int] | dict[int, _Peer]) -> None:
        if sender not in self._setup.neighbours[self._user]:
            raise WrongSender(f"sender must be a neighbour, got {sender}")
        if sender in known:
            raise ReplayedMessage(f"neighbour {sender} must be named once, got another")

    def _check_enough(self, count: int, what: str) -> None:
        threshold = self._setup.graph.threshold
        if count < threshold:
            raise TooFewUsers(f"{what} must be >= the threshold {threshold}, got {count}")

    def _sealing_key(self, peer: int, *, outgoing: bool, peers: dict[int, _Peer]) -> bytes:
        ends = (self._user, peer) if outgoing else (peer, self._user)
        return self._setup.sealing_key(self._sealing, peers[peer].sealing, *ends)

    def _forget(self) -> None:
        self._inbox, self._peers, self._seed = {}, {}, b""
        del self._sealing, self._masking
        self._vector = np.zeros(0, np.uint64)

    def _write(self, kind: Kind, payload: bytes, receiver: int = SERVER) -> bytes:
        return write(self._session, kind, self._user, receiver, payload, self._keys.signing)
