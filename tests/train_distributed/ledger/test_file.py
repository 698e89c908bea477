"""A ledger keeps what it was given, whoever is killed; what was altered is refused."""

import os
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.train_distributed.ledger.ledger_entries import GAUSSIAN, STATED
from train_distributed.commands.counting import Show
from train_distributed.ledger.entry import to_words
from train_distributed.ledger.ledger import Ledger, Limit

BROKEN = r"must be an unbroken chain|cannot be read|must be as it was written|of layout"
TEXT = b'{"body": {"entry": {"kind": "release"}}, "kind": "reserve", "hash": "00"}\n'
ENTRY = to_words(GAUSSIAN)
REFUSED = r"ledger must be of version 0\.2 or later, got one of version 0\.1: .*rows\.ledger "


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "rows.ledger")


def change(path: Path, *statements: str) -> None:
    """Alters the file by hand."""
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


@pytest.mark.parametrize("content", [b"\0" * 99, b"RQLite format 3\0", None])
def test_a_file_that_is_no_ledger_stays_as_it_is(ledger, content: bytes | None) -> None:
    """None: another program's database."""
    if content is None:
        change(ledger.path, "CREATE TABLE contact (name)")
    else:
        ledger.path.write_bytes(content)
    before = ledger.path.read_bytes()
    words = "must be a store of layout" if content is None else "line 1 is altered"
    with pytest.raises(ValueError, match=words):
        ledger.reserve(GAUSSIAN)
    assert ledger.path.read_bytes() == before


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
    assert [path.name for path in ledger.path.parent.iterdir()] == ["rows.ledger"]


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
