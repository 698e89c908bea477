"""Rooms and buckets: whose bodies are read, how many, for how long; bounded tables.

Strangers' lines leave first, oldest first, from where most of them are; users' lines stay. Metrics
have bounded labels, and strangers cannot fill the log.
"""

import asyncio
import json
import logging
import time
import urllib.request
from pathlib import Path

import pytest

from tests.ports import free_port
from train_distributed.federation import aggregator_limits, aggregator_watch
from train_distributed.federation.aggregator_limits import Credit, NoRoom, Room
from train_distributed.federation.aggregator_watch import EVENTS, LOG, Seldom, Watch, logged
from train_distributed.federation.places import Places, network


@pytest.mark.parametrize(
    ("host", "owner"),
    [
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2::9%eth0", "2001:db8:1:2::"),
        ("", ""),
        ("testclient", "testclient"),
    ],
)
def test_an_address_counts_with_all_that_one_customer_has(host: str, owner: str) -> None:
    assert network(host) == owner


def test_a_bucket_is_empty_for_as_long_as_its_rate_says_and_others_are_not() -> None:
    now = [100.0]
    credit = Credit(10, 2.0, clock=lambda: now[0])
    for _ in range(10):
        credit.check("a")
        credit.spend("a", 1)
    with pytest.raises(NoRoom, match="2 a second"):
        credit.check("a")
    credit.check("b")
    now[0] += 0.6
    credit.check("a")
    now[0] += 1000
    credit.spend("a", 9.5)  # no more than a full bucket comes back
    credit.check("a")
    credit.spend("a", 1)
    with pytest.raises(NoRoom):
        credit.check("a")


def test_a_table_remembers_so_many_owners_and_the_latest() -> None:
    credit = Credit(1, 0.0, owners=3)
    for owner in range(10):
        credit.spend(owner, 5)
    assert len(credit._spent) == 3
    credit.check(6)
    with pytest.raises(NoRoom):
        credit.check(7)


async def held(room: Room, owner: object, length: int, *, came: int = 0) -> asyncio.Task:
    """A body in the room, which waits there."""
    entered = asyncio.get_running_loop().create_future()

    async def hold() -> None:
        try:
            async with room.body(owner, length, 60) as body:
                body.received = came
                entered.set_result(body)
                await asyncio.sleep(60)
        except (NoRoom, TimeoutError) as error:
            if entered.done():
                raise
            entered.set_exception(error)  # and not the task's as well, whom nobody asks

    task = asyncio.create_task(hold())
    await entered
    return task


async def released(*tasks: asyncio.Task) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_a_slow_body_makes_room_and_a_fast_one_does_not(monkeypatch) -> None:
    async def run() -> None:
        room = Room(3 * 2**20, each=8)
        monkeypatch.setattr(aggregator_limits, "SLOW_SECONDS", 0.05)
        fast = await held(room, "a", 2**20, came=2**20)
        slow = [await held(room, "a", 2**20, came=came) for came in (100, 10)]
        with pytest.raises(NoRoom, match="bodies at a time"):
            await held(room, "b", 2**20)  # none is slow yet
        await asyncio.sleep(0.1)
        late = await held(room, "b", 2**20)
        await asyncio.sleep(0.01)
        assert [task.done() for task in (fast, *slow, late)] == [False, False, True, False]
        assert isinstance(slow[1].exception(), TimeoutError)
        await released(fast, slow[0], late)
        assert not room._bodies

    asyncio.run(run())


def test_an_owner_has_a_share_and_a_body_that_has_come_keeps_its_place(monkeypatch) -> None:
    async def run() -> None:
        monkeypatch.setattr(aggregator_limits, "SLOW_SECONDS", 0.0)
        room = Room(2**30, each=2)
        tasks = [await held(room, "a", 10) for _ in range(2)]
        for body in room._bodies:
            body.whole()
        await asyncio.sleep(0.05)
        with pytest.raises(NoRoom, match="bodies of one party must be <= 2"):
            await held(room, "a", 10)
        tasks.append(await held(room, "b", 10))
        await released(*tasks)

    asyncio.run(run())


def test_one_body_that_is_larger_than_the_room_finds_it_empty() -> None:
    async def run() -> None:
        room, start = Room(100, each=8), time.monotonic()
        task = await held(room, "a", 2**20)
        with pytest.raises(NoRoom):
            await held(room, "b", 1)
        await released(task)
        await released(await held(room, "b", 1))
        with pytest.raises(TimeoutError):
            async with room.body("a", 1, 0.05):
                await asyncio.sleep(60)
        assert time.monotonic() - start < 30

    asyncio.run(run())


class Held:
    """A line that remembers whether it had to leave."""

    here = True

    def leave(self, why: str) -> None:
        self.here = False


def enter(places: Places, *addresses: str) -> list[Held]:
    lines = [Held() for _ in addresses]
    for line, address in zip(lines, addresses, strict=True):
        places.enter(line, address)
    return lines


def here(lines: list[Held]) -> list[bool]:
    return [line.here for line in lines]


def test_the_oldest_stranger_leaves_for_the_newest() -> None:
    assert here(enter(Places(3, 2), *["192.0.2.1"] * 5)) == [False] * 2 + [True] * 3


