"""One aggregator of a window: takes reports in batches, commits to one set, opens its sum once.

It never raises for what arrives: it answers. What it raises ends the process: its disk fails. Then
it is started again, and nothing that it acknowledged is lost. A report that comes outside the
window, by its clock, is refused, whatever the clock said before: the next one may be taken.

The operator orders (signed with the key of the first aggregator, which is its own): STATUS; COMMIT,
to the last aggregator, which then takes no more reports and signs the set it holds, and with that
message to all others; OPEN, with the COMMITs of all. An aggregator checks before it signs: it holds
the reports of the whole set, and the set is no smaller than the window's minimum, which is what the
users' noise was planned for. It opens when all have signed the same set. Each step may be ordered
again and gives the same; another set is refused for ever (`Opening`).
"""

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from train_distributed.secure_sum.errors import (
    MalformedMessage,
    OutOfOrder,
    ProtocolError,
    ReplayedMessage,
    SetMismatch,
    WrongSender,
)
from train_distributed.secure_sum.journal import ResumedJournal
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.opening import DIGEST_BYTES, Opening
from train_distributed.secure_sum.parties import EVERYONE, FIRST_SERVER
from train_distributed.secure_sum.prg import Words, add_stream
from train_distributed.secure_sum.report_store import ReportStore
from train_distributed.secure_sum.reports import (
    RECEIPT_BYTES,
    Checked,
    Checker,
    Part,
    Receipts,
    acknowledge,
    message_bytes,
)
from train_distributed.secure_sum.session import Agreement, count_in, set_bytes
from train_distributed.secure_sum.window import Window, WindowWithKeys
from train_distributed.secure_sum.wire import OVERHEAD, Envelope, Kind, read, sender_of, write

DONE, REFUSED = b"d", b"r"
SHUT = REFUSED + OutOfOrder.__name__.encode()  # begins what any report is answered then
STATUS, COMMIT, OPEN = b"s", b"c", b"o"
OPERATOR = FIRST_SERVER
_REFUSAL_BYTES = 400
Check = Callable[[Sequence[bytes]], Checked]


