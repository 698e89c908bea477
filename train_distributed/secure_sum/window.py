"""A sum over the reports of a period, one per user of a roll, by two aggregators.

A `Window` is what all parties agree on: the aggregators' keys, the hash of the roll of users, how
few reports may be opened, how much noise either aggregator adds, and from when to when reports are
taken. A report's id is its user's number on the roll, whose key signs it: so a user counts once
however often it sends, and nobody counts whom the roll does not hold. How long a user's vector may
be follows from its rows, which the roll states. Whoever writes the roll decides who the users are.

Where two sums were agreed on, the window states the second one beforehand, too. Once the first is
open the operator publishes a centre, once for ever, and everybody derives the same second window
from it: of the same roll, aggregators and time.
"""

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

from pretrain import check
from train_distributed.secure_sum.keys import FIRST_SERVER, PublicKeys
from train_distributed.secure_sum.roll import Roll

AGGREGATORS = 2
LEADER, HELPER = FIRST_SERVER, FIRST_SERVER + 1  # the operator's is the leader
LATEST = 2**40  # seconds


@dataclass(frozen=True, kw_only=True)
class SecondSum:
    """Length, noise and bounds of a second sum, agreed before any report to the first.

    Raises:
        ValueError: a field out of range.
    """

    dimension: int  # numbers in a report
    noise_std: float  # of the noise that either aggregator adds, in steps
    steps: Mapping[int, int]  # rows -> steps that a user's vector may be long

    def __post_init__(self) -> None:
        check.within("[1, 2^28]", dimension=self.dimension)
        check.within("[1, 2^40]", noise_std=self.noise_std)
        for steps in self.steps.values():
            check.within("[1, 2^31]", **{"steps of the second sum": steps})
        object.__setattr__(self, "steps", MappingProxyType(dict(self.steps)))

    @property
    def packed(self) -> bytes:
        """All of it, for a digest."""
        steps = b"".join(struct.pack(">2Q", *pair) for pair in sorted(self.steps.items()))
        return struct.pack(">Qd", self.dimension, self.noise_std) + steps


@dataclass(frozen=True, kw_only=True)
class Window:
    """One sum over the reports of a period, in place of a `Session`.

    Raises:
        ValueError: a field out of range.
    """

    nonce: bytes  # 32 bytes, fresh for every window
    dimension: int  # d, numbers in a report
    minimum: int  # m_min, fewest reports whose sum may be opened: those that were promised
    roll: bytes  # hash of the roll, see `Roll.root`
    sizes: Mapping[int, tuple[int, int]]  # rows -> users on the roll, and steps of their vectors
    servers: Mapping[int, PublicKeys]  # the aggregators: LEADER and HELPER
    noise_std: float  # σ of the discrete Gaussian that either of them adds, in steps
    opens: int  # seconds since 1970, UTC
    closes: int  # from then on no report is taken
    context: bytes = field(default=b"")  # what else must be agreed: method, promise, noise
    second: SecondSum | None = None  # about a centre that the first sum finds

    def __post_init__(self) -> None:
        check.byte_length(32, nonce=self.nonce, roll=self.roll)
        for rows, numbers in self.sizes.items():
            check.within("[1, 2^40]", **{"rows in sizes": rows})
            for number in numbers:
                check.within("[1, 2^31]", **{"users and steps in sizes": number})
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
        if self.second is not None and self.second.steps.keys() != self.sizes.keys():
            raise ValueError("second sum must state the steps of all sizes, and of no others")
        for name in ("servers", "sizes"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    @cached_property
    def enrolled(self) -> int:
        """w, users on the roll, numbered from 0."""
        return sum(users for users, _ in self.sizes.values())

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of everything above."""
        numbers = (self.dimension, self.minimum, self.enrolled, self.opens, self.closes)
        aggregators = b"".join(
            keys.verifying + keys.sealing for _, keys in sorted(self.servers.items())
        )
        packed = struct.pack(">5Qd", *numbers, self.noise_std)
        head = b"window, version 4" + self.nonce + packed + self.roll
        sizes = [struct.pack(">3Q", rows, *self.sizes[rows]) for rows in sorted(self.sizes)]
        count = struct.pack(">Q", len(sizes))
        second = b"" if self.second is None else self.second.packed
        second = struct.pack(">Q", len(second)) + second  # or the context might be read as one
        parts = (head, aggregators, count, *sizes, second, self.context)
        return hashlib.sha256(b"".join(parts)).digest()

    def at(self, centre: bytes) -> "Window":
        """The window of the second sum at a centre, as published: each has its own digest."""
        assert self.second is not None
        second, named = self.second, self.digest + hashlib.sha256(centre).digest()
        return replace(
            self,
            nonce=hashlib.sha256(b"second window" + named).digest(),
            dimension=second.dimension,
            sizes={rows: (users, second.steps[rows]) for rows, (users, _) in self.sizes.items()},
            noise_std=second.noise_std,
            context=b"second window" + named,
            second=None,
        )

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

    def __init__(self, window: Window, roll: Roll) -> None:
        check.equal(window.enrolled, **{"users on the roll": len(roll)})
        users = {rows: users for rows, (users, _) in window.sizes.items()}
        roll.check(window.roll, users, [keys.verifying for keys in window.servers.values()])
        self.window, self.roll = window, roll
        self.digest, self.dimension, self.minimum = window.digest, window.dimension, window.minimum
        self.users, self.order, self.servers = window.users, window.order, window.servers
        self.longest = max(steps for _, steps in window.sizes.values())

    def verifying_key(self, party: int) -> bytes | None:
        """The key that must have signed a party's messages; None for a stranger."""
        if party in self.users:
            return self.roll.lines[party]["key"].tobytes()
        return self.window.verifying_key(party)

    def norm_bound(self, user: int) -> int:
        """Length in steps that a user's vector may have."""
        return self.window.sizes[int(self.roll.lines[user]["rows"])][1]
