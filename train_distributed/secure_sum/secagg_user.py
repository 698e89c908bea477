"""A user of protocol `secagg`, as a state machine: bytes in, bytes out."""

import hashlib
import struct
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from io import BytesIO

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from train_distributed.secure_sum import errors, secagg
from train_distributed.secure_sum.conviction import MOST_CONVICTED, check_proof, proof_bytes
from train_distributed.secure_sum.journal import Journal
from train_distributed.secure_sum.keys import (
    EVERYONE,
    KEY_BYTES,
    SIGNATURE_BYTES,
    PrivateKeys,
    exchange_key,
)
from train_distributed.secure_sum.packets import (
    KEY,
    SEED,
    Link,
    check_signature,
    open_deal,
    packet_bytes,
    write_deal,
)
from train_distributed.secure_sum.prg import add_stream, derive, new_seed, subtract_stream
from train_distributed.secure_sum.session import set_bytes
from train_distributed.secure_sum.shamir import split
from train_distributed.secure_sum.wire import (
    OVERHEAD,
    WITNESS_BYTES,
    Kind,
    check_statement,
    check_vector,
    read,
    split_messages,
    words_to_bytes,
    write,
)

SUBMIT, AGREE = "submit", "agree"  # steps of the journal, each taken once a session
_ORDER = (Kind.NEIGHBOURS, Kind.INBOX, Kind.SURVIVORS, Kind.UNMASK)
Vector = NDArray[np.uint64] | Callable[[], NDArray[np.uint64]]


