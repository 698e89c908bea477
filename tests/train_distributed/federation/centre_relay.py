"""A relay with endpoints of two sums at its nodes, and its operator."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.train_distributed.federation import fake_relay as fake
from train_distributed.federation.centre import CentreEndpoint
from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.operation import run_sums
from train_distributed.federation.orders import REFUSED, Request
from train_distributed.federation.progress import Log
from train_distributed.secure_sum.journal import DurableJournal
from train_distributed.secure_sum.opening import Opened

D = 2  # numbers of the second sum


class Killed(BaseException):
    """Like the end of the process: nobody catches it."""


def vector_at(user: int, centre: np.ndarray) -> np.ndarray:
    """What a user submits at a centre; as whole as it is."""
    return (centre[:D].astype(np.int64) * (user + 1) + user).astype(np.uint64)


def publish(opened: Opened, number: int = 0) -> bytes:
    """A centre that depends on the first sum, and on the session as its noise would."""
    return (opened.total % np.uint64(1000) + np.uint64(number)).astype("<f8").tobytes()


class Endpoints:
    """A relay with the endpoints of users at its nodes."""

    def __init__(self, federation: Federation, home: Path) -> None:
        self.federation, self.home = federation, home
        self.drawn: dict[tuple[int, str], int] = {}
        self.endpoints = {10 + i: self.user(i) for i in range(fake.W)}
        self.asked, self.dies, self.number = 0, -1, 0
        self.deaf: set[int] = set()  # nodes that refuse every centre
        self.centres: set[bytes] = set()  # orders that were sent

    def user(self, user: int) -> CentreEndpoint:
        def drawn(which: str, vector: np.ndarray) -> np.ndarray:
            self.drawn[user, which] = self.drawn.get((user, which), 0) + 1
            return vector

        def second(published: bytes) -> Callable[[], np.ndarray]:
            centre = np.frombuffer(published, "<f8")
            if not np.isfinite(centre).all():
                raise ValueError("centre must be finite, got others")
            return lambda: drawn("second", vector_at(user, centre))

        keys, journal = fake.KEYS[user], DurableJournal(self.home / f"party{user}")
        first = lambda: drawn("first", fake.VECTORS[user])  # noqa: E731
        return CentreEndpoint(self.federation, user, keys, journal, first, second)

    def nodes(self) -> list[int]:
        return [*self.endpoints]

    def ask_each(self, requests: Any, seconds: float | None = None) -> Any:
        for node, request in requests.items():
            if self.asked == self.dies:
                raise Killed
            self.asked += 1
            if of_centre := request[:1] == bytes([Request.CENTRE]):
                self.centres.add(request)
            refuses = of_centre and node in self.deaf
            yield node, REFUSED if refuses else self.endpoints[node].answer(request)


def operate(endpoints: Endpoints, log: Log | None = None) -> list[Opened]:
    state = endpoints.home / "operator"
    journal = DurableJournal(state / "journal")
    with fake.operator(endpoints, log or Log(), state, journal) as operator:
        return run_sums(operator, state, lambda first: publish(first, endpoints.number))


def check(opened: list[Opened], number: int = 0) -> None:
    """Both sums are exact, of whoever is in them."""
    first, second = opened
    assert np.array_equal(first.total, fake.VECTORS.sum(0))
    centre = np.frombuffer(publish(first, number), "<f8")
    assert np.array_equal(second.total, sum(vector_at(user, centre) for user in second.users))
