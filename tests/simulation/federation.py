"""A federation in a seed: the real aggregators and reports on simulated disks, lines and clocks.

Every user sends a one-hot vector and noise is a multiple of `NOISE`, so that what a sum holds can
be read off it: a 2 is a report that was added twice, a hole one that was lost, another multiple a
second draw. From its seed alone a run decides who acts next, which messages are lost, doubled or
come late, and at which commit of a transaction an aggregator is killed, just before or just after.
"""

import random
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.train_distributed.secure_sum.window.conftest import window_of
from tests.train_distributed.secure_sum.window.rolls import make_roll
from train_distributed.secure_sum.aggregator import (
    AGGREGATORS,
    COMMIT,
    OPEN,
    Aggregator,
    Helper,
    Leader,
    write_order,
)
from train_distributed.secure_sum.errors import NotYet, OutOfOrder, ProtocolError, TooFewUsers
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.opening import combine
from train_distributed.secure_sum.report_store import ReportStore
from train_distributed.secure_sum.reports import Preparer, check_acknowledgement, make_report
from train_distributed.secure_sum.window import HELPER, LEADER, WindowWithKeys
from train_distributed.store.sql import Run, Sql

USERS, MINIMUM, CLOSES = 5, 2, 100
NOISE = 1000
MOST_STEPS = 400
KILL, LOSE, DOUBLE = 0.04, 0.15, 0.1  # chances at each commit, and of each message


class Killed(Exception):
    """The process that was at work is gone; its disk stays."""


class Wrong(AssertionError):
    """What must hold does not."""


