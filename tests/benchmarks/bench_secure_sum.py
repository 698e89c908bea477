"""Secure sums: cost of `secagg`, its graph of secrets (`graph`), proofs of length (`proofs`)."""

import contextlib
import gc
import os
import resource
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import cryptography
import numpy as np
from cryptography.hazmat.backends.openssl.backend import backend
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from pretrain.cli.provenance import provenance
from tests.benchmarks.common import Table, command_line, save, show
from tests.train_distributed.secure_sum.simulate import MASKED_INPUT, simulate_sum
from train_distributed.proofs import field
from train_distributed.proofs.linear_proof import forgery_log2
from train_distributed.proofs.pine import NONCE_BYTES, Pine
from train_distributed.secure_sum.graph import choose_degree, whole_users
from train_distributed.secure_sum.prg import add_stream, new_seed
from train_distributed.secure_sum.secagg_user import SurvivorCheck
from train_distributed.secure_sum.session import Session

FRACTIONS = (0.1, 0.2)  # of corrupt users, and of those that may drop out
CHECKING = 100  # users that check a quorum's signatures
RATE_SECONDS, REPEATS = 0.2, 5  # of one measurement of a rate
DIMENSION = 61_450


@contextlib.contextmanager
def like_the_first(users: int) -> Iterator[list[float]]:
    """Only the first users check a quorum's signatures; gives the CPU seconds of each of them.

    And what all users are told is kept once, not by each.
    """
    seconds: list[float] = []
    sets: dict[bytes, frozenset[int]] = {}
    check, read = SurvivorCheck._check_signatures, Session.users_of

    def first(self: SurvivorCheck, signed: dict[int, bytes], shown: dict[int, bytes]) -> None:
        if len(seconds) < users:
            start = time.process_time()
            check(self, signed, shown)
            seconds.append(time.process_time() - start)

    def once(self: Session, bitmap: bytes) -> frozenset[int]:
        if bitmap not in sets:
            sets[bitmap] = read(self, bitmap)
        return sets[bitmap]

    gc.collect()
    gc.disable()  # it would look through all users' objects in the server's time
    checking = patch.object(SurvivorCheck, "_check_signatures", first)
    with checking, patch.object(Session, "users_of", once):
        yield seconds
    gc.enable()


def measure(users: int, dropped: float) -> dict[str, Any]:
    """One run, in which a share of the users drops out after sharing keys; the sum is checked."""
    gone = int(dropped * users)
    fractions = dict(zip(("corrupt_fraction", "dropout_fraction"), FRACTIONS, strict=True))
    row = np.random.default_rng(0).integers(0, 2**64, DIMENSION, np.uint64)
    with like_the_first(CHECKING) as checks:
        rows = np.broadcast_to(row, (users, DIMENSION))
        result = simulate_sum(rows, drop={MASKED_INPUT: range(gone)}, **fractions)
    unchecked = users - gone - len(checks) if checks else 0
    skipped = unchecked / users * float(np.mean(checks or [0]))
    if not np.array_equal(result.total, row * np.uint64(users - gone)):
        raise RuntimeError(f"the sum of {users} users is wrong")
    found = {"protocol": "secagg", "users": users, "dropped": gone, "dimension": DIMENSION}
    found |= {"bytes_per_client": result.bytes_per_client, "bytes_server": result.bytes_server}
    found |= {"seconds_per_client": round(result.seconds_per_client + skipped, 5)}
    return found | {"seconds_server": round(result.seconds_server, 4)}


def rate(work: Callable[[], object], octets: int) -> float:
    """GB a second."""
    done, start = 0, time.perf_counter()
    while (taken := time.perf_counter() - start) < RATE_SECONDS:
        work()
        done += octets
    return done / taken / 1e9


def expansion() -> dict[str, float]:
    """The best of several rates of masks and of the bare cipher, measured in turns, in GB/s."""
    octets, total = 8 * DIMENSION, np.zeros(DIMENSION, np.uint64)
    zeros, out = bytes(octets), bytearray(octets)
    context = Cipher(algorithms.AES256(new_seed()), modes.CTR(bytes(16))).encryptor()
    sides = (lambda: add_stream(total, new_seed()), lambda: context.update_into(zeros, out))
    rates = [[rate(side, octets) for side in sides] for _ in range(REPEATS)]
    masks, cipher = (max(each) for each in zip(*rates, strict=True))
    return {"masks": masks, "aes_256_ctr": cipher, "ratio": masks / cipher}


