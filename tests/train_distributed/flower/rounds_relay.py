"""A relay with the endpoints of further rounds at its nodes, and its operator."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.train_distributed.flower import fake_relay as fake
from train_distributed.flower.documents.federation import Federation
from train_distributed.flower.progress import Log
from train_distributed.flower.round_endpoint import RoundsEndpoint
from train_distributed.flower.superlink import run_rounds
from train_distributed.secure_sum.journal import DurableJournal, Journal
from train_distributed.secure_sum.opening import Opened

T, D = 3, 2  # further rounds, numbers in one of them


class Killed(BaseException):
    """Like the end of the process: nobody catches it."""


def vector_at(user: int, weights: np.ndarray) -> np.ndarray:
    """What a user submits at some weights; as whole as they are."""
    return (weights.astype(np.int64) * (user + 1) + user).astype(np.uint64)


def publish(opened: Sequence[Opened]) -> bytes:
    """Weights that depend on everything so far."""
    told = sum(int(each.total.sum() % np.uint64(1000)) for each in opened)
    return np.array([told, len(opened)], "<f8").tobytes()


class Endpoints:
    """A relay with the endpoints of rounds at its nodes."""

    def __init__(self, federation: Federation, home: Path) -> None:
        self.federation, self.home = federation, home
        self.drawn: dict[tuple[int, Any], int] = {}
        self.endpoints = {10 + i: self.user(i) for i in range(fake.W)}
        self.asked, self.dies = 0, -1

    def journal(self, party: int) -> Journal:
        return DurableJournal(self.home / f"party{party}")

    def user(self, user: int) -> RoundsEndpoint:
        def count(what: Any) -> None:
            self.drawn[user, what] = self.drawn.get((user, what), 0) + 1

        def first() -> np.ndarray:
            count("first")
            return fake.VECTORS[user]

        def rounds(weights: np.ndarray) -> Callable[[], np.ndarray]:
            if not np.isfinite(weights).all():
                raise ValueError("weights must be finite, got others")

            def draw() -> np.ndarray:
                count(int(weights[1]))
                return vector_at(user, weights)

            return draw

        keys = fake.KEYS[user]
        return RoundsEndpoint(self.federation, user, keys, self.journal(user), first, rounds)

    def nodes(self) -> dict[int, str]:
        return {node: f"{node:064x}" for node in self.endpoints}

    def ask_each(self, requests: Any, seconds: float | None = None) -> Any:
        for node, request in requests.items():
            if self.asked == self.dies:
                raise Killed
            self.asked += 1
            yield node, self.endpoints[node].answer(request)


def operate(endpoints: Endpoints, log: Log | None = None) -> list[Opened]:
    state = endpoints.home / "operator"
    journal = DurableJournal(state / "journal")
    with fake.operator(endpoints, log or Log(), state, journal) as operator:
        return run_rounds(operator, state, publish)


def check(opened: list[Opened]) -> None:
    assert np.array_equal(opened[0].total, fake.VECTORS.sum(0))
    for number in range(1, T + 1):
        weights = np.frombuffer(publish(opened[:number]), "<f8")
        total = sum(vector_at(user, weights) for user in range(fake.W))
        assert np.array_equal(opened[number].total, total)
