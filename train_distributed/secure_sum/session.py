"""Agreement of all parties of one secure sum before the first message.

Its digest is in every message, so parties that disagree on anything in it refuse each other's
messages. A retry is a new session: new nonce, fresh noise, one more composition.
"""

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pretrain import check
from train_distributed.secure_sum.errors import MalformedMessage, check_bytes
from train_distributed.secure_sum.keys import FIRST_SERVER, KEY_BYTES, PublicKeys

if TYPE_CHECKING:
    from train_distributed.secure_sum.window import Window, WindowWithKeys

# What messages and openings need to know of a sum; one over very many users is a window.
Agreement: TypeAlias = "Session | Window | WindowWithKeys"


@dataclass(frozen=True, kw_only=True)
class Session:
    """Parameters that are public, fixed beforehand, and the same for every party.

    Raises:
        ValueError: a field out of range.
    """

    nonce: bytes  # 32 bytes, fresh for every session
    dimension: int  # d, numbers in a vector
    minimum: int  # m_min, fewest users whose sum may be opened
    users: Mapping[int, bytes]  # identity in [0, 2^31) -> Ed25519 public key
    servers: Mapping[int, PublicKeys]  # FIRST_SERVER + j -> pinned keys, j = 0, 1, ...
    context: bytes = field(default=b"")  # what else must be agreed: protocol, noise, model

    def __post_init__(self) -> None:
        check.byte_length(KEY_BYTES, nonce=self.nonce)
        check.within("[1, 2^32)", dimension=self.dimension)
        check.within(f"[1, {len(self.users)}]", minimum=self.minimum)
        if not all(0 <= user < FIRST_SERVER for user in self.users):
            raise ValueError(f"users must have identities in [0, 2^31), got {sorted(self.users)}")
        if len(set(self.users.values())) != len(self.users):
            raise ValueError("users must have distinct keys, got one key twice")
        expected = range(FIRST_SERVER, FIRST_SERVER + len(self.servers))
        if not self.servers or set(self.servers) != set(expected):
            raise ValueError(f"servers must be numbered from 2^31 on, got {sorted(self.servers)}")
        object.__setattr__(self, "users", MappingProxyType(dict(self.users)))
        object.__setattr__(self, "servers", MappingProxyType(dict(self.servers)))

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of everything above."""
        head = struct.pack(
            ">QQQQ", self.dimension, self.minimum, len(self.users), len(self.servers)
        )
        users = b"".join(struct.pack(">I", u) + self.users[u] for u in self.order)
        servers = b"".join(
            keys.verifying + keys.sealing for _, keys in sorted(self.servers.items())
        )
        return hashlib.sha256(self.nonce + head + users + servers + self.context).digest()

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Users by rising identity; a set of users is a bitmap over this order."""
        return tuple(sorted(self.users))

    @cached_property
    def place(self) -> dict[int, int]:
        """The place of each user in `order`."""
        return {user: place for place, user in enumerate(self.order)}

    def verifying_key(self, party: int) -> bytes | None:
        """The key that must have signed a party's messages; None for a stranger."""
        if party in self.users:
            return self.users[party]
        return self.servers[party].verifying if party in self.servers else None

    def bitmap(self, users: Iterable[int]) -> bytes:
        """One bit per user in `order`, lowest bit first; ceil(w / 8) bytes."""
        bits = bytearray(set_bytes(self))
        for user in users:
            place = self.place[user]
            bits[place // 8] |= 1 << place % 8
        return bytes(bits)

    def users_of(self, bitmap: bytes) -> frozenset[int]:
        """The inverse of `bitmap`; see `users_in`."""
        return users_in(self.order, bitmap)


def set_bytes(session: Agreement) -> int:
    """Length of a set of users as it travels: a bitmap over the session's order."""
    return (len(session.order) + 7) // 8


def users_in(order: Sequence[int], bitmap: bytes) -> frozenset[int]:
    """The users of a bitmap over `order`.

    Raises:
        MalformedMessage: a wrong length, or a bit beyond the last user.
    """
    count_in(order, bitmap)
    return frozenset(order[place] for place in np.flatnonzero(bits_of(order, bitmap)).tolist())


def bits_of(order: Sequence[int], bitmap: bytes) -> NDArray[np.bool_]:
    """(w,) whether each user of the order is in a bitmap that `count_in` has checked."""
    octets = np.frombuffer(bitmap, np.uint8)
    return np.unpackbits(octets, count=len(order), bitorder="little").astype(bool)


def count_in(order: Sequence[int], bitmap: bytes) -> int:
    """Number of users in a bitmap over `order`; raises like `users_in`."""
    check_bytes((len(order) + 7) // 8, set_of_users=bitmap)
    bits = int.from_bytes(bitmap, "little")
    if bits >> len(order):
        raise MalformedMessage(f"user set must hold {len(order)} users, got a later bit")
    return bits.bit_count()
