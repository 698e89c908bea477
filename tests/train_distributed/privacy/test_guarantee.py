"""From a promise to noise: what the honest users add alone keeps it, whatever is submitted."""

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from train_distributed import Privacy, accounting
from train_distributed.privacy import Guarantee
from train_distributed.privacy import guarantee as module
from train_distributed.privacy.mechanism import FloatGaussian

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
