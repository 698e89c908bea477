"""Rows of an aggregator: all of them are read, piece by piece, and processes share them."""

from pathlib import Path

import numpy as np
import pytest

from train_distributed.secure_sum import report_store
from train_distributed.secure_sum.report_store import ReportStore
from train_distributed.secure_sum.window import LEADER
from train_distributed.store.sql import Sqlite


class Shared(Sqlite):
    """SQLite that says it is shared by processes; the statement is the same."""

    skip = " "


@pytest.fixture
def store(make_service, tmp_path: Path):
    opened = ReportStore(
        Shared(tmp_path / "store.sqlite", "reports"), make_service(9).window, LEADER
    )
    yield opened
    opened.close()


def test_all_that_are_held_are_read_however_many(store: ReportStore, monkeypatch) -> None:
    monkeypatch.setattr(report_store, "PIECE", 2)
    assert not store.held().any()
    users = [0, 1, 2, 4, 5, 7, 8]
    store.keep([(user, bytes(32), b"report") for user in users])
    store.decide({user: "too long" * (user == 4) for user in users}, np.zeros(5, np.uint64))
    assert np.flatnonzero(store.held()).tolist() == [0, 1, 2, 5, 7, 8]


def test_processes_begin_at_numbers_of_their_own_and_leave_none(store, monkeypatch) -> None:
    store.keep([(user, bytes(32), b"%d" % user) for user in (0, 1, 6, 8)])
    monkeypatch.setattr(report_store.secrets, "randbelow", lambda most: 3 if most == 9 else 0)
    seen = []
    for _ in range(4):
        with store.waiting(1) as reports:
            seen += reports.items()
            store.decide(dict.fromkeys(reports, ""), np.zeros(5, np.uint64))
    assert seen == [(6, b"6"), (8, b"8"), (0, b"0"), (1, b"1")]
    with store.waiting(1) as reports:
        assert reports == {}
