"""From a promise to noise: what the honest users add alone keeps it, however groups are spread."""

import itertools
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

from train_distributed import Privacy, accounting
from train_distributed.privacy import Guarantee
from train_distributed.privacy import guarantee as module
from train_distributed.privacy.mechanism import FloatGaussian
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


SIZES = torch.tensor([3, 8, 1, 5, 5, 2])


@dataclass(frozen=True)
class Submission(module.Submission):
    """A record moves each of C parts by u, a user by at most r."""

    parts: int = 1
    record: float = 2.0
    user: float = math.inf

    @property
    def dimension(self) -> int:
        return 5

    @property
    def compositions(self) -> int:
        return self.parts

    def entry_bound(self, n: int) -> float:
        return n * self.record

    def record_sensitivity(self, sizes: Tensor) -> float:
        return self.record

    def user_sensitivity(self, sizes: Tensor) -> Tensor:
        return (sizes.double() * self.record).clamp(max=self.user)

    def zero_out_sensitivity(self, sizes: Tensor) -> float:
        return self.record / 2

    def user_zero_out(self, sizes: Tensor) -> Tensor:
        return self.user_sensitivity(sizes) / 2


@pytest.mark.parametrize("compositions", [1, 3, 10])
@pytest.mark.parametrize("epsilon", [0.05, 1.0, 20.0])
@pytest.mark.parametrize(("fraction", "least"), [(None, None), (0.7, 5), (1.0, 1)])
def test_the_noise_of_the_honest_alone_keeps_the_promise(compositions, epsilon, fraction, least):
    """Against the exact curve of one Gaussian mechanism, and by no more than a billionth more."""
    promise = Privacy(epsilon, 1e-6, honest_fraction=fraction)
    submission = Submission(compositions)
    guarantee = Guarantee.of(SIZES, submission, promise, least)
    local = FloatGaussian.simulated(submission, guarantee).local_std
    std = local * math.sqrt(guarantee.honest)
    moved = 2.0 * math.sqrt(compositions)  # of all parts together, by one record
    assert accounting.delta(epsilon, std / moved) <= 1e-6
    assert accounting.delta(epsilon, std / moved * (1 - 1e-8)) > 1e-6
    assert moved < guarantee.joint_sensitivity < moved * (1 + 1e-9)


@pytest.mark.parametrize(
    ("sizes", "fraction", "least", "honest"),
    [
        (SIZES, None, None, 3),
        (SIZES, 1.0, None, 6),
        (SIZES, 1.0, 2, 2),
        (SIZES, 0.7, 5, 4),
        (SIZES, 0.5, 4, 1),
        (SIZES[:1], None, None, 1),  # a single user trusts itself
    ],
)
def test_dishonest_users_may_be_among_those_who_stay(sizes, fraction, least, honest) -> None:
    promise = Privacy(1.0, 1e-5, honest_fraction=fraction)
    assert Guarantee.of(sizes, Submission(), promise, least).honest == honest


@pytest.mark.parametrize(
    ("unit", "group", "moved", "touched"),
    [
        ("record", 1, 2.0, 1),
        ("record", 4, 8.0, 4),
        ("user", 1, 16.0, 1),
        ("user", 2, 26.0, 2),
        ("user", 9, 48.0, 6),
    ],
)
def test_units_and_groups(unit: Any, group: int, moved: float, touched: int) -> None:
    """Users of 3, 8, 1, 5, 5 and 2 records: a user counts with all that it holds."""
    guarantee = Guarantee.of(SIZES, Submission(), Privacy(1.0, 1e-5, unit=unit, group_size=group))
    assert moved < guarantee.sensitivity < moved * (1 + 1e-9)
    assert guarantee.touched_users == touched


@pytest.mark.parametrize(("sizes", "moved"), [([4], 5.0), ([4, 4], 6.0)])
def test_a_group_of_records_moves_no_user_further_than_it_can_move(sizes, moved) -> None:
    """Reach 5, records of 2: two records each of a user in full, the others' shares after that."""
    group = Privacy(1.0, 1e-5, group_size=3)
    found = Guarantee.of(torch.tensor(sizes), Submission(user=5.0), group)
    assert found.sensitivity == pytest.approx(moved, rel=1e-9)


def test_no_promise_asks_for_no_noise() -> None:
    guarantee = Guarantee.of(SIZES, Submission(), Privacy(math.inf, 1e-5))
    assert guarantee.noise_multiplier == 0
    assert FloatGaussian.simulated(Submission(), guarantee).local_std == 0
    assert guarantee.report()["private"] is False


def test_the_report_says_what_the_noise_is_made_of() -> None:
    promise = Privacy(1.0, 1e-5, honest_fraction=0.7)
    guarantee = Guarantee.of(SIZES, Submission(4), promise, 5)
    report = guarantee.report()
    named = "privacy_curve noise_by honest_fraction honest_users min_survivors compositions"
    assert list(report) == [*promise.report(), *named.split(), "sensitivity", "noise_multiplier"]
    assert (report["honest_users"], report["min_survivors"], report["compositions"]) == (4, 5, 4)
    stated = accounting.epsilon(1e-5, report["noise_multiplier"], report["compositions"])
    assert stated == pytest.approx(1.0, rel=1e-9)
    assert stated <= 1.0


def test_servers_need_no_honest_user() -> None:
    guarantee = Guarantee.of(SIZES, Submission(4), Privacy(1.0, 1e-5, noise_by="servers"), 1)
    report = guarantee.report()
    assert guarantee.honest == 1
    stated = {"noise_by": "servers", "honest_servers": 1, "noise_servers": 2}
    assert stated.items() <= report.items()
    assert {"honest_users", "honest_fraction"}.isdisjoint(report)
    alone = Guarantee.of(SIZES[:1], Submission(4), Privacy(1.0, 1e-5))
    assert guarantee.noise_multiplier == alone.noise_multiplier
    noise = FloatGaussian.simulated(Submission(4), guarantee)
    assert noise.noise_std(len(SIZES)) == pytest.approx(noise.local_std * 2**0.5)
    with pytest.raises(ValueError, match="honest_fraction must be left out where servers"):
        Privacy(1.0, 1e-5, 0.5, noise_by="servers").validate()
    with pytest.raises(ValueError, match=r"min_survivors must be in \[1, "):
        Guarantee.of(SIZES, Submission(4), Privacy(1.0, 1e-5, noise_by="servers"), 0)
