"""A ledger keeps what it was told, whoever is killed; what was altered is refused."""

import json
import math
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from embed import EmbeddingSet
from tests.train_distributed.privacy.ledger_entries import GAUSSIAN, STATED
from train_distributed.privacy import ledger as ledger_module
from train_distributed.privacy.ledger import Ledger, Limit, row_fields

LIMIT = Limit(epsilon=1.5, delta=1e-5)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.open(tmp_path / "rows.ledger")


def spent(ledger: Ledger) -> float:
    return Ledger.open(ledger.path).total().epsilon(1e-5)


def test_a_file_that_is_not_there_is_an_empty_ledger_and_stays_away(ledger) -> None:
    assert ledger.total().epsilon(1e-5) == 0
    ledger.afford([GAUSSIAN])
    assert not ledger.path.exists()


def test_what_is_reserved_counts_whether_or_not_it_is_spent(ledger) -> None:
    first = ledger.reserve(GAUSSIAN)
    assert spent(ledger) == pytest.approx(1.0, rel=1e-4)
    ledger.spend(first)
    assert spent(ledger) == pytest.approx(1.0, rel=1e-4)
    second = ledger.reserve(GAUSSIAN)
    assert first != second
    assert spent(ledger) == pytest.approx(1.465, rel=1e-3)
    assert [r.spent for r in ledger.state().records] == [True, False]


@pytest.mark.parametrize("id", ["", "0" * 16])
def test_only_what_is_reserved_is_spent_and_once(ledger, id: str) -> None:
    ledger.spend(ledger.reserve(GAUSSIAN))
    with pytest.raises(ValueError, match="id must be of an entry in the ledger"):
        ledger.spend(id)
    with pytest.raises(ValueError, match="not spent yet"):
        ledger.spend(ledger.state().records[0].id)


def test_a_reference_is_counted_once(ledger) -> None:
    entry = replace(GAUSSIAN, reference="federation/session0")
    assert ledger.reserve(entry) == ledger.reserve(replace(entry, result="again"))
    assert ledger.state().length == 1
    with pytest.raises(ValueError, match="must be of the same entry"):
        ledger.reserve(replace(entry, epsilon=2.0))
    assert ledger.reserve(replace(entry, reference="federation/session1"))
    assert ledger.state().length == 2


def test_a_limit_is_not_passed(ledger) -> None:
    ledger.limit(LIMIT)
    ledger.reserve(GAUSSIAN)
    ledger.reserve(GAUSSIAN)
    before = ledger.path.read_bytes()
    with pytest.raises(ValueError, match=r"limit of ledger rows.ledger must be >= 1\.8"):
        ledger.reserve(GAUSSIAN)
    with pytest.raises(ValueError, match=r"must be >= 1\.8"):
        ledger.afford([GAUSSIAN])
    assert ledger.path.read_bytes() == before


def test_a_limit_of_what_is_promised_admits_it(tmp_path) -> None:
    from train_distributed.privacy.integer_gaussian import plan
    from train_distributed.privacy.ledger import gaussian_fields

    for epsilon, delta in ((0.01, 1e-9), (1.0, 1e-5), (30.0, 1e-3)):
        planned = plan(epsilon, delta, sensitivity=1.0, honest=3, dimension=9)
        fields = gaussian_fields(planned) | {"epsilon": epsilon, "delta": delta}
        ledger = Ledger.open(tmp_path / f"{epsilon}.ledger")
        ledger.limit(Limit(epsilon=epsilon, delta=delta))
        ledger.reserve(replace(GAUSSIAN, data=str(epsilon), **fields))


def test_further_limits_are_looked_at_too_and_leave_nothing(ledger) -> None:
    with pytest.raises(ValueError, match=r"got 0\.5"):
        ledger.reserve(GAUSSIAN, Limit(epsilon=0.5, delta=1e-5))
    with pytest.raises(ValueError, match=r"must be >= inf, got 9"):
        ledger.reserve(GAUSSIAN, Limit(epsilon=9.0, delta=1e-5, unit="user"))
    assert not ledger.path.exists()


def test_a_limit_is_tightened_freely_and_raised_on_the_record(ledger) -> None:
    ledger.limit(LIMIT)
    ledger.limit(replace(LIMIT, epsilon=1.0))
    assert ledger.state().raised == 0
    for looser in (LIMIT, replace(LIMIT, epsilon=1.0, delta=1e-4)):
        with pytest.raises(ValueError, match="limit must not allow more than epsilon 1 at"):
            ledger.limit(looser)
    ledger.limit(LIMIT, raised=True)
    assert (ledger.state().limit, ledger.state().raised) == (LIMIT, 1)
    ledger.reserve(GAUSSIAN)
    ledger.limit(replace(LIMIT, epsilon=0.1))
    with pytest.raises(ValueError, match=r"got 0\.1"):
        ledger.reserve(replace(GAUSSIAN, sigma=1e6))


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


