"""Whole sessions of both protocols, to be run message by message."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from train_distributed.secure_sum.journal import VolatileJournal
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.prg import new_seed
from train_distributed.secure_sum.secagg import SecAgg
from train_distributed.secure_sum.secagg_server import SecAggServer
from train_distributed.secure_sum.secagg_user import SecAggUser
from train_distributed.secure_sum.session import FIRST_SERVER, Session
from train_distributed.secure_sum.shares import SeedServer, SharesUser, VectorServer


@dataclass(frozen=True)
class SharesParties:
    session: Session
    keys: dict[int, PrivateKeys]  # of users and servers
    users: list[SharesUser]
    seed_servers: dict[int, SeedServer]
    vector_server: VectorServer

    @property
    def last(self) -> int:
        return max(self.session.servers)


@dataclass(frozen=True)
class SecAggParties:
    setup: SecAgg
    keys: dict[int, PrivateKeys]
    users: list[SecAggUser]
    server: SecAggServer


@pytest.fixture
def vectors() -> Callable[[int, int], NDArray[np.uint64]]:
    def draw(w: int, d: int) -> NDArray[np.uint64]:
        return np.random.default_rng(w * 100_003 + d).integers(0, 2**64, (w, d), np.uint64)

    return draw


@pytest.fixture
def make_shares() -> Callable[..., SharesParties]:
    def make(
        w: int,
        d: int,
        *,
        servers: int = 3,
        minimum: int = 2,
        keys: dict[int, PrivateKeys] | None = None,
        nonce: bytes | None = None,
    ) -> SharesParties:
        names = [*range(w), *range(FIRST_SERVER, FIRST_SERVER + servers)]
        keys = keys or {party: PrivateKeys.generate() for party in names}
        session = Session(
            nonce=nonce or new_seed(),
            dimension=d,
            minimum=minimum,
            users={i: keys[i].public.verifying for i in range(w)},
            servers={s: keys[s].public for s in names[w:]},
            context=b"shares",
        )
        users = [SharesUser(session, i, keys[i], VolatileJournal()) for i in range(w)]
        *first, last = names[w:]
        seeds = {s: SeedServer(session, s, keys[s], VolatileJournal()) for s in first}
        adder = VectorServer(session, last, keys[last], VolatileJournal())
        return SharesParties(session, keys, users, seeds, adder)

    return make


@pytest.fixture
def make_secagg() -> Callable[..., SecAggParties]:
    def make(
        vectors: NDArray[np.uint64],
        *,
        minimum: int = 2,
        corrupt_fraction: float = 0.1,
        dropout_fraction: float = 0.2,
        keys: dict[int, PrivateKeys] | None = None,
        nonce: bytes | None = None,
    ) -> SecAggParties:
        w = len(vectors)
        keys = keys or {party: PrivateKeys.generate() for party in [*range(w), FIRST_SERVER]}
        setup = SecAgg.agree_on(
            nonce=nonce or new_seed(),
            dimension=vectors.shape[1],
            minimum=minimum,
            users={i: keys[i].public.verifying for i in range(w)},
            server=keys[FIRST_SERVER].public,
            corrupt_fraction=corrupt_fraction,
            dropout_fraction=dropout_fraction,
        )
        users = [SecAggUser(setup, i, keys[i], vectors[i], VolatileJournal()) for i in range(w)]
        return SecAggParties(
            setup, keys, users, SecAggServer(setup, keys[FIRST_SERVER], VolatileJournal())
        )

    return make
