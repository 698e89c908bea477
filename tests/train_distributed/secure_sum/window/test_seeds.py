"""Windows in a seed: the real aggregators and reports on simulated disks, lines and clocks.

Users send one-hot vectors, noise is a multiple of `NOISE`: a 2 in the sum is a report added twice,
a hole a lost one, another multiple a second draw. The seed decides who acts, what is lost, late or
doubled, and at which commit of a transaction an aggregator is killed, before or after it.

To replay a seed: `python -c "import tests.train_distributed.secure_sum.window.test_seeds as t;
t.run(SEED)"`.
"""

import os
import random
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.train_distributed.secure_sum.window.conftest import make_roll, window_of
from train_distributed.proofs import field
from train_distributed.secure_sum.aggregator import AGGREGATORS, COMMIT, OPEN, Helper, write_order
from train_distributed.secure_sum.errors import NotYet, OutOfOrder, ProtocolError, TooFewUsers
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.opening import combine
from train_distributed.secure_sum.report_store import ADDED, ReportStore
from train_distributed.secure_sum.reports import Preparer, check_acknowledgement, make_report
from train_distributed.secure_sum.window import HELPER, LEADER, WindowWithKeys
from train_distributed.store.sql import Run, Sql

SEEDS, MANY = 40, int(os.environ.get("SEEDS", 10_000))
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


class Federation:
    """One run; `chances` are what becomes of an aggregator at each commit (default: a draw)."""

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
        self._machines: dict[int, Any] = {}
        self._late: list[bytes] = []  # jobs that are still somewhere on their way
        self._acknowledged: set[int] = set()
        self._certain: set[int] | None = None  # acknowledged before a set was signed
        self._commits: dict[int, bytes] = {}
        self._sums: list[NDArray[np.int64]] = []
        for number in self._keys:
            self._boot(number)

    def run(self) -> None:
        """Acts until the sum was opened twice; raises Wrong where something does not hold."""
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
        """Its noise is `NOISE` times its draws so far; the helper's a hundredfold."""

        def noise(std: float, d: int) -> NDArray[np.int64]:
            self.draws[number] += 1
            return np.full(d, NOISE * self.draws[number] * (1 if number == LEADER else 100))

        while True:
            try:
                self._disks[number].boot()
                store = ReportStore(self._disks[number], self._window, number)
            except Killed:
                self.log.append("start: killed")
                continue
            keys = self._keys[number]
            made = AGGREGATORS[number](self._window, keys, store, noise, lambda: self._now)
            made._preparer.prepare = lambda user, message: prepared(number, user, message)
            self._machines[number] = made
            return

    def _asked(self, number: int, what: str, work: Callable[[Any], Any]) -> Any:
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
        answers = self._asked(LEADER, f"report {user}", lambda a: a.take([report] * count))
        for answer in answers or ():
            if isinstance(answer, OutOfOrder):
                continue
            if isinstance(answer, ProtocolError):
                raise Wrong(f"report {user}: {answer}")
            check_acknowledgement(self._window.window, user, report, answer)
            self._acknowledged.add(user)

    def _job(self) -> None:
        self._asked(LEADER, "job", self._decided)

    def _decided(self, leader: Any) -> int:
        """Reports of one job; 1 where the helper did not answer."""
        try:
            return leader.work(self._sent)
        except OSError:
            self.log.append("no verdicts")
            return 1

    def _sent(self, job: bytes) -> bytes:
        if self._random.random() < DOUBLE:
            self._late.append(job)
        answer = self._asked(HELPER, "prepare", lambda a: a.prepare(job))
        if answer is None:
            raise OSError("lost")
        return answer

    def _stray(self) -> None:
        """A job comes late, or once more."""
        if not self._late:
            return
        job = self._random.choice(self._late)
        try:
            self._asked(HELPER, "stray job", lambda a: a.prepare(job))
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


def run(seed: int) -> list[str]:
    """Runs one federation; raises Wrong with its number, and how it came to it."""
    federation = Federation(random.Random(seed))
    try:
        federation.run()
    except (Wrong, ProtocolError) as error:
        raise Wrong(f"seed {seed}: {error}; last: {federation.log[-12:]}") from error
    return federation.log


def test_federations_open_exact_sums_and_are_their_seeds() -> None:
    logs = [run(seed) for seed in range(SEEDS)]
    for what in ("killed", "answer lost", "no verdicts", "stray job", "NotYet"):
        assert any(what in line for log in logs for line in log), what
    assert run(7) == logs[7] != logs[8]


@pytest.mark.slow
def test_many_federations_open_exact_sums() -> None:
    for seed in range(MANY):
        run(seed)


def acknowledged_before_the_disk(patch: pytest.MonkeyPatch) -> None:
    """Reports are written with the next ones."""
    keep = ReportStore.keep

    def later(self: ReportStore, reports):
        waiting = vars(self).setdefault("_waiting", [])
        kept = keep(self, waiting)
        waiting[:] = reports
        return kept | {user: digest for user, digest, _ in reports}

    patch.setattr(ReportStore, "keep", later)


