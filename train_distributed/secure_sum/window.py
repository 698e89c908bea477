"""A sum over the reports of a time, one per user of a roll, by two aggregators.

A `Window` is what all parties agree on: the aggregators' keys, the digest of the roll of users, how
few reports may be opened, how much noise either aggregator adds, and from when to when reports are
taken. A report's id is its user's number on the roll, whose key signs it: so a user counts once
however often it sends, and nobody counts whom the roll does not hold. The roll also says how long a
user's vector may be. Whoever writes the roll decides who the users are, as in a federation.
"""

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from pretrain import check
from train_distributed.secure_sum.keys import KEY_BYTES, PublicKeys
from train_distributed.secure_sum.parties import FIRST_SERVER

AGGREGATORS = 2
LEADER, HELPER = FIRST_SERVER, FIRST_SERVER + 1  # the operator's is the leader
USER = np.dtype([("key", np.uint8, KEY_BYTES), ("norm_bound", "<u4")])  # a line of the roll
LATEST = 2**40  # seconds


@dataclass(frozen=True, kw_only=True)
class Window:
    """One sum over the reports of a time; it serves as a `Session`.

    Raises:
        ValueError: a field out of range.
    """

    nonce: bytes  # 32 bytes, fresh for every window
    dimension: int  # d, numbers in a report
    minimum: int  # m_min, fewest reports whose sum may be opened: those that were promised
    enrolled: int  # w, users on the roll, numbered from 0
    roll: bytes  # SHA-256 of the roll
    servers: Mapping[int, PublicKeys]  # the aggregators: LEADER and HELPER
    noise_std: float  # σ of the discrete Gaussian that either of them adds, in steps
    opens: int  # seconds since 1970, UTC
    closes: int  # from then on no report is taken
    context: bytes = field(default=b"")  # what else must be agreed: method, promise, noise

    def __post_init__(self) -> None:
        check.byte_length(32, nonce=self.nonce, roll=self.roll)
        check.within("[1, 2^28]", dimension=self.dimension)
        check.within("[1, 2^31]", enrolled=self.enrolled)
        check.within(f"[1, {self.enrolled}]", minimum=self.minimum)
        check.within(f"[0, {LATEST}]", opens=self.opens)
        check.within(f"[{self.opens + 1}, {LATEST}]", closes=self.closes)
        check.within("[1, 2^40]", noise_std=self.noise_std)
        if set(self.servers) != {LEADER, HELPER}:
            raise ValueError(f"aggregators must be 2^31 and 2^31 + 1, got {sorted(self.servers)}")
        if len(set(self.servers.values())) != len(self.servers):
            raise ValueError("aggregators must have keys of their own, two share some")
        object.__setattr__(self, "servers", MappingProxyType(dict(self.servers)))

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of everything above."""
        numbers = (self.dimension, self.minimum, self.enrolled, self.opens, self.closes)
        aggregators = b"".join(
            keys.verifying + keys.sealing for _, keys in sorted(self.servers.items())
        )
        packed = struct.pack(">5Qd", *numbers, self.noise_std)
        head = b"window, version 2" + self.nonce + packed + self.roll
        return hashlib.sha256(head + aggregators + self.context).digest()

    def state(self, now: float, *, closed: bool) -> str:
        """State of the window in words, `now` seconds after 1970; closed: a set was signed."""
        if closed or now >= self.closes:
            return "closed" if closed else "closed, its time is over"
        return "open" if now >= self.opens else "not open yet"

    @property
    def users(self) -> range:
        """All identities, rising, which are places on the roll."""
        return range(self.enrolled)

    order = users

    def verifying_key(self, party: int) -> bytes | None:
        """An aggregator's key; users' are on the roll."""
        return self.servers[party].verifying if party in self.servers else None


class WindowWithKeys:
    """A window together with its roll, which aggregators have: it knows all users.

    Raises:
        ValueError: not the window's roll, or a key that is on it twice.
    """

    def __init__(self, window: Window, roll: NDArray[np.void]) -> None:
        check.shape((window.enrolled,), roll=roll)
        if hashlib.sha256(roll.view(np.uint8).data).digest() != window.roll:
            raise ValueError(f"roll must have SHA-256 {window.roll.hex()}, has another")
        check_distinct(roll["key"])
        self.window, self._roll = window, roll
        self.digest, self.dimension, self.minimum = window.digest, window.dimension, window.minimum
        self.users, self.order, self.servers = window.users, window.order, window.servers
        self.longest = int(roll["norm_bound"].max())  # bound of the user with the longest vector

    def verifying_key(self, party: int) -> bytes | None:
        """The key that must have signed a party's messages; None for a stranger."""
        if party in self.users:
            return self._roll[party]["key"].tobytes()
        return self.window.verifying_key(party)

    def norm_bound(self, user: int) -> int:
        """Length in steps that a user's vector may have."""
        return int(self._roll[user]["norm_bound"])


def make_roll(keys: Sequence[bytes], norm_bounds: Sequence[int]) -> NDArray[np.void]:
    """(w,) lines of the roll, of users in the order of their numbers."""
    roll = np.zeros(len(keys), USER)
    roll["key"] = np.frombuffer(b"".join(keys), np.uint8).reshape(-1, KEY_BYTES)
    roll["norm_bound"] = norm_bounds
    return roll


def read_roll(path: Path) -> NDArray[np.void]:
    """(w,) lines; mapped, not read.

    Raises:
        ValueError: not a whole number of lines.
    """
    size = path.stat().st_size
    if not size or size % USER.itemsize:
        raise ValueError(f"{path} must hold lines of {USER.itemsize} bytes, got {size} bytes")
    return np.memmap(path, USER, "r")


def check_distinct(user_keys: NDArray[np.uint8]) -> None:
    """Raises ValueError where a key occurs twice, which would count one user twice."""
    heads = np.ascontiguousarray(user_keys[:, :8]).view(np.uint64).ravel()
    rising = np.sort(heads)
    alike = np.unique(rising[1:][rising[1:] == rising[:-1]])  # of honest keys none: 2^-64 a pair
    places = np.flatnonzero(np.isin(heads, alike))
    first: dict[bytes, int] = {}
    for place in places.tolist():
        other = first.setdefault(user_keys[place].tobytes(), place)
        if other != place:
            raise ValueError(f"every user must have a key of its own, {other} and {place} share it")
