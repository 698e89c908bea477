"""Endpoints at numbered nodes, without processes, for tests of connections, record, endpoint."""

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from train_distributed.federation.connections import Operator
from train_distributed.federation.coordinator import coordinate
from train_distributed.federation.documents.federation import Deadlines, Federation
from train_distributed.federation.documents.party import Keys
from train_distributed.federation.endpoint import Endpoint, UserEndpoint
from train_distributed.federation.progress import Log
from train_distributed.federation.record import SessionLog
from train_distributed.secure_sum.journal import Journal, VolatileJournal
from train_distributed.secure_sum.keys import FIRST_SERVER, PrivateKeys
from train_distributed.secure_sum.opening import Opened

W, D = 5, 7
KEYS = {n: PrivateKeys.generate() for n in [*range(W), FIRST_SERVER]}
OPERATOR = KEYS[FIRST_SERVER].public
VECTORS = np.random.default_rng(0).integers(0, 2**64, (W, D), np.uint64)


def agreement(**changes: Any) -> Federation:
    """A federation of five users."""
    fields: dict[str, Any] = {
        "version": 3,
        "protocol": "secagg",
        "dimension": D,
        "minimum": 3,
        "users": {i: KEYS[i].public.verifying.hex() for i in range(W)},
        "servers": (Keys.of(OPERATOR),),
        "deadlines": Deadlines(come=0.0, again=0.0),
    }
    return Federation(**(fields | changes))


class FakeRelay:
    """Node 10 + i is user i."""

    def __init__(self, federation: Federation, journals: Callable[[int], Journal]) -> None:
        self.federation, self.journals = federation, journals
        self.drawn = dict.fromkeys(range(W), 0)
        self.endpoints: dict[int, Endpoint] = {10 + i: self.user(i) for i in range(W)}
        self.asked = Counter[int]()
        self.dies_at: dict[int, int] = {}  # node -> requests that it answers
        self.garble: Callable[[int, bytes], bytes] = lambda node, answer: answer
        self.before: Callable[[int, bytes], None] = lambda node, request: None
        self.after: Callable[[int, bytes, bytes], None] = lambda node, request, answer: None

    def user(self, user: int) -> UserEndpoint:
        def draw() -> np.ndarray:
            self.drawn[user] += 1
            return VECTORS[user]

        return UserEndpoint(self.federation, user, KEYS[user], draw, self.journals(user))

    def nodes(self) -> list[int]:
        return [*self.endpoints]

    def ask_each(
        self, requests: Mapping[int, bytes], seconds: float | None = None
    ) -> Iterator[tuple[int, bytes]]:
        for node, request in requests.items():
            assert len(request) <= self.federation.largest_frame
            if self.asked[node] >= self.dies_at.get(node, 1000):
                continue
            self.asked[node] += 1
            self.before(node, request)
            answer = self.garble(node, self.endpoints[node].answer(request))
            self.after(node, request, answer)
            yield node, answer


def volatile(federation: Federation) -> FakeRelay:
    journals: dict[int, Journal] = {}
    return FakeRelay(federation, lambda party: journals.setdefault(party, VolatileJournal()))


def snapshot(endpoint: UserEndpoint) -> UserEndpoint:
    """The endpoint as its memory is now; its journal goes on."""
    made = copy.copy(endpoint)
    made._user, made._given = copy.copy(endpoint._user), dict(endpoint._given)
    if made._user is not None:
        made._user._survivor_check = copy.copy(made._user._survivor_check)
    return made


@contextmanager
def operator(
    relay: Any, log: Log, state: Path | None = None, journal: Journal | None = None
) -> Iterator[Operator]:
    """Whoever asks over a relay; its state is forgotten unless it has a place."""
    with TemporaryDirectory() as home, SessionLog(state or Path(home)) as record:
        yield Operator(
            federation=relay.federation,
            keys=KEYS[FIRST_SERVER],
            journal=journal or VolatileJournal(),
            relay=relay,
            record=record,
            log=log,
        )


def operate(relay: Any, log: Log | None = None, *at: Any) -> Opened:
    with operator(relay, log or Log(), *at) as operator_:
        return coordinate(operator_)
