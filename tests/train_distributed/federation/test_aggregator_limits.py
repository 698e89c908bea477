"""Rooms and buckets: whose bodies are read, how many, for how long; bounded tables."""

import asyncio
import time

import pytest

from train_distributed.federation import aggregator_limits
from train_distributed.federation.aggregator_limits import Credit, NoRoom, Room
from train_distributed.federation.places import network


@pytest.mark.parametrize(
    ("host", "owner"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
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


async def ended(task: asyncio.Task) -> bool:
    await asyncio.sleep(0.01)
    return task.done() and isinstance(task.exception(), TimeoutError)


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
        assert [await ended(task) for task in (fast, *slow, late)] == [False, False, True, False]
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
