"""A store keeps what it acknowledged, once, whoever races, is killed or alters the file."""

import multiprocessing
import os
import resource
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.benchmarks.postgresql import BINARIES, Server, running
from tests.ports import free_port
from tests.train_distributed.secure_sum.window.conftest import Service
from train_distributed.secure_sum.aggregator import Helper, Leader
from train_distributed.secure_sum.report_store import ADDED, ReportStore
from train_distributed.secure_sum.window import HELPER, LEADER
from train_distributed.store.sql import Postgresql, Sqlite, open_sql
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


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    pytest.importorskip("psycopg")
    if not BINARIES:
        pytest.skip("needs PostgreSQL")
    with running(Path("/tmp")) as made:  # the server's user may not read pytest's
        yield made


def stores(server: Server, service: Service, count: int) -> dict[int, list[ReportStore]]:
    """As many connections as processes would have, to the state of either aggregator."""
    found, digest = {}, os.urandom(4).hex()
    for number in (LEADER, HELPER):
        opened = [Postgresql(server.url, f"a{number}_{digest}") for _ in range(count)]
        found[number] = [ReportStore(each, service.enrolled, number) for each in opened]
    return found


@pytest.fixture
def service(server: Server, tmp_path: Path) -> Iterator[Service]:
    """Both aggregators' state is in PostgreSQL."""
    service = Service.of(tmp_path, range(1, 5), 5, 2)
    for number, (store,) in stores(server, service, 1).items():
        service.stores[number] = service.machines[number]._store = store
    yield service
    for store in service.stores.values():
        store.close()


def test_a_database_that_is_gone_loses_nothing(server, service) -> None:
    service.send(0)
    server.kill()
    report = service.report(1)
    for _ in range(2):
        with pytest.raises(OSError, match="database must answer"):
            service.leader.take([report])
        with pytest.raises(OSError, match="database must answer"):
            service.leader.work(service.helper.prepare)
    server.start()
    assert service.leader.work(service.helper.prepare) == 1  # over connections made again
    service.taken(1, report)
    service.check_sum(0, 1)


def test_a_connection_that_breaks_inside_a_block_is_not_made_again_in_it(server, service) -> None:
    """Its locks are gone: other workers may have taken its reports."""
    service.send(0)

    def restart(job: bytes) -> bytes:
        server.kill()
        server.start()
        return service.helper.prepare(job)

    with pytest.raises(OSError, match="database must answer"):
        service.leader.work(restart)
    assert service.stores[LEADER].counts()[ADDED] == 0
    assert service.leader.work(service.helper.prepare) == 1
    service.send(1)
    service.check_sum(0, 1)


def test_workers_of_one_state_share_the_work_and_add_every_report_once(server, tmp_path) -> None:
    workers, users = 4, 40
    service = Service.of(tmp_path, range(1, users + 1), 5, 2)
    held = stores(server, service, workers)
    for store in (*held[LEADER], *held[HELPER]):
        store.close()  # this thread's connection

    def make(kind: type, number: int, place: int):
        store, keys = held[number][place], service.keys[number]
        return kind(service.enrolled, keys, store, service.noise, clock=lambda: service.now)

    def work(place: int) -> None:
        leader, helper = make(Leader, LEADER, place), make(Helper, HELPER, place)
        try:
            reports = [service.report(user) for user in range(place, users, workers)]
            for report in reports:
                leader.take([report, report])
                leader.work(helper.prepare)
            while leader.work(helper.prepare):
                pass
        finally:
            for each in held.values():
                each[place].close()

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(work, range(workers)))
    for number, kind in ((LEADER, Leader), (HELPER, Helper)):
        service.stores[number] = held[number][0]
        service.machines[number] = make(kind, number, 0)
        assert service.stores[number].counts()[ADDED] == users
    service.check_sum(*range(users))
    for store in service.stores.values():
        store.close()


def test_a_server_that_is_not_there_is_an_error_in_one_line() -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(OSError, match="database must answer"):
        open_sql(f"postgresql://nobody@127.0.0.1:{free_port()}/no", "schema", "reports")


def test_a_transaction_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """In a file that one process has at a time."""
    sql = open_sql(tmp_path, "reports", "reports")
    assert isinstance(sql, Sqlite)
    with pytest.raises(OSError, match="another has it"):
        open_sql(tmp_path, "reports", "reports")
    with sql.transaction() as run:
        run("CREATE TABLE t (a INTEGER)")

    def fail() -> None:
        with sql.transaction() as run:
            run("INSERT INTO t VALUES (?)", (1,))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with sql.transaction() as run:
        assert run("SELECT count(*) FROM t").fetchone() == (0,)
    sql.close()
