"""The audit from one release: its statistic, its canaries, what it finds and what it does not."""

import json
import math

import numpy as np
import pytest
import torch
from scipy.stats import nct, norm
from torch import Tensor

from tests.train_distributed.research.audit.test_audit_faults import half_the_noise
from train_distributed import Privacy, accounting
from train_distributed.one_shot import discriminant as class_moments
from train_distributed.one_shot.extra_sums import FeatureSum
from train_distributed.one_shot.release import release_of
from train_distributed.privacy.mechanism import DiscreteGaussian
from train_distributed.research.audit import Target, WorstCase, attack
from train_distributed.research.audit.attack import numbers
from train_distributed.research.audit.one_run import (
    CANARIES,
    Canaries,
    _opened,
    audit_once,
    least_mu,
    most_canaries,
)
from train_distributed.research.audit.target import CLIP, SGD, SVM, TWO

DELTA = 1e-5
MANY = 100  # canaries where no bound is wanted


def canaries_of(target: Target, **more) -> float:
    return attack(target, canaries=most_canaries(target), **more).epsilon


def discriminant(epsilon: float, users: int = 2, options: dict | None = None, **promise) -> Target:
    privacy = Privacy(epsilon, DELTA, **promise)
    return Target("discriminant", WorstCase(users, 3, 2, 2, privacy), options=options or {})


def sums(directions: Tensor, generator: torch.Generator) -> list[Tensor]:
    """Noise-free sums of m canaries that move it by these (m, D) vectors, about a known part."""
    signs = 2.0 * torch.randint(0, 2, (len(directions),), generator=generator) - 1
    turned = signs.clone()
    turned[-1] *= -1
    known = torch.arange(directions.shape[1], dtype=torch.float64)
    return [known + each.double() @ directions / 2 for each in (signs, -signs, turned)]


@pytest.mark.parametrize("overlapping", [False, True])
def test_the_bound_misses_as_often_as_stated(overlapping: bool) -> None:
    """1,000 releases with exact Gaussian noise; 36 canaries, in 60 numbers or crowded in 8."""
    generator, runs, missed, gap, std = torch.Generator().manual_seed(3), 1000, 0, 0.7, 3.0
    for _ in range(runs):
        directions = torch.eye(36, 60, dtype=torch.float64)
        if overlapping:
            directions = torch.randn(36, 8, generator=generator, dtype=torch.float64)
        directions = gap * directions / directions.norm(dim=1, keepdim=True)
        known = sums(directions, generator)
        noise = torch.randn(known[0].shape, generator=generator, dtype=torch.float64)
        missed += least_mu(known[0] + std * noise, known, confidence=0.9) > gap / std
    assert abs(missed - 0.1 * runs) <= 4 * math.sqrt(runs * 0.09)


def test_the_bound_is_students_and_with_many_canaries_that_of_the_paper() -> None:
    """2 (mean of sign times projection / σ − q/√m), σ measured, for orthogonal canaries."""
    for canaries, confidence in ((50, 0.99), (40_000, 0.95)):
        generator, root = torch.Generator().manual_seed(1), math.sqrt(canaries)
        signs = 2 * torch.randint(0, 2, (canaries,), generator=generator).double() - 1
        noise = torch.randn(canaries, generator=generator, dtype=torch.float64)
        turned = torch.cat([signs[:-1], -signs[-1:]])
        found = least_mu(signs + noise, [signs, -signs, turned], confidence=confidence)
        mean, std = float((signs * (signs + noise)).mean()), float((signs * noise).std())
        exact = nct.cdf(root * mean / std, canaries - 1, root * found / 2)
        assert exact == pytest.approx(confidence, abs=1e-6)
        if canaries > 10_000:
            paper = 2 * (mean / std - norm.ppf(confidence) / root)
            assert found == pytest.approx(paper, rel=0.005)


def test_no_movement_proves_nothing_and_no_noise_everything() -> None:
    still = torch.ones(5, dtype=torch.float64)
    assert least_mu(still, [still] * 3, confidence=0.9) == 0
    signs = torch.tensor([1.0, -1.0, 1.0, 1.0], dtype=torch.float64)
    turned = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
    assert least_mu(signs, [signs, -signs, turned], confidence=0.9) > 1000
    assert least_mu(-signs, [signs, -signs, turned], confidence=0.9) == 0


