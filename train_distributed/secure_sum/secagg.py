"""Protocol `secagg`: one server, dropouts tolerated, self-chosen lists (Bell et al., CCS 2020).

| user sends | server answers |
|---|---|
| ADVERTISE: two X25519 keys, a commitment to its self-mask seed, its list's seed | NEIGHBOURS |
| KEY_SHARES: to its list, shares of its seed and its mask key; to all partners, its word | INBOX |
| MASKED: vector + stream(own seed) ± stream(seed shared with each partner) | SURVIVORS |
| AGREED: its signature on (who shared keys, who survived) | UNMASK |
| REVEAL: per user *either* the seed's share (survivor) *or* the key's (dropped) | the sum |

A user's partners are its list and those that have it on theirs (`graph.py`). Shared streams of two
survivors cancel. Both secrets of one user would strip its vector bare, so no user reveals shares of
both, and none reveals anything before `signers` users have signed the same two sets U and V.

**Why one sum of one pair of sets is opened.** Let an honest user reveal for (U, V). (1) Every
other honest user that reveals does so for the same (U, V), as quorums overlap in an honest user and
each signs once. (2) Whose seed is revealed has masked with exactly its partners in U: it signed
that with its vector (`told`) or with both sets, and the revealer checks this signature. (3) If an
honest u has an honest v of U on its list, both masked along this edge: u goes on only with v's
signed word, bound to both advertisements, that it masks with u. (4) So a set of honest survivors
without an edge to the others is all that could be opened besides the sum, and `graph.py` bounds the
probability that there is one. All checks are made by those that reveal or sign, never left to users
that the server need not ask. One vector may be masked in several sessions as long as each user
signs in one of them: at most one has a quorum.

**Insiders.** What the server can see (keys of small order, lengths, signatures, false openings) it
refuses, naming the sender and going on without it. A packet that does not open is seen by its
receiver only: it complains in place of MASKED, the accused opens that one packet to the server
(`packets.py`), and one of the two is named. A dealer so found ends the session before anyone has
signed a set, and the next one excludes it. A dealer whose shares are each as published, yet not of
what it advertised, is found when its secret is opened: on proof of that its partners expose the
masks that they share with it (CONVICTED, EXPOSED; `conviction.py`), and the sum is that of the
others.
"""

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from train_distributed.secure_sum.errors import MalformedMessage, check_bytes
from train_distributed.secure_sum.graph import Degree, choose_degree, draw_list
from train_distributed.secure_sum.keys import (
    FIRST_SERVER,
    KEY_BYTES,
    PublicKeys,
    agree,
    check_order,
)
from train_distributed.secure_sum.prg import derive
from train_distributed.secure_sum.session import Session

SERVER = FIRST_SERVER
ADVERTISE_BYTES = 4 * KEY_BYTES
AGREED_BYTES = 32
COMPLAINT_BYTES = 4 + 32  # the accused, and the packet's SHA-256


@dataclass(frozen=True)
class Advert:
    """Advertisement of a user, read from its payload."""

    payload: bytes  # ADVERTISE_BYTES

    @classmethod
    def read(cls, payload: bytes) -> Self:
        """Reads the payload of an ADVERTISE.

        Raises:
            ProtocolError: another length, or a key of small order.
        """
        check_bytes(ADVERTISE_BYTES, ADVERTISE=payload)
        advert = cls(payload)
        check_order(advert.sealing)
        check_order(advert.masking)
        return advert

    @property
    def sealing(self) -> bytes:
        """X25519 key under which packets for it are sealed."""
        return self.payload[:KEY_BYTES]

    @property
    def masking(self) -> bytes:
        """X25519 key of its pairwise masks."""
        return self.payload[KEY_BYTES : 2 * KEY_BYTES]

    @property
    def commitment(self) -> bytes:
        """Commitment to its self-mask seed."""
        return self.payload[2 * KEY_BYTES : 3 * KEY_BYTES]

    @property
    def list_seed(self) -> bytes:
        """Seed that its list is drawn from."""
        return self.payload[3 * KEY_BYTES :]


