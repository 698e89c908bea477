"""Messages of the service, changed by a stranger or signed by an insider, are refused by name."""

import asyncio
import functools
import hashlib
import os
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.applications import Starlette

from tests.changed_bytes import changed
from tests.train_distributed.secure_sum.window.conftest import Service
from train_distributed.federation.aggregator_app import application
from train_distributed.federation.aggregator_limits import Credit
from train_distributed.secure_sum.aggregator import COMMIT, OPEN, STATUS, write_order
from train_distributed.secure_sum.errors import ProtocolError
from train_distributed.secure_sum.keys import EVERYONE
from train_distributed.secure_sum.opening import combine
from train_distributed.secure_sum.reports import (
    HELPER_MESSAGE_BYTES,
    acknowledge,
    check_acknowledgement,
    write_job,
)
from train_distributed.secure_sum.window import HELPER, LEADER
from train_distributed.secure_sum.wire import Kind, payload_of, summary, write

MANY = int(os.environ.get("MUTATIONS", 100_000))
SLOW = pytest.mark.slow
MOST_GROWTH = 16 * 2**20  # bytes of resident memory over the long run


@dataclass(frozen=True)
class Message:
    """A valid message, and how it is tried; `attempt` raises ProtocolError where it is refused."""

    valid: bytes
    attempt: Callable[[bytes], Any]


def recorded(service: Service) -> dict[str, Message]:
    """All messages of a window with reports of users 0 to 3, the last of which still waits."""
    leader, helper, keys = service.leader, service.helper, service.keys
    leader._preparer.prepare = functools.cache(leader._preparer.prepare)  # type: ignore[method-assign]
    jobs = list[bytes]()

    def heard(job: bytes) -> bytes:
        jobs.append(job)
        return helper.prepare(job)

    def report(body: bytes) -> None:
        (answer,) = leader.take([body])
        if isinstance(answer, ProtocolError):
            raise answer

    def lost(job: bytes) -> bytes:
        jobs.append(job)
        raise OSError

    service.send(0, 1, 2)
    leader.work(heard)
    service.send(3)
    with pytest.raises(OSError):  # noqa: PT011
        leader.work(lost)
    job = jobs[-1]
    verdicts = helper.prepare(job)
    fresh = service.report(4)
    status = write_order(service.window, STATUS, (), keys[LEADER])
    commit = write_order(service.window, COMMIT, (), keys[LEADER])
    held = service.report(0)
    digest = hashlib.sha256(held).digest()
    signed = acknowledge(service.window, 0, digest, keys[LEADER])
    found = {
        "report": Message(fresh, report),
        "job": Message(job, helper.prepare),
        "verdicts": Message(verdicts, lambda m: leader.work(lambda _: m)),
        "acknowledgement": Message(
            signed, lambda m: check_acknowledgement(service.window, 0, held, m)
        ),
        "summary of a report": Message(summary(fresh[:-HELPER_MESSAGE_BYTES]), leader.sender),
        "summary of a job": Message(summary(job), helper.sender),
    }
    for number, machine in service.machines.items():
        found[f"STATUS to {number - LEADER}"] = Message(status, machine.order)
        found[f"COMMIT to {number - LEADER}"] = Message(commit, machine.order)
    return found


def recorded_at_the_end(service: Service) -> tuple[dict[str, Message], np.ndarray]:
    """All messages of the opening, and the sum."""
    service.work()
    commits = service.commits()
    orders = [write_order(service.window, COMMIT, commits[:1], service.keys[LEADER])]
    orders.append(write_order(service.window, OPEN, commits, service.keys[LEADER]))
    openings = [machine.order(orders[1]) for machine in service.machines.values()]
    found = {
        f"{what} to {number - LEADER}": Message(order, machine.order)
        for number, machine in service.machines.items()
        for order, what in zip(orders, ("COMMIT with a set", "OPEN"), strict=True)
    }
    found["set"] = Message(commits[0], lambda m: combine(service.window, m, openings))
    found["set of the helper"] = Message(commits[1], lambda m: combine(service.window, m, openings))
    opened = functools.partial(combine, service.window, commits[0])
    found["share of 0"] = Message(openings[0], lambda m: opened([m, openings[1]]))
    found["share of 1"] = Message(openings[1], lambda m: opened([openings[0], m]))
    return found, opened(openings).total.view(np.int64)


def refuse(messages: dict[str, Message], count: int, draw: random.Random) -> None:
    """So many changed messages, each kind as often; raises where one is taken."""
    others = [message.valid for message in messages.values()]
    kinds = list(messages.items())
    for number in range(count):
        name, message = kinds[number % len(kinds)]
        while (altered := changed(message.valid, draw, others)) in others:
            pass
        try:
            message.attempt(altered)
        except ProtocolError:
            continue
        raise AssertionError(f"{name} was taken: {altered.hex()}")


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def state(service: Service) -> list[Any]:
    """All rows of both databases."""
    rows = list[Any]()
    for store in service.stores.values():
        with store._sql.transaction() as run:
            for table in ("fact", "total", "report"):
                rows.append(run(f"SELECT * FROM {table} ORDER BY 1").fetchall())
    return rows


