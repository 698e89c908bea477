"""Endpoints at numbered nodes, without processes, for tests of connections, record, endpoint."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from train_distributed.flower.documents.federation import Federation
from train_distributed.flower.endpoint import Endpoint, UserEndpoint
from train_distributed.secure_sum.journal import Journal, VolatileJournal
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.parties import FIRST_SERVER

W, D = 5, 7
KEYS = {n: PrivateKeys.generate() for n in [*range(W), FIRST_SERVER]}
OPERATOR = KEYS[FIRST_SERVER].public
VECTORS = np.random.default_rng(0).integers(0, 2**64, (W, D), np.uint64)


def agreement(**changes: Any) -> Federation:
    """A federation of five users."""
    fields: dict[str, Any] = {
        "protocol": "secagg",
        "dimension": D,
        "minimum": 3,
        "users": {i: KEYS[i].public.verifying.hex() for i in range(W)},
        "servers": ({"verifying": OPERATOR.verifying.hex(), "sealing": OPERATOR.sealing.hex()},),
    }
    return Federation(**(fields | changes))


class FakeRelay:
    """Node 10 + i is user i."""

    def __init__(self, federation: Federation, journals: Callable[[int], Journal]) -> None:
        self.federation, self.journals = federation, journals
        self.drawn = dict.fromkeys(range(W), 0)
        self.endpoints: dict[int, Endpoint] = {10 + i: self.user(i) for i in range(W)}
        self.answered = 0
        self.before: Callable[[int, bytes], None] = lambda node, request: None
        self.after: Callable[[int, bytes, bytes], None] = lambda node, request, answer: None

    def user(self, user: int) -> UserEndpoint:
        def draw() -> np.ndarray:
            self.drawn[user] += 1
            return VECTORS[user]

        return UserEndpoint(self.federation, user, KEYS[user], draw, self.journals(user))

    def nodes(self) -> dict[int, str]:
        return {node: f"{node:064x}" for node in self.endpoints}

    def ask_each(
        self, requests: Mapping[int, bytes], seconds: float | None = None
    ) -> Iterator[tuple[int, bytes]]:
        for node, request in requests.items():
            assert len(request) <= self.federation.largest_frame
            self.before(node, request)
            answer = self.endpoints[node].answer(request)
            self.after(node, request, answer)
            yield node, answer


def volatile(federation: Federation) -> FakeRelay:
    journals: dict[int, Journal] = {}
    return FakeRelay(federation, lambda party: journals.setdefault(party, VolatileJournal()))
