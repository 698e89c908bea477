"""Orders of the operator to an aggregator, signed, and the base of both that carries them out.

The operator orders (signed with the leader's key, which is its own): STATUS; COMMIT, to the leader,
which then takes no more reports and signs the set it holds once none waits, and with that message
to the helper; OPEN, with the COMMITs of both. Either draws its noise for the one set that it has
signed, and opens when the other has signed the same. Each step may be ordered again and gives the
same; another set is refused for ever (`Opening`).
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from train_distributed.proofs import field
from train_distributed.proofs.field import Elements
from train_distributed.secure_sum import errors
from train_distributed.secure_sum.journal import ResumedJournal
from train_distributed.secure_sum.keys import EVERYONE, PrivateKeys
from train_distributed.secure_sum.opening import Opening
from train_distributed.secure_sum.report_store import ADDED, REFUSED, WAITING, Line, ReportStore
from train_distributed.secure_sum.reports import Preparer, job_bytes, report_bytes
from train_distributed.secure_sum.session import count_in, set_bytes
from train_distributed.secure_sum.window import LEADER, Window, WindowWithKeys
from train_distributed.secure_sum.wire import (
    OVERHEAD,
    Envelope,
    Kind,
    check_summary,
    read,
    split_messages,
    write,
)

STATUS, COMMIT, OPEN = b"s", b"c", b"o"
SHOWN = 100  # refused users that a status names
Noise = Callable[[float, int], NDArray[np.int64]]  # (σ in steps, d) -> (d,)


class Aggregator(ABC):
    """Base of both aggregators of a window: checks and carries out the operator's signed orders.

    Args:
        window: what was agreed, with its roll.
        keys: this aggregator's.
        store: its state.
        noise: draws its noise, once.
        clock: seconds since 1970.

    Raises:
        ValueError: keys that are not those of the window's aggregator.
    """

    number: ClassVar[int]

    def __init__(
        self,
        window: WindowWithKeys,
        keys: PrivateKeys,
        store: ReportStore,
        noise: Noise,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._preparer = Preparer(window, self.number, keys)
        self.window, self._keys, self._store = window, keys, store
        self._noise, self._clock = noise, clock

    def check(self) -> None:
        """Raises OSError if the state cannot be reached."""
        self._store.detail(self.window.digest, "commit")

    def counts(self) -> dict[int, int]:
        """Reports by their state (`WAITING`, `ADDED`, `REFUSED`)."""
        return self._store.counts()

    def sender(self, summary: bytes) -> int:
        """Party that has signed the request, or its first message, of which this is the summary.

        Raises:
            ProtocolError: nobody whose requests this aggregator takes.
        """
        first = Kind.SHARE if self.number == LEADER else Kind.JOB
        most = request_bytes(self.window, self.number)
        limits = {first: most, Kind.ORDER: most}
        return check_summary(self.window, summary, self.number, limits)

    def order(self, message: bytes) -> bytes:
        """Does what the operator has signed, and returns the answer.

        Raises:
            NotYet: reports still wait; to be ordered again.
            ProtocolError: no order, or one that is refused.
        """
        limits = {Kind.ORDER: order_bytes(self.window.window) - OVERHEAD}
        envelope = read(self.window, message, EVERYONE, limits)
        if envelope.sender != LEADER:
            raise errors.WrongSender(f"ORDER must come from the operator, got {envelope.sender}")
        what, signed = envelope.payload[:1], envelope.payload[1:]
        if what == STATUS:
            return self._status().encode()
        commits = _commits(self.window, signed)
        if what == COMMIT:
            return self._commit(commits)
        if what == OPEN:
            return self._open(commits)
        raise errors.MalformedMessage(f"ORDER must be {STATUS!r}, {COMMIT!r} or {OPEN!r}")

    def _status(self) -> str:
        counts = self._store.counts()
        state = self.window.window.state(self._clock(), closed=self._store.closed)
        waiting = f", {counts[WAITING]} waiting" if counts[WAITING] else ""
        lines = [f"{counts[ADDED]} reports{waiting}, {counts[REFUSED]} refused, {state}"]
        lines += [f"{user}: {why}" for user, why in list(self._store.refused().items())[:SHOWN]]
        return "\n".join(lines)

    @abstractmethod
    def _commit(self, commits: dict[int, Envelope]) -> bytes:
        """Signs the set to be opened, and closes the window."""

    def _opening(self) -> Opening:
        return Opening(self.window, self.number, self._keys, ResumedJournal(self._store))

    def _open(self, commits: dict[int, Envelope]) -> bytes:
        own = commits.get(self.number)
        if own is None or self._store.detail(self.window.digest, "commit") is None:
            raise errors.OutOfOrder(
                f"aggregator {self.number - LEADER} must commit before it opens"
            )
        sets = {number: envelope.payload for number, envelope in commits.items()}
        return self._opening().open(sets, lambda: self._noised(own.payload))

    def _noised(self, bitmap: bytes) -> Elements:
        """The share (d,) of the sum over the set, with this aggregator's noise; always the same."""
        left_out = np.flatnonzero(self._store.held() & ~bits_of(self.window, bitmap)).tolist()
        back = np.zeros(self.window.dimension, np.uint64)
        for user in left_out:
            back = field.add(back, self._taken_back(user, self._store.lines([user])[user]))

        def draw(total: Elements) -> Elements:
            noise = self._noise(self.window.window.noise_std, self.window.dimension)
            return field.add(field.subtract(total, back), field.from_integers(noise))

        return self._store.noised(draw)

    @abstractmethod
    def _taken_back(self, user: int, line: Line) -> Elements:
        """The out share (d,) of a report that is held and not in the set."""


def write_order(window: Window, what: bytes, commits: Sequence[bytes], keys: PrivateKeys) -> bytes:
    """An order of the operator's: STATUS, COMMIT or OPEN."""
    return write(window, Kind.ORDER, LEADER, EVERYONE, what + b"".join(commits), keys.signing)


def request_bytes(window: WindowWithKeys, aggregator: int) -> int:
    """Length of the longest request: a report, a job, or an order."""
    job = OVERHEAD + job_bytes(window)
    first = report_bytes(window.dimension, window.longest) if aggregator == LEADER else job
    return max(first, order_bytes(window.window))


def order_bytes(window: Window) -> int:
    """Length of the longest order."""
    return OVERHEAD + 1 + len(window.servers) * (OVERHEAD + set_bytes(window))


def _commits(window: WindowWithKeys, signed: bytes) -> dict[int, Envelope]:
    """Aggregator -> its COMMIT, checked."""
    found, size = dict[int, Envelope](), set_bytes(window)
    for piece in split_messages(signed, size):
        envelope = read(window, piece, EVERYONE, {Kind.COMMIT: size})
        envelope.check_server(window)
        envelope.check_once(found)
        count_in(window.order, envelope.payload)
        found[envelope.sender] = envelope
    return found


def bits_of(window: WindowWithKeys, bitmap: bytes) -> NDArray[np.bool_]:
    """Bool for every user: whether it is in a set, whose bitmap COMMIT has."""
    octets = np.frombuffer(bitmap, np.uint8)
    return np.unpackbits(octets, count=len(window.order), bitorder="little").astype(bool)
