"""Honest users are counted in whole numbers; groups are spread the worst way."""

import itertools
import math
from fractions import Fraction

import pytest
import torch

from train_distributed import Privacy
from train_distributed.privacy.promise import group_sensitivity, honest_users


def test_honest_users_of_the_papers_setting():
    assert honest_users(1000, Fraction(1, 2)) == 500
    assert honest_users(100, Fraction(1, 2), min_survivors=70) == 20  # not 35
    assert honest_users(1, Privacy(1.0, 1e-5).fraction(1)) == 1
    assert Privacy(1.0, 1e-5).fraction(2) == Fraction(1, 2)


@pytest.mark.parametrize(("fraction", "dishonest"), [(0.93, 7), (0.71, 29), (0.3, 70), (0.999, 0)])
def test_a_decimal_fraction_is_what_was_written(fraction: float, dishonest: int):
    """1 - 0.93 is 0.06999999999999995: in floating point one dishonest user would be lost."""
    privacy = Privacy(1.0, 1e-5, fraction)
    assert honest_users(100, privacy.fraction(100)) == 100 - dishonest


def test_no_certainly_honest_user():
    for users, fraction, least in ((10, 0.5, 5), (10, 0.1, 9), (3, 0.5, 1)):
        with pytest.raises(ValueError, match="one certainly honest user, got"):
            honest_users(users, Privacy(1.0, 1e-5, fraction).fraction(users), least)
    assert honest_users(1, Privacy(1.0, 1e-5, 0.5).fraction(1)) == 1  # ⌊0.5⌋ = 0 dishonest
    for least in (0, 11):
        rule = rf"min_survivors must be in \[1, 10\].*got {least}"
        with pytest.raises(ValueError, match=rule):
            honest_users(10, Fraction(1), least)


@pytest.mark.parametrize("group", range(1, 9))
@pytest.mark.parametrize("record", [0.7, 1.0, 2.5])
def test_group_of_records_by_exhaustion(group: int, record: float):
    sizes = torch.tensor([1, 2, 4])
    reach = torch.tensor([0.5, 3.1, 2.2])
    best = max(
        sum(min(g * record, r) for g, r in zip(taken, reach.tolist(), strict=True))
        for taken in itertools.product(*(range(int(n) + 1) for n in sizes))
        if sum(taken) == min(group, 7)
    )
    found = group_sensitivity(record, reach, sizes, unit="record", group_size=group)
    assert found == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize(("size", "moved"), [(1, 5), (2, 7), (9, 8)])
def test_groups_of_users(size: int, moved: int):
    reach, sizes = torch.tensor([1.0, 5.0, 2.0]), torch.tensor([1, 5, 2])
    assert group_sensitivity(1.0, reach, sizes, unit="user", group_size=size) == moved


@pytest.mark.parametrize(
    ("privacy", "message"),
    [
        (Privacy(0.0, 1e-5), "epsilon must be > 0, got 0.0"),
        (Privacy(-1.0, 1e-5), "epsilon must be > 0, got -1.0"),
        (Privacy(math.nan, 1e-5), "epsilon must be > 0, got nan"),
        (Privacy(1.0, 0.0), r"delta must be in \(0, 1\), got 0.0"),
        (Privacy(1.0, 1.0), r"delta must be in \(0, 1\), got 1.0"),
        (Privacy(1e-70, 1e-65), r"epsilon or delta must be >= 1e-60, .* got 1e-70 and 1e-65"),
        (Privacy(1.0, 1e-5, 0.0), r"honest_fraction must be in \(0, 1\], got 0.0"),
        (Privacy(1.0, 1e-5, 1.5), r"honest_fraction must be in \(0, 1\], got 1.5"),
        (Privacy(1.0, 1e-5, unit="row"), "unit must be one of record, user, got 'row'"),  # pyright: ignore[reportArgumentType]
        (Privacy(1.0, 1e-5, group_size=0), "group_size must be >= 1, got 0"),
        (Privacy(1.0, 1e-5, group_size=1.5), "group_size must be a whole number, got 1.5"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_bad_promises(privacy: Privacy, message: str):
    with pytest.raises(ValueError, match=message):
        privacy.validate()


def test_a_delta_of_one_in_rows_is_refused_and_said_where_it_is_allowed():
    large, small = Privacy(1.0, 0.01), Privacy(1.0, 0.0099)
    assert "delta is 1/100 or more" in large.large_delta(100)["large_delta"]
    assert small.large_delta(100) == {}
    small.refuse_large_delta(100, allowed=False)
    large.refuse_large_delta(100, allowed=True)
    rule = r"delta must be < 1/rows = 1/100 for a release, .* \(or allow_delta\), got 0\.01"
    with pytest.raises(ValueError, match=rule):
        large.refuse_large_delta(100, allowed=False)
    Privacy(math.inf, 0.5).refuse_large_delta(100, allowed=False)  # promises nothing anyway