def secagg(
    users: tuple[int, ...] = (10, 100, 1000, 10_000),
    dropped: tuple[float, ...] = (0.0,),
    write: Path | None = None,
) -> None:
    """Cost of a secure sum by `secagg`: bytes and seconds per client and server.

    All parties run in one process, one after the other; set-up of keys is not counted. Seconds are
    CPU time. Every user submits the same vector, so that the inputs take no memory. Of many users
    the first few check a quorum's signatures, as each does on a machine of its own, and are taken
    to be like all. At last: how fast one core turns seeds into masks and adds them, and how fast
    its AES-256 in counter mode is by itself.
    """
    machine, table = provenance() | {"load": os.getloadavg()[0]}, Table()
    machine |= {"cryptography": cryptography.__version__, "openssl": backend.openssl_version_text()}
    for count, share in product(users, dropped):
        table.add(measure(count, share))
    masks = expansion()
    print("GB/s on one core:", masks)
    save(write, {"machine": machine, "fractions": FRACTIONS, "cost": table.rows, "masks": masks})


LENGTH, NORM_BOUND = 9546, 2**30
QUARTILES = (0.5, 0.25, 0.75)
CLOCKS = ("milliseconds", "milliseconds of processor")  # the same but for other programs


def clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def proofs(reports: int = 200, write: Path | None = None) -> None:
    """Times and bytes of PINE at a user and each aggregator (OMP_NUM_THREADS=1); memory's peak."""
    pine = Pine.for_bound(dimension=LENGTH, norm_bound=NORM_BOUND)
    generator, key = np.random.default_rng(0), secrets.token_bytes(32)
    seconds: dict[str, list[np.ndarray]] = {"user": [], "leader": [], "helper": [], "message": []}
    totals, expected = [np.zeros(LENGTH, np.uint64)] * 2, np.zeros(LENGTH, np.int64)
    memory, sent = [], 0
    for _ in range(reports):
        vector = generator.normal(size=LENGTH)
        vector = np.trunc(vector / np.linalg.norm(vector) * NORM_BOUND).astype(np.int64)
        nonce, times = secrets.token_bytes(NONCE_BYTES), [clocks()]
        public, shares = pine.shard(vector, nonce)
        times.append(clocks())
        states = []
        for j in range(2):
            states.append(pine.prepare_init(key, j, nonce, public, shares[j]))
            times.append(clocks())
        message = pine.prepare_message(states[0][1], states[1][1])
        outs = [pine.prepare_next(state, message) for state, _ in states]
        totals = [field.add(total, out) for total, out in zip(totals, outs, strict=True)]
        times.append(clocks())
        for name, spent in zip(seconds, np.diff(times, axis=0), strict=True):
            seconds[name].append(spent)
        expected, sent = expected + vector, 2 * len(public) + sum(map(len, shares))
        memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
    assert (pine.unshard(*totals) == expected).all()
    found: dict[str, Any] = {"dimension": LENGTH, "norm_bound": NORM_BOUND, "reports": reports}
    for place, clock in enumerate(CLOCKS):
        found[f"{clock}, median (quartiles)"] = {
            name: (1000 * np.quantile(np.array(spent)[:, place], QUARTILES)).round(2).tolist()
            for name, spent in seconds.items()
        }
    found |= {"bytes a report": sent, "bytes over the vector's": round(sent / (8 * LENGTH), 3)}
    found |= {"MiB at the peak after the 10th and the last report": [memory[9], memory[-1]]}
    found |= {"log2 of a forgery": round(forgery_log2(pine.layout, pine.circuits), 2)}
    found |= {"load": os.getloadavg()[0], "machine": provenance()}
    show(found)
    save(write, found)


USERS = (20, 50, 100, 200, 500, 1000, 10_000, 100_000)
SHARES = ((0.1, 0.2), (0.1, 0.1), (0.2, 0.1), (0.3, 0.05))


def graph(write: Path | None = None) -> None:
    """Lists, thresholds and quorums of `secagg`, and the probabilities that they fail.

    The fewest users in a sum are all but the stated dropouts. "-inf": a graph of all users, which
    cannot fail.
    """
    table = Table()
    for (corrupt, dropout), users in product(SHARES, USERS):
        minimum = users - whole_users(users, dropout, "dropout_fraction")
        graph = asdict(choose_degree(users, corrupt, dropout, minimum))
        for name in ("log2_insecure", "log2_aborts"):  # JSON has no infinity
            graph[name] = graph[name] if graph[name] >= -1e9 else str(graph[name])
        table.add({"users": users, "corrupt": corrupt, "dropout": dropout} | graph)
    save(write, {"command": provenance()["command"], "graphs": table.rows})


if __name__ == "__main__":
    command_line(secagg=secagg, graph=graph, proofs=proofs)
