"""The two aggregators of a window: reports are kept, prepared in jobs, and opened once as a sum.

A `Leader` takes users' reports. It prepares those that wait, a job at a time, and sends the helper
its messages and its own prepare shares; the `Helper` decides, adds what passes and says so; then
the leader adds the same. A job that is sent again, after whatever kill, is answered as before.

The operator orders (signed with the leader's key, which is its own): STATUS; COMMIT, to the leader,
which then takes no more reports and signs the set it holds once none waits, and with that message
to the helper; OPEN, with the COMMITs of both. Either draws its noise for the one set that it has
signed, and opens when the other has signed the same. Each step may be ordered again and gives the
same; another set is refused for ever (`Opening`). Where the window states a second sum, CENTRE
publishes the centre of it, once for ever, after the aggregator has signed its set of the first.

Neither raises for what arrives but a `ProtocolError`, which is an answer. What else it raises says
that its database fails: what it acknowledged is not lost. A report that comes outside the window,
by the leader's clock, is refused, whatever the clock said before: the next one may be taken.
"""

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from train_distributed.proofs import field
from train_distributed.proofs.field import Elements, InvalidShare
from train_distributed.secure_sum import errors
from train_distributed.secure_sum.journal import ResumedJournal
from train_distributed.secure_sum.keys import EVERYONE, PrivateKeys
from train_distributed.secure_sum.opening import Opening
from train_distributed.secure_sum.report_store import ADDED, REFUSED, WAITING, Line, ReportStore
from train_distributed.secure_sum.reports import (
    MOST_JOB,
    Prepared,
    Preparer,
    Verdict,
    acknowledge,
    check_report,
    job_bytes,
    read_job,
    read_verdicts,
    report_bytes,
    seed_share,
    write_job,
    write_verdicts,
)
from train_distributed.secure_sum.session import bits_of, count_in, set_bytes
from train_distributed.secure_sum.window import HELPER, LEADER, Window, WindowWithKeys
from train_distributed.secure_sum.wire import (
    OVERHEAD,
    Envelope,
    Kind,
    check_summary,
    read,
    split_messages,
    write,
)

MESSAGE_BYTES = 64  # of a prepare message
VERDICTS_BYTES = 32 + MOST_JOB * 512  # of the longest verdicts on a job
Send = Callable[[bytes], bytes]  # a job to the helper -> its verdicts
STATUS, COMMIT, OPEN, CENTRE = b"s", b"c", b"o", b"m"
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
        what, signed = _read_order(self.window.window, message)
        if what == STATUS:
            return self._status().encode()
        if what == CENTRE:
            return self._publish(message)
        commits = _commits(self.window, signed)
        if what == COMMIT:
            return self._commit(commits)
        if what == OPEN:
            return self._open(commits)
        orders = STATUS, COMMIT, OPEN, CENTRE
        raise errors.MalformedMessage(f"ORDER must be one of {orders}, got {what!r}")

    @property
    def published(self) -> bytes:
        """The operator's order that published a centre; empty while there is none."""
        return self._store.detail(self.window.digest, "centre") or b""

    def _publish(self, message: bytes) -> bytes:
        read_centre(self.window.window, message)
        if self._store.detail(self.window.digest, "commit") is None:
            raise errors.OutOfOrder(
                f"aggregator {self.number - LEADER} must commit before a centre is published"
            )
        ResumedJournal(self._store).claim(self.window.digest, "centre", message)
        return b""

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
        left_out = np.flatnonzero(self._store.held() & ~bits_of(self.window.order, bitmap)).tolist()
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


