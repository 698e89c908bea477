"""Sessions of `secagg`, each decided by its number: questions that are lost or doubled, kills,
restarts, an operator whose record is lost, and memory of users that is put back.

To replay a seed: `python -c "import tests.train_distributed.federation.test_secagg_seeds as t;
t.run(SEED)"`.
"""

import os
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from tests.train_distributed.federation import fake_relay as fake
from tests.train_distributed.federation.centre_relay import Killed
from tests.train_distributed.secure_sum.simulate import VolatileJournal
from train_distributed.federation.endpoint import UserEndpoint
from train_distributed.federation.operation import run_session
from train_distributed.federation.orders import DONE, Request, split
from train_distributed.federation.progress import Log
from train_distributed.secure_sum.journal import Journal
from train_distributed.secure_sum.wire import kind_of

SEEDS, MANY = 20, int(os.environ.get("SEEDS", 2000))
FORGOTTEN = 0.4  # chance that a killed operator has lost its record
STARTS = 6  # of an operator that is killed, or has no sum
LOST, DOUBLED, RESTARTED, PUT_BACK, KILLED = 0.02, 0.1, 0.01, 0.04, 0.02


class World(fake.FakeRelay):
    """Five users whose lines and processes are in the hands of chance."""

    def __init__(self, draw: random.Random) -> None:
        kept: dict[int, Journal] = {}
        super().__init__(fake.agreement(), lambda user: kept.setdefault(user, VolatileJournal()))
        self._random, self.log = draw, list[str]()
        self._earlier: dict[int, list[UserEndpoint]] = {node: [] for node in self.endpoints}
        self.signed: dict[int, set[bytes]] = {node: set() for node in self.endpoints}

    def ask_each(
        self, requests: Mapping[int, bytes], seconds: float | None = None
    ) -> Iterator[tuple[int, bytes]]:
        order = list(requests)
        self._random.shuffle(order)
        for node in order:
            if self.chance(KILLED, "operator killed"):
                raise Killed
            if self.chance(LOST, "lost"):
                continue
            answer = self._answer(node, requests[node])
            if self.chance(KILLED, "operator killed"):
                raise Killed
            yield node, answer

    def _answer(self, node: int, request: bytes) -> bytes:
        if self.chance(RESTARTED, "user restarted"):
            self.endpoints[node] = self.user(node - 10)
        if self._earlier[node] and self.chance(PUT_BACK, "memory put back"):
            self.endpoints[node] = fake.snapshot(self._random.choice(self._earlier[node]))
        endpoint: Any = self.endpoints[node]
        self._earlier[node].append(fake.snapshot(endpoint))
        answer = self._given(node, request)
        if self.chance(DOUBLED, "doubled"):
            again = self._given(node, request)
            assert answer == again or answer[:1] != DONE or request[0] == Request.END
        return answer

    def _given(self, node: int, request: bytes) -> bytes:
        answer = self.endpoints[node].answer(request)
        if answer[:1] == DONE and request[0] == Request.DELIVER:
            agreed = (one for one in split(answer[1:]) if kind_of(one) == "agreed")
            self.signed[node].update(agreed)
        return answer

    def chance(self, chance: float, what: str) -> bool:
        happens = self._random.random() < chance
        if happens:
            self.log.append(what)
        return happens


def run(seed: int) -> World:
    """One federation with one session agreed; raises AssertionError with its number."""
    world, journal = World(random.Random(seed)), VolatileJournal()
    with TemporaryDirectory() as home:
        for _ in range(STARTS):
            try:
                with fake.operator(world, Log(), Path(home), journal) as operator:
                    opened = run_session(operator)
            except Killed:
                if world.chance(FORGOTTEN, "record lost"):
                    for file in Path(home).iterdir():
                        file.unlink()
                continue
            except ValueError:
                continue
            world.log.append("opened")
            users = sorted(opened.users)
            assert len(users) >= 3, seed
            assert np.array_equal(opened.total, fake.VECTORS[users].sum(0)), seed
            break
    assert all(len(signed) <= 1 for signed in world.signed.values()), seed
    return world


def test_sums_are_exact_and_nobody_signs_twice() -> None:
    said = {line for seed in range(SEEDS) for line in run(seed).log}
    wanted = {"opened", "lost", "doubled", "operator killed", "user restarted"}
    assert said == wanted | {"memory put back", "record lost"}


@pytest.mark.slow
def test_many_sums_are_exact_and_nobody_signs_twice() -> None:
    for seed in range(MANY):
        run(seed)
