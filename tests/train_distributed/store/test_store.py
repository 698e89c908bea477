"""A store keeps what it acknowledged, once, whoever races, is killed or alters the file."""

import multiprocessing
import resource
import shutil
import signal
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from train_distributed.store.store import Claimed, Database, Store, application_of, read_store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a?b #.store"  # SQLite's own URIs would read this otherwise


def contents(path: Path) -> list[bytes]:
    return [row.content for row in read_store(path, "store")]


def test_entries_are_kept_in_order_and_names_once(path) -> None:
    assert contents(path) == []
    assert not path.exists()
    with Store(path, "store") as store:
        store.claim("open", b"set")
        for content in (b"set", b"another"):
            with pytest.raises(Claimed):
                store.claim("open", content)
        with store.transaction() as rows:
            assert [row.name for row in rows] == ["open"]
            store.append(b"first")
            store.append(b"second")
    assert contents(path) == [b"set", b"first", b"second"]
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_block_that_fails_adds_nothing(path) -> None:
    def fail(store: Store) -> None:
        with store.transaction():
            store.append(b"lost")
            raise KeyError

    with Store(path, "store") as store:
        store.claim("a", b"")
        with pytest.raises(KeyError):
            fail(store)
        store.claim("b", b"kept")
    assert contents(path) == [b"", b"kept"]


def test_of_many_racing_claims_one_wins(path) -> None:
    def claim(i: int) -> bool:
        try:
            with Store(path, "store") as store:
                store.claim("open", bytes([i]))
        except Claimed:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(claim, range(32))) == 1


def test_killed_at_any_statement_it_holds_a_transaction_or_nothing_of_it(path, tmp_path) -> None:
    """Copies of the disk at each statement, as a kill would leave it."""
    with Store(path, "store") as store:
        store.claim("before", bytes(9000))
    before, found = contents(path), list[Path]()
    with Store(path, "store") as store:

        def copy(_: str) -> None:
            found.append(tmp_path / "copies" / str(len(found)))
            found[-1].mkdir(parents=True)
            for each in tmp_path.glob(f"{path.name}*".replace("?", "[?]")):
                shutil.copy(each, found[-1])

        connection = store.connection
        connection.execute("PRAGMA cache_size = 2")  # so that pages reach the disk half-way
        connection.set_trace_callback(copy)
        with store.transaction():
            for _ in range(3):
                store.append(bytes(20_000))
        connection.set_trace_callback(None)
    after, torn = contents(path), 0
    for each in found:
        torn += (each / f"{path.name}-journal").exists()
        assert contents(each / path.name) in (before, after)
    assert torn >= 3


def test_one_process_alone_keeps_all_others_out(path) -> None:
    with Store(path, "store", alone=True) as store:
        store.append(b"kept")
        store.commit()
        store.append(b"lost")
        assert store.content(1) == b"kept"
        with pytest.raises(OSError, match="one process at a time, another has it"):
            Store(path, "store", alone=True)
    assert contents(path) == [b"kept"]


def test_a_full_disk_is_named_and_nothing_is_added(path) -> None:
    with Store(path, "store") as store:
        store.check()
        connection = store.connection
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        store.claim("kept", b"")
        connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(OSError, match="store cannot be written: No space left") as caught:
            store.claim("large", bytes(99_999))
        assert caught.value.filename == str(path)
        store.claim("small", b"")
    assert contents(path) == [b"", b""]


def _quota(path: Path) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    with pytest.raises(OSError, match="store cannot be written"), Store(path, "store") as store:
        store.check()


def test_a_quota_is_found_by_a_check(path) -> None:
    worker = multiprocessing.get_context("fork").Process(target=_quota, args=(path,))
    worker.start()
    worker.join(60)
    assert worker.exitcode == 0


def test_missing_directories_and_directories_are_named(tmp_path) -> None:
    for path in (tmp_path / "missing" / "store", tmp_path):
        with pytest.raises(OSError, match="store cannot be written: "):
            Store(path, "store")


def test_other_files_are_refused_and_stay_as_they_are(path) -> None:
    path.write_bytes(b"a note of somebody")
    assert application_of(path) is None
    with pytest.raises(ValueError, match="must be as it was written"):
        contents(path)
    assert path.read_bytes() == b"a note of somebody"
    path.unlink()
    file = sqlite3.connect(path)
    file.execute("CREATE TABLE contact (name)")
    file.close()
    with pytest.raises(ValueError, match="must be a store of layout"):
        contents(path)


@pytest.mark.parametrize(("alone", "journal"), [(False, "delete"), (True, "persist")])
def test_every_commit_waits_for_the_disk(path, alone: bool, journal: str) -> None:
    with Database(path, "store", alone=alone) as database:
        modes = ("synchronous", "journal_mode")
        found = [database.connection.execute(f"PRAGMA {mode}").fetchone()[0] for mode in modes]
        assert found == [3, journal]  # 3: EXTRA
