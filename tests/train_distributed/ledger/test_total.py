"""Entries hold what can be; together they come to no less than another accountant finds."""

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from embed import EmbeddingSet
from tests.train_distributed.ledger.ledger_entries import GAUSSIAN, STATED
from train_distributed import accounting
from train_distributed.ledger.entry import (
    Entry,
    Limit,
    gaussian_fields,
    read_fields,
    row_fields,
    to_words,
)
from train_distributed.ledger.state import Total
from train_distributed.privacy.composition import COST_ROUND_UP, Cost
from train_distributed.privacy.mechanism import DiscreteGaussian
from train_distributed.privacy.promise import Privacy


def gaussian(mu: float, **more) -> Entry:
    return replace(GAUSSIAN, sigma=2.0, sensitivity=2.0 * mu, epsilon=math.inf, **more)


def epsilon(mu: float, delta: float = 1e-5) -> float:
    return accounting.epsilon(delta, 1 / mu)


def test_pure_promises_need_no_delta_and_no_noise_is_no_privacy() -> None:
    total = Total.of([replace(STATED, delta=0.0)] * 2, "record")
    assert (total.epsilon(), total.epsilon(1e-12)) == pytest.approx((1.0, 1.0))
    bare = replace(GAUSSIAN, sigma=0.0, epsilon=math.inf, noise="none")
    for none in ([bare, GAUSSIAN], [replace(STATED, epsilon=math.inf)]):
        assert Total.of(none, "record").epsilon(1e-5) == math.inf
    assert Total.of([], "record").epsilon(1e-5) == 0.0


@pytest.mark.parametrize("mus", [(0.3, 0.2, 0.7), (1.5,), (0.05,) * 12])
def test_privacy_loss_distributions_agree(mus: tuple[float, ...]) -> None:
    """dp-accounting's grid errs upwards: no less than ours, and by little."""
    accountant = PLDAccountant(
        dp_accounting.NeighboringRelation.REPLACE_SPECIAL, value_discretization_interval=1e-4
    )
    for mu in mus:
        accountant.compose(dp_accounting.GaussianDpEvent(1 / mu))
    total = Total.of([gaussian(mu) for mu in mus], "record")
    for delta in (1e-5, 1e-8):
        ours, theirs = total.epsilon(delta), accountant.get_epsilon(delta)
        assert ours == pytest.approx(theirs, rel=2e-3)
        assert ours <= theirs * (1 + 1e-9)


def test_other_promises_add_up_and_take_their_delta_from_the_gaussian_ones() -> None:
    both = Total.of([gaussian(0.5), STATED, replace(STATED, epsilon=0.25)], "record")
    assert both.epsilon(1e-5) == pytest.approx(0.75 + epsilon(0.5, 8e-6), rel=1e-9)
    assert (both.epsilon(2e-6), both.epsilon(1e-6)) == (math.inf, math.inf)
    assert both.least_delta == pytest.approx(1.2e-5)
    alone = Total.of([STATED, STATED], "record")
    assert alone.epsilon(2e-6 * (1 + 1e-12)) == pytest.approx(1.0)
    assert alone.epsilon(1.9e-6) == math.inf
    assert alone.epsilon() == pytest.approx(1.0)


def test_discreteness_is_charged_twice_over() -> None:
    plain, charged = gaussian(0.5), gaussian(0.5, zeta=0.01)
    found = Total.of([charged, charged], "record").epsilon(1e-5)
    assert found > Total.of([plain, plain], "record").epsilon(1e-5) + 0.04


def test_a_planned_sum_costs_what_it_promised() -> None:
    planned = DiscreteGaussian.for_promise(1.0, 1e-5, sensitivity=2.0, honest=5, dimension=40)
    entry = replace(GAUSSIAN, **gaussian_fields(planned))
    spent = Total.of([entry], "record").epsilon(1e-5)
    assert spent == pytest.approx(planned.epsilon(1e-5), rel=1e-11)
    assert spent <= 1 + 1e-9


USER = gaussian(0.4, unit="user")
OWN, SIMULATED = gaussian(0.3, unit="user", users="h"), gaussian(0.4, unit="user", users="g")
TRAIN = gaussian(0.3, part="train", split="s")
HELD = gaussian(0.4, part="evaluation", split="s", kind="evaluation")


@pytest.mark.parametrize(
    ("entries", "unit", "mu"),
    [
        ([gaussian(0.3), gaussian(0.4)], "record", 0.5),
        ([gaussian(0.1, compositions=4)], "record", 0.2),
        ([gaussian(0.3), USER], "record", 0.5),  # a promise for a user covers its records
        ([gaussian(0.3), USER], "user", math.inf),  # and not the other way round
        ([USER], "user", 0.4),
        ([OWN, SIMULATED], "user", math.inf),  # users of two divisions of the rows
        ([OWN, SIMULATED], "record", 0.5),
        ([OWN, USER], "user", 0.5),
        ([USER, OWN], "user", 0.5),
        ([TRAIN, HELD], "record", 0.4),  # a record is in one part
        ([TRAIN, TRAIN, HELD], "record", 0.3 * 2**0.5),
        ([replace(TRAIN, group_size=2), replace(HELD, group_size=2)], "record", 0.5),
        ([TRAIN, replace(HELD, split="another")], "record", 0.5),
        ([TRAIN, replace(HELD, data="another")], "record", 0.5),
        ([TRAIN, replace(HELD, part="train")], "record", 0.5),
        ([TRAIN, replace(HELD, part="Evaluation")], "record", 0.5),  # of an older ledger
        ([TRAIN, replace(HELD, part="")], "record", 0.5),
        ([TRAIN, replace(HELD, split="")], "record", 0.5),
        ([replace(TRAIN, unit="user"), replace(HELD, unit="user")], "user", 0.5),
    ],
)
def test_whatever_may_share_rows_or_users_adds_up(entries, unit, mu) -> None:
    total = Total.of(entries, unit)
    expected = math.inf if mu == math.inf else epsilon(mu)
    assert total.epsilon(1e-5) == pytest.approx(expected, rel=1e-12)
    assert total.epsilon(1e-5) >= expected
    assert (total.uncovered > 0) == (mu == math.inf)


