"""A relay with endpoints of two sums at its nodes, and its operator."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.train_distributed.federation import fake_relay as fake
from tests.train_distributed.federation.fake_relay import Killed
from train_distributed.federation.centre import CentreEndpoint
from train_distributed.federation.operation import run_sums
from train_distributed.federation.orders import Request
from train_distributed.federation.progress import Log
from train_distributed.secure_sum.opening import Opened

D = 2  # numbers of the second sum


def vector_at(user: int, centre: np.ndarray) -> np.ndarray:
    """What a user submits at a centre; as whole as it is."""
    return (centre[:D].astype(np.int64) * (user + 1) + user).astype(np.uint64)


def publish(opened: Opened, number: int = 0) -> bytes:
    """A centre that depends on the first sum, and on the session as its noise would."""
    return (opened.total % np.uint64(1000) + np.uint64(number)).astype("<f8").tobytes()


class CentreRelay(fake.FakeRelay):
    """`drawn` counts vectors by user and sum; the operator dies at question `dies`."""

    def __init__(self, home: Path, **changes: Any) -> None:
        super().__init__(fake.agreement(second_dimension=D, **changes))
        self.home, self.count, self.dies, self.number = home, 0, -1, 0
        self.centres: set[bytes] = set()  # orders that were sent
        self.before = self.noted

    def noted(self, node: int, request: bytes) -> None:
        if self.count == self.dies:
            raise Killed
        self.count += 1
        if request[:1] == bytes([Request.CENTRE]):
            self.centres.add(request)

    def user(self, user: int) -> CentreEndpoint:
        def drawn(which: str, vector: np.ndarray) -> np.ndarray:
            self.drawn[user, which] += 1
            return vector

        def second(published: bytes) -> Callable[[], np.ndarray]:
            centre = np.frombuffer(published, "<f8")
            if not np.isfinite(centre).all():
                raise ValueError("centre must be finite, got others")
            return lambda: drawn("second", vector_at(user, centre))

        keys, journal = fake.KEYS[user], self.journals(user)
        first = lambda: drawn("first", fake.VECTORS[user])  # noqa: E731
        return CentreEndpoint(self.federation, user, keys, journal, first, second)

    @property
    def state(self) -> Path:
        return self.home / "operator"

    def operate(self, log: Log | None = None) -> Opened:
        """Both sums, which must be exact; the second one."""
        with fake.operator(self, log or Log(), self.state) as operator:
            made = lambda opened: publish(opened, self.number)  # noqa: E731
            first, second = run_sums(operator, self.state, made)
        assert np.array_equal(first.total, fake.VECTORS.sum(0))
        centre = np.frombuffer(publish(first, self.number), "<f8")
        assert np.array_equal(second.total, sum(vector_at(user, centre) for user in second.users))
        return second