@pytest.mark.parametrize("unit", ["record", "user"])
@pytest.mark.parametrize("group_size", [1, 3])
@pytest.mark.parametrize("alone", [False, True])
def test_one_sign_turned_makes_a_neighbour(unit, group_size: int, alone: bool) -> None:
    promise = Privacy(1.0, 1e-5, 0.6, unit=unit, group_size=group_size)
    federation = WorstCase(10, 4, 2, 3, promise, min_survivors=8)
    case = Canaries.of(federation, 20, alone=alone or unit == "user")
    assert len(case.holders) >= (20 * group_size if unit == "user" else 20 if alone else 4)
    assert len(case.dropped) >= 2 * case.users // 10 - 1
    first, seen = case.signed(np.ones(20, int)), set()
    for number in range(20):
        second = case.signed(np.where(np.arange(20) == number, -1, 1))
        assert np.array_equal(first.labels, second.labels)
        changed = np.flatnonzero((first.embeddings != second.embeddings).any(1))
        assert first.users is not None
        holders = np.unique(first.users[changed])
        assert set(holders) <= set(case.holders)
        assert len(changed) == group_size * (case.rows if unit == "user" else 1)
        if unit == "user":
            assert len(holders) == group_size
        assert not (unit == "record" and alone and len(holders) > 1)
        seen |= {*(holders if alone or unit == "user" else changed)}
    assert len(seen) == 20 * (1 if alone and unit == "record" else group_size)


@pytest.mark.parametrize("options", [{}, TWO, SVM], ids=["one sum", "two", "svm"])
def test_a_canary_attains_the_stated_sensitivity_in_every_sum(options: dict) -> None:
    """Orthogonal ones make √m/2 of it together, those of a first sum as far as signs cancel."""
    method = "svm" if options is SVM else "discriminant"
    privacy = Privacy(1.0, 1e-5)
    case = Canaries.of(WorstCase(2, 3, 2, 2, privacy), MANY, alone=method == "svm")
    own = {"components": case.features} if options is TWO else {}
    target = Target(method, case, options=options | own)
    signs = 2 * np.random.default_rng(0).integers(0, 2, MANY) - 1
    turned = signs.copy()
    turned[-1] *= -1
    bare = Privacy(math.inf, 1e-5)
    built = target.request(case.signed(signs)).built
    for each in filter(None, (built.first, built.statistic)):
        centre = None
        if each is built.statistic and built.first is not None:
            centre = torch.zeros(built.first.dimension, dtype=torch.float64)
            centre[-1] = 1.0
        start = 0 if centre is None else len(centre)
        f, opposite, other = (
            _opened(release_of(target.request(case.signed(of), bare, centre=centre)))
            for of in (signs, -signs, turned)
        )
        part = slice(start, start + each.dimension)
        moved = float((f - other)[part].norm())
        reach = math.sqrt(each.compositions) * each.record_sensitivity(torch.tensor([3, 3]))
        assert 0.95 * reach < moved <= reach * (1 + 1e-6)
        together = float((f - opposite)[part].norm()) / 2
        far = 0.25 if method == "svm" or each is built.first else 1e-6
        assert together == pytest.approx(math.sqrt(MANY) * moved / 2, rel=far)


@pytest.mark.parametrize("options", [{}, TWO], ids=["one sum", "two sums"])
def test_a_right_release_is_not_broken_and_most_of_its_promise_is_found(options: dict) -> None:
    found = attack(discriminant(1.0, options=options), canaries=CANARIES)
    assert not found.broken
    assert found.epsilon > 0.45
    json.dumps(found.as_dict(), allow_nan=False)


def no_factor_2(patch: pytest.MonkeyPatch) -> None:
    right, first = class_moments.least_squares_sensitivity, FeatureSum.record_sensitivity
    patch.setattr(class_moments, "least_squares_sensitivity", lambda *given: right(*given) / 2)
    patch.setattr(FeatureSum, "record_sensitivity", lambda self, sizes: first(self, sizes) / 2)


