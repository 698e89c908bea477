"""Endpoints at numbered nodes, without processes, for tests of connections, record, endpoint."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from train_distributed.flower.documents.federation import Federation
from train_distributed.flower.endpoint import ComputationEndpoint, Endpoint, UserEndpoint
from train_distributed.secure_sum.journal import Journal, VolatileJournal
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.parties import FIRST_SERVER

W, D = 5, 7
KEYS = {n: PrivateKeys.generate() for n in [*range(W), *range(FIRST_SERVER, FIRST_SERVER + 5)]}
VECTORS = np.random.default_rng(0).integers(0, 2**64, (W, D), np.uint64)


def agreement(protocol: str, servers: int = 0, **changes: Any) -> Federation:
    """A federation of five users; with two servers for shares, one for secagg, if left out."""
    count = servers or 1 + (protocol == "shares")
    fields: dict[str, Any] = {
        "protocol": protocol,
        "dimension": D,
        "minimum": 3,
        "users": {i: KEYS[i].public.verifying.hex() for i in range(W)},
        "servers": tuple(
            {"verifying": k.verifying.hex(), "sealing": k.sealing.hex()}
            for k in (KEYS[FIRST_SERVER + j].public for j in range(count))
        ),
    }
    return Federation(**(fields | changes))


class FakeRelay:
    """Node 10 + i is user i, node 20 the second computation server."""

    def __init__(self, federation: Federation, journals: Callable[[int], Journal]) -> None:
        self.federation, self.journals = federation, journals
        self.drawn = dict.fromkeys(range(W), 0)
        self.endpoints: dict[int, Endpoint] = {10 + i: self.user(i) for i in range(W)}
        if federation.protocol == "shares":
            server = FIRST_SERVER + 1
            self.endpoints[20] = ComputationEndpoint(
                federation, server, KEYS[server], journals(server)
            )
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
