"""The users of `load_shares.py`: their reports, made and sent by several processes."""

import hashlib
import ssl
import time
from dataclasses import dataclass, field
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from train_distributed.flower.aggregator_client import Aggregators
from train_distributed.flower.documents.certificates import CA
from train_distributed.flower.documents.window_file import WINDOW, WindowFile
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.reports import make_report
from train_distributed.secure_sum.window import Window

GRID, NOISE = 2.0**12, 34.0  # steps in the length of a row, and of one user's noise
AGAIN, SECOND, HALF_WAY = 100, 1000, 200  # one user in so many
progress: "Synchronized[int] | None" = None  # of a client process


def keys_of(user: int) -> PrivateKeys:
    return PrivateKeys(hashlib.sha256(b"load test user %d" % user).digest(), bytes(32))


def vector_of(user: int, components: int, classes: int) -> NDArray[np.uint64]:
    """Class sums of one row, and noise; the same whenever it is asked for."""
    rng = np.random.default_rng(user)
    sums = np.rint(rng.normal(0, NOISE, (1 + components, classes)))
    row = rng.normal(0, 1, 1 + components)
    sums[:, rng.integers(classes)] += np.trunc(GRID * row / np.linalg.norm(row))
    return sums.ravel().astype(np.int64).view(np.uint64)


@dataclass
class Sent:
    """Result of a client process."""

    total: NDArray[np.uint64]
    users: list[int] = field(default_factory=list)  # acknowledged by all
    making: float = 0.0  # CPU seconds
    sending: float = 0.0
    refused: int = 0  # second reports
    left_out: int = 0


def client(folder: Path, users: range, shape: tuple[int, int], line_users: int) -> Sent:
    """Makes and sends the reports of some users, of so many on one line to each adder."""
    file = WindowFile.load(folder / WINDOW)
    sent, tls = Sent(np.zeros(file.window.dimension, np.uint64)), authorities(folder)
    for start in range(0, len(users), line_users):
        some = users[start : start + line_users]
        with Aggregators(file.window, file.addresses, tls, patience=120.0) as adders:
            _chunk(adders, file.window, some, shape, sent)
        assert progress is not None
        with progress.get_lock():
            progress.value += len(some)
    return sent


def authorities(folder: Path) -> ssl.SSLContext | None:
    """Where the adders have TLS, what their certificate is checked with."""
    ca = folder / "tls" / CA
    return ssl.create_default_context(cafile=str(ca)) if ca.exists() else None


def _chunk(
    adders: Aggregators, window: Window, users: range, shape: tuple[int, int], sent: Sent
) -> None:
    before = time.process_time()
    vectors = {user: vector_of(user, *shape) for user in users}
    reports = {u: make_report(window, u, keys_of(u), vector) for u, vector in vectors.items()}
    others = {u: make_report(window, u, keys_of(u), vectors[u]) for u in users if u % SECOND == 3}
    sent.making += time.process_time() - before
    before = time.process_time()
    some = {u: reports.pop(u) for u in users if u % HALF_WAY == 7}
    seeds, _ = adders.seeds(some)
    assert not seeds, seeds
    again = {u: report for u, report in reports.items() if u % AGAIN == 5}
    for each in (reports, again):
        refused = adders.report(each)
        assert not refused, refused
    refused = adders.report(others)
    assert refused.keys() == others.keys(), refused
    sent.sending += time.process_time() - before
    sent.refused += len(refused)
    sent.left_out += len(some)
    for user in reports:
        sent.users.append(user)
        sent.total += vectors[user]


def share(counter: "Synchronized[int]") -> None:
    """Sets the counter of users that client processes share."""
    global progress
    progress = counter