def noise_of_one_party_less(patch: pytest.MonkeyPatch) -> None:
    right = DiscreteGaussian.noised
    patch.setattr(
        DiscreteGaussian, "noised", lambda of, total, shares: right(of, total, shares - 1)
    )


FAULTS = {
    "half the noise": (half_the_noise, discriminant(1.0)),
    "half the noise of two sums": (half_the_noise, discriminant(1.0, options=TWO)),
    "half the noise of users": (half_the_noise, discriminant(3.0, options=CLIP, unit="user")),
    "no factor 2": (no_factor_2, discriminant(1.0)),
    "no factor 2 in two sums": (no_factor_2, discriminant(1.0, options=TWO)),
    "one party's noise": (noise_of_one_party_less, discriminant(3.0, honest_fraction=1.0)),
}


@pytest.mark.parametrize(
    "fault",
    [pytest.param(name, marks=[pytest.mark.slow] * ("two sums" in name)) for name in FAULTS],
)
def test_a_planted_fault_is_found_in_one_release(fault: str, monkeypatch) -> None:
    plant, target = FAULTS[fault]
    right, promised = canaries_of(target), target.federation.privacy.epsilon
    assert right <= promised
    plant(monkeypatch)
    wrong = canaries_of(target)
    print(f"{fault}: promised {promised:g}, {right:.2f} without it, {wrong:.2f} with it")
    assert wrong > promised


@pytest.mark.parametrize(("users", "honest"), [(2, 1.0), (5, 0.2)])
def test_the_noise_of_honest_parties_is_enough_and_all_that_is_left(users, honest) -> None:
    """Both of two, or one of five: noise that the attacker knows does not count."""
    assert 0.45 * 3 < canaries_of(discriminant(3.0, users, honest_fraction=honest)) <= 3


def test_the_first_of_two_sums_counts() -> None:
    """At large ε its tenth of μ² is seen, and half of its noise alone breaks the promise."""
    target, whole = discriminant(8.0, options=TWO), 1 / accounting.noise_multiplier(8.0, DELTA)
    right = audit_once(target, canaries=CANARIES, confidence=0.9999)
    assert 0 < right.mu_per_sum[0] < math.sqrt(0.1) * whole
    assert right.mu_per_sum[1] < math.sqrt(0.9) * whole
    assert right.epsilon <= 8


def test_both_bounds_are_in_the_table_and_in_the_report(call, tmp_path) -> None:
    words = "--method svm --canaries 64 --trials 20 --out both"
    code, printed, error = call("audit", *words.split())
    assert (code, error) == (0, "")
    assert "by one run" in printed
    (saved,) = json.loads((tmp_path / "both" / "audit.json").read_text())["audits"]
    assert (saved["canaries"], saved["trials"]) == (64, 20)
    bounds = [saved[name] for name in ("one_run", "clopper_pearson", "gaussian")]
    assert saved["epsilon_at_least"] == max(bounds)


def test_where_one_release_proves_nothing_it_is_by_trials() -> None:
    svm = Target("svm", WorstCase(2, 3, 2, 2, Privacy(1.0, DELTA)), "float", SGD)
    assert numbers(svm, None, None, listed=False) == {"trials": 2000, "canaries": 0}
    assert numbers(svm, 20, 64, listed=True) == {"trials": 60, "canaries": 0}
    right = discriminant(1.0)
    assert numbers(right, None, None, listed=True) == {"trials": 0, "canaries": CANARIES}
    assert numbers(right, None, 0, listed=True) == {"trials": 2000, "canaries": 0}
    for options in (SGD, {"rounds": 2}):
        assert most_canaries(discriminant(1.0, options=options)) == 0
    assert most_canaries(discriminant(1.0, options={"prior": (0.1, 0.9)})) == 0
    with pytest.raises(ValueError, match=r"canaries must be left out or 0 for method 'svm'"):
        attack(svm, canaries=9)
    with pytest.raises(ValueError, match=r"canaries must be >= 2, got 1"):
        attack(discriminant(1.0), canaries=1)
    with pytest.raises(ValueError, match=r"trials must be >= 16, got 0"):
        attack(discriminant(1.0))