class Leader(Aggregator):
    """The operator's aggregator, to which users report."""

    number = LEADER

    def take(self, reports: Sequence[bytes]) -> list[bytes | errors.ProtocolError]:
        """Keeps reports; those that it acknowledges are on the disk.

        Returns:
            For each the signed acknowledgement, or why it is refused. A report that is held is
            acknowledged again; another one of the same user is refused.
        """
        answers: list[bytes | errors.ProtocolError] = []
        fresh: dict[int, tuple[int, bytes, bytes]] = {}
        users = list[int]()
        for report in reports:
            try:
                user, *_ = check_report(self.window, report)
                digest = hashlib.sha256(report).digest()
                fresh.setdefault(user, (user, digest, report))
                answers.append(digest)
                users.append(user)
            except errors.ProtocolError as error:
                answers.append(error)
                users.append(-1)
        held = {user: line.digest for user, line in self._store.lines(list(fresh)).items()}
        new = [report for user, report in fresh.items() if user not in held]
        try:
            self._check_time()
            held |= self._store.keep(new)
        except errors.OutOfOrder as error:
            late = error
        else:
            late = errors.OutOfOrder("report must be kept, is not")
        return [
            self._answer(user, answer, held.get(user), late)
            if isinstance(answer, bytes)
            else answer
            for user, answer in zip(users, answers, strict=True)
        ]

    def _answer(
        self, user: int, digest: bytes, held: bytes | None, late: errors.OutOfOrder
    ) -> bytes | errors.ProtocolError:
        if held is None:
            return late
        if held != digest:
            return errors.ReplayedMessage(f"user {user} must report once, has another report")
        return acknowledge(self.window.window, user, digest, self._keys)

    def check_open(self) -> None:
        """Raises OutOfOrder while no reports are taken."""
        self._check_time()
        self._store.keep([])

    def _check_time(self) -> None:
        window, now = self.window.window, self._clock()
        if not window.opens <= now < window.closes:
            raise errors.OutOfOrder(
                f"report must come from {window.opens} to {window.closes}, came at {now:.0f}"
            )

    def work(self, send: Send) -> int:
        """Has one job of reports that wait decided; returns how many there were.

        Raises:
            OSError: the helper is gone; the reports wait on.
            ProtocolError: the helper refuses the job, or its answer is none.
        """
        with self._store.waiting(MOST_JOB) as reports:
            verdicts, prepared = dict[int, Verdict](), dict[int, tuple[Prepared, bytes]]()
            for user, report in reports.items():
                _, own, helper = check_report(self.window, report)
                try:
                    prepared[user] = self._preparer.prepare(user, own), helper
                except (errors.ProtocolError, InvalidShare) as error:
                    verdicts[user] = str(error)
            if prepared:
                job = write_job((helper, own.share) for own, helper in prepared.values())
                message = write(self.window, Kind.JOB, LEADER, HELPER, job, self._keys.signing)
                answer = read(self.window, send(message), LEADER, {Kind.VERDICTS: VERDICTS_BYTES})
                decided = read_verdicts(answer.payload, message, len(prepared))
                verdicts |= dict(zip(prepared, decided, strict=True))
            if reports:
                self._decide(verdicts, {user: own for user, (own, _) in prepared.items()})
        return len(reports)

    def _decide(self, verdicts: dict[int, Verdict], prepared: dict[int, Prepared]) -> None:
        total = np.zeros(self.window.dimension, np.uint64)
        reasons = dict[int, str]()
        for user, verdict in verdicts.items():
            if isinstance(verdict, bytes):
                try:
                    total = field.add(total, prepared[user].finish(verdict))
                    verdict = ""
                except InvalidShare as error:
                    verdict = str(error)
            reasons[user] = verdict
        self._store.decide(reasons, total)

    def _commit(self, commits: dict[int, Envelope]) -> bytes:
        """Closes the window and signs the set that is held, unless there are too few reports."""
        store, least = self._store, self.window.minimum
        if store.detail(self.window.digest, "commit") is None:
            counts = store.counts()
            if counts[ADDED] + counts[WAITING] >= least:
                store.set_gate(open=False)
                counts = store.counts()
                if counts[WAITING]:
                    raise errors.NotYet(f"{counts[WAITING]} reports must be decided first")
            if counts[ADDED] < least:
                store.set_gate(open=True)
                users = counts[ADDED] + counts[WAITING]
                raise errors.TooFewUsers(f"users to be opened must be >= {least}, got {users}")
        return self._opening().commit(np.packbits(store.held(), bitorder="little").tobytes())

    def _taken_back(self, user: int, line: Line) -> Elements:
        raise errors.OutOfOrder(f"set must hold user {user}, whom the leader holds")


