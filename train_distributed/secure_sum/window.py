"""`shares` for very many users: reports arrive over time, one per user of a roll, summed once.

A `Window` is what all parties agree on: the aggregators' keys, the digest of the roll of users, how
few reports may be opened, and from when to when they are taken. A report's id is its user's number
on the roll, whose key signs it: so a user counts once however often it sends, and nobody counts
whom the roll does not hold. Whoever writes the roll decides who the users are, as in a federation.

**The width of a word.** Aggregators sum modulo 2^bits. The true sum is an integer S; users'
vectors, streams and partial sums are all reduced modulo 2^bits, which keeps sums, so the opened
number is S modulo 2^bits, and S itself if -2^(bits-1) <= S < 2^(bits-1). `FixedPoint` proves that
of its `largest_sum`, and names the narrowest width that holds it (`word_bits`).
"""

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from pretrain import check
from train_distributed.secure_sum.keys import KEY_BYTES, PublicKeys
from train_distributed.secure_sum.parties import FIRST_SERVER

WORDS = {32: np.dtype("<u4"), 64: np.dtype("<u8")}  # bits -> word
LATEST = 2**40  # seconds


@dataclass(frozen=True, kw_only=True)
class Window:
    """One sum over the reports of a time; it serves as a `Session`.

    Raises:
        ValueError: a field out of range.
    """

    nonce: bytes  # 32 bytes, fresh for every window
    dimension: int  # d, numbers in a report
    bits: int  # of a number: 32 or 64
    minimum: int  # m_min, fewest reports whose sum may be opened: those that the noise is for
    enrolled: int  # w, users on the roll, numbered from 0
    roll: bytes  # SHA-256 of the roll
    servers: Mapping[int, PublicKeys]  # aggregators, FIRST_SERVER + j; the operator's is first
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
        check.one_of(WORDS, bits=self.bits)
        expected = range(FIRST_SERVER, FIRST_SERVER + len(self.servers))
        if len(self.servers) < 2 or set(self.servers) != set(expected):
            raise ValueError(f"aggregators must be >= 2, from 2^31 on, got {sorted(self.servers)}")
        if len(set(self.servers.values())) != len(self.servers):
            raise ValueError("aggregators must have keys of their own, two share some")
        object.__setattr__(self, "servers", MappingProxyType(dict(self.servers)))

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of everything above."""
        numbers = (self.dimension, self.bits, self.minimum, self.enrolled, self.opens, self.closes)
        aggregators = b"".join(
            keys.verifying + keys.sealing for _, keys in sorted(self.servers.items())
        )
        head = b"window, version 1" + self.nonce + struct.pack(">6Q", *numbers) + self.roll
        return hashlib.sha256(
            head + bytes([len(self.servers)]) + aggregators + self.context
        ).digest()

    def state(self, now: float, *, closed: bool) -> str:
        """State of the window in words, `now` seconds after 1970; closed: a set was signed."""
        if closed or now >= self.closes:
            return "closed" if closed else "closed, its time is over"
        return "open" if now >= self.opens else "not open yet"

    @property
    def word(self) -> np.dtype:
        """Type of one number."""
        return WORDS[self.bits]

    @property
    def users(self) -> range:
        """All identities, rising, which are places on the roll."""
        return range(self.enrolled)

    order = users

    @property
    def last(self) -> int:
        """The aggregator that takes masked vectors; all others take seeds."""
        return max(self.servers)

    def verifying_key(self, party: int) -> bytes | None:
        """An aggregator's key; users' are on the roll."""
        return self.servers[party].verifying if party in self.servers else None


class WindowWithKeys:
    """A window together with its roll, which aggregators have: it knows all keys.

    Raises:
        ValueError: not the window's roll, or a key that is on it twice.
    """

    def __init__(self, window: Window, user_keys: NDArray[np.uint8]) -> None:
        check.shape((window.enrolled, KEY_BYTES), roll=user_keys)
        if hashlib.sha256(user_keys.data).digest() != window.roll:
            raise ValueError(f"roll must have SHA-256 {window.roll.hex()}, has another")
        check_distinct(user_keys)
        self.window, self._user_keys = window, user_keys
        self.digest, self.dimension, self.minimum = window.digest, window.dimension, window.minimum
        self.word, self.users, self.order = window.word, window.users, window.order
        self.servers, self.last = window.servers, window.last

    def verifying_key(self, party: int) -> bytes | None:
        """The key that must have signed a party's messages; None for a stranger."""
        if party in self.users:
            return self._user_keys[party].tobytes()
        return self.window.verifying_key(party)


def read_user_keys(path: Path) -> NDArray[np.uint8]:
    """(w, 32) Ed25519 public keys, one after another; mapped, not read.

    Raises:
        ValueError: not a whole number of keys.
    """
    size = path.stat().st_size
    if not size or size % KEY_BYTES:
        raise ValueError(f"{path} must hold keys of {KEY_BYTES} bytes, got {size} bytes")
    return np.memmap(path, np.uint8, "r").reshape(-1, KEY_BYTES)


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
