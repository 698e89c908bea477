"""One aggregator is killed at every commit of its, before or after it: one sum, one noise."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.simulation.federation import KILL, NOISE, USERS, Disk, Killed, machine, parties
from train_distributed.secure_sum.aggregator import AGGREGATORS
from train_distributed.secure_sum.opening import combine
from train_distributed.secure_sum.orders import COMMIT, OPEN, write_order
from train_distributed.secure_sum.report_store import ReportStore
from train_distributed.secure_sum.reports import check_acknowledgement
from train_distributed.secure_sum.window import HELPER, LEADER

BEFORE, AFTER = 0.0, 0.75 * KILL


class Run:
    """A window from the first report to two openings, in which whoever was killed comes back.

    Args:
        victim: aggregator that is killed.
        at: at this transaction of its, from 0.
        fate: BEFORE or AFTER what it wrote is on its disk.
    """

    def __init__(self, victim: int, at: int, fate: float) -> None:
        self.killed, self.draws, self.transactions = False, dict.fromkeys(AGGREGATORS, 0), 0
        self._window, self._keys, self._reports = parties()

        def chance() -> float:
            self.transactions += 1
            return fate if self.transactions == at + 1 else 1.0

        self._disks = {
            number: Disk(chance if number == victim else lambda: 1.0) for number in AGGREGATORS
        }
        self._machines = dict[int, Any]()
        for number in AGGREGATORS:
            self._boot(number)

    def _boot(self, number: int) -> None:
        while number not in self._machines:
            self._disks[number].boot()
            try:
                store = ReportStore(self._disks[number], self._window, number)
            except Killed:
                self.killed = True
                continue
            self._machines[number] = machine(number, store, self.draws, lambda: 50.0)

    def _asked(self, number: int, work: Callable[[Any], Any]) -> Any:
        """The answer; None: it was killed, and is there again."""
        try:
            return work(self._machines[number])
        except Killed:
            self.killed = True
            del self._machines[number]
            self._boot(number)

    def _until(self, number: int, work: Callable[[Any], Any]) -> Any:
        while (answer := self._asked(number, work)) is None:
            pass
        return answer

    def _send(self, job: bytes) -> bytes:
        answer = self._asked(HELPER, lambda a: a.prepare(job))
        if answer is None:
            raise OSError("the helper is gone")
        return answer

    def _work(self, leader: Any) -> int:
        try:
            return leader.work(self._send)
        except OSError:
            return 1

    def whole(self) -> np.ndarray:
        """(d,) the sum, opened twice; an assertion where anything is not as it must be."""
        window = self._window.window
        for user, report in enumerate(self._reports):
            (answer,) = self._until(LEADER, lambda a, r=report: a.take([r]))
            check_acknowledgement(window, user, report, answer)
            if user % 2:
                self._until(LEADER, self._work)
        while self._until(LEADER, self._work):
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


@pytest.mark.parametrize("fate", [BEFORE, AFTER], ids=["before", "after"])
@pytest.mark.parametrize("victim", [LEADER, HELPER], ids=["leader", "helper"])
def test_a_kill_at_any_commit_leaves_one_sum_and_one_noise(victim: int, fate: float) -> None:
    at, kills = 0, 0
    while True:
        run = Run(victim, at, fate)
        total = run.whole()
        kills += run.killed
        np.testing.assert_array_equal(total % NOISE, np.ones(USERS))  # everybody, once
        noise = set((total // NOISE).tolist())
        assert len(noise) == 1
        draws = {1: {101}, 2: {101, 102 if victim == LEADER else 201}}[run.draws[victim]]
        assert noise <= draws  # a draw that was killed before it was on the disk was never opened
        if at >= run.transactions:
            break
        at += 1
    assert kills >= 7  # of the transactions that write
