"""Complaints about packets of protocol `secagg`, and proof that a dealer shared a false secret.

**Complaints.** The receiver of a packet says that it is bad; the dealer opens it, and the server
finds which of the two is at fault.

**Proof.** A packet shows the hashes of both shares under its dealer's signature, and a share's hash
is of its session, dealer and holder (`packets.py`). So `threshold` shares with these hashes, of as
many places on its list, that do not give what the dealer advertised prove that it lied: an honest
dealer signs no such packets, whoever holds the shares. Whoever sees the proof may name the seed of
the mask that it shares with the liar: the liar knows that seed, and nobody else is hurt.

**Why one sum stays one.** What is opened then is the sum of the same survivors without the liars'
own vectors. A server that colludes with the liars knows these and could subtract them from the
other sum; one that does not cannot take off the liars' own masks.
"""

import hashlib
import struct
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from train_distributed.secure_sum.errors import (
    BadSignature,
    InconsistentShares,
    MalformedMessage,
    Misbehaviour,
    SetMismatch,
    check_bytes,
)
from train_distributed.secure_sum.keys import KEY_BYTES, exchange_key
from train_distributed.secure_sum.packets import (
    DEAL_BYTES,
    HASH_BYTES,
    HASHES,
    SEED,
    Link,
    check_signature,
    hash_shares,
    is_sound,
    packet_bytes,
)
from train_distributed.secure_sum.prg import WORD, add_stream, subtract_stream
from train_distributed.secure_sum.roster import Mail, Roster
from train_distributed.secure_sum.secagg import (
    ADVERTISE_BYTES,
    COMPLAINT_BYTES,
    SERVER,
    Advert,
    SecAgg,
    pack_entries,
    unpack_entries,
)
from train_distributed.secure_sum.shamir import SHARE_BYTES, reconstruct
from train_distributed.secure_sum.wire import STATEMENT_BYTES, Envelope, Kind, read, signature_of

Packet = Callable[[int, int], tuple[Link, bytes] | None]  # (sender, receiver) -> what was forwarded
Recall = Callable[[int, Kind], bytes]  # (user, kind) -> its message, once more
MOST_CONVICTED = 4  # dealers of one session, in a message that fits
EXPOSED_BYTES = MOST_CONVICTED * (4 + KEY_BYTES)
_SHOWN = ADVERTISE_BYTES + DEAL_BYTES + SHARE_BYTES  # of one holder


def proof_bytes(setup: SecAgg) -> int:
    """Length of the proof against one dealer."""
    return setup.graph.threshold * (4 + _SHOWN)


def opened(
    setup: SecAgg, dealer: int, advert: Advert, which: int, shares: Mapping[int, bytes]
) -> bytes:
    """The dealer's secret, SEED or KEY, that shares (point -> share) give.

    Raises:
        TooFewUsers: fewer shares than the threshold.
        InconsistentShares: it is not what the dealer advertised.
    """
    secret = reconstruct(shares, setup.graph.threshold)
    if which == SEED:
        good = setup.commitment(dealer, secret) == advert.commitment
    else:
        good = exchange_key(secret).public_key().public_bytes_raw() == advert.masking
    if not good:
        raise InconsistentShares("the shares it dealt must give what it advertised, do not")
    return secret


def check_proof(setup: SecAgg, dealer: int, advert: Advert, which: int, proof: bytes) -> None:
    """Checks that a dealer lied about its SEED (a survivor) or KEY (a user that dropped out).

    The proof is `holder | advert | packet | share` of each of `threshold` holders, by holder.

    Raises:
        ProtocolError: it proves nothing.
    """
    check_bytes(proof_bytes(setup), proof=proof)
    points = {user: x for x, user in enumerate(setup.list_of(dealer, advert.list_seed), 1)}
    shares = dict[int, bytes]()
    for holder, shown in unpack_entries(proof, _SHOWN).items():
        other, packet, share = (
            shown[:ADVERTISE_BYTES],
            shown[ADVERTISE_BYTES:-SHARE_BYTES],
            shown[-SHARE_BYTES:],
        )
        if holder not in points:
            raise SetMismatch(f"holder must be on user {dealer}'s list, got {holder}")
        check_signature(Link(setup, dealer, holder, (advert, Advert(other))), packet)
        dealt = packet[HASHES][which * HASH_BYTES :][:HASH_BYTES]
        if hash_shares(setup, dealer, holder, which, [share]) != dealt:
            raise InconsistentShares(f"share must be the one dealt to user {holder}, is not")
        shares[points[holder]] = share
    try:
        opened(setup, dealer, advert, which, shares)
    except InconsistentShares:
        return
    raise SetMismatch(f"proof must be of shares that are false, those of user {dealer} are true")


