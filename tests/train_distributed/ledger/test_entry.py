"""Entries and limits hold what can be, and come back from JSON as they were."""

import math
from dataclasses import replace

import pytest

from tests.train_distributed.ledger.ledger_entries import GAUSSIAN, STATED
from train_distributed.ledger.entry import Entry, Limit, read_fields, to_words


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sigma": 3.73}, r"epsilon must be >= 1\.000186"),
        ({"sigma": -1.0}, "sigma must be finite and >= 0"),
        ({"sigma": math.nan}, "sigma must be finite"),
        ({"sigma": None}, "both or neither"),
        ({"sensitivity": math.inf}, "sensitivity finite and > 0"),
        ({"epsilon": 0.0}, "epsilon must be > 0"),
        ({"epsilon": math.nan}, "epsilon must be > 0"),
        ({"delta": 0.0}, r"delta must be in \(0, 1\)"),
        ({"zeta": -1.0}, "zeta must be >= 0"),
        ({"zeta": math.nan}, "zeta must be >= 0"),
        ({"unit": "pixel"}, "unit must be one of record, user"),
        ({"group_size": 0}, "group_size must be"),
        ({"kind": "gift"}, "kind must be one of release"),
        ({"data": ""}, "data must name the rows"),
        ({"method": 3}, "method must be text"),
        ({"compositions": 0}, "compositions >= 1"),
    ],
)
def test_an_entry_that_cannot_be_is_refused(change, message) -> None:
    with pytest.raises(ValueError, match=message):
        replace(GAUSSIAN, **change)


@pytest.mark.parametrize("entry", [GAUSSIAN, STATED, replace(GAUSSIAN, epsilon=math.inf)])
def test_entries_come_back_from_json(entry) -> None:
    named = replace(entry, result="inf", method="inf")
    assert Entry.from_json(named.to_json()) == named


@pytest.mark.parametrize(
    "stored", [None, [], {"kind": "release"}, GAUSSIAN.to_json() | {"colour": 1}]
)
def test_json_that_is_no_entry_is_refused(stored) -> None:
    with pytest.raises(ValueError, match=r"must be"):
        Entry.from_json(stored)


def test_a_limit_is_within_another() -> None:
    limit = Limit(epsilon=1.0, delta=1e-5)
    assert Limit(epsilon=1.0, delta=1e-5, unit="user").within(limit)
    assert not limit.within(Limit(epsilon=1.0, delta=1e-5, unit="user"))
    assert Limit(epsilon=0.5, delta=1e-6).within(limit)
    assert not Limit(epsilon=0.5, delta=1e-4).within(limit)
    assert not Limit(epsilon=2.0, delta=1e-6).within(limit)
    assert read_fields(Limit, to_words(Limit(epsilon=math.inf, delta=0.1))).epsilon == math.inf