@pytest.mark.parametrize(("count", "seed"), [(2000, 0), pytest.param(MANY, 1, marks=SLOW)])
def test_changed_messages_are_refused(count: int, seed: int, make_service) -> None:
    """Mutations in the window and at its end; the sum is that of its users, memory is flat."""
    service, draw = make_service(6), random.Random(seed)
    messages = recorded(service)
    before = state(service)
    refuse(messages, count // 20, draw)
    memory = resident()
    refuse(messages, count // 2, draw)
    assert state(service) == before
    messages, total = recorded_at_the_end(service)
    before = state(service)
    refuse(messages, count - count // 20 - count // 2, draw)
    assert state(service) == before
    assert resident() - memory < MOST_GROWTH
    np.testing.assert_array_equal(total, sum(service.vector(user) for user in range(4)))


@pytest.mark.parametrize("count", [600, pytest.param(MANY // 5, marks=SLOW)])
def test_what_an_insider_changes_and_signs_adds_nothing(count: int, make_service) -> None:
    """Nothing wrong is added, and whatever is not refused by name is an error."""
    service, draw = make_service(6), random.Random(2)
    messages, keys, window = recorded(service), service.keys, service.enrolled
    job, verdicts = messages["job"].valid, messages["verdicts"].valid
    fresh = service.report(4)
    mine, other = fresh[:-HELPER_MESSAGE_BYTES], fresh[-HELPER_MESSAGE_BYTES:]
    share = service.leader._preparer.prepare(4, mine).share
    item = write_job([(other, share)])
    others = [payload_of(job), payload_of(verdicts), item, b"s", b"c", b"o"]
    before = state(service)
    for number in range(count):
        kind = number % 3
        added = list[Any]()
        if kind == 0:  # the leader's job about a user that the helper does not know
            payload = changed(item, draw, others)
            message = write(window, Kind.JOB, LEADER, HELPER, payload, keys[LEADER].signing)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(service.stores[HELPER], "add", lambda *g, to=added: not to.append(g))
                with suppress(ProtocolError):
                    service.helper.prepare(message)
            for _, total in added:
                assert item in payload or not total.any()
        elif kind == 1:  # the helper's verdicts
            payload = changed(payload_of(verdicts), draw, others)
            message = write(window, Kind.VERDICTS, HELPER, LEADER, payload, keys[HELPER].signing)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(service.stores[LEADER], "decide", lambda *g, to=added: to.append(g))
                with suppress(ProtocolError):
                    service.leader.work(lambda _, m=message: m)
            for reasons, total in added:
                assert bool(total.any()) == (not any(reasons.values()))
        else:  # the operator's order
            payload = changed(b"s" + draw.randbytes(draw.randrange(40)), draw, others)
            if payload[:1] == b"s" or payload in (b"c", b"o"):
                continue
            message = write(window, Kind.ORDER, LEADER, EVERYONE, payload, keys[LEADER].signing)
            with pytest.raises(ProtocolError):
                service.leader.order(message)
    assert state(service) == before


async def asked(app: Starlette, method: str, path: str, body: bytes, shown: bytes) -> int:
    """Status of the answer to a request."""
    headers = [(b"content-length", str(len(body)).encode()), (b"message-summary", shown)]
    scope = {"type": "http", "method": method, "path": path, "headers": headers}
    scope |= {"query_string": b"", "client": ("192.0.2.1", 1), "raw_path": path.encode()}
    sent = list[Any]()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent[0]["status"]


@pytest.mark.parametrize("count", [400, pytest.param(MANY // 5, marks=SLOW)])
def test_changed_messages_have_a_status(count: int, make_service) -> None:
    """Over HTTP's application they are refused with a status, none is 500."""
    service, draw = make_service(6), random.Random(3)
    messages, task = recorded(service), service.window.digest.hex()
    apps = {number: application(machine) for number, machine in service.machines.items()}
    for app in apps.values():
        app.state.service._limits._credit = app.state.service._limits._all = Credit(10**9, 0.0)
    places = {
        "report": (LEADER, "POST", "/reports"),
        "job": (HELPER, "PUT", "/aggregation_jobs/1"),
        "STATUS to 0": (LEADER, "POST", ""),
        "COMMIT to 1": (HELPER, "POST", "/collection_jobs"),
    }
    others = [message.valid for message in messages.values()]
    before = state(service)

    async def run() -> None:
        for number in range(count):
            name = list(places)[number % len(places)]
            aggregator, method, path = places[name]
            while (body := changed(messages[name].valid, draw, others)) in others:
                pass
            shown = changed(messages["summary of a report"].valid, draw, others)
            got = await asked(apps[aggregator], method, f"/tasks/{task}{path}", body, shown)
            assert got in (400, 409, 413), (name, got, body.hex())

    asyncio.run(run())
    assert state(service) == before
