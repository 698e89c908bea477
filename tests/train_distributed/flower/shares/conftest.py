"""A session of the shares protocols in one process, whose parties can be made to misbehave."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from train_distributed.flower.blobs import join, split
from train_distributed.flower.coordinator import Log, coordinate
from train_distributed.flower.documents.federation import Federation
from train_distributed.flower.endpoint import (
    DONE,
    ComputationEndpoint,
    Endpoint,
    Request,
    UserEndpoint,
)
from train_distributed.secure_sum.journal import VolatileJournal
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.opening import Opened
from train_distributed.secure_sum.parties import FIRST_SERVER
from train_distributed.secure_sum.session import Session
from train_distributed.secure_sum.wire import Kind, receiver_of, write

NONCE = b"n" * 32
Messages = list[bytes]
Hook = Callable[[Request, Messages], Messages | None]  # what a party answers instead, if at all


@dataclass
class Trial:
    """A federation and an honest relay: node 10 + i is user i, node 20 + j server j."""

    federation: Federation
    endpoints: dict[int, Endpoint]
    vectors: NDArray[np.uint64]
    keys: dict[int, PrivateKeys]
    hooks: dict[int, Hook] = field(default_factory=dict)
    log: Log = field(default_factory=Log)

    def nodes(self) -> dict[int, str]:
        return dict.fromkeys(self.endpoints, "")

    def ask_each(
        self, requests: Mapping[int, bytes], seconds: float | None = None
    ) -> Iterator[tuple[int, bytes]]:
        for node, request in requests.items():
            answer: bytes | None = self.endpoints[node].answer(request)
            if node in self.hooks and answer[:1] == DONE:
                changed = self.hooks[node](Request(request[0]), split(answer[1:]))
                answer = None if changed is None else DONE + join(changed)
            if answer is not None:
                yield node, answer

    def run(self) -> Opened:
        keys, journal = self.keys[FIRST_SERVER], VolatileJournal()
        return coordinate(self.federation, NONCE, keys, journal, self, self.log)

    @property
    def session(self) -> Session:
        return self.federation.session(NONCE)

    def sign(self, party: int, message: bytes, payload: bytes, **changes: Any) -> bytes:
        """The message with another payload, signed by `party`; changes: sender, receiver, nonce."""
        nonce, sender = changes.get("nonce", NONCE), changes.get("sender", party)
        receiver = changes.get("receiver", receiver_of(message))
        session, signing = self.federation.session(nonce), self.keys[party].signing
        return write(session, Kind(message[5]), sender, receiver, payload, signing)


@pytest.fixture
def make_trial(fake: ModuleType) -> Callable[..., Trial]:
    def make(protocol: str, servers: int, **changes: Any) -> Trial:
        federation, journal = fake.agreement(protocol, servers, **changes), VolatileJournal
        vectors, keys = fake.VECTORS, fake.KEYS
        endpoints: dict[int, Endpoint] = {
            10 + i: UserEndpoint(federation, i, keys[i], lambda i=i: vectors[i], journal())
            for i in range(fake.W)
        }
        for j in range(1, servers):
            server = FIRST_SERVER + j
            endpoints[20 + j] = ComputationEndpoint(federation, server, keys[server], journal())
        return Trial(federation, endpoints, vectors, keys)

    return make