class Helper(Aggregator):
    """The other aggregator, which decides the leader's jobs."""

    number = HELPER

    def prepare(self, message: bytes) -> bytes:
        """Decides a job's reports, adds those whose proofs hold, and returns the verdicts.

        What was decided of a report before stays as it was.

        Raises:
            OutOfOrder: a set was signed.
            ProtocolError: no job of the leader's.
        """
        limits = {Kind.JOB: job_bytes(self.window)}
        envelope = read(self.window, message, HELPER, limits)
        if envelope.sender != LEADER:
            raise errors.WrongSender(f"JOB must come from the leader, got {envelope.sender}")
        items = {
            self._preparer.user_of(own): (own, share) for own, share in read_job(envelope.payload)
        }
        while True:
            lines = self._store.lines(list(items))
            fresh = {user: item for user, item in items.items() if user not in lines}
            total = np.zeros(self.window.dimension, np.uint64)
            for user, (own, share) in fresh.items():
                lines[user], total = self._decided(user, own, share, total)
            if not fresh or self._store.add({user: lines[user] for user in fresh}, total):
                break
        verdicts = [self._verdict(user, own, lines[user]) for user, (own, _) in items.items()]
        payload = write_verdicts(message, verdicts)
        return write(self.window, Kind.VERDICTS, HELPER, LEADER, payload, self._keys.signing)

    def _decided(
        self, user: int, own: bytes, share: bytes, total: Elements
    ) -> tuple[Line, Elements]:
        digest = hashlib.sha256(own).digest()
        try:
            prepared = self._preparer.prepare(user, own)
            message, out = self._preparer.decide(prepared, share)
        except (errors.ProtocolError, InvalidShare) as error:
            return Line(digest, REFUSED, str(error).encode()), total
        return Line(digest, ADDED, message + prepared.seed), field.add(total, out)

    def _verdict(self, user: int, own: bytes, line: Line) -> Verdict:
        if hashlib.sha256(own).digest() != line.digest:
            return f"user {user} must report once, has another report"
        return line.content.decode() if line.state == REFUSED else line.content[:MESSAGE_BYTES]

    def _commit(self, commits: dict[int, Envelope]) -> bytes:
        """Signs the leader's set, and closes the window."""
        if LEADER not in commits:
            raise errors.OutOfOrder("the leader must commit first, its COMMIT is missing")
        bitmap = commits[LEADER].payload
        unknown = np.flatnonzero(bits_of(self.window.order, bitmap) & ~self._store.held())
        if len(unknown):
            raise errors.SetMismatch(
                f"set must have users held by the helper, got {len(unknown)} others, "
                f"{unknown[:10].tolist()}"
            )
        return self._opening().commit(bitmap)

    def _taken_back(self, user: int, line: Line) -> Elements:
        return seed_share(self.window, user, line.content[MESSAGE_BYTES:])


AGGREGATORS: dict[int, type[Leader] | type[Helper]] = {LEADER: Leader, HELPER: Helper}


def write_order(window: Window, what: bytes, commits: Sequence[bytes], keys: PrivateKeys) -> bytes:
    """An order of the operator's: STATUS, COMMIT or OPEN; or CENTRE, followed by the centre."""
    return write(window, Kind.ORDER, LEADER, EVERYONE, what + b"".join(commits), keys.signing)


def _read_order(window: Window, message: bytes) -> tuple[bytes, bytes]:
    limits = {Kind.ORDER: order_bytes(window) - OVERHEAD}
    envelope = read(window, message, EVERYONE, limits)
    if envelope.sender != LEADER:
        raise errors.WrongSender(f"ORDER must come from the operator, got {envelope.sender}")
    return envelope.payload[:1], envelope.payload[1:]


def read_centre(window: Window, message: bytes) -> bytes:
    """The centre, (d,) little-endian float64, in an order that publishes it for the second sum.

    Whoever holds rows looks at its bounds: the loss of privacy does not depend on the centre.

    Raises:
        ProtocolError: not the operator's of this window, another length, or not finite.
    """
    what, centre = _read_order(window, message)
    if what != CENTRE or window.second is None:
        raise errors.MalformedMessage("ORDER must publish the centre of a second sum, does not")
    if len(centre) != 8 * window.dimension:
        raise errors.MalformedMessage(
            f"centre must be {8 * window.dimension} bytes, got {len(centre)}"
        )
    if not np.isfinite(np.frombuffer(centre, "<f8")).all():
        raise errors.MalformedMessage("centre must be finite, is not")
    return centre


def request_bytes(window: WindowWithKeys, aggregator: int) -> int:
    """Length of the longest request: a report, a job, or an order."""
    job = OVERHEAD + job_bytes(window)
    first = report_bytes(window.dimension, window.longest) if aggregator == LEADER else job
    return max(first, order_bytes(window.window))


def order_bytes(window: Window) -> int:
    """Length of the longest order."""
    commits = len(window.servers) * (OVERHEAD + set_bytes(window))
    return OVERHEAD + 1 + max(commits, 8 * window.dimension if window.second else 0)


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
