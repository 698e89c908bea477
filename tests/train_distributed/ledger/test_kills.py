"""Operations of real processes that are killed at any moment: no entry is lost."""

import os
import random
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from train_distributed.ledger.ledger import Ledger
from train_distributed.ledger.state import LedgerState

ROOT = Path(__file__).parents[3]
WORKER = Path(__file__).with_name("ledger_kills.py")


def start(path: Path, seed: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(WORKER), str(path), str(seed)]
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
    at_least = type(state.total()).of(known, "record").epsilon(1e-5)
    assert state.total().epsilon(1e-5) >= at_least > 0
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


def test_processes_that_are_killed_lose_no_entry(tmp_path: Path) -> None:
    done, kills, state = exercise(tmp_path / "rows.ledger", 60, 2, 0)
    assert done >= 60
    assert kills >= 2
    assert state.length >= 60


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
def test_a_thousand_operations_with_kills_in_between(tmp_path: Path, workers: int) -> None:
    path = tmp_path / "rows.ledger"
    done, kills, state = exercise(path, 1000, workers, workers)
    total = state.total().epsilon(1e-5)
    print(
        f"{done} operations, {kills} kill -9, {len(state.records)} entries, {state.length} lines, "
        f"epsilon {total:.4f}"
    )
    assert done >= 1000
