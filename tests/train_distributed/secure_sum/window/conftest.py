"""Small windows whose adders live in this process, each with its file."""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from train_distributed.secure_sum.aggregator import (
    COMMIT,
    DONE,
    OPEN,
    REFUSED,
    Aggregator,
    write_order,
)
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.opening import Opened, combine
from train_distributed.secure_sum.parties import EVERYONE, FIRST_SERVER
from train_distributed.secure_sum.report_store import ReportStore
from train_distributed.secure_sum.reports import check_acknowledgement, make_report, message_bytes
from train_distributed.secure_sum.window import Window, WindowWithKeys
from train_distributed.secure_sum.wire import Kind, sender_of, write

OPENS, CLOSES = 1000, 2000


def roll_of(users: Iterable[PrivateKeys]) -> NDArray[np.uint8]:
    return np.stack([np.frombuffer(keys.public.verifying, np.uint8) for keys in users])


@dataclass
class Service:
    """All parties of one window; `now` is the adders' clock."""

    window: Window
    enrolled: WindowWithKeys
    users: list[PrivateKeys]
    keys: dict[int, PrivateKeys]
    folder: Path
    now: float = OPENS
    adders: dict[int, Aggregator] = field(default_factory=dict)
    holdings: dict[int, ReportStore] = field(default_factory=dict)
    reports: dict[int, dict[int, bytes]] = field(default_factory=dict)

    def start(self, adder: int) -> Aggregator:
        """Starts an adder from what is on its disk, as after a kill."""
        if adder in self.holdings:
            self.holdings[adder].close_file()
        self.holdings[adder] = ReportStore(self.folder / str(adder), self.enrolled, adder)
        keys = self.keys[adder]
        self.adders[adder] = Aggregator(
            self.enrolled, adder, keys, self.holdings[adder], clock=lambda: self.now
        )
        return self.adders[adder]

    def report(self, user: int, vector: NDArray[np.uint64]) -> dict[int, bytes]:
        made = make_report(self.window, user, self.users[user], vector)
        return self.reports.setdefault(user, made)

    def seeds(self, user: int) -> bytes:
        """Sends a report to all adders of seeds; their receipts."""
        *first, _ = sorted(self.adders)
        return b"".join(self.sent(adder, self.reports[user][adder]) for adder in first)

    def sent(self, adder: int, request: bytes) -> bytes:
        """The receipt."""
        (answer,) = self.adders[adder].take([request])
        assert answer[:1] == DONE, answer
        user = sender_of(request)
        message = request[: message_bytes(self.window, adder)]
        return check_acknowledgement(self.window, adder, user, message, answer[1:])

    def refused(self, adder: int, request: bytes) -> str:
        (answer,) = self.adders[adder].take([request])
        assert answer[:1] == REFUSED, answer
        return answer[1:].decode()

    def send(self, user: int, vector: NDArray[np.uint64]) -> None:
        self.report(user, vector)
        receipts = self.seeds(user)
        last = self.window.last
        assert self.sent(last, self.reports[user][last] + receipts) == b""

    def ordered(self, adder: int, what: bytes, commits: Iterable[bytes] = ()) -> bytes:
        operator = self.keys[FIRST_SERVER]
        order = write_order(self.window, what, list(commits), operator)
        return self.adders[adder].order(order)

    def signed_set(self, users: bytes) -> bytes:
        """COMMIT of the last adder to a bitmap of users."""
        last = self.window.last
        return write(self.window, Kind.COMMIT, last, EVERYONE, users, self.keys[last].signing)

    def commits(self) -> dict[int, bytes]:
        *first, last = sorted(self.adders)
        found = {last: self.done(last, COMMIT)}
        return found | {adder: self.done(adder, COMMIT, [found[last]]) for adder in first}

    def done(self, adder: int, what: bytes, commits: Iterable[bytes] = ()) -> bytes:
        answer = self.ordered(adder, what, commits)
        assert answer[:1] == DONE, answer
        return answer[1:]

    def opened(self) -> Opened:
        commits = self.commits()
        openings = [self.done(adder, OPEN, commits.values()) for adder in self.adders]
        return combine(self.window, commits[self.window.last], openings)


@pytest.fixture
def make_service(tmp_path: Path) -> Callable[..., Service]:
    def make(
        w: int = 6,
        d: int = 5,
        *,
        adders: int = 3,
        bits: int = 32,
        minimum: int = 2,
        folder: str = "0",
    ) -> Service:
        users = [PrivateKeys.generate() for _ in range(w)]
        names = range(FIRST_SERVER, FIRST_SERVER + adders)
        keys = {name: PrivateKeys.generate() for name in names}
        roll = roll_of(users)
        window = Window(
            nonce=bytes(32),
            dimension=d,
            bits=bits,
            minimum=minimum,
            enrolled=w,
            roll=hashlib.sha256(roll.data).digest(),
            servers={name: keys[name].public for name in names},
            opens=OPENS,
            closes=CLOSES,
            context=b"a test",
        )
        service = Service(window, WindowWithKeys(window, roll), users, keys, tmp_path / folder)
        for name in names:
            service.start(name)
        return service

    return make


@pytest.fixture
def vector() -> Callable[..., NDArray[np.uint64]]:
    def draw(user: int, d: int = 5) -> NDArray[np.uint64]:
        signed = np.random.default_rng(user).integers(-1000, 1000, d)
        return signed.astype(np.int64).view(np.uint64)

    return draw
