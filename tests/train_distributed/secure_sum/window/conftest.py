"""Small windows whose aggregators live in this process, each with its database."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from train_distributed.secure_sum.aggregator import (
    AGGREGATORS,
    COMMIT,
    OPEN,
    Aggregator,
    Helper,
    Leader,
    write_order,
)
from train_distributed.secure_sum.errors import ProtocolError
from train_distributed.secure_sum.keys import KEY_BYTES, PrivateKeys
from train_distributed.secure_sum.opening import Opened, combine
from train_distributed.secure_sum.report_store import ReportStore
from train_distributed.secure_sum.reports import check_acknowledgement, make_report
from train_distributed.secure_sum.roll import USER, Roll
from train_distributed.secure_sum.window import HELPER, LEADER, Window, WindowWithKeys
from train_distributed.store.sql import open_sql

OPENS, CLOSES, BOUND = 1000, 2000, 5000


def make_roll(
    keys: Sequence[bytes], rows: Sequence[int], names: Sequence[str] | None = None
) -> Roll:
    """Roll of users in the order of their numbers."""
    lines = np.zeros(len(keys), USER)
    lines["key"] = np.frombuffer(b"".join(keys), np.uint8).reshape(-1, KEY_BYTES)
    lines["rows"] = rows
    lines["name"] = [f"user-{i}" for i in range(len(keys))] if names is None else names
    return Roll(lines)


def window_of(
    roll: Roll,
    keys: dict[int, PrivateKeys],
    dimension: int,
    minimum: int,
    times: tuple[int, int],
    bound: int = BOUND,
    noise_std: float = 100.0,
) -> Window:
    """A user of r rows may send a vector as long as `bound` + 7 (r - 1)."""
    return Window(
        nonce=bytes(32),
        dimension=dimension,
        minimum=minimum,
        roll=roll.root,
        sizes={rows: (count, bound + 7 * (rows - 1)) for rows, count in roll.sizes.items()},
        servers={number: own.public for number, own in keys.items()},
        noise_std=noise_std,
        opens=times[0],
        closes=times[1],
        context=b"a test",
    )


def no_noise(std: float, d: int) -> NDArray[np.int64]:
    return np.zeros(d, np.int64)


def vector_of(user: int, d: int = 5) -> NDArray[np.int64]:
    return np.random.default_rng(user).integers(-200, 200, d)


@dataclass
class Service:
    """All parties of one window; `now` is the aggregators' clock."""

    window: Window
    enrolled: WindowWithKeys
    users: list[PrivateKeys]
    keys: dict[int, PrivateKeys]
    folder: Path
    now: float = OPENS
    noise: Callable[[float, int], NDArray[np.int64]] = no_noise
    machines: dict[int, Aggregator] = field(default_factory=dict)
    stores: dict[int, ReportStore] = field(default_factory=dict)

    @classmethod
    def of(
        cls, folder: Path, rows: Sequence[int], dimension: int, minimum: int, *bounds: Any
    ) -> "Service":
        """A window of users with these rows, whose aggregators are started."""
        users = [PrivateKeys.generate() for _ in rows]
        keys = {number: PrivateKeys.generate() for number in (LEADER, HELPER)}
        roll = make_roll([own.public.verifying for own in users], rows)
        window = window_of(roll, keys, dimension, minimum, (OPENS, CLOSES), *bounds)
        service = cls(window, WindowWithKeys(window, roll), users, keys, folder)
        for number in keys:
            service.start(number)
        return service

    def start(self, number: int) -> Aggregator:
        """Starts an aggregator from what is on its disk, as after a kill."""
        if number in self.stores:
            self.stores[number].close()
        sql = open_sql(self.folder / str(number), "reports", "reports")
        store = self.stores[number] = ReportStore(sql, self.enrolled, number)
        self.machines[number] = AGGREGATORS[number](
            self.enrolled,
            self.keys[number],
            store,
            lambda std, d: self.noise(std, d),
            clock=lambda: self.now,
        )
        return self.machines[number]

    @property
    def leader(self) -> Leader:
        return cast(Leader, self.machines[LEADER])

    @property
    def helper(self) -> Helper:
        return cast(Helper, self.machines[HELPER])

    def report(
        self, user: int, vector: NDArray[np.int64] | None = None, bound: int | None = None
    ) -> bytes:
        sent = self.vector(user) if vector is None else vector
        longest = self.enrolled.norm_bound(user) if bound is None else bound
        return make_report(self.window, user, self.users[user], sent, longest)

    def taken(self, user: int, report: bytes) -> None:
        (answer,) = self.leader.take([report])
        assert isinstance(answer, bytes), answer
        check_acknowledgement(self.window, user, report, answer)

    def refused(self, report: bytes) -> str:
        (answer,) = self.leader.take([report])
        assert isinstance(answer, ProtocolError), answer
        return f"{type(answer).__name__}: {answer}"

    def vector(self, user: int) -> NDArray[np.int64]:
        return vector_of(user, self.window.dimension)

    def send(self, *users: int) -> None:
        """Reports of these users' vectors, which are acknowledged."""
        for user in users:
            self.taken(user, self.report(user))

    def check_sum(self, *users: int) -> None:
        """What is opened are these users' vectors."""
        opened = self.opened()
        assert opened.users == set(users)
        expected = sum(self.vector(user) for user in users)
        np.testing.assert_array_equal(opened.total.view(np.int64), expected)

    def work(self) -> None:
        while self.leader.work(self.helper.prepare):
            pass

    def ordered(self, number: int, what: bytes, commits: Iterable[bytes] = ()) -> bytes:
        order = write_order(self.window, what, list(commits), self.keys[LEADER])
        return self.machines[number].order(order)

    def commits(self) -> list[bytes]:
        first = self.ordered(LEADER, COMMIT)
        return [first, self.ordered(HELPER, COMMIT, [first])]

    def opened(self) -> Opened:
        self.work()
        commits = self.commits()
        openings = [self.ordered(number, OPEN, commits) for number in self.machines]
        return combine(self.window, commits[0], openings)


@pytest.fixture
def make_service(tmp_path: Path) -> Callable[..., Service]:
    def make(w: int = 4, d: int = 5, *, minimum: int = 2, folder: str = "0") -> Service:
        return Service.of(tmp_path / folder, range(1, w + 1), d, minimum)

    return make
