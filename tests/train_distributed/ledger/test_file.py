"""A ledger keeps what it was told, whoever is killed; what was altered is refused."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.train_distributed.ledger.ledger_entries import GAUSSIAN, STATED
from train_distributed.ledger import ledger as ledger_module
from train_distributed.ledger.entry import Limit
from train_distributed.ledger.ledger import Ledger

LIMIT = Limit(epsilon=1.5, delta=1e-5)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.open(tmp_path / "rows.ledger")


def spent(ledger: Ledger) -> float:
    return Ledger.open(ledger.path).total().epsilon(1e-5)


def test_every_altered_byte_of_a_whole_line_is_noticed(ledger) -> None:
    for _ in range(3):
        ledger.spend(ledger.reserve(GAUSSIAN))
    content = ledger.path.read_bytes()
    for place in range(0, len(content) - 1, 23):
        changed = bytearray(content)
        changed[place] ^= 1
        ledger.path.write_bytes(bytes(changed))
        with pytest.raises(ValueError, match=r"must be an unbroken chain|cannot be read"):
            Ledger.open(ledger.path)
        with pytest.raises(ValueError, match=r"must be an unbroken chain|cannot be read"):
            ledger.reserve(GAUSSIAN)
        assert ledger.path.read_bytes() == bytes(changed)


def test_missing_doubled_and_swapped_lines_are_noticed(ledger) -> None:
    for size in (1.0, 2.0, 3.0, 4.0):
        ledger.reserve(replace(GAUSSIAN, sigma=3.8 * size, sensitivity=size))
    one, two, three, four = ledger.path.read_bytes().splitlines(keepends=True)
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


def test_an_end_cut_off_shows_against_an_earlier_report(ledger) -> None:
    """The chain alone cannot tell: the head that a report carries can."""
    first = ledger.report(ledger.reserve(GAUSSIAN))
    second = ledger.report(ledger.reserve(GAUSSIAN))
    ledger.check_against(first)
    ledger.check_against(second)
    ledger.path.write_bytes(ledger.path.read_bytes().splitlines(keepends=True)[0])
    Ledger.open(ledger.path)
    ledger.check_against(first)
    with pytest.raises(ValueError, match=r"must hold the 2 lines that a report has seen"):
        ledger.check_against(second)
    ledger.reserve(replace(GAUSSIAN, sigma=9.0))
    with pytest.raises(ValueError, match=r"must hold the 2 lines that a report has seen"):
        ledger.check_against(second)


def test_wherever_a_writer_is_killed_the_ledger_goes_on(ledger) -> None:
    """Every prefix of the last line: nothing that was reserved before is lost, nor is the file."""
    ledger.reserve(GAUSSIAN)
    kept = ledger.path.read_bytes()
    ledger.reserve(replace(GAUSSIAN, sigma=3.731))
    line = ledger.path.read_bytes()[len(kept) :]
    counted = []
    for size in (*range(0, len(line), 19), *range(len(line) - 3, len(line))):
        ledger.path.write_bytes(kept + line[:size])
        before = spent(ledger)
        assert before >= 1 - 1e-4
        counted.append(before > 1.4)
        id = ledger.reserve(STATED)
        state = Ledger.open(ledger.path).state()
        assert state.torn == (size > 0)
        assert ledger.path.read_bytes().startswith(kept + line[:size])
        assert spent(ledger) >= before + STATED.epsilon - 1e-3
        assert state.records[-1].id == id
    assert counted == sorted(counted)  # from the end of the entry on it is counted
    assert counted[-1]
    assert not counted[0]


def test_a_recovery_that_is_killed_is_recovered_too(ledger) -> None:
    ledger.reserve(GAUSSIAN)
    kept = ledger.path.read_bytes()
    ledger.reserve(replace(GAUSSIAN, sigma=3.731))
    torn = ledger.path.read_bytes()[len(kept) : -3]
    ledger.path.write_bytes(kept + torn)
    ledger.reserve(STATED)
    whole = ledger.path.read_bytes()
    end = whole.index(b"\n", len(kept)) + 1  # of the line that closes the torn one
    for size in range(len(kept) + len(torn), end, 19):
        ledger.path.write_bytes(whole[:size])
        assert spent(ledger) > 1.4
        ledger.reserve(STATED)
        assert spent(ledger) > 1.4 + STATED.epsilon - 0.05
        assert len(ledger.state().records) == 3
    ledger.path.write_bytes(whole.replace(torn[-9:], torn[-9:].upper()[::-1], 1))
    with pytest.raises(ValueError, match="unbroken chain"):
        Ledger.open(ledger.path)


def test_a_torn_line_with_a_reference_is_that_step_s_reservation(ledger) -> None:
    entry = replace(GAUSSIAN, reference="federation/session0")
    ledger.reserve(entry)
    ledger.path.write_bytes(ledger.path.read_bytes()[:-1])
    id = ledger.reserve(entry)
    ledger.spend(id)
    (record,) = ledger.state().records
    assert (record.id, record.spent, record.torn) == (id, True, True)


def test_a_torn_line_has_an_id_only_once_it_is_closed(ledger) -> None:
    ledger.reserve(GAUSSIAN)
    ledger.path.write_bytes(ledger.path.read_bytes()[:-1])
    (record,) = ledger.state().records
    with pytest.raises(ValueError, match="id must be of an entry in the ledger, got 'torn'"):
        ledger.spend(record.id)
    (record,) = Ledger.open(ledger.path).state().records
    ledger.spend(record.id)
    assert ledger.state().records[0].spent


def test_a_torn_line_of_a_limit_or_a_spend_changes_nothing(ledger) -> None:
    id = ledger.reserve(GAUSSIAN)
    kept = ledger.path.read_bytes()
    for write in (lambda: ledger.limit(LIMIT), lambda: ledger.spend(id)):
        ledger.path.write_bytes(kept)
        write()
        ledger.path.write_bytes(ledger.path.read_bytes()[:-1])
        state = ledger.state()
        assert (state.limit, state.records[0].spent, state.torn) == (None, False, 1)


def test_other_versions_and_kinds_are_refused_in_one_line(ledger) -> None:
    with ledger._file.locked() as writer:
        writer.append("gift", {"entry": GAUSSIAN.to_json()})
    with pytest.raises(ValueError, match="kind must be one of this version's, got 'gift'"):
        ledger.state()


@pytest.mark.parametrize(
    "body",
    [{}, {"entry": 3}, {"entry": {}}, {"entry": GAUSSIAN.to_json() | {"sigma": "much"}}],
)
def test_a_chained_line_that_says_nonsense_is_refused(ledger, body) -> None:
    with ledger._file.locked() as writer:
        writer.append("reserve", body)
    with pytest.raises(ValueError, match="cannot be read"):
        ledger.state()


@pytest.mark.parametrize("content", [b"\0" * 99 + b"\n", b"\xff\xfe\n", b"{}\n", b"note\n"])
def test_a_file_that_is_no_ledger_is_refused(ledger, content: bytes) -> None:
    ledger.path.write_bytes(content)
    with pytest.raises(ValueError, match="line 1 is altered"):
        ledger.state()


def test_a_place_that_cannot_be_written_reserves_nothing(tmp_path) -> None:
    with pytest.raises(OSError, match="ledger cannot be written"):
        Ledger.open(tmp_path / "missing" / "rows.ledger").reserve(GAUSSIAN)
    (tmp_path / "directory.ledger").mkdir()
    with pytest.raises(ValueError, match="ledger must be a file"):
        Ledger.open(tmp_path / "directory.ledger")


def test_a_disk_that_is_full_reserves_nothing_and_breaks_nothing(ledger, monkeypatch) -> None:
    ledger.reserve(GAUSSIAN)
    write = ledger_module.LedgerFile.__module__ + ".os.write"
    kept = ledger.path.read_bytes()

    def half(file: int, rest: bytes) -> int:
        with ledger.path.open("ab") as other:
            other.write(rest[:40])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(write, half)
        with pytest.raises(OSError, match="ledger cannot be written: No space left"):
            ledger.reserve(GAUSSIAN)
    assert len(ledger.path.read_bytes()) == len(kept) + 40
    ledger.reserve(GAUSSIAN)
    assert [r.torn for r in ledger.state().records] == [False, False]
    assert ledger.state().torn == 1
