"""Protocol B: one server, dropouts tolerated: SecAgg+ (Bell et al., CCS 2020).

| user sends | server answers |
|---|---|
| ADVERTISE: two X25519 keys, a commitment to its self-mask seed | NEIGHBOURS: its neighbours' |
| KEY_SHARES: shares of its seed and of its mask key, encrypted to each neighbour | INBOX |
| MASKED: vector + stream(own seed) ± stream(seed shared with each neighbour) | SURVIVORS |
| AGREED: its signature on the set of survivors | UNMASK: neighbours' signatures |
| REVEAL: per neighbour *either* the seed's share (survivor) *or* the key's (dropped) | the sum |

Shared streams of two survivors cancel. Both secrets of one user would strip its vector bare, so no
user ever reveals shares of both: a request that names a peer twice is refused, so is any second
request, and `graph.py` sets the threshold so that two stories told to different neighbours do not
add up to both secrets. Survivors sign the set and check its size before they reveal anything.

Against a server that follows the protocol and any coalition within the stated fractions, the sum
of the survivors is all that is learnt. Malformed, unsigned or untimely messages are refused; a
user's wrong shares are noticed against its commitment and key, and abort the run. A user that
submits a wrong vector changes the sum, as it could in any sum.
"""

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from train_distributed.secure_sum.errors import MalformedMessage
from train_distributed.secure_sum.graph import Degree, choose_degree, neighbours
from train_distributed.secure_sum.keys import KEY_BYTES, TAG_BYTES, PublicKeys, agree
from train_distributed.secure_sum.prg import derive
from train_distributed.secure_sum.session import FIRST_SERVER, Session
from train_distributed.secure_sum.shamir import SHARE_BYTES
from train_distributed.secure_sum.wire import OVERHEAD

SERVER = FIRST_SERVER
ADVERTISE_BYTES = 3 * KEY_BYTES
SEALED_BYTES = 2 * SHARE_BYTES + TAG_BYTES  # both shares, encrypted to a neighbour
AGREED_BYTES = 32


@dataclass(frozen=True)
class SecAgg:
    """A session of protocol B: what all its parties have agreed on."""

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
        """Chooses the graph and binds it into the session.

        Args:
            nonce: 32 fresh bytes.
            dimension: d.
            minimum: m_min.
            users: identity -> Ed25519 public key.
            server: pinned keys of the one server.
            corrupt_fraction: of users that may collude with the server.
            dropout_fraction: of users that may drop out.
            context: what else must be agreed.

        Raises:
            ValueError: an argument outside its range.
        """
        graph = choose_degree(len(users), corrupt_fraction, dropout_fraction)
        session = Session(
            nonce=nonce,
            dimension=dimension,
            minimum=minimum,
            users=users,
            servers={SERVER: server},
            context=struct.pack(">6sII", b"secagg", graph.degree, graph.threshold) + context,
        )
        return SecAgg(session, graph)

    @cached_property
    def neighbours(self) -> dict[int, frozenset[int]]:
        """User -> its neighbours."""
        return neighbours(self.session.digest, self.session.order, self.graph.degree)

    def sealing_key(
        self, private: X25519PrivateKey, public: bytes, sender: int, receiver: int
    ) -> bytes:
        """The key under which `sender` encrypts its shares for `receiver`, and no other message."""
        purpose = b"shares" + self.session.digest + struct.pack(">II", sender, receiver)
        return derive(agree(private, public), purpose)

    def pair_seed(self, private: X25519PrivateKey, public: bytes, user: int, peer: int) -> bytes:
        """The seed of the mask that `user` and `peer` share; either's key gives it."""
        ends = struct.pack(">II", min(user, peer), max(user, peer))
        return derive(agree(private, public), b"mask" + self.session.digest + ends)

    def commitment(self, user: int, seed: bytes) -> bytes:
        """What `user` publishes about its self-mask seed: SHA-256; the seed has 256 bits."""
        place = struct.pack(">I", user)
        return hashlib.sha256(b"self-mask" + self.session.digest + place + seed).digest()

    def agreed(self, bitmap: bytes) -> bytes:
        """What users sign about a set of survivors."""
        return hashlib.sha256(b"survivors" + self.session.digest + bitmap).digest()


def pack_entries(entries: Mapping[int, bytes]) -> bytes:
    """Joins `user u32 | value`, by rising user; all values of one length."""
    return b"".join(struct.pack(">I", user) + entries[user] for user in sorted(entries))


def unpack_entries(payload: bytes, size: int) -> dict[int, bytes]:
    """The inverse of `pack_entries` for values of `size` bytes.

    Raises:
        MalformedMessage: a length that does not fit, or users that do not rise.
    """
    step = 4 + size
    if len(payload) % step:
        raise MalformedMessage(f"entries must be {step} bytes each, got {len(payload)} in all")
    entries: dict[int, bytes] = {}
    last = -1
    for start in range(0, len(payload), step):
        (user,) = struct.unpack_from(">I", payload, start)
        if user <= last:
            raise MalformedMessage(f"entries must rise by user, got {user} after {last}")
        entries[user] = payload[start + 4 : start + step]
        last = user
    return entries


def unpack_messages(payload: bytes, size: int) -> list[bytes]:
    """Splits messages of `size` payload bytes each that were joined.

    Raises:
        MalformedMessage: a length that does not fit.
    """
    step = OVERHEAD + size
    if len(payload) % step:
        raise MalformedMessage(f"messages must be {step} bytes each, got {len(payload)} in all")
    return [payload[start : start + step] for start in range(0, len(payload), step)]