class SecAggUser:
    """Answers each of the server's messages once, in order.

    The vector is (d,) uint64, or a function that makes it. Nothing about it leaves before MASKED:
    only then is the function called, after the session has been claimed in the journal.

    One set of survivors is signed a session, also where this machine was put back to an earlier
    state: before AGREED leaves, the journal has claimed it.

    Raises:
        ValueError: a vector that is not (d,) uint64.
    """

    def __init__(
        self, setup: secagg.SecAgg, user: int, keys: PrivateKeys, vector: Vector, journal: Journal
    ) -> None:
        if not callable(vector):
            check_vector(vector, setup.session.dimension)
        self._setup, self._session = setup, setup.session
        self._user, self._keys, self._vector, self._journal = user, keys, vector, journal
        self._signing = Ed25519PrivateKey.from_private_bytes(keys.signing)
        self._sealing, self._masking = exchange_key(new_seed()), exchange_key(new_seed())
        self._seed, self._packet_seed, list_seed = new_seed(), new_seed(), new_seed()
        public = [key.public_key().public_bytes_raw() for key in (self._sealing, self._masking)]
        commitment = setup.commitment(user, self._seed)
        self._advert = secagg.Advert(b"".join([*public, commitment, list_seed]))
        self._list = setup.list_of(user, list_seed)
        self._peers: dict[int, secagg.Advert] = {}
        self._lists: dict[int, tuple[int, ...]] = {}  # of the users that have this one on theirs
        self._sent: dict[int, bytes] = {}  # partner -> this user's packet for it
        self._shares: dict[int, tuple[bytes, bytes]] = {}
        self._masks: dict[int, tuple[secagg.Advert, bytes]] = {}  # partner -> advert, mask seed
        self._survivor_check: SurvivorCheck | None = None
        self._alive: frozenset[int] | None = None  # survivors, once shares were revealed
        self._expected: Kind | None = None
        self._agreed = False
        self._largest = longest_to_user(setup)

    @property
    def agreed(self) -> bool:
        """Whether this user has signed a set of survivors.

        Until then its vector may be masked in another session: no quorum counts it here.
        """
        return self._agreed

    def start(self) -> bytes:
        """ADVERTISE: fresh keys, a commitment and a list's seed; nothing about the vector."""
        self._expected = Kind.NEIGHBOURS
        return self._write(Kind.ADVERTISE, self._advert.payload, EVERYONE)

    def receive(self, message: bytes) -> bytes:
        """The answer to the server's next message.

        Raises:
            ProtocolError: the message is refused; nothing was revealed, nothing has changed.
            AlreadyOpened: likewise; this user has sent a vector in this session before, or signed
                its survivors.
        """
        envelope = read(self._session, message, self._user, self._largest)
        kind, payload = envelope.kind, envelope.payload
        if envelope.sender != secagg.SERVER:
            raise errors.WrongSender(f"sender must be the server, got {envelope.sender}")
        if kind is Kind.ACCUSED:
            return self._defend(payload)
        if kind is Kind.CONVICTED:
            return self._expose(payload)
        if self._expected is None:
            raise errors.OutOfOrder(f"{kind.name} came outside a session")
        if kind < self._expected:
            raise errors.ReplayedMessage(f"{kind.name} must come once, came again")
        if kind > self._expected:
            raise errors.OutOfOrder(f"{self._expected.name} must come next, got {kind.name}")
        answers = (self._share_keys, self._mask, self._agree, self._reveal)
        place = _ORDER.index(kind)
        self._expected, before = (*_ORDER, None)[place + 1], self._expected
        try:
            return answers[place](payload)
        except errors.ProtocolError:
            self._expected = before
            raise

    def _share_keys(self, payload: bytes) -> bytes:
        peers, lists = self._partners(payload)
        holders = {u: place for place, u in enumerate(self._list, 1) if u in peers}
        self._check_list(peers.keys(), "advertised")
        points, threshold = list(holders.values()), self._setup.graph.threshold
        both = zip(
            split(self._seed, threshold, points),
            split(self._masking.private_bytes_raw(), threshold, points),
            strict=True,
        )
        shares = dict(zip(holders, both, strict=True))
        sent = {}
        for peer in sorted(peers):
            link = Link(self._setup, self._user, peer, (self._advert, peers[peer]))
            sent[peer] = (
                write_deal(link, shares[peer], self._once(peer), self._signing)
                if peer in shares
                else self._signing.sign(link.context)
            )
        self._peers, self._lists, self._sent = peers, lists, sent
        return self._write(Kind.KEY_SHARES, b"".join(sent.values()))

    def _partners(
        self, payload: bytes
    ) -> tuple[dict[int, secagg.Advert], dict[int, tuple[int, ...]]]:
        """Reads the partners' advertisements, and the lists of those that chose this user."""
        peers: dict[int, secagg.Advert] = {}
        lists: dict[int, tuple[int, ...]] = {}
        own = frozenset(self._list)
        for message in split_messages(payload, secagg.ADVERTISE_BYTES):
            envelope = read(
                self._session, message, self._user, {Kind.ADVERTISE: secagg.ADVERTISE_BYTES}
            )
            sender, advert = envelope.sender, secagg.Advert(envelope.payload)
            if sender in peers:
                raise errors.ReplayedMessage(f"partner {sender} must be named once, got another")
            if sender not in self._session.users:
                raise errors.WrongSender(f"ADVERTISE must come from a user, got {sender}")
            chosen = self._setup.list_of(sender, advert.list_seed)
            if self._user in chosen:
                lists[sender] = chosen
            elif sender not in own:
                raise errors.WrongSender(f"sender must be a partner, got {sender}")
            peers[sender] = advert
        return peers, lists

    def _mask(self, payload: bytes) -> bytes:
        sets = set_bytes(self._session)
        sharing = self._session.users_of(payload[:sets])
        self._check_set(sharing, "shared keys")
        unknown = sharing.intersection(self._list) - self._peers.keys()
        if unknown:
            raise errors.SetMismatch(
                f"users on its list must have advertised, got {sorted(unknown)[:10]}"
            )
        partners = sharing & self._peers.keys()
        sizes = {peer: packet_bytes(peer in self._lists) for peer in sorted(partners)}
        errors.check_bytes(sets + sum(sizes.values()), INBOX=payload)
        inbox, shares = BytesIO(payload[sets:]), {}
        for peer, size in sizes.items():
            packet = inbox.read(size)
            try:
                shares[peer] = self._open(peer, packet)
            except errors.ProtocolError:
                self._expected = None
                named = struct.pack(">I", peer) + hashlib.sha256(packet).digest()
                return self._write(Kind.COMPLAINT, named, EVERYONE)
        seeds = {
            p: secagg.pair_seed(
                self._session.digest, self._masking, self._peers[p].masking, self._user, p
            )
            for p in partners
        }
        self._journal.claim(self._session.digest, SUBMIT, b"")
        vector = self._vector() if callable(self._vector) else self._vector
        check_vector(vector, self._session.dimension)
        masked = vector.copy()
        add_stream(masked, self._seed)
        for peer, seed in seeds.items():
            (add_stream if self._user < peer else subtract_stream)(masked, seed)
        self._shares = {p: both for p, both in shares.items() if both}
        self._masks = {p: (self._peers[p], seed) for p, seed in seeds.items()}
        self._survivor_check = SurvivorCheck(self._setup, self._user, sharing, self._lists)
        self._vector = np.zeros(0, np.uint64)
        told = self._setup.told(payload[:sets])
        return self._write(Kind.MASKED, told + words_to_bytes(masked))

    def _open(self, peer: int, packet: bytes) -> tuple[bytes, ...]:
        link = Link(self._setup, peer, self._user, (self._peers[peer], self._advert))
        if peer in self._lists:
            return open_deal(link, packet, self._sealing)
        check_signature(link, packet)
        return ()

    def _defend(self, payload: bytes) -> bytes:
        """Opens packets to those that complain about them, if it is this user's own they saw."""
        opened = {}
        for message in split_messages(payload, secagg.COMPLAINT_BYTES):
            complaint = read(
                self._session, message, self._user, {Kind.COMPLAINT: secagg.COMPLAINT_BYTES}
            )
            sender = complaint.sender
            packet = self._sent.get(sender, b"")
            named = struct.pack(">I", self._user) + hashlib.sha256(packet).digest()
            if complaint.payload != named or len(packet) != packet_bytes(True):
                raise errors.WrongReceiver(
                    f"user {sender} must complain about a deal of this user's"
                )
            opened[sender] = self._once(sender)
        return self._write(Kind.DEFENCE, secagg.pack_entries(opened))

    def _agree(self, payload: bytes) -> bytes:
        survivors = self._session.users_of(payload)
        self._check_set(survivors, "survived")
        statement = self._listed.survive(survivors)
        digest = self._session.digest
        if self._journal.detail(digest, SUBMIT) is None:
            raise errors.OutOfOrder(f"journal must hold {SUBMIT} of this session: it was put back")
        self._journal.claim(digest, AGREE, hashlib.sha256(statement).digest())
        self._agreed = True
        return self._write(Kind.AGREED, statement, EVERYONE)

    def _reveal(self, payload: bytes) -> bytes:
        alive = self._listed.check(payload)
        if self._journal.detail(self._session.digest, AGREE) is None:
            raise errors.OutOfOrder(f"journal must hold {AGREE} of this session: it was put back")
        revealed = {
            owner: both[SEED] if owner in alive else both[KEY]
            for owner, both in self._shares.items()
        }
        self._alive = alive
        self._forget()
        return self._write(Kind.REVEAL, secagg.pack_entries(revealed))

    def _expose(self, payload: bytes) -> bytes:
        """Names the seeds of masks shared with dealers that are proven to have lied."""
        if self._alive is None:
            raise errors.OutOfOrder("REVEAL must be sent first")
        exposed = {}
        for dealer, proof in secagg.unpack_entries(payload, proof_bytes(self._setup)).items():
            if dealer not in self._masks:
                raise errors.WrongSender(f"proof must be about a partner, got {dealer}")
            advert, seed = self._masks[dealer]
            which = SEED if dealer in self._alive else KEY
            check_proof(self._setup, dealer, advert, which, proof)
            exposed[dealer] = seed
        return self._write(Kind.EXPOSED, secagg.pack_entries(exposed))

    @property
    def _listed(self) -> "SurvivorCheck":
        if self._survivor_check is None:
            raise errors.OutOfOrder("MASKED must be sent first")
        return self._survivor_check

    def _check_set(self, users: frozenset[int], what: str) -> None:
        errors.check_enough(len(users), self._setup.graph.signers, f"users that {what}")
        if self._user not in users:
            raise errors.SetMismatch(f"users that {what} must include this user")
        self._check_list(users, what)

    def _check_list(self, users: Collection[int], what: str) -> None:
        count, least = sum(u in users for u in self._list), self._setup.graph.threshold
        errors.check_enough(count, least, f"users of its list that {what}")

    def _once(self, peer: int) -> bytes:
        """The private key used once, for the packet to a partner."""
        return derive(self._packet_seed, struct.pack(">I", peer))

    def _forget(self) -> None:
        self._shares, self._peers, self._sent = {}, {}, {}
        self._seed = self._packet_seed = bytes(KEY_BYTES)
        del self._sealing, self._masking

    def _write(self, kind: Kind, payload: bytes, receiver: int = secagg.SERVER) -> bytes:
        return write(self._session, kind, self._user, receiver, payload, self._keys.signing)