def noise_drawn_again(patch: pytest.MonkeyPatch) -> None:
    def noised(self: ReportStore, draw: Callable):
        with self._sql.transaction() as run:
            (content,) = run("SELECT content FROM total").fetchone()
        return draw(field.decode(bytes(content)[32:]))

    patch.setattr(ReportStore, "noised", noised)


def report_added_twice(patch: pytest.MonkeyPatch) -> None:
    """The helper does not look whether it has decided a report before."""

    def add(self: ReportStore, lines, total) -> bool:
        with self._sql.transaction() as run:
            for user, line in lines.items():
                row = (user, line.digest, ADDED, line.content)
                run("INSERT OR REPLACE INTO report VALUES (?, ?, ?, ?)", row)
            self._add(run, total)
        return True

    prepare = Helper.prepare

    def forgetful(self: Helper, message: bytes) -> bytes:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(ReportStore, "lines", lambda store, users: {})
            return prepare(self, message)

    patch.setattr(ReportStore, "add", add)
    patch.setattr(Helper, "prepare", forgetful)


def set_signed_twice(patch: pytest.MonkeyPatch) -> None:
    """The last claim counts, and the window stays open."""

    def claim(self: ReportStore, session: bytes, step: str, detail: bytes) -> None:
        with self._sql.transaction() as run:
            run("INSERT OR REPLACE INTO fact VALUES (?, ?)", (step, detail))
            run("UPDATE fact SET content = ? WHERE name = ?", (b"open", "gate"))

    patch.setattr(ReportStore, "claim", claim)
    patch.setattr(ReportStore, "set_gate", lambda self, open: None)


@pytest.mark.parametrize(
    "plant", [acknowledged_before_the_disk, noise_drawn_again, report_added_twice, set_signed_twice]
)
def test_planted_faults_are_found_and_replayed(plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    found = next(said for seed in range(1000) if (said := _wrong(seed)))
    seed = int(found.removeprefix("seed ").partition(":")[0])
    assert _wrong(seed) == found


def _wrong(seed: int) -> str:
    """What is wrong with a run; empty: nothing."""
    try:
        run(seed)
    except Wrong as error:
        return str(error)
    return ""


class Fair(random.Random):
    """Nothing is lost, doubled or late."""

    def random(self) -> float:
        return 1.0


class WholeWindow(Federation):
    """From the first report to two openings; the victim is killed at one of its transactions."""

    def __init__(self, victim: int, at: int, fate: float) -> None:
        self.transactions = 0

        def chance() -> float:
            self.transactions += 1
            return fate if self.transactions == at + 1 else 1.0

        super().__init__(Fair(), dict.fromkeys(AGGREGATORS, lambda: 1.0) | {victim: chance})
        self._now = 50.0

    def _until(self, number: int, work: Callable[[Any], Any]) -> Any:
        """The answer, asked for again where it was killed."""
        while (answer := self._asked(number, "asked", work)) is None:
            pass
        return answer

    def whole(self) -> np.ndarray:
        """(d,) the sum, opened twice; an assertion where anything is not as it must be."""
        window = self._window.window
        for user, report in enumerate(self._reports):
            (answer,) = self._until(LEADER, lambda a, r=report: a.take([r]))
            check_acknowledgement(window, user, report, answer)
            if user % 2:
                self._until(LEADER, self._decided)
        while self._until(LEADER, self._decided):
            pass
        commits = list[bytes]()
        for number in AGGREGATORS:
            order = write_order(window, COMMIT, commits, self._keys[LEADER])
            commits.append(self._until(number, lambda a, o=order: a.order(o)))
        order = write_order(window, OPEN, commits, self._keys[LEADER])
        shares = [
            [self._until(number, lambda a: a.order(order)) for number in AGGREGATORS]
            for _ in range(2)
        ]
        assert shares[0] == shares[1]
        opened = combine(window, commits[0], shares[0])
        assert opened.users == set(range(USERS))
        return opened.total.view(np.int64)


@pytest.mark.parametrize("fate", [0.0, 0.75 * KILL], ids=["before", "after"])
@pytest.mark.parametrize("victim", [LEADER, HELPER], ids=["leader", "helper"])
def test_a_kill_at_any_commit_leaves_one_sum_and_one_noise(victim: int, fate: float) -> None:
    at, kills, over = 0, 0, False
    while not over:
        run = WholeWindow(victim, at, fate)
        total = run.whole()
        kills += any("killed" in line for line in run.log)
        np.testing.assert_array_equal(total % NOISE, np.ones(USERS))  # everybody, once
        noise = set((total // NOISE).tolist())
        assert len(noise) == 1
        draws = {1: {101}, 2: {101, 102 if victim == LEADER else 201}}[run.draws[victim]]
        assert noise <= draws  # a draw that was killed before it was on the disk was never opened
        at, over = at + 1, at >= run.transactions
    assert kills >= 7  # of the transactions that write
