"""A ledger keeps what it was given, whoever is killed; what was altered is refused."""

import os
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.train_distributed.ledger.ledger_entries import GAUSSIAN, STATED
from train_distributed.commands.counting import Show
from train_distributed.ledger.entry import Entry, Limit, to_words
from train_distributed.ledger.ledger import Ledger
from train_distributed.ledger.state import LedgerState

BROKEN = r"must be an unbroken chain|cannot be read|must be as it was written|of layout"
TEXT = b'{"body": {"entry": {"kind": "release"}}, "kind": "reserve", "hash": "00"}\n'
ENTRY = to_words(GAUSSIAN)
REFUSED = r"ledger must be of version 0\.2 or later, got one of version 0\.1: .*private\.ledger "


def change(path: Path, *statements: str) -> None:
    file = sqlite3.connect(path)
    with file:
        for statement in statements:
            file.execute(statement)
    file.close()


def test_every_altered_byte_is_noticed_or_says_nothing(ledger) -> None:
    for _ in range(3):
        ledger.spend(ledger.reserve(GAUSSIAN))
    state, content, refused = ledger.state(), ledger.path.read_bytes(), 0
    for place in range(0, len(content), 43):
        changed = bytearray(content)
        changed[place] ^= 1
        ledger.path.write_bytes(bytes(changed))
        try:
            assert ledger.state() == state  # of free space, or of a count of SQLite's own
        except ValueError:
            refused += 1
            with pytest.raises(ValueError, match=BROKEN):
                ledger.reserve(GAUSSIAN)
            assert ledger.path.read_bytes() == bytes(changed)
    assert refused > 0.4 * sum(byte != 0 for byte in content) / 43


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM entry WHERE number = 1",
        "DELETE FROM entry WHERE number = 2",
        "DELETE FROM entry WHERE number = 4",
        "UPDATE entry SET number = 9 WHERE number = 4",
        "INSERT INTO entry SELECT 5, name, content, hash FROM entry WHERE number = 4",
        "UPDATE entry SET content = (SELECT content FROM entry WHERE number = 1) WHERE number = 2",
        "UPDATE entry SET content = CAST(content AS TEXT)",
        "UPDATE entry SET hash = x'00' WHERE number = 4",
        "UPDATE tip SET number = 3",
        "DELETE FROM tip",
        "DROP TABLE entry",
        "PRAGMA user_version = 2",
    ],
)
def test_what_was_altered_by_hand_is_noticed(ledger, statement: str) -> None:
    for size in (1.0, 2.0, 3.0, 4.0):
        ledger.reserve(replace(GAUSSIAN, sigma=3.8 * size, sensitivity=size))
    change(ledger.path, statement)
    with pytest.raises(ValueError, match=BROKEN):
        Ledger.open(ledger.path)


def test_lines_of_another_ledger_are_noticed_though_their_hashes_fit(ledger, tmp_path) -> None:
    ledger.reserve(GAUSSIAN)
    (tmp_path / "other").mkdir()
    other = Ledger.open(tmp_path / "other" / "rows.ledger")
    other.reserve(GAUSSIAN)
    ledger.reserve(GAUSSIAN)
    other.reserve(GAUSSIAN)
    change(
        ledger.path,
        f"ATTACH '{other.path}' AS other",
        "UPDATE entry SET (content, hash) = (SELECT o.content, o.hash FROM other.entry o "
        "WHERE o.number = 2) WHERE number = 2",
        "UPDATE tip SET hash = (SELECT hash FROM entry WHERE number = 2)",
    )
    with pytest.raises(ValueError, match="line 2 is altered or does not follow"):
        Ledger.open(ledger.path)