def test_many_at_once_stay_within_the_limit(ledger) -> None:
    """Each in a thread with a descriptor of its own, which is to the lock as a process is."""
    limit = Limit(epsilon=3.0, delta=1e-5)
    ledger.limit(limit)
    refused = []

    def reserve() -> None:
        for _ in range(3):
            try:
                Ledger.open(ledger.path).reserve(GAUSSIAN)
            except ValueError as error:
                refused.append(error)

    threads = [threading.Thread(target=reserve) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) + len(ledger.state().records) == 18
    assert ledger.total().epsilon(1e-5) <= 3.0
    with pytest.raises(ValueError, match="limit of ledger"):
        ledger.afford([GAUSSIAN])


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


def test_the_ledger_of_a_set_lies_beside_it_and_outlives_it(tmp_path, monkeypatch) -> None:
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "mine.ledger"
    for name in ("mine", "mine/", "./mine", str(tmp_path / "mine"), "mine/."):
        assert Ledger.beside(Path(name)).path == place
    (tmp_path / "link").symlink_to("mine")
    assert Ledger.beside(Path("link")).path == place
    chosen = Ledger.chosen(None, Path("mine"))
    assert chosen is not None
    assert chosen.path == place
    assert Ledger.chosen(Path("none"), Path("mine")) is None


@pytest.mark.parametrize("change", [{}, {"data": "another encoder's", "images": "i"}])
def test_rows_that_another_ledger_counts_are_refused(tmp_path, change) -> None:
    """A copy of the set, or another embedding of its images, beside it."""
    entry = replace(GAUSSIAN, images="i")
    Ledger.open(tmp_path / "mine.ledger").reserve(entry)
    with pytest.raises(ValueError, match=r"ledger must be .*mine\.ledger, which counts these"):
        Ledger.open(tmp_path / "copy.ledger").reserve(replace(entry, **change))
    (tmp_path / "elsewhere").mkdir()
    far = Ledger.chosen(tmp_path / "elsewhere" / "x.ledger", tmp_path / "copy")
    assert far is not None
    with pytest.raises(ValueError, match=r"which counts these rows already"):
        far.reserve(replace(entry, **change))
    Ledger.open(tmp_path / "other.ledger").reserve(replace(entry, data="o", images=""))
    (tmp_path / "accounts.ledger").write_text("2026-01-01 * Opening balance\n")
    Ledger.open(tmp_path / "third.ledger").reserve(replace(entry, data="t", images=""))


def test_what_a_result_says_of_its_entry(ledger) -> None:
    id = ledger.reserve(GAUSSIAN)
    told = ledger.report(id)
    assert json.loads(json.dumps(told)) == told
    assert told["entry"] == id
    assert told["file"] == "rows.ledger"
    assert told["epsilon_total"] == pytest.approx(1.0, rel=1e-4)
    bare = replace(GAUSSIAN, sigma=0.0, epsilon=math.inf, noise="none")
    assert ledger.report(ledger.reserve(bare))["epsilon_total"] == "not private"


def test_another_release_of_a_set_is_called_so(ledger) -> None:
    assert ledger.release_kind("d") == "release"
    ledger.reserve(replace(GAUSSIAN, data="d", kind="evaluation"))
    assert ledger.release_kind("d") == "release"
    ledger.reserve(replace(GAUSSIAN, data="d"))
    assert ledger.release_kind("d") == "re-release"
    assert ledger.release_kind("e") == "release"


def test_rows_are_known_by_their_values_their_split_and_their_images() -> None:
    x = np.arange(12.0).reshape(6, 2)
    split = np.array([0, 0, 0, 1, 2, 2])
    rows = EmbeddingSet(
        embeddings=x, labels=np.zeros(6, int), split=split, meta={"data_hash": "i" * 64}
    )
    train, held = (row_fields(rows, part) for part in ("train", "evaluation"))
    assert held == train | {"part": "evaluation"}
    assert train["images"] == "i" * 64
    moved = row_fields(replace(rows, split=split[::-1].copy()), "train")
    assert moved == train | {"split": moved["split"]}
    assert moved["split"] != train["split"]
    assert train["users"] == ""
    owned = row_fields(replace(rows, users=np.arange(6)), "train")
    assert owned["users"] not in ("", row_fields(replace(rows, users=np.ones(6, int)), "")["users"])
    assert row_fields(replace(rows, embeddings=x + 1, meta={}), "train")["data"] != train["data"]
