"""Operations of real processes that are killed at any moment: no entry is lost."""

import os
import random
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.train_distributed.ledger.ledger_entries import GAUSSIAN, STATED
from train_distributed.ledger.entry import Entry, Limit
from train_distributed.ledger.ledger import Ledger
from train_distributed.ledger.state import LedgerState

ROOT = Path(__file__).parents[3]
DELTA = 1e-5


def entry(draw: random.Random, number: int) -> Entry:
    """Gaussian or stated, of a cost that no other entry of the worker has."""
    stated = replace(STATED, epsilon=draw.uniform(0.001, 0.01), delta=1e-12)
    noised = replace(GAUSSIAN, epsilon=9.0, sigma=1.0, sensitivity=draw.uniform(0.001, 0.05))
    made = noised if draw.random() < 0.7 else stated
    return replace(made, result=f"{os.getpid()}-{number}")


def work(path: Path, seed: int) -> None:
    """Reserves, notes as spent and sets limits, until killed.

    `acknowledged`, a file that the operating system holds, has a line of each reservation, written
    after `reserve` has returned and before any noise would be drawn.
    """
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


def start(path: Path, seed: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, __file__, str(path), str(seed)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)


def killed_after(path: Path, operations: int, workers: int, draw: random.Random) -> int:
    """Lets workers operate on one ledger and kills them, each in the middle of something."""
    running = [start(path, draw.randrange(2**31)) for _ in range(workers)]
    done = 0
    for process in running:
        assert process.stdout is not None
        done += len(process.stdout.read(draw.randint(1, operations)))
    time.sleep(draw.uniform(0, 0.02))
    for process in running:
        process.kill()
    for process in running:
        assert process.stdout is not None
        done += len(process.stdout.read())
        process.wait()
        process.stdout.close()
    return done


def torn(path: Path) -> None:
    """What a machine that loses its power leaves: half a transaction, and what undoes it."""
    file = sqlite3.connect(path, isolation_level=None)
    file.execute("PRAGMA cache_size = 1")  # so that pages reach the disk before the end
    file.execute("BEGIN IMMEDIATE")
    file.execute("UPDATE entry SET content = zeroblob(9000)")
    journal = Path(f"{path}-journal")
    left = {each: each.read_bytes() for each in (path, journal)}
    file.execute("ROLLBACK")
    file.close()
    assert left[path] != path.read_bytes()
    for each, content in left.items():
        each.write_bytes(content)


def check(path: Path) -> LedgerState:
    """All that was acknowledged is in the ledger, and its total is at least theirs."""
    state = Ledger.open(path).state()
    acknowledged = Path(f"{path}.acknowledged").read_text().split()
    held = {record.entry.result: record for record in state.records}
    missing = [name for name in acknowledged if name not in held]
    assert not missing, missing
    known = [held[name].entry for name in acknowledged]
    at_least = type(state.total()).of(known, "record").epsilon(DELTA)
    assert state.total().epsilon(DELTA) >= at_least > 0
    return state


def exercise(path: Path, operations: int, workers: int, seed: int) -> tuple[int, int, LedgerState]:
    """Kills until so many operations are done: operations, kills, what the ledger holds."""
    draw, done, kills = random.Random(seed), 0, 0
    while done < operations:
        done += killed_after(path, 40, workers, draw)
        kills += workers
        state = check(path)
        if draw.random() < 0.5:
            torn(path)
            assert check(path) == state
    return done, kills, check(path)


@pytest.mark.parametrize(
    ("operations", "workers"),
    [(60, 2), *(pytest.param(1000, k, marks=pytest.mark.slow) for k in (1, 3))],
)
def test_processes_that_are_killed_lose_no_entry(tmp_path: Path, operations, workers) -> None:
    done, kills, state = exercise(tmp_path / "rows.ledger", operations, workers, workers)
    assert done >= operations
    assert kills >= workers
    assert state.length >= 60


if __name__ == "__main__":
    work(Path(sys.argv[1]), int(sys.argv[2]))