def test_an_end_cut_off_shows_against_an_earlier_report(ledger) -> None:
    """The chain alone cannot tell: the head that a report carries can."""
    first = ledger.report(ledger.reserve(GAUSSIAN))
    kept = ledger.path.read_bytes()
    second = ledger.report(ledger.reserve(GAUSSIAN))
    ledger.check_against(first)
    ledger.check_against(second)
    ledger.path.write_bytes(kept)
    Ledger.open(ledger.path)
    ledger.check_against(first)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"must hold the 2 lines that a report has seen"):
            ledger.check_against(second)
        ledger.reserve(replace(GAUSSIAN, sigma=9.0))


@pytest.mark.parametrize(
    ("kind", "body", "words"),
    [
        ("gift", {"entry": ENTRY}, "kind must be one of this version's, got 'gift'"),
        *(("reserve", body, "cannot be read") for body in ({}, {"entry": 3}, {"entry": {}})),
        ("reserve", {"entry": ENTRY | {"colour": 1}}, "cannot be read"),
        ("reserve", {"entry": ENTRY | {"sigma": "much"}}, "cannot be read"),
    ],
)
def test_a_chained_line_that_says_nonsense_is_refused(ledger, kind, body, words) -> None:
    with ledger._locked() as (_, append):
        append(kind, body)
    with pytest.raises(ValueError, match=words):
        ledger.state()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_ledger_that_may_only_be_read_is_read(ledger, tmp_path) -> None:
    ledger.reserve(GAUSSIAN)
    ledger.path.chmod(0o444)
    tmp_path.chmod(0o555)
    try:
        assert len(ledger.state().records) == 1
        with pytest.raises(OSError, match="ledger cannot be written"):
            ledger.reserve(GAUSSIAN)
    finally:
        tmp_path.chmod(0o755)


USES: list[Callable[[Ledger], object]] = [
    lambda ledger: ledger.state(),
    lambda ledger: ledger.reserve(GAUSSIAN),
    lambda ledger: ledger.afford(GAUSSIAN),
    lambda ledger: ledger.limit(Limit(epsilon=1.0, delta=1e-5)),
    lambda ledger: ledger.give_back("0" * 16),
    lambda ledger: Ledger.open(ledger.path),
    lambda ledger: Ledger(ledger.path.with_name("new.ledger")).reserve(GAUSSIAN),  # beside it
]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("content", [TEXT, TEXT[:30], TEXT + TEXT[:7]])
def test_a_ledger_of_text_is_refused_in_one_line(ledger, content: bytes, use) -> None:
    ledger.path.write_bytes(content)
    with pytest.raises(ValueError, match=REFUSED) as refused:
        use(ledger)
    assert "\n" not in str(refused.value)
    assert ledger.path.read_bytes() == content
    assert [path.name for path in ledger.path.parent.iterdir()] == ["private.ledger"]


def test_lines_that_were_torn_in_it_count_as_far_as_they_could_be_read(ledger, capsys) -> None:
    with ledger._locked() as (_, append):
        append("torn", {"entry": to_words(STATED), "bytes": 400, "sha256": "00"})
        append("torn", {"entry": None, "bytes": 4, "sha256": "00"})
    state = ledger.state()
    (record,) = state.records
    assert (record.torn, record.entry, state.torn) == (True, STATED, 2)
    assert ledger.total().cost.epsilon == STATED.epsilon
    ledger.spend(record.id)
    Show(ledger=ledger.path).run()
    assert "torn lines: 2; what can be read of them is counted" in capsys.readouterr().out


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


@pytest.mark.parametrize(
    ("operations", "workers"),
    [(60, 2), *(pytest.param(1000, k, marks=pytest.mark.slow) for k in (1, 3))],
)
def test_processes_that_are_killed_lose_no_entry(tmp_path: Path, operations, workers) -> None:
    path, draw, done = tmp_path / "rows.ledger", random.Random(workers), 0
    while done < operations:
        done += killed_after(path, 40, workers, draw)
        state = check(path)
        if draw.random() < 0.5:
            torn(path)
            assert check(path) == state
    assert check(path).length >= 60


if __name__ == "__main__":
    work(Path(sys.argv[1]), int(sys.argv[2]))