class Aggregator:
    """The part of one aggregator; `check` may spread a batch over processes.

    Raises:
        ValueError: keys that are not those of the window's aggregator.
    """

    def __init__(
        self,
        window: WindowWithKeys,
        aggregator: int,
        keys: PrivateKeys,
        reports: ReportStore,
        *,
        check: Check | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if window.servers.get(aggregator) != keys.public:
            raise ValueError(
                f"keys must be those of aggregator {aggregator - FIRST_SERVER} of the window"
            )
        self._window, self._aggregator, self._keys = window, aggregator, keys
        self._reports, self._clock = reports, clock
        self._check = Checker(window, aggregator, keys) if check is None else check
        self._receipts = Receipts(window, aggregator, keys)

    def take(self, requests: Sequence[bytes]) -> list[bytes]:
        """Takes reports, each with its receipts; all that it accepts are on the disk afterwards.

        Returns:
            For each DONE, this aggregator's signed acknowledgement and its receipt, or REFUSED and
            why. A report that is held already is acknowledged again; another one of the same user
            is refused.
        """
        answers = [b""] * len(requests)
        rounds: list[dict[int, int]] = []  # of a user's messages the first, the second, ...
        named: Counter[int] = Counter()
        for place, request in enumerate(requests):
            user = self._named(request, -1 - place)
            if named[user] == len(rounds):
                rounds.append({})
            rounds[named[user]][user] = place
            named[user] += 1
        for batch in rounds:
            fresh: list[int] = []
            for user, place in batch.items():
                if user >= 0 and self._reports.held[user]:
                    answers[place] = self._again(user, requests[place])
                else:
                    fresh.append(place)
            if fresh:
                self._add([requests[place] for place in fresh], fresh, answers)
        return answers

    def _add(self, batch: list[bytes], places: list[int], answers: list[bytes]) -> None:
        closed = self._shut(self._clock())
        if closed:
            for place in places:
                answers[place] = _refusal(OutOfOrder(closed))
            return
        checked = self._check(batch)
        parts = [found for found in checked.found if isinstance(found, Part)]
        if parts:
            self._reports.add(parts, checked.total)
        for place, found in zip(places, checked.found, strict=True):
            if isinstance(found, Part):
                answers[place] = self._done(found.user, found.tag, found.message)
            else:
                answers[place] = REFUSED + found.encode()[:_REFUSAL_BYTES]

    def _shut(self, now: float) -> str:
        """Why no report is taken; empty: it is."""
        window = self._window.window
        if self._reports.closed:
            return "report must come before the window is closed, came late"
        if not window.opens <= now < window.closes:
            return f"report must come from {window.opens} to {window.closes}, came at {now:.0f}"
        return ""

    def _again(self, user: int, request: bytes) -> bytes:
        tag, message = self._reports.receipt_of(user)
        sent = request[: message_bytes(self._window, self._aggregator)]
        if hashlib.sha256(sent).digest() != message:
            return _refusal(ReplayedMessage(f"user {user} must report once, has another report"))
        return self._done(user, tag, message)

    def _done(self, user: int, tag: bytes, message: bytes) -> bytes:
        signed = acknowledge(self._window, user, message, self._keys)
        last = self._aggregator == self._window.last
        return DONE + signed + (b"" if last else self._receipts.give(user, tag))

    def order(self, message: bytes) -> bytes:
        """Does what the operator has signed; DONE and the answer, or REFUSED and why."""
        try:
            limits = {Kind.ORDER: _order_bytes(self._window) - OVERHEAD}
            envelope = read(self._window, message, EVERYONE, limits)
            if envelope.sender != OPERATOR:
                raise WrongSender(f"ORDER must come from the operator, got {envelope.sender}")
            what, signed = envelope.payload[:1], envelope.payload[1:]
            if what == STATUS:
                window, reports = self._window.window, self._reports
                state = window.state(self._clock(), closed=reports.closed)
                return DONE + f"{reports.count} reports, {state}".encode()
            commits = _commits(self._window, signed)
            if what == COMMIT:
                return DONE + self._commit(commits)
            if what == OPEN:
                return DONE + self._open(commits)
            raise MalformedMessage(f"ORDER must be {STATUS!r}, {COMMIT!r} or {OPEN!r}")
        except ProtocolError as error:
            return _refusal(error)

    def _opening(self) -> Opening:
        journal = ResumedJournal(self._reports)
        return Opening(self._window, self._aggregator, self._keys, journal)

    def _commit(self, commits: dict[int, Envelope]) -> bytes:
        """Signs the last aggregator's set, or its own as the last one, and closes the window."""
        if self._aggregator == self._window.last:
            return self._opening().commit(self._reports.bitmap())
        if self._window.last not in commits:
            raise OutOfOrder("the last aggregator must commit first, its COMMIT is missing")
        bitmap = commits[self._window.last].payload
        unknown = np.flatnonzero(_bits(self._window, bitmap) & ~self._reports.held)
        if len(unknown):
            raise SetMismatch(
                f"set must have users held by aggregator {self._aggregator - FIRST_SERVER}, got "
                f"{len(unknown)} others, {unknown[:10].tolist()}"
            )
        return self._opening().commit(bitmap)

    def _open(self, commits: dict[int, Envelope]) -> bytes:
        own = commits.pop(self._aggregator, None)
        if own is None or self._reports.detail(self._window.digest, "commit") is None:
            raise OutOfOrder(
                f"aggregator {self._aggregator - FIRST_SERVER} must commit before it opens"
            )
        opening = self._opening()
        opening.commit(own.payload)
        for envelope in commits.values():
            opening.receive(envelope)
        return opening.open(self._reports.total - self._left_out(own.payload))

    def _left_out(self, bitmap: bytes) -> Words:
        """(d,) sum of the streams of users held here whose vectors have not come."""
        out = np.flatnonzero(self._reports.held & ~_bits(self._window, bitmap)).tolist()
        total = np.zeros(self._window.dimension, self._window.word)
        for seed in self._reports.seeds(out):
            add_stream(total, seed)
        return total

    def _named(self, request: bytes, nobody: int) -> int:
        """The user that a request claims to be of, if there is such a user."""
        try:
            user = sender_of(request)
        except ProtocolError:
            return nobody
        return user if user in self._window.users else nobody


def write_order(window: Window, what: bytes, commits: Sequence[bytes], keys: PrivateKeys) -> bytes:
    """An order of the operator's: STATUS, COMMIT or OPEN; signed as the first aggregator."""
    return write(window, Kind.ORDER, OPERATOR, EVERYONE, what + b"".join(commits), keys.signing)


def request_bytes(window: Agreement) -> int:
    """Length of the longest report, receipts included, or order."""
    servers = len(window.servers)
    report = message_bytes(window, max(window.servers)) + RECEIPT_BYTES * (servers - 1)
    return max(report, message_bytes(window, min(window.servers)), _order_bytes(window))


def answer_bytes(window: Agreement) -> int:
    """Length of the longest answer."""
    opening = OVERHEAD + DIGEST_BYTES + window.word.itemsize * window.dimension
    return 1 + max(opening, _commit_bytes(window), _REFUSAL_BYTES)


def _order_bytes(window: Agreement) -> int:
    return OVERHEAD + 1 + len(window.servers) * _commit_bytes(window)


def _commit_bytes(window: Agreement) -> int:
    return OVERHEAD + set_bytes(window)


def _commits(window: Agreement, signed: bytes) -> dict[int, Envelope]:
    """Aggregator -> its COMMIT, checked."""
    size = _commit_bytes(window)
    pieces = [signed[start : start + size] for start in range(0, len(signed), size)]
    found: dict[int, Envelope] = {}
    for piece in pieces:
        envelope = read(window, piece, EVERYONE, {Kind.COMMIT: set_bytes(window)})
        if envelope.sender not in window.servers or envelope.sender in found:
            raise WrongSender(f"COMMIT must come once from an aggregator, got {envelope.sender}")
        count_in(window.order, envelope.payload)
        found[envelope.sender] = envelope
    return found


def _bits(window: Agreement, bitmap: bytes) -> NDArray[np.bool_]:
    octets = np.frombuffer(bitmap, np.uint8)
    return np.unpackbits(octets, count=len(window.order), bitorder="little").astype(bool)


def _refusal(error: ProtocolError) -> bytes:
    return REFUSED + f"{type(error).__name__}: {error}".encode()[:_REFUSAL_BYTES]