class Disk(Sql):
    """A database in memory, of which a kill leaves what was committed."""

    writers, blob = 1, "BLOB"

    def __init__(self, chance: Callable[[], float]) -> None:
        self._chance, self._kept = chance, b""
        self.boot()

    def boot(self) -> None:
        """Opens what is on the disk."""
        self._database = sqlite3.connect(":memory:", isolation_level=None)
        if self._kept:
            self._database.deserialize(self._kept)

    @contextmanager
    def transaction(self) -> Iterator[Run]:
        """Commits, or is killed before or after it."""
        self._database.execute("BEGIN")
        before = self._database.total_changes
        try:
            yield self._database.execute
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        fate, wrote = self._chance(), self._database.total_changes != before
        if wrote and fate < KILL / 2:
            raise Killed
        self._database.execute("COMMIT")
        if wrote:
            self._kept = self._database.serialize()
        if wrote and fate < KILL:
            raise Killed

    def held(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def close(self) -> None:
        self._database.close()


@cache
def parties() -> tuple[WindowWithKeys, dict[int, PrivateKeys], tuple[bytes, ...]]:
    """The window, the aggregators' keys and everybody's report: the same for all seeds."""
    users = [PrivateKeys.generate() for _ in range(USERS)]
    keys = {number: PrivateKeys.generate() for number in (LEADER, HELPER)}
    roll = make_roll([own.public.verifying for own in users], [1] * USERS)
    window = window_of(roll, keys, USERS, MINIMUM, (0, CLOSES), bound=2)
    one_hot = np.eye(USERS, dtype=np.int64)
    reports = [make_report(window, i, own, one_hot[i], 2) for i, own in enumerate(users)]
    return WindowWithKeys(window, roll), keys, tuple(reports)


@cache
def prepared(number: int, user: int, message: bytes) -> Any:
    """What is computed from a message does not depend on the seed."""
    window, keys, _ = parties()
    return Preparer(window, number, keys[number]).prepare(user, message)


def machine(
    number: int, store: ReportStore, draws: dict[int, int], clock: Callable[[], float]
) -> Aggregator:
    """An aggregator, whose noise is `NOISE` times its draws so far; the helper's a hundredfold."""
    window, keys, _ = parties()

    def noise(std: float, d: int) -> NDArray[np.int64]:
        draws[number] += 1
        return np.full(d, NOISE * draws[number] * (1 if number == LEADER else 100))

    made = AGGREGATORS[number](window, keys[number], store, noise, clock)
    made._preparer.prepare = lambda user, message: prepared(number, user, message)
    return made


class Federation:
    """One run.

    Args:
        draw: decides all that happens.
        chances: aggregator -> what becomes of it at each commit (default: `draw` decides).
    """

    def __init__(
        self, draw: random.Random, chances: Mapping[int, Callable[[], float]] | None = None
    ) -> None:
        self._random = draw
        self._window, self._keys, self._reports = parties()
        self.log: list[str] = []
        self._now = 0.0
        self.draws = dict.fromkeys(self._keys, 0)
        chances = chances or dict.fromkeys(self._keys, draw.random)
        self._disks = {number: Disk(chance) for number, chance in chances.items()}
        self._machines: dict[int, Aggregator] = {}
        self._late: list[bytes] = []  # jobs that are still somewhere on their way
        self._acknowledged: set[int] = set()
        self._certain: set[int] | None = None  # acknowledged before a set was signed
        self._commits: dict[int, bytes] = {}
        self._sums: list[NDArray[np.int64]] = []
        for number in self._keys:
            self._boot(number)

    def run(self) -> None:
        """Acts until the sum was opened twice.

        Raises:
            Wrong: something does not hold.
        """
        actions = [self._report] * 6 + [self._job] * 4 + [self._stray, self._tick, self._collect]
        for _ in range(MOST_STEPS):
            self._random.choice(actions)()
            if len(self._sums) == 2:
                return
        for _ in range(MOST_STEPS):  # the clock is right again, and the operator goes on
            self._now = CLOSES / 2
            for user in range(USERS):
                self._report(user)
            self._job()
            self._collect()
            if len(self._sums) >= 2:
                return
        raise Wrong("it must end, does not")

    def _boot(self, number: int) -> None:
        while True:
            try:
                self._disks[number].boot()
                store = ReportStore(self._disks[number], self._window, number)
            except Killed:
                self.log.append("start: killed")
                continue
            self._machines[number] = machine(number, store, self.draws, lambda: self._now)
            return

    def _asked(self, number: int, what: str, work: Callable[[Aggregator], Any]) -> Any:
        """An answer that arrives; None: the question or the answer was lost, or it was killed."""
        if self._random.random() < LOSE:
            return self.log.append(f"{what}: lost")
        try:
            answer = work(self._machines[number])
        except Killed:
            self.log.append(f"{what}: killed")
            return self._boot(number)
        if self._random.random() < LOSE:
            return self.log.append(f"{what}: answer lost")
        self.log.append(what)
        return answer

    def _report(self, user: int | None = None) -> None:
        user = self._random.randrange(USERS) if user is None else user
        report = self._reports[user]
        count = 2 if self._random.random() < DOUBLE else 1
        answers = self._asked(LEADER, f"report {user}", lambda a: _leader(a).take([report] * count))
        for answer in answers or ():
            if isinstance(answer, OutOfOrder):
                continue
            if isinstance(answer, ProtocolError):
                raise Wrong(f"report {user}: {answer}")
            check_acknowledgement(self._window.window, user, report, answer)
            self._acknowledged.add(user)

    def _job(self) -> None:
        self._asked(LEADER, "job", self._work)

    def _work(self, leader: Any) -> None:
        try:
            leader.work(self._sent)
        except OSError:
            self.log.append("no verdicts")

    def _sent(self, job: bytes) -> bytes:
        if self._random.random() < DOUBLE:
            self._late.append(job)
        answer = self._asked(HELPER, "prepare", lambda a: _helper(a).prepare(job))
        if answer is None:
            raise OSError("lost")
        return answer

    def _stray(self) -> None:
        """A job comes late, or once more."""
        if not self._late:
            return
        job = self._random.choice(self._late)
        try:
            self._asked(HELPER, "stray job", lambda a: _helper(a).prepare(job))
        except OutOfOrder:
            self.log.append("stray job refused")

    def _tick(self) -> None:
        self._now += self._random.choice([0.0, 1.0, 5.0, -3.0])

    def _collect(self) -> None:
        """The operator tries to close the window and to open its sum."""
        try:
            commits = list[bytes]()
            for number in (LEADER, HELPER):
                acknowledged = set(self._acknowledged)
                commit = self._ordered(number, COMMIT, commits)
                if commit is None:
                    return
                if self._commits.setdefault(number, commit) != commit:
                    raise Wrong(f"aggregator {number - LEADER} has signed two sets")
                if self._certain is None:
                    self._certain = acknowledged
                commits.append(commit)
            asked = [self._ordered(number, OPEN, commits) for number in (LEADER, HELPER)]
        except (NotYet, TooFewUsers) as error:
            self.log.append(f"collect: {type(error).__name__}")
            return
        openings = [opening for opening in asked if opening is not None]
        if len(openings) == len(asked):
            self._check(combine(self._window, commits[0], openings))

    def _ordered(self, number: int, what: bytes, commits: list[bytes]) -> bytes | None:
        order = write_order(self._window.window, what, commits, self._keys[LEADER])
        return self._asked(number, f"order {what!r} {number - LEADER}", lambda a: a.order(order))

    def _check(self, opened: Any) -> None:
        total = opened.total.view(np.int64)
        self._sums.append(total)
        hot = [int(user in opened.users) for user in range(USERS)]
        if (total % NOISE).tolist() != hot:
            raise Wrong(f"sum must hold {sorted(opened.users)} once each, is {total.tolist()}")
        if len(set((total // NOISE).tolist())) != 1 or (total != self._sums[0]).any():
            raise Wrong(f"noise must be one draw of each, sums {self._sums}")
        if not (self._certain or set()) <= opened.users:
            raise Wrong(f"acknowledged were {self._certain}, the sum is of {opened.users}")


def _leader(machine: Aggregator) -> Leader:
    assert isinstance(machine, Leader)
    return machine


def _helper(machine: Aggregator) -> Helper:
    assert isinstance(machine, Helper)
    return machine