@dataclass(frozen=True)
class SecAgg:
    """A session of protocol `secagg`: what all its parties have agreed on."""

    session: Session
    graph: Degree

    @staticmethod
    def agree_on(
        *,
        nonce: bytes,
        dimension: int,
        minimum: int,
        users: Mapping[int, bytes],
        server: PublicKeys,
        corrupt_fraction: float,
        dropout_fraction: float,
        context: bytes = b"",
    ) -> "SecAgg":
        """Chooses the graph's parameters and binds them into the session.

        The fractions are of users that may collude with the server, and that may drop out; all
        else is as in `Session`.

        Raises:
            ValueError: an argument outside its range.
        """
        graph = choose_degree(len(users), corrupt_fraction, dropout_fraction, minimum)
        numbers = struct.pack(">III", graph.degree, graph.threshold, graph.signers)
        session = Session(
            nonce=nonce,
            dimension=dimension,
            minimum=minimum,
            users=users,
            servers={SERVER: server},
            context=b"secagg, self-chosen lists" + numbers + context,
        )
        return SecAgg(session, graph)

    def places_of(self, user: int, seed: bytes) -> NDArray[np.int64]:
        """The places of a user's list in the session's order, drawn from its advertised seed."""
        own, others = self.session.place[user], len(self.session.order) - 1
        purpose = b"list" + self.session.digest + struct.pack(">I", user)
        drawn = np.array(draw_list(derive(seed, purpose), others, self.graph.degree), np.int64)
        return drawn + (drawn >= own)

    def list_of(self, user: int, seed: bytes) -> tuple[int, ...]:
        """Users on the list of a user."""
        order = self.session.order
        return tuple(order[place] for place in self.places_of(user, seed).tolist())

    def commitment(self, user: int, seed: bytes) -> bytes:
        """Commitment of `user` to its self-mask seed: SHA-256; the seed has 256 bits."""
        place = struct.pack(">I", user)
        return hashlib.sha256(b"self-mask" + self.session.digest + place + seed).digest()

    def told(self, sharing: bytes) -> bytes:
        """Statement of a user with its vector: whose keys mask it (a bitmap)."""
        return hashlib.sha256(b"masked with" + self.session.digest + sharing).digest()

    def agreed(self, sharing: bytes, survivors: bytes) -> bytes:
        """Statement that users sign: who shared keys and who survived (bitmaps)."""
        return hashlib.sha256(b"story" + self.session.digest + sharing + survivors).digest()


def pair_seed(
    digest: bytes, private: X25519PrivateKey, public: bytes, user: int, peer: int
) -> bytes:
    """The seed of the mask that `user` and `peer` share in a session; either's key gives it."""
    ends = struct.pack(">II", min(user, peer), max(user, peer))
    return derive(agree(private, public), b"mask" + digest + ends)


def pack_entries(entries: Mapping[int, bytes]) -> bytes:
    """Joins `user u32 | value`, by rising user; all values of one length."""
    return b"".join(struct.pack(">I", user) + entries[user] for user in sorted(entries))


def read_entries(payload: bytes, size: int) -> NDArray[np.void]:
    """The inverse of `pack_entries` for values of `size` bytes: (n,) records (user, value).

    Raises:
        MalformedMessage: a length that does not fit, or users that do not rise.
    """
    record = np.dtype([("user", ">u4"), ("value", f"V{size}")])
    if len(payload) % record.itemsize:
        raise MalformedMessage(
            f"entries must be {record.itemsize} bytes each, got {len(payload)} in all"
        )
    entries = np.frombuffer(payload, record)
    users = entries["user"].astype(np.int64)
    falls = np.flatnonzero(users[1:] <= users[:-1])
    if len(falls):
        last, user = users[falls[0]], users[falls[0] + 1]
        raise MalformedMessage(f"entries must rise by user, got {user} after {last}")
    return entries


def unpack_entries(payload: bytes, size: int) -> dict[int, bytes]:
    """Reads entries into a dictionary by user; see `read_entries`."""
    entries = read_entries(payload, size)
    values = [value.tobytes() for value in entries["value"]]
    return dict(zip(entries["user"].tolist(), values, strict=True))