class Recovery:
    """Recovery of the sum of the survivors without the secrets of dealers that lied.

    `revealed` is dealer that lied -> holder -> share, of `threshold` holders; `told` is user -> the
    witness of its masked vector.

    Raises:
        Misbehaviour: of more dealers than `MOST_CONVICTED`.
    """

    def __init__(
        self,
        roster: Roster,
        survivors: frozenset[int],
        revealed: Mapping[int, Mapping[int, bytes]],
        told: Mapping[int, bytes],
        recall: Recall,
    ) -> None:
        if len(revealed) > MOST_CONVICTED:
            raise Misbehaviour(dict.fromkeys(revealed, "dealt false shares"))
        self._roster, self._setup, self._recall = roster, roster.setup, recall
        self._told, self._survivors = told, survivors
        self._proofs = {dealer: self._proof(dealer, shares) for dealer, shares in revealed.items()}
        self._exposed: dict[int, dict[int, bytes]] = {}  # user -> liar -> seed of their mask
        self._partners: dict[int, list[int]] = {}  # user -> liars that it shares a mask with
        for dealer in sorted(revealed):
            for user in roster.identities[roster.partners(dealer)].tolist():
                if user in survivors - revealed.keys():
                    self._partners.setdefault(user, []).append(dealer)

    @property
    def asked(self) -> list[int]:
        """Survivors that share a mask with somebody who lied."""
        return sorted(self._partners)

    def request(self, user: int) -> list[bytes]:
        """Payload of CONVICTED: dealers that lied, with proof."""
        return [pack_entries({dealer: self._proofs[dealer] for dealer in self._partners[user]})]

    def expose(self, user: int, payload: bytes) -> None:
        """Takes the seeds of the masks that a user shares with the liars.

        Raises:
            SetMismatch: of others.
        """
        seeds = unpack_entries(payload, KEY_BYTES)
        if list(seeds) != self._partners[user]:
            raise SetMismatch(f"user {user} must expose its masks with {self._partners[user]}")
        self._exposed[user] = seeds

    def take_off(self, total: NDArray[np.uint64]) -> None:
        """Takes the liars' vectors and all masks shared with them off the total, in place."""
        for dealer in self._proofs.keys() & self._survivors:
            message = self._recall(dealer, Kind.MASKED)
            envelope = read(self._setup.session, message, SERVER, {Kind.MASKED: len(message)})
            if envelope.rest + signature_of(message) != self._told[dealer]:
                raise SetMismatch(f"vector of user {dealer} must be the one in the sum, is another")
            total -= np.frombuffer(envelope.content, WORD, offset=STATEMENT_BYTES)
        for user, seeds in self._exposed.items():
            for dealer, seed in seeds.items():
                (subtract_stream if user < dealer else add_stream)(total, seed)

    def _proof(self, dealer: int, shares: Mapping[int, bytes]) -> bytes:
        message = self._recall(dealer, Kind.KEY_SHARES)
        size = {Kind.KEY_SHARES: len(message)}
        mail = Mail(self._roster)
        mail.post(dealer, read(self._setup.session, message, SERVER, size).payload)
        shown = {}
        for holder, share in shares.items():
            found = mail.packet(dealer, holder)
            assert found is not None  # it holds a share
            link, packet = found
            shown[holder] = link.adverts[1].payload + packet + share
        return pack_entries(shown)


class ComplaintResolver:
    """Takes complaints, then defences; names dealers that are guilty and users that lied."""

    def __init__(self, packet: Packet) -> None:
        self._packet = packet
        self._accused: dict[int, dict[int, bytes]] = {}  # dealer -> complainer -> its message
        self.guilty: dict[int, str] = {}
        self.liars: dict[int, str] = {}

    def complain(self, envelope: Envelope, message: bytes) -> None:
        """Takes a complaint; what needs no defence is decided at once.

        Raises:
            MalformedMessage: not a complaint about a packet that was forwarded to this user.
        """
        user, payload = envelope.sender, envelope.payload
        check_bytes(COMPLAINT_BYTES, COMPLAINT=payload)
        (accused,) = struct.unpack_from(">I", payload)
        found = self._packet(accused, user)
        if found is None or payload[4:] != hashlib.sha256(found[1]).digest():
            raise MalformedMessage(f"complaint must be about a packet sent on, got {accused}'s")
        link, packet = found
        try:
            check_signature(link, packet)
        except BadSignature:
            self.guilty[accused] = f"its packet for user {user} is not signed"
            return
        if len(packet) != packet_bytes(True):
            self.liars[user] = f"complained about the signed word of user {accused}"
            return
        self._accused.setdefault(accused, {})[user] = message

    def accusations(self) -> dict[int, bytes]:
        """Dealer -> the complaints that it must answer."""
        return {
            dealer: b"".join(message for _, message in sorted(messages.items()))
            for dealer, messages in self._accused.items()
            if dealer not in self.guilty
        }

    def defend(self, dealer: int, payload: bytes) -> None:
        """Takes a dealer's answer, which opens each packet complained about.

        Raises:
            SetMismatch: it does not answer each complaint.
        """
        opened = unpack_entries(payload, KEY_BYTES)
        if opened.keys() != self._accused[dealer].keys():
            raise SetMismatch(f"user {dealer} must answer each complaint once")
        for user, once in opened.items():
            found = self._packet(dealer, user)
            if found is not None and is_sound(*found, once):
                self.liars[user] = f"complained about a sound packet of user {dealer}"
            else:
                self.guilty[dealer] = f"dealt user {user} a packet that is not as it must be"
        del self._accused[dealer]

    def close(self) -> None:
        """Convicts dealers that have not answered."""
        for dealer, messages in self._accused.items():
            users = sorted(messages)
            self.guilty.setdefault(dealer, f"did not answer the complaints of users {users[:10]}")
