"""An adder's disk: nothing acknowledged is lost, nothing is added twice, damage is told."""

import os
import resource
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from train_distributed.secure_sum.errors import AlreadyOpened
from train_distributed.secure_sum.journal import ResumedJournal
from train_distributed.secure_sum.parties import FIRST_SERVER
from train_distributed.secure_sum.report_store import FILE, ReportStore
from train_distributed.secure_sum.reports import Part

ROOT = Path(__file__).parents[4]


def part(user: int) -> Part:
    return Part(user, bytes([user] * 16), bytes([user] * 32), bytes([7] * 32))


def shown(holdings: ReportStore) -> tuple:
    return (
        holdings.count,
        holdings.bitmap(),
        holdings.total.tolist(),
        holdings.closed,
        [holdings.receipt_of(user) for user in np.flatnonzero(holdings.held).tolist()],
    )


def tried(folder: Path, window) -> tuple | str:
    """What a directory holds, or the one line by which it is refused."""
    try:
        holdings = ReportStore(folder, window, FIRST_SERVER)
    except (ValueError, OSError) as error:
        (line,) = str(error).splitlines()
        return line
    found = shown(holdings)
    holdings.close_file()
    return found


@pytest.fixture
def window(make_service):
    """With numbers enough that one transaction does not fit SQLite's memory."""
    service = make_service(8, 3000)
    for holdings in service.holdings.values():
        holdings.close_file()
    return service.enrolled


def add(holdings: ReportStore, *users: int) -> None:
    total = np.full(len(holdings.total), sum(users), holdings.total.dtype)
    holdings.add([part(user) for user in users], total)


def snapshots(holdings: ReportStore, folder: Path, into: Path) -> Iterator[Path]:
    """Copies of the disk at each statement of what is done next: as a kill would leave it."""
    found: list[Path] = []

    def copy(_: str) -> None:
        found.append(into / str(len(found)))
        shutil.copytree(folder, found[-1])

    holdings._file.set_trace_callback(copy)
    yield into
    holdings._file.set_trace_callback(None)
    assert len(found) >= 4


def test_killed_at_any_statement_it_holds_all_of_a_batch_or_nothing(window, tmp_path) -> None:
    folder = tmp_path / "state"
    holdings = ReportStore(folder, window, FIRST_SERVER)
    add(holdings, 1, 2)
    before = shown(holdings)
    holdings._file.execute("PRAGMA cache_size = 2")  # so that pages reach the disk half-way
    for step, work in {
        "add": lambda: add(holdings, 3, 4, 5),
        "commit": lambda: holdings.claim(window.digest, "commit", bytes(32)),
    }.items():
        into = tmp_path / step
        for _ in snapshots(holdings, folder, into):
            work()
        after, torn = shown(holdings), 0
        for copy in sorted(into.iterdir()):
            torn += (copy / FILE).read_bytes() != (folder / FILE).read_bytes()
            again = ReportStore(copy, window, FIRST_SERVER)
            assert shown(again) in (before, after), copy
            if shown(again) == before and step == "add":
                add(again, 3, 4, 5)  # sent again, as it was not acknowledged
            if step == "add":
                assert shown(again) == after
            again.close_file()
        assert torn >= 3
        before = after
    holdings.close_file()
    assert shown(ReportStore(folder, window, FIRST_SERVER)) == before


