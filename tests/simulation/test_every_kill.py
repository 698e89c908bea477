"""One aggregator is killed at every commit of its, before or after it: one sum, one noise."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.simulation.federation import KILL, NOISE, USERS, Federation
from train_distributed.secure_sum.aggregator import AGGREGATORS, COMMIT, OPEN, write_order
from train_distributed.secure_sum.opening import combine
from train_distributed.secure_sum.reports import check_acknowledgement
from train_distributed.secure_sum.window import HELPER, LEADER

BEFORE, AFTER = 0.0, 0.75 * KILL


class Fair(random.Random):
    """Nothing is lost, doubled or late."""

    def random(self) -> float:
        return 1.0


class Run(Federation):
    """A window from the first report to two openings, in which whoever was killed comes back.

    Args:
        victim: aggregator that is killed.
        at: at this transaction of its, from 0.
        fate: BEFORE or AFTER what it wrote is on its disk.
    """

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

    def _decided(self, leader: Any) -> int:
        """Reports of one job; 1 where the helper is gone."""
        try:
            return leader.work(self._sent)
        except OSError:
            return 1

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


@pytest.mark.parametrize("fate", [BEFORE, AFTER], ids=["before", "after"])
@pytest.mark.parametrize("victim", [LEADER, HELPER], ids=["leader", "helper"])
def test_a_kill_at_any_commit_leaves_one_sum_and_one_noise(victim: int, fate: float) -> None:
    at, kills = 0, 0
    while True:
        run = Run(victim, at, fate)
        total = run.whole()
        kills += any("killed" in line for line in run.log)
        np.testing.assert_array_equal(total % NOISE, np.ones(USERS))  # everybody, once
        noise = set((total // NOISE).tolist())
        assert len(noise) == 1
        draws = {1: {101}, 2: {101, 102 if victim == LEADER else 201}}[run.draws[victim]]
        assert noise <= draws  # a draw that was killed before it was on the disk was never opened
        if at >= run.transactions:
            break
        at += 1
    assert kills >= 7  # of the transactions that write
