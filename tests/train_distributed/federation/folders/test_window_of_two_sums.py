"""A window of two sums over real lines: centres, kills between both, operators with two centres."""

import json
import re
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from embed import EmbeddingSet
from tests.train_distributed.federation.folders.windows import SETTINGS, Home, running
from train_distributed import Release
from train_distributed.commands.federation import aggregating
from train_distributed.commands.federation.aggregating import Aggregate
from train_distributed.federation.aggregator_client import Aggregators, Refused
from train_distributed.federation.documents.certificates import trust
from train_distributed.federation.documents.private_keys import read_private
from train_distributed.federation.documents.window_file import WINDOW, WindowFile
from train_distributed.federation.sum_task import SessionFacts
from train_distributed.ledger.ledger import Ledger
from train_distributed.secure_sum.aggregator import CENTRE, read_centre, write_order
from train_distributed.secure_sum.errors import AlreadyOpened, ProtocolError
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.opening import Opened
from train_distributed.secure_sum.window import HELPER, LEADER

TWO = SETTINGS | {"options": {"sums": 2}}


class TwoSums(Home):
    """Aggregators that can be stopped and started, and the operator's lines to them."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(home)
        self.monkeypatch, self.stack = monkeypatch, ExitStack()
        self.keys = read_private(home / "fed")
        self.file = WindowFile.load(self.window_folder / WINDOW)
        self.start()

    @property
    def window_folder(self) -> Path:
        return self.home / "window"

    def start(self) -> None:
        for folder in self.aggregators:
            added = Aggregate(folder, self.window_folder)
            self.stack.enter_context(running(added, self.monkeypatch))

    def restart(self) -> None:
        self.stack.close()
        self.start()

    def lines(self) -> Aggregators:
        tls = trust(self.home / "window" / "ca.pem")
        return Aggregators(self.file.window, self.file.addresses, tls, 3.0)

    def first_sum(self, *users: int) -> None:
        """These users report to the first sum, and its centre is published."""
        for user in users:
            self.report(user, patience=0.5).run()
        self.collect().run()
        assert not (self.home / "model").exists()

    def centre(self) -> bytes:
        with self.lines() as lines:
            return read_centre(self.file.window, lines.published())


@pytest.fixture
def made(initiated, monkeypatch) -> Iterator[Callable[..., TwoSums]]:
    homes = []

    def make(**settings) -> TwoSums:
        homes.append(TwoSums(initiated(**(TWO | settings)), monkeypatch))
        return homes[-1]

    yield make
    for home in homes:
        home.stack.close()


def test_two_sums_of_one_window(made, capsys) -> None:
    home = made()
    home.first_sum(0, 1, 2)
    said = capsys.readouterr().out
    assert said.count("once its centre is published, report again") == 3
    assert "collect again when they have" in said
    with pytest.raises(ValueError, match="users to be opened must be >= 2, got 0"):
        home.collect().run()
    home.restart()
    for user in (0, 2, 2):
        home.report(user).run()
    home.collect(status=True).run()
    assert re.search(
        r"aggregator 0, second sum: \d reports(, \d waiting)?", capsys.readouterr().out
    )
    home.collect().run()
    report = json.loads((home.home / "model" / "report.json").read_text())
    assert (report["rounds"], report["survivors"]) == (2, 2)
    assert report["missing"] == {"user 1 (hospital-1)": "report"}
    assert report["share_per_round"] == [0.1, 0.9]
    assert report["noise_by"] == "servers"
    assert [home.used(user) for user in range(3)] == [1, 1, 1]
    for owner in (home.home / "fed" / "operator", home.home / "user0" / "embeddings"):
        (record,) = Ledger.open(owner.with_suffix(".ledger")).state().records
        assert record.entry.cost.at(1e-5) == pytest.approx(5.0, rel=1e-5)


def test_one_command_each_is_enough_where_all_wait(made) -> None:
    home = made()
    users = [threading.Thread(target=home.report(user, patience=30.0).run) for user in range(3)]
    for each in users:
        each.start()
    home.collect(wait=True, patience=30.0).run()
    for each in users:
        each.join(30)
    report = json.loads((home.home / "model" / "report.json").read_text())
    assert (report["rounds"], report["survivors"]) == (2, 3)


def test_without_noise_the_model_is_that_of_the_plain_sums(made, monkeypatch) -> None:
    monkeypatch.setattr(aggregating, "discrete_gaussian", lambda std, d: np.zeros(d, np.int64))
    home = made()
    home.first_sum(0, 1, 2)
    for user in (0, 2):
        home.report(user).run()
    home.collect().run()
    task, centre = home.task(), home.centre()
    rows = [EmbeddingSet.open(home.home / f"user{user}" / "embeddings") for user in range(3)]
    first = np.stack([task.encoded(user, rows[user]) for user in range(3)]).sum(0)
    assert task.publish(Opened(first, frozenset({0, 1, 2}))) == centre
    second = np.stack([task.encoded_at(u, rows[u])(centre) for u in (0, 2)]).sum(0)
    sums = Opened(first, frozenset({0, 1, 2})), Opened(second, frozenset({0, 2}))
    expected = task.released(*sums, facts=SessionFacts(session="", bytes_per_user=0))
    found = Release.load(home.home / "model")
    np.testing.assert_array_equal(found.weights, expected.weights)


def test_either_sum_has_the_noise_that_was_planned(made, monkeypatch) -> None:
    drawn = list[float]()

    def recorded(std: float, size: int) -> np.ndarray:
        drawn.append(std)
        return np.zeros(size, np.int64)

    monkeypatch.setattr(aggregating, "discrete_gaussian", recorded)
    home = made()
    home.first_sum(0, 1)
    for user in (0, 1):
        home.report(user).run()
    home.collect().run()
    planned = [float(each.stds_in_steps) for each in home.task().plan.integers]
    assert drawn == [planned[0], planned[0], planned[1], planned[1]]
    bounds = home.task().norm_bounds
    assert home.file.window.second is not None
    assert dict(home.file.window.second.steps) == bounds[1] != bounds[0]


def test_a_user_may_come_for_the_second_sum_alone_and_pays_for_both(made) -> None:
    home = made()
    home.first_sum(0, 1)
    home.report(2).run()
    assert home.used(2) == 1
    (record,) = Ledger.open(home.home / "user2" / "embeddings.ledger").state().records
    assert record.entry.cost.at(1e-5) == pytest.approx(5.0, rel=1e-5)


def test_killed_between_both_aggregators_the_centre_stays_the_same(made, monkeypatch) -> None:
    home = made()
    for user in range(3):
        home.report(user, patience=0.5).run()
    plain = Aggregators._ordered

    def killed(self, aggregator, what, *rest):
        if what == CENTRE and aggregator == HELPER:
            raise KeyboardInterrupt
        return plain(self, aggregator, what, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(Aggregators, "_ordered", killed)
        with pytest.raises(KeyboardInterrupt):
            home.collect().run()
    centre = home.centre()
    home.report(0).run()  # acknowledged by the leader, and waits for the helper
    home.restart()
    home.report(1).run()
    home.collect(patience=20.0).run()
    assert home.centre() == centre
    report = json.loads((home.home / "model" / "report.json").read_text())
    assert (report["rounds"], report["survivors"]) == (2, 2)


def order_of(home: TwoSums, centre: bytes, keys: PrivateKeys | None = None) -> bytes:
    return write_order(home.file.window, CENTRE, [centre], keys or home.keys)


def test_a_second_centre_is_refused_by_aggregators_and_users(made, monkeypatch) -> None:
    home = made()
    home.first_sum(0, 1, 2)
    home.report(0).run()
    other = (0.99 * np.frombuffer(home.centre())).tobytes()
    for aggregator in (LEADER, HELPER):
        with home.lines() as lines, pytest.raises(Refused, match="centre must happen once"):
            lines._ordered(aggregator, CENTRE, "/centre", [other], home.keys)
    with monkeypatch.context() as patched:
        patched.setattr(Aggregators, "published", lambda _: order_of(home, other))
        with pytest.raises(AlreadyOpened, match="centre must happen once"):
            home.report(0).run()
        with pytest.raises(ValueError, match="there is no such task"):
            home.report(1).run()  # whom it is shown first: the aggregators do not have that sum
    assert home.used(0) == home.used(1) == 1


def test_a_hostile_centre_is_refused_before_anything_is_made(made, monkeypatch) -> None:
    home = made()
    for user in range(3):
        home.report(user, patience=0.5).run()
    window, d = home.file.window, home.file.window.dimension
    with home.lines() as lines, pytest.raises(Refused, match="must commit before a centre"):
        lines.publish(np.zeros(d).tobytes(), home.keys)
    hostile = [
        (order_of(home, np.full(d, np.nan).tobytes()), "centre must be finite"),
        (order_of(home, np.full(d, np.inf).tobytes()), "centre must be finite"),
        (order_of(home, np.full(d, 1e9).tobytes()), "centre_norm must be"),
        (order_of(home, np.zeros(d - 1).tobytes()), "centre must be"),
        (order_of(home, b""), "centre must be"),
        (order_of(home, np.zeros(d).tobytes(), PrivateKeys.generate()), "sign"),
        (write_order(window, b"s", [bytes(8 * d)], home.keys), "ORDER must publish the centre"),
        (b"noise", "message must"),
    ]
    for order, words in hostile:
        with monkeypatch.context() as patched:
            patched.setattr(Aggregators, "published", lambda _, order=order: order)
            with pytest.raises((ProtocolError, ValueError), match=words):
                home.report(0).run()
    home.collect().run()
    home.report(0).run()  # none of them counts


def test_a_user_whose_session_is_spent_on_another_window_waits_for_nobody(made) -> None:
    home = made()
    home.first_sum(0, 1)
    other = home.changed_window(nonce=bytes(32))
    with pytest.raises(ValueError, match="sessions must be <= 1, got one more"):
        home.report(0, window=other, patience=600.0).run()
    assert home.used(0) == 1


def test_every_centre_has_a_window_of_its_own(made) -> None:
    window = made().file.window
    centres = [np.full(window.dimension, value).tobytes() for value in (0.0, 0.1)]
    digests = {window.digest, *(window.at(centre).digest for centre in (*centres, centres[0]))}
    assert len(digests) == 3
    assert window.at(centres[0]).second is None
    packed = window.second.packed
    for prefix in (packed, struct.pack(">Q", len(packed)) + packed):  # a context is no second sum
        forged = replace(window, second=None, context=prefix + window.context)
        assert forged.digest != window.digest
    for changed in ({"dimension": 7}, {"noise_std": 1.5}, {"steps": {12: 9}}):
        second = replace(window.second, **changed)
        assert replace(window, second=second).digest not in digests