def test_a_torn_journal_is_undone_or_refused_never_half_believed(window, tmp_path) -> None:
    """A kill in mid-write, then the file that undoes it is cut off or damaged itself."""
    folder = tmp_path / "state"
    holdings = ReportStore(folder, window, FIRST_SERVER)
    add(holdings, 1, 2)
    before = shown(holdings)
    holdings._file.execute("PRAGMA cache_size = 2")
    for _ in snapshots(holdings, folder, tmp_path / "torn"):
        add(holdings, 3, 4, 5)
    after, outcomes = shown(holdings), set[str]()
    holdings.close_file()
    for copy in sorted((tmp_path / "torn").iterdir()):
        journal = copy / f"{FILE}-journal"
        content, database = journal.read_bytes(), (copy / FILE).read_bytes()
        for length in {0, 8, 28, 512, len(content) // 2, len(content) - 1} - {len(content)}:
            for name, bytes_ in ((journal.name, content[:length]), (FILE, database)):
                (copy / name).write_bytes(bytes_)
            found = tried(copy, window)
            assert found in (before, after) or (isinstance(found, str) and str(copy) in found)
            outcomes.add("refused" if isinstance(found, str) else "undone")
    assert outcomes == {"undone", "refused"}


def test_flipped_bits_and_lost_ends_are_refused(window, tmp_path) -> None:
    folder = tmp_path / "state"
    holdings = ReportStore(folder, window, FIRST_SERVER)
    add(holdings, 1, 2)
    add(holdings, 3)
    good = shown(holdings)
    holdings.close_file()
    file, refused = folder / FILE, 0
    content = file.read_bytes()
    rng = np.random.default_rng(0)
    places = [*rng.integers(0, len(content), 60).tolist(), content.index(bytes([2] * 16))]
    damaged = [content[:p] + bytes([content[p] ^ 1 << p % 8]) + content[p + 1 :] for p in places]
    for bad in [*damaged, content[:4096], content[:-4096], content[: len(content) // 2], b"text"]:
        file.write_bytes(bad)
        found = tried(folder, window)
        if found != good:  # as it is where nothing was written
            refused += 1
            assert isinstance(found, str)
            assert str(file) in found
            assert file.read_bytes() == bad  # not repaired
    assert refused > 30


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE report SET user = 6 WHERE user = 1",
        "DELETE FROM report WHERE user = 3",
        "INSERT INTO report VALUES (5, x'00')",
        "UPDATE state SET closed = 0",
        "UPDATE state SET \"commit\" = x''",
        "UPDATE state SET clock = 0",
        "DELETE FROM state",
        "INSERT INTO state SELECT * FROM state",
        "UPDATE report SET user = 99 WHERE user = 1",
        "UPDATE report SET line = 7 WHERE user = 1",
        "DROP TABLE report",
        "PRAGMA user_version = 2",
    ],
)
def test_what_does_not_fit_together_is_refused(window, tmp_path, change: str) -> None:
    holdings = ReportStore(tmp_path, window, FIRST_SERVER)
    add(holdings, 1, 2, 3)
    holdings.claim(window.digest, "commit", bytes(32))
    holdings.close_file()
    with sqlite3.connect(tmp_path / FILE) as file:
        file.execute(change)
    file.close()
    with pytest.raises((ValueError, OSError), match=FILE):
        ReportStore(tmp_path, window, FIRST_SERVER)


def test_one_process_at_a_time(window, tmp_path) -> None:
    holdings = ReportStore(tmp_path, window, FIRST_SERVER)
    for _ in range(2):
        with pytest.raises(OSError, match="one process at a time, another has it"):
            ReportStore(tmp_path, window, FIRST_SERVER)
        add(holdings, 1 + _)
    holdings.close_file()
    assert ReportStore(tmp_path, window, FIRST_SERVER).count == 2


def test_of_another_window_or_adder_it_is_refused(window, tmp_path, make_service) -> None:
    ReportStore(tmp_path, window, FIRST_SERVER).close_file()
    with pytest.raises(ValueError, match="of this window and aggregator"):
        ReportStore(tmp_path, window, FIRST_SERVER + 1)
    with pytest.raises(ValueError, match="of this window and aggregator"):
        ReportStore(tmp_path, make_service(folder="1").enrolled, FIRST_SERVER)


def test_a_step_is_taken_once_and_remembered(window, tmp_path) -> None:
    holdings = ReportStore(tmp_path, window, FIRST_SERVER)
    holdings.claim(window.digest, "commit", bytes(32))
    for _ in range(2):
        with pytest.raises(AlreadyOpened):
            holdings.claim(window.digest, "commit", bytes(32))
        resumed = ResumedJournal(holdings)
        resumed.claim(window.digest, "commit", bytes(32))
        with pytest.raises(AlreadyOpened):
            resumed.claim(window.digest, "commit", bytes(31) + b"1")
        assert holdings.detail(window.digest, "open") is None
        assert holdings.closed
        holdings.close_file()
        holdings = ReportStore(tmp_path, window, FIRST_SERVER)


def test_a_user_that_is_added_twice_is_refused_by_the_disk(window, tmp_path) -> None:
    """The last line of defence, should the adder forget to look."""
    holdings = ReportStore(tmp_path, window, FIRST_SERVER)
    add(holdings, 1)
    good = shown(holdings)
    with pytest.raises(ValueError, match="UNIQUE"):
        add(holdings, 2, 1)
    assert shown(holdings) == good
    holdings.close_file()
    assert tried(tmp_path, window) == good


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX limits")
def test_a_full_disk_acknowledges_nothing(window, tmp_path) -> None:
    holdings = ReportStore(tmp_path, window, FIRST_SERVER)
    add(holdings, 1)
    good = shown(holdings)
    holdings._file.execute(
        f"PRAGMA max_page_count = {1 + os.stat(tmp_path / FILE).st_size // 4096}"
    )
    large = [[Part(user, bytes(16), bytes(32), bytes(4096))] for user in range(2, 8)]
    with pytest.raises(OSError, match="No space left"):
        holdings.add([each for (each,) in large], holdings.total * 0)
    assert shown(holdings) == good
    holdings.close_file()
    assert tried(tmp_path, window) == good


def test_a_file_that_may_not_grow_is_an_error_in_one_line(window, tmp_path) -> None:
    """As a quota does it: writes fail, in a process of its own."""
    program = """
import resource, signal, sys, tempfile
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
import sqlite3
from pathlib import Path
from types import SimpleNamespace
import numpy as np
from train_distributed.secure_sum.report_store import ReportStore
window = SimpleNamespace(digest=bytes(32), dimension=9000, word=np.dtype("<u4"), users=range(4))
try:
    ReportStore(Path(sys.argv[1]), window, 1)
except OSError as error:
    print(error)
"""
    command = [sys.executable, "-c", program, str(tmp_path / "full")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert "reports cannot be written" in line
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 8192
