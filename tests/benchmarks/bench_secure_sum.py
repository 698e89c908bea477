"""Cost of a secure sum by protocol B (`secagg`): bytes and seconds per client and server.

    python tests/benchmarks/bench_secure_sum.py
    python tests/benchmarks/bench_secure_sum.py --users 1000 --dimension 100000 --dropped 0 0.19
    python tests/benchmarks/bench_secure_sum.py --write results/secure_sum/cost.json

All parties run in one process, one after the other; set-up of keys is not counted. Seconds are CPU
time. Every user submits the same vector, so that the inputs take no memory. Of many users the first
few check a quorum's signatures, as each does on a machine of its own, and are taken to be like all.

At last it says how fast one core turns seeds into masks and adds them, and how fast its AES-256 in
counter mode is by itself.
"""

import contextlib
import gc
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import cryptography
import numpy as np
import tyro
from cryptography.hazmat.backends.openssl.backend import backend
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from pretrain.cli.provenance import provenance
from tests.benchmarks.saving import save
from tests.train_distributed.secure_sum.simulate import MASKED_INPUT, simulate_sum
from train_distributed.secure_sum.prg import add_stream, new_seed
from train_distributed.secure_sum.secagg_user import SurvivorCheck
from train_distributed.secure_sum.session import Session

HEADER = "     w  dropped        d   client bytes   server bytes   client s   server s"
RATE_SECONDS = 0.2  # of one measurement of a rate


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

    SurvivorCheck._check_signatures, Session.users_of = first, once
    gc.collect()
    gc.disable()  # it would look through all users' objects in the server's time
    try:
        yield seconds
    finally:
        gc.enable()
        SurvivorCheck._check_signatures, Session.users_of = check, read


def measure(
    users: int,
    dimension: int,
    fractions: tuple[float, float],
    dropped: float = 0,
    checking: int = 100,
) -> dict:
    """One run, in which a share of the users drops out after sharing keys; the sum is checked."""
    gone, (corrupt, dropout) = int(dropped * users), fractions
    row = np.random.default_rng(0).integers(0, 2**64, dimension, np.uint64)
    with like_the_first(checking) as checks:
        result = simulate_sum(
            np.broadcast_to(row, (users, dimension)),
            drop={MASKED_INPUT: range(gone)},
            corrupt_fraction=corrupt,
            dropout_fraction=dropout,
        )
    unchecked = users - gone - len(checks) if checks else 0
    skipped = unchecked / users * float(np.mean(checks or [0]))
    if not np.array_equal(result.total, row * np.uint64(users - gone)):
        raise RuntimeError(f"the sum of {users} users is wrong")
    return {
        "protocol": "secagg",
        "users": users,
        "dropped": gone,
        "dimension": dimension,
        "bytes_per_client": result.bytes_per_client,
        "bytes_server": result.bytes_server,
        "seconds_per_client": round(result.seconds_per_client + skipped, 5),
        "seconds_server": round(result.seconds_server, 4),
    }


def rate(work: Callable[[], object], octets: int) -> float:
    """GB a second."""
    done, start = 0, time.perf_counter()
    while (taken := time.perf_counter() - start) < RATE_SECONDS:
        work()
        done += octets
    return done / taken / 1e9


def expansion(dimension: int, repeats: int = 5) -> dict:
    """The best of several rates of masks and of the bare cipher, measured in turns, in GB/s."""
    octets, key, total = 8 * dimension, new_seed(), np.zeros(dimension, np.uint64)
    zeros, out = bytes(octets), bytearray(octets)
    context = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
    rates = [
        (
            rate(lambda: add_stream(total, new_seed()), octets),
            rate(lambda: context.update_into(zeros, out), octets),
        )
        for _ in range(repeats)
    ]
    masks, cipher = (max(each) for each in zip(*rates, strict=True))
    return {"masks": masks, "aes_256_ctr": cipher, "ratio": masks / cipher}


def machine() -> dict:
    """Versions, hardware and load of the measurement."""
    return provenance() | {
        "cryptography": cryptography.__version__,
        "openssl": backend.openssl_version_text(),
        "load": os.getloadavg()[0],
        "command": " ".join(["python", "tests/benchmarks/bench_secure_sum.py", *sys.argv[1:]]),
    }


def main(
    users: tuple[int, ...] = (10, 100, 1000, 10_000),
    dimension: int = 61_450,
    corrupt_fraction: float = 0.1,
    dropout_fraction: float = 0.2,
    dropped: tuple[float, ...] = (0.0,),
    checking: int = 100,
    write: Path | None = None,
) -> None:
    """Prints the table row by row; `checking` users check the signatures of a quorum."""
    fractions, made_with, rows = (corrupt_fraction, dropout_fraction), machine(), []
    print(HEADER)
    for count, share in itertools.product(users, dropped):
        row = measure(count, dimension, fractions, share, checking)
        rows.append(row)
        print(
            f"{count:6} {row['dropped']:8} {row['dimension']:8} "
            f"{row['bytes_per_client']:14} {row['bytes_server']:14} "
            f"{row['seconds_per_client']:10.4f} {row['seconds_server']:10.3f}",
            flush=True,
        )
    masks = expansion(dimension)
    print(
        f"masks on one core: {masks['masks']:.2f} GB/s, AES-256-CTR {masks['aes_256_ctr']:.2f} "
        f"GB/s, ratio {masks['ratio']:.2f}"
    )
    save(write, {"machine": made_with, "fractions": fractions, "cost": rows, "masks": masks})


if __name__ == "__main__":
    tyro.cli(main)
