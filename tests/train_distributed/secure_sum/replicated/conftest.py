"""Sessions of replicated shares, to be run message by message."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from train_distributed.secure_sum.journal import Journal, VolatileJournal
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.parties import FIRST_SERVER
from train_distributed.secure_sum.prg import new_seed
from train_distributed.secure_sum.replicated import Replicated, ReplicatedUser
from train_distributed.secure_sum.replicated_server import ReplicaServer
from train_distributed.secure_sum.wire import Kind, write


@dataclass(frozen=True)
class Parties:
    setup: Replicated
    keys: dict[int, PrivateKeys]  # of users and servers
    users: list[ReplicatedUser]
    servers: dict[int, ReplicaServer]

    def sign(self, kind: Kind, sender: int, receiver: int, payload: bytes) -> bytes:
        signing = self.keys[sender].signing
        return write(self.setup.session, kind, sender, receiver, payload, signing)

    def round(self, shares: dict[int, dict[int, bytes]], live: list[int] | None = None) -> None:
        """Users' messages to the live servers, their HOLDINGs to each other, and on."""
        live = list(self.servers) if live is None else live
        for messages in shares.values():
            for server in live:
                self.servers[server].receive(messages[server])
        self.exchange({server: self.servers[server].hold() for server in live})
        for server in live:
            self.servers[server].settle(set(self.servers) - set(live))

    def exchange(self, messages: dict[int, bytes]) -> None:
        for sender, message in messages.items():
            for server in messages.keys() - {sender}:
                self.servers[server].receive(message)


@pytest.fixture
def make_replicated() -> Callable[..., Parties]:
    def make(
        w: int,
        d: int,
        servers: int = 3,
        *,
        minimum: int = 2,
        keys: dict[int, PrivateKeys] | None = None,
        nonce: bytes | None = None,
        corrupt_fraction: float = 0.1,
        journals: Callable[[int], Journal] = lambda party: VolatileJournal(),
    ) -> Parties:
        names = [*range(w), *range(FIRST_SERVER, FIRST_SERVER + servers)]
        keys = keys or {party: PrivateKeys.generate() for party in names}
        fields: dict[str, Any] = {
            "users": {i: keys[i].public.verifying for i in range(w)},
            "servers": {s: keys[s].public for s in names[w:]},
        }
        setup = Replicated.agree_on(
            nonce=nonce or new_seed(),
            dimension=d,
            minimum=minimum,
            corrupt_fraction=corrupt_fraction,
            **fields,
        )
        users = [ReplicatedUser(setup, i, keys[i], journals(i)) for i in range(w)]
        machines = {s: ReplicaServer(setup, s, keys[s], journals(s)) for s in names[w:]}
        return Parties(setup, keys, users, machines)

    return make