def test_the_group_is_the_smallest_that_all_entries_cover() -> None:
    three = gaussian(0.3, group_size=3)
    others = {5: 3, 1: 1}  # a user's group is no group of records
    for size, smallest in others.items():
        assert Total.of([three, gaussian(0.4, group_size=size)], "record").group_size == smallest
    assert Total.of([three, gaussian(0.1, unit="user", group_size=9)], "record").group_size == 1


@given(
    st.lists(
        st.tuples(st.floats(0.01, 3), st.sampled_from(["", "train", "evaluation"]), st.booleans()),
        max_size=7,
    ),
    st.randoms(use_true_random=False),
)
@settings(max_examples=60, deadline=None)
def test_no_order_and_no_further_entry_makes_the_total_smaller(drawn, random) -> None:
    entries = [
        gaussian(mu, part=part, split="s")
        if is_gaussian
        else replace(STATED, epsilon=mu, part=part, split="s")
        for mu, part, is_gaussian in drawn
    ]
    running = [Total.of(entries[:k], "record").epsilon(1e-4) for k in range(len(entries) + 1)]
    assert all(a <= b for a, b in itertools.pairwise(running))
    random.shuffle(entries)
    shuffled = Total.of(entries, "record").epsilon(1e-4)
    assert shuffled == pytest.approx(running[-1], rel=1e-9)
    for part in ("train", "evaluation"):  # a record of either part is covered
        of_part = [replace(e, part="") for e in entries if e.part in ("", part)]
        assert Total.of(of_part, "record").epsilon(1e-4) <= shuffled * (1 + 1e-9)


def test_no_total_is_below_the_exact_sum() -> None:
    """What is added to the Gaussian part is rounded up too."""
    for k in range(1, 2000, 5):
        cost = Cost(squared_mu=0.01, zeta=k * 1e-17, epsilon=k * 0.1)
        left = (1e-5 / COST_ROUND_UP) * math.exp(-cost.zeta) / COST_ROUND_UP
        gaussian = accounting.epsilon(left, 1 / (0.1 * COST_ROUND_UP))
        exact = Fraction(gaussian) + 2 * Fraction(cost.zeta) + Fraction(cost.epsilon)
        assert Fraction(cost.at(1e-5)) >= exact


def test_costs_of_disjoint_rows_are_at_least_either() -> None:
    one, other = Cost(1.0, 0.1, 0.2, 0.0), Cost(0.5, 0.2, 0.1, 1e-6)
    assert one.worst(other) == Cost(1.0, 0.2, 0.2, 1e-6)


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
    by = Privacy(1.0, 1e-5, noise_by="servers")
    noise = {"noise": "discrete", "sigma": 3.7307, "sensitivity": 1.0}
    entry = Entry.of(by, noise, kind="release", data="d", method="discriminant")
    stored = to_words(entry)
    assert stored.pop("noise_by") == entry.noise_by == "servers"
    older = read_fields(Entry, stored)
    assert older.noise_by == "not stated"
    assert older.cost == entry.cost


def test_a_limit_is_within_another() -> None:
    limit = Limit(epsilon=1.0, delta=1e-5)
    assert Limit(epsilon=1.0, delta=1e-5, unit="user").within(limit)
    assert not limit.within(Limit(epsilon=1.0, delta=1e-5, unit="user"))
    assert Limit(epsilon=0.5, delta=1e-6).within(limit)
    assert not Limit(epsilon=0.5, delta=1e-4).within(limit)
    assert not Limit(epsilon=2.0, delta=1e-6).within(limit)
    assert read_fields(Limit, to_words(Limit(epsilon=math.inf, delta=0.1))).epsilon == math.inf


def test_rows_are_known_by_their_values_their_split_and_their_images() -> None:
    x, split = np.arange(12.0).reshape(6, 2), np.array([0, 0, 0, 1, 2, 2])
    meta = {"data_hash": "i" * 64}
    rows = EmbeddingSet(embeddings=x, labels=np.zeros(6, int), split=split, meta=meta)
    train = row_fields(rows, "train")
    assert row_fields(rows, "evaluation") == train | {"part": "evaluation"}
    assert (train["images"], train["users"]) == ("i" * 64, "")
    moved = row_fields(replace(rows, split=split[::-1].copy()), "train")
    assert moved == train | {"split": moved["split"]}
    assert moved["split"] != train["split"]
    users = (np.arange(6), np.ones(6, int))
    owned = [row_fields(replace(rows, users=each), "")["users"] for each in users]
    assert len({"", *owned}) == 3
    assert row_fields(replace(rows, embeddings=x + 1, meta={}), "train")["data"] != train["data"]
