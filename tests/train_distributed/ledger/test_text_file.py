"""Ledgers of versions before, which were text: read as they are, carried over when written."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from tests.train_distributed.ledger.ledger_entries import GAUSSIAN, STATED
from train_distributed.ledger import ledger as ledger_module
from train_distributed.ledger.entry import to_words
from train_distributed.ledger.ledger import Ledger
from train_distributed.ledger.line import GENESIS, line_hash, new_line

BEFORE = Path(__file__).with_name("before.txt").read_bytes()  # as version 0.1.0 wrote it
TOLD = {  # what it put into a report
    "length": 5,
    "head": "3c8f871d9eafd1429e791fbb370d669ce8a0671b163e812623f17924be432de6",
}


def text_of(*entries) -> list[bytes]:
    """Whole lines of such a file, each a reservation."""
    lines, previous = [], GENESIS
    for entry in entries:
        text = new_line("reserve", {"entry": to_words(entry)}, previous)
        previous = line_hash(b"", "", text).hex()
        lines.append(text[:-1] + b', "hash": "%s"}\n' % previous.encode())
    return lines


def spent(ledger: Ledger) -> float:
    return Ledger.open(ledger.path).total().epsilon(1e-5)


def test_a_ledger_of_before_is_read_and_carried_over_with_its_hashes(ledger) -> None:
    ledger.path.write_bytes(BEFORE)
    before = ledger.state()
    assert [(r.id, r.spent, r.torn) for r in before.records] == [
        ("203acf3a4241ff9e", True, False),
        ("461cf463bb80c72c", False, True),
        ("3c8f871d9eafd142", False, False),
    ]
    assert before.limit is not None
    assert (before.limit.epsilon, before.torn, before.length) == (9.0, 1, 5)
    ledger.check_against(TOLD)
    assert ledger.path.read_bytes() == BEFORE
    ledger.spend("3c8f871d9eafd142")
    after = ledger.state()
    assert ledger.path.read_bytes() != BEFORE
    assert [p.name for p in ledger.path.parent.iterdir()] == ["rows.ledger"]
    assert after.records == (*before.records[:2], replace(before.records[2], spent=True))
    assert (after.limit, after.torn, after.length) == (before.limit, 1, 6)
    ledger.check_against(TOLD)


def test_carrying_over_keeps_links_and_permissions(ledger, tmp_path) -> None:
    (tmp_path / "far").mkdir()
    target = tmp_path / "far" / "rows.txt"
    target.write_bytes(BEFORE)
    target.chmod(0o600)
    ledger.path.symlink_to(target)
    ledger.reserve(GAUSSIAN)
    assert ledger.path.is_symlink()
    assert target.stat().st_mode & 0o777 == 0o600
    assert len(Ledger(target).state().records) == 4


def test_whoever_is_killed_while_carrying_over_leaves_the_text(ledger, monkeypatch) -> None:
    """At each step that reaches the disk."""
    calls = 0
    for calls in range(12):
        ledger.path.write_bytes(BEFORE)
        left, fsync, replaced = [calls], os.fsync, os.replace

        def step(work, left=left):
            def tried(*arguments):
                left[0] -= 1
                if left[0] < 0:
                    raise KeyboardInterrupt
                return work(*arguments)

            return tried

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", step(fsync))
            patched.setattr(Path, "replace", step(Path.replace))
            patched.setattr(os, "replace", step(replaced))
            try:
                ledger.reserve(GAUSSIAN)
                break
            except KeyboardInterrupt:
                pass
        assert len(ledger.state().records) == 3
        ledger.check_against(TOLD)
    assert calls > 0
    assert len(ledger.state().records) == 4


def test_many_that_carry_over_at_once_count_everything_once(ledger) -> None:
    ledger.path.write_bytes(BEFORE)
    start = threading.Barrier(6)

    def reserve(_: int) -> None:
        start.wait()
        Ledger.open(ledger.path).reserve(GAUSSIAN)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(reserve, range(6)))
    assert ledger.state().length == 5 + 6
    ledger.check_against(TOLD)


def test_a_store_that_comes_between_look_and_opening_is_read_as_one(ledger, monkeypatch) -> None:
    ledger.path.write_bytes(BEFORE)
    ledger.reserve(GAUSSIAN)
    monkeypatch.setattr(ledger_module.LedgerFile, "_is_text", lambda _: True)
    opened: list[ExitStack] = []
    monkeypatch.setattr("train_distributed.ledger.file._STORES", opened)
    assert ledger.state().length == 5 + 1
    with ledger_module.LedgerFile(ledger.path).locked():
        assert ledger.state().length == 5 + 1  # a reader does not release the writer's lock
        write = "import sqlite3, sys; sqlite3.connect(sys.argv[1], 0).execute('BEGIN IMMEDIATE')"
        other = [sys.executable, "-c", write, str(ledger.path)]  # locks are a process's
        assert b"database is locked" in subprocess.run(other, capture_output=True).stderr
    ledger.reserve(GAUSSIAN)
    assert ledger.state().length == 5 + 2
    ledger.check_against(TOLD)
    for each in opened:
        each.close()


def test_a_disk_that_is_full_keeps_the_text(ledger, monkeypatch) -> None:
    ledger.path.write_bytes(BEFORE)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ledger_module.LedgerFile, "_store", full)
    with pytest.raises(OSError, match="ledger cannot be written: No space left"):
        ledger.reserve(GAUSSIAN)
    assert ledger.path.read_bytes() == BEFORE


def test_every_altered_byte_of_a_whole_line_is_noticed(ledger) -> None:
    for place in range(0, len(BEFORE) - 1, 23):
        changed = bytearray(BEFORE)
        changed[place] ^= 1
        ledger.path.write_bytes(bytes(changed))
        for use in (ledger.state, lambda: ledger.reserve(GAUSSIAN)):
            with pytest.raises(ValueError, match=r"must be an unbroken chain|cannot be read"):
                use()
        assert ledger.path.read_bytes() == bytes(changed)


def test_missing_doubled_and_swapped_lines_are_noticed(ledger) -> None:
    entries = [replace(GAUSSIAN, sigma=3.8 * k, sensitivity=float(k)) for k in (1, 2, 3, 4)]
    one, two, three, four = text_of(*entries)
    for altered in (
        [two, three, four],
        [one, three, four],
        [one, one, two, three, four],
        [one, three, two, four],
        [one, two, three, four, b"\n"],
        [b"\n", one, two, three, four],
        [one, two, b" " + three, four],
    ):
        ledger.path.write_bytes(b"".join(altered))
        with pytest.raises(ValueError, match=r"line \d is altered or does not follow"):
            Ledger.open(ledger.path)


def test_wherever_a_writer_was_killed_the_ledger_goes_on(ledger) -> None:
    """Every prefix of the last line: nothing that was reserved before is lost."""
    kept, line = text_of(GAUSSIAN, replace(GAUSSIAN, sigma=3.731))
    counted = []
    for size in (*range(0, len(line), 37), *range(len(line) - 3, len(line))):
        ledger.path.write_bytes(kept + line[:size])
        before = spent(ledger)
        assert before >= 1 - 1e-4
        counted.append(before > 1.4)
        id = ledger.reserve(STATED)
        state = Ledger.open(ledger.path).state()
        assert state.torn == (size > 0)
        assert spent(ledger) >= before + STATED.epsilon - 1e-3
        assert state.records[-1].id == id
    assert counted == sorted(counted)  # from the end of the entry on it is counted
    assert counted[-1]
    assert not counted[0]


def test_a_torn_line_with_a_reference_is_that_step_s_reservation(ledger) -> None:
    entry = replace(GAUSSIAN, reference="federation/session0")
    (line,) = text_of(entry)
    ledger.path.write_bytes(line[:-1])
    id = ledger.reserve(entry)
    ledger.spend(id)
    (record,) = ledger.state().records
    assert (record.id, record.spent, record.torn) == (id, True, True)