@pytest.mark.parametrize(
    ("stranger", "crowd"),
    [
        ("198.51.100.1", ["192.0.2.1"] * 1000),
        ("2001:db8:2::1", [f"2001:db8:1::{i:x}" for i in range(50)]),
    ],
    ids=["of an address", "of a network"],
)
def test_a_crowd_shuts_nobody_else_out(stranger: str, crowd: list[str]) -> None:
    places = Places(10, 2)
    other, *lines = enter(places, stranger, *crowd)
    assert other.here
    assert sum(here(lines)) == 9


def test_a_proven_line_is_out_of_reach_of_strangers_at_its_own_address() -> None:
    places = Places(10, 2)
    (user,) = enter(places, "192.0.2.1")
    places.prove(user, b"key")
    enter(places, *["192.0.2.1"] * 1000)
    assert user.here


def test_a_key_has_its_own_places_and_no_more() -> None:
    places = Places(10, 2)
    lines = enter(places, *["192.0.2.1"] * 3)
    for line in lines:
        places.prove(line, b"key")
        places.prove(line, b"key")
    assert here(lines) == [False, True, True]
    (other,) = enter(places, "192.0.2.1")
    places.prove(other, b"other")
    assert other.here


def test_places_of_lines_that_are_gone_are_free() -> None:
    places = Places(2, 1)
    places.make_room()  # where nobody is
    for _ in range(5):
        (line,) = enter(places, "192.0.2.1")
        places.gone(line)
        places.prove(line, b"key")  # too late: it holds no place of the key's
    kept = enter(places, *["192.0.2.1"] * 2)
    assert here(kept) == [True, True]
    places.make_room()
    assert here(kept) == [False, True]


def lines(directory: Path) -> list[dict]:
    return [json.loads(line) for line in (directory / EVENTS).read_text().splitlines()]


def test_a_place_of_the_code_writes_seldom_and_says_what_it_left_out(
    tmp_path: Path, monkeypatch, capsys
) -> None:
    now = [0.0]
    monkeypatch.setattr(Seldom.__init__, "__defaults__", (60.0, lambda: now[0]))
    with logged(tmp_path):
        for round_ in range(3):
            for stranger in range(1000):
                LOG.warning("refused", extra={"fields": {"why": f"\n\x1b{stranger}" * 9999}})
            LOG.info("round %d", round_)
            now[0] += 61.0
        logging.getLogger("asyncio").error("of a library")
        logging.getLogger("httpx").info("HTTP Request: POST")
        try:
            raise ZeroDivisionError("x" * 10_000)
        except ZeroDivisionError:
            LOG.exception("a request fails")
    found = lines(tmp_path)
    rounds = [event for number in range(3) for event in ("refused", f"round {number}")]
    assert [each["event"] for each in found] == [*rounds, "of a library", "a request fails"]
    refused = [each.get("left_out") for each in found if each["event"] == "refused"]
    assert refused == [None, 999, 999]
    assert all(len(each["why"]) <= 2000 for each in found if "why" in each)
    assert (found[-1]["level"], len(found[-1]["error"])) == ("ERROR", 2000)
    shown = capsys.readouterr().err
    assert [json.loads(line) for line in shown.splitlines()] == found
    assert "\x1b" not in shown


def test_the_file_is_rotated(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(aggregator_watch, "LOG_BYTES", 10_000)
    monkeypatch.setattr(Seldom, "filter", lambda self, record: True)
    with logged(tmp_path):
        for number in range(1000):
            LOG.info("an event", extra={"fields": {"number": number, "words": "x" * 100}})
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) == aggregator_watch.LOG_FILES
    assert max(sizes) <= 10_000
    assert lines(tmp_path)[-1]["number"] == 999


def test_logs_of_one_process_may_end_in_any_order(tmp_path: Path, capsys) -> None:
    folders = [tmp_path / "first", tmp_path / "second"]
    logs = []
    for folder in folders:
        folder.mkdir()
        logs.append(logged(folder))
        logs[-1].__enter__()
    logs[0].__exit__(None, None, None)
    LOG.warning("after the first")
    logs[1].__exit__(None, None, None)
    LOG.warning("after both")
    assert [len(lines(folder)) for folder in folders] == [0, 1]


def test_metrics_are_served_where_the_operator_says_with_counts_of_the_database(
    monkeypatch,
) -> None:
    watch, port, asked = Watch(), free_port(), list[int]()

    def counts() -> dict[int, int]:
        asked.append(1)
        if len(asked) > 1:
            raise OSError("gone")
        return {0: 3, 1: 5, 2: 1}

    def scraped() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            return answer.read().decode()

    watch.count_reports(counts)
    watch.reports.labels("BadSignature").inc(2)
    end = watch.serve("127.0.0.1", port)
    try:
        text = scraped()
        assert 'aggregator_reports{state="added"} 5.0' in text
        assert 'aggregator_reports_received_total{answer="BadSignature"} 2.0' in text
        before = len(asked)
        scraped()
        assert len(asked) == before  # not once more within seconds
        monkeypatch.setattr(aggregator_watch.time, "monotonic", lambda: 1e12)
        assert "aggregator_reports{" not in scraped()  # no figure rather than an old one
    finally:
        end()
    with pytest.raises(OSError, match=r"refused|timed out"):
        scraped()
