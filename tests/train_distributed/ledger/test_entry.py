"""Entries and limits hold what can be, and come back from JSON as they were."""

import math
from dataclasses import replace

import numpy as np
import pytest

from embed import EmbeddingSet
from tests.train_distributed.ledger.ledger_entries import GAUSSIAN, STATED
from train_distributed.ledger.entry import Entry, Limit, read_fields, row_fields, to_words
from train_distributed.privacy.promise import Privacy


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sigma": 3.73}, r"epsilon must be >= 1\.000186"),
        ({"sigma": -1.0}, r"sigma must be in \[0, inf\)"),
        ({"sigma": math.nan}, "sigma must be in"),
        ({"sigma": None}, "both or neither"),
        ({"sensitivity": math.inf}, "sensitivity must be finite and > 0"),
        ({"epsilon": 0.0}, "epsilon must be > 0"),
        ({"epsilon": math.nan}, "epsilon must be > 0"),
        ({"delta": 0.0}, r"delta must be in \(0, 1\)"),
        ({"zeta": -1.0}, r"zeta must be in \[0, inf\)"),
        ({"zeta": math.nan}, "zeta must be in"),
        ({"unit": "pixel"}, "unit must be one of record, user"),
        ({"group_size": 0}, "group_size must be"),
        ({"kind": "gift"}, "kind must be one of release"),
        ({"data": ""}, "data must name the rows"),
        ({"method": 3}, "method must be text"),
        ({"compositions": 0}, "compositions must be finite and > 0"),
        ({"noise_by": "nobody"}, "noise_by must be one of users, servers, not stated"),
    ],
)
def test_an_entry_that_cannot_be_is_refused(change, message) -> None:
    with pytest.raises(ValueError, match=message):
        replace(GAUSSIAN, **change)


@pytest.mark.parametrize("entry", [GAUSSIAN, STATED, replace(GAUSSIAN, epsilon=math.inf)])
def test_entries_come_back_from_json(entry) -> None:
    named = replace(entry, result="inf", method="inf")
    assert read_fields(Entry, to_words(named)) == named


def test_an_entry_says_who_adds_the_noise_and_one_of_an_older_ledger_does_not() -> None:
    noise = {"noise": "discrete", "sigma": 3.7307, "sensitivity": 1.0}
    by = Privacy(1.0, 1e-5, noise_by="servers")
    entry = Entry.of(by, noise, kind="release", data="d", method="discriminant")
    assert entry.noise_by == "servers"
    stored = to_words(entry)
    del stored["noise_by"]
    older = read_fields(Entry, stored)
    assert older.noise_by == "not stated"
    assert older.cost == entry.cost


@pytest.mark.parametrize(
    "stored", [None, [], {"kind": "release"}, to_words(GAUSSIAN) | {"colour": 1}]
)
def test_json_that_is_no_entry_is_refused(stored) -> None:
    with pytest.raises(ValueError, match=r"must be"):
        read_fields(Entry, stored)


def test_a_limit_is_within_another() -> None:
    limit = Limit(epsilon=1.0, delta=1e-5)
    assert Limit(epsilon=1.0, delta=1e-5, unit="user").within(limit)
    assert not limit.within(Limit(epsilon=1.0, delta=1e-5, unit="user"))
    assert Limit(epsilon=0.5, delta=1e-6).within(limit)
    assert not Limit(epsilon=0.5, delta=1e-4).within(limit)
    assert not Limit(epsilon=2.0, delta=1e-6).within(limit)
    assert read_fields(Limit, to_words(Limit(epsilon=math.inf, delta=0.1))).epsilon == math.inf


def test_rows_are_known_by_their_values_their_split_and_their_images() -> None:
    x = np.arange(12.0).reshape(6, 2)
    split = np.array([0, 0, 0, 1, 2, 2])
    rows = EmbeddingSet(
        embeddings=x, labels=np.zeros(6, int), split=split, meta={"data_hash": "i" * 64}
    )
    train, held = (row_fields(rows, part) for part in ("train", "evaluation"))
    assert held == train | {"part": "evaluation"}
    assert train["images"] == "i" * 64
    moved = row_fields(replace(rows, split=split[::-1].copy()), "train")
    assert moved == train | {"split": moved["split"]}
    assert moved["split"] != train["split"]
    assert train["users"] == ""
    owned = row_fields(replace(rows, users=np.arange(6)), "train")
    assert owned["users"] not in ("", row_fields(replace(rows, users=np.ones(6, int)), "")["users"])
    assert row_fields(replace(rows, embeddings=x + 1, meta={}), "train")["data"] != train["data"]
