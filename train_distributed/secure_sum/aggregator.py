"""The two aggregators of a window: reports are kept, prepared in jobs, and opened once as a sum.

A `Leader` takes users' reports. It prepares those that wait, a job at a time, and sends the helper
its messages and its own prepare shares; the `Helper` decides, adds what passes and says so; then
the leader adds the same. A job that is sent again, after whatever kill, is answered as before.

Neither raises for what arrives but a `ProtocolError`, which is an answer. What else it raises says
that its database fails: what it acknowledged is not lost. A report that comes outside the window,
by the leader's clock, is refused, whatever the clock said before: the next one may be taken.
"""

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from train_distributed.proofs import field
from train_distributed.proofs.field import Elements, InvalidShare
from train_distributed.secure_sum import errors
from train_distributed.secure_sum.orders import Aggregator, bits_of
from train_distributed.secure_sum.report_store import ADDED, REFUSED, WAITING, Line
from train_distributed.secure_sum.reports import (
    MOST_JOB,
    Prepared,
    Verdict,
    acknowledge,
    check_report,
    job_bytes,
    read_job,
    read_verdicts,
    seed_share,
    write_job,
    write_verdicts,
)
from train_distributed.secure_sum.window import HELPER, LEADER
from train_distributed.secure_sum.wire import Envelope, Kind, read, write

MESSAGE_BYTES = 64  # of a prepare message
VERDICTS_BYTES = 32 + MOST_JOB * 512  # of the longest verdicts on a job
Send = Callable[[bytes], bytes]  # a job to the helper -> its verdicts


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
        unknown = np.flatnonzero(bits_of(self.window, bitmap) & ~self._store.held())
        if len(unknown):
            raise errors.SetMismatch(
                f"set must have users held by the helper, got {len(unknown)} others, "
                f"{unknown[:10].tolist()}"
            )
        return self._opening().commit(bitmap)

    def _taken_back(self, user: int, line: Line) -> Elements:
        return seed_share(self.window, user, line.content[MESSAGE_BYTES:])


AGGREGATORS: dict[int, type[Leader] | type[Helper]] = {LEADER: Leader, HELPER: Helper}