@dataclass
class SurvivorCheck:
    """Sets of users that shared keys and that survived, as the server named them to one user.

    UNMASK is four sets (alive, dropped, who signs the story, whose word on its vector is shown) and
    the signatures of the last two, by rising user.
    """

    setup: secagg.SecAgg
    user: int
    sharing: frozenset[int]
    owners: Mapping[int, tuple[int, ...]]  # users that have this one on their list -> that list
    survivors: frozenset[int] | None = None

    def survive(self, survivors: frozenset[int]) -> bytes:
        """Takes the set of survivors; returns the statement to be signed.

        Raises:
            SetMismatch: a survivor that shared no keys.
        """
        if not survivors <= self.sharing:
            late = sorted(survivors - self.sharing)[:10]
            raise errors.SetMismatch(f"survivors must have shared keys, got {late}")
        self.survivors = survivors
        session = self.setup.session
        return self.setup.agreed(session.bitmap(self.sharing), session.bitmap(survivors))

    def check(self, request: bytes) -> frozenset[int]:
        """Checks UNMASK; returns the survivors.

        Raises:
            ContradictoryRequest: a user named alive and dropped.
            SetMismatch: not the story that this user signed, or not what its users masked with.
            TooFewUsers: fewer signatures than a quorum, or too few of an owner's list survived.
            BadSignature: a signature that is not on this story.
        """
        session, size = self.setup.session, set_bytes(self.setup.session)
        sets = [session.users_of(request[i * size : (i + 1) * size]) for i in range(4)]
        alive, dropped, signers, witnesses = sets
        if alive & dropped:
            both = sorted(alive & dropped)[:10]
            raise errors.ContradictoryRequest(
                f"users must be alive or dropped, got both for {both}"
            )
        if alive != self.survivors or dropped != self.sharing - alive:
            raise errors.SetMismatch(
                "request must name the survivors and the dropped that were agreed on"
            )
        self._check_sets(alive, signers, witnesses)
        signed, end = request[4 * size :], len(signers) * SIGNATURE_BYTES
        errors.check_bytes(end + len(witnesses) * WITNESS_BYTES, signatures=signed)
        self._check_signatures(_each(signed[:end], signers), _each(signed[end:], witnesses))
        return alive

    def _check_sets(
        self, alive: frozenset[int], signers: frozenset[int], witnesses: frozenset[int]
    ) -> None:
        graph = self.setup.graph
        if len(signers) != graph.signers:
            raise errors.TooFewUsers(f"signers must be {graph.signers}, got {len(signers)}")
        owned = alive & self.owners.keys()
        if not signers <= alive or witnesses != owned - signers:
            raise errors.SetMismatch(
                "signatures must be of survivors, and of all whose shares are asked"
            )
        for owner in sorted(owned):
            kept = sum(user in alive for user in self.owners[owner])
            errors.check_enough(kept, graph.threshold, f"survivors of user {owner}'s list")

    def _check_signatures(self, signed: dict[int, bytes], shown: dict[int, bytes]) -> None:
        session, sharing = self.setup.session, self.setup.session.bitmap(self.sharing)
        story = self.setup.agreed(sharing, session.bitmap(self.survivors or ()))
        for user, signature in signed.items():
            check_statement(session, Kind.AGREED, user, story, signature)
        told = self.setup.told(sharing)
        for user, witness in shown.items():
            check_statement(session, Kind.MASKED, user, told, witness)


def _each(joined: bytes, users: frozenset[int]) -> dict[int, bytes]:
    """User -> its part of what was joined by rising user, all parts of one length."""
    size = len(joined) // max(1, len(users))
    return {user: joined[i * size : (i + 1) * size] for i, user in enumerate(sorted(users))}


def longest_to_user(setup: secagg.SecAgg) -> dict[Kind, int]:
    """Longest payload, in bytes, of each kind of message that the server sends."""
    sets, partners = set_bytes(setup.session), len(setup.session.order) - 1
    signatures = setup.graph.signers * SIGNATURE_BYTES
    return {
        Kind.NEIGHBOURS: partners * (OVERHEAD + secagg.ADVERTISE_BYTES),
        Kind.INBOX: sets + partners * packet_bytes(True),
        Kind.SURVIVORS: sets,
        Kind.UNMASK: 4 * sets + signatures + partners * WITNESS_BYTES,
        Kind.ACCUSED: partners * (OVERHEAD + secagg.COMPLAINT_BYTES),
        Kind.CONVICTED: MOST_CONVICTED * (4 + proof_bytes(setup)),
    }
