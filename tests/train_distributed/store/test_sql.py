"""The same aggregators on PostgreSQL: several workers, kills of workers and of the database."""

import os
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


def make_service(folder: Path, users: int = 4) -> Service:
    return Service.of(folder, range(1, users + 1), 5, 2)


@pytest.fixture
def service(server: Server, tmp_path: Path) -> Iterator[Service]:
    """Both aggregators' state is in PostgreSQL."""
    service = make_service(tmp_path)
    for number, (store,) in stores(server, service, 1).items():
        service.stores[number] = service.machines[number]._store = store
    yield service
    for store in service.stores.values():
        store.close()


def test_one_sum_from_reports_to_opening(service) -> None:
    service.send(0, 2)
    service.check_sum(0, 2)
    service.check_sum(0, 2)


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
    service = make_service(tmp_path, users)
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


def test_one_process_at_a_time_has_a_file(tmp_path: Path) -> None:
    first = open_sql(tmp_path, "reports", "reports")
    assert isinstance(first, Sqlite)
    with pytest.raises(OSError, match="another has it"):
        open_sql(tmp_path, "reports", "reports")
    first.close()


def test_a_transaction_that_fails_leaves_nothing(tmp_path: Path) -> None:
    sql = open_sql(tmp_path, "reports", "reports")
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
