"""Random operations on one ledger by processes that are killed: `python FILE LEDGER SEED`.

A worker reserves, notes as spent and sets limits, and keeps its own account of what the ledger has
acknowledged, in a file that the operating system holds: one line per reservation, written after
`reserve` has returned and before any noise would be drawn.
"""

import os
import random
import sys
from pathlib import Path

from train_distributed.ledger.entry import Entry, Limit
from train_distributed.ledger.ledger import Ledger

DELTA = 1e-5


def entry(draw: random.Random, number: int) -> Entry:
    """Gaussian or stated, of a cost that no other entry of the worker has."""
    gaussian = draw.random() < 0.7
    return Entry(
        kind="release",
        data="rows",
        method="m",
        noise="discrete",
        unit="record",
        epsilon=9.0 if gaussian else draw.uniform(0.001, 0.01),
        delta=DELTA if gaussian else 1e-12,
        sigma=1.0 if gaussian else None,
        sensitivity=draw.uniform(0.001, 0.05) if gaussian else None,
        result=f"{os.getpid()}-{number}",
    )


def work(path: Path, seed: int) -> None:
    """Operates until killed."""
    draw, ledger, reserved = random.Random(seed), Ledger(path), []
    acknowledged = os.open(f"{path}.acknowledged", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for number in range(10**9):
        chosen = draw.random()
        if chosen < 0.6:
            one = entry(draw, number)
            reserved.append(ledger.reserve(one))
            os.write(acknowledged, f"{one.result}\n".encode())
        elif chosen < 0.9 and reserved:
            ledger.spend(reserved.pop(draw.randrange(len(reserved))))
        else:
            ledger.limit(Limit(epsilon=draw.uniform(50, 99), delta=DELTA), raised=True)
        os.write(1, b".")


if __name__ == "__main__":
    work(Path(sys.argv[1]), int(sys.argv[2]))
