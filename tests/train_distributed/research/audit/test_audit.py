"""The audit: its bounds, its neighbours and canaries, what the attacker sees, its command."""

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binomtest, nct, norm
from torch import Tensor

from embed import PublicTransform
from tests.train_distributed.research.audit.test_audit_faults import half_the_noise
from train_distributed import Privacy, accounting, release
from train_distributed.one_shot import discriminant as class_moments
from train_distributed.one_shot.extra_sums import FeatureSum
from train_distributed.one_shot.registry import build_method
from train_distributed.one_shot.release import release_of
from train_distributed.one_shot.request import FaultInjection
from train_distributed.one_shot.summation import PlannedSum, RunningSum
from train_distributed.privacy import mechanism
from train_distributed.privacy.discrete_gaussian import NoiseSampler, discrete_gaussian
from train_distributed.privacy.guarantee import Guarantee
from train_distributed.privacy.mechanism import DiscreteGaussian, FloatGaussian
from train_distributed.research.audit import Claim, Target, WorstCase, attack, judge, worst_case
from train_distributed.research.audit.attack import (
    epsilon_of_test,
    gaussian_epsilon,
    in_one_unit,
    numbers,
    power_and_size,
    worst_pair,
)
from train_distributed.research.audit.one_run import (
    CANARIES,
    Canaries,
    _opened,
    audit_once,
    least_mu,
    most_canaries,
)
from train_distributed.research.audit.target import CLIP, SGD, SVM, TWO, by_servers, standing

ONE = Privacy(1.0, 1e-5)


@pytest.mark.parametrize(("hits", "trials"), [(0, 20), (7, 20), (20, 20), (300, 5000)])
def test_intervals_are_those_of_clopper_and_pearson(hits: int, trials: int) -> None:
    exact = binomtest(hits, trials).proportion_ci(0.99, method="exact")
    assert power_and_size(hits, trials, hits, trials, 0.99) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.2, 0.05), (1.0, 1e-5), (1.0, 0.1), (8.0, 1e-6)])
def test_bounds_of_exact_rates_are_the_promise_and_no_power_proves_nothing(
    epsilon: float, delta: float
) -> None:
    """With infinitely many trials either bound attains ε of a Gaussian sum; no cut exceeds it."""
    mu = 1 / accounting.noise_multiplier(epsilon, delta)
    cuts = np.linspace(-8, 8, 8001)  # the best one lies at 5.99 at most
    rates = zip(norm.sf(cuts - mu), norm.sf(cuts), strict=True)
    found = [epsilon_of_test(*rate, delta) for rate in rates]
    assert max(found) == pytest.approx(epsilon, rel=1e-4)
    assert max(found) <= epsilon * (1 + 1e-9)
    middle = gaussian_epsilon(float(norm.sf(-mu / 2)), float(norm.sf(mu / 2)), delta)
    assert middle == pytest.approx(epsilon, rel=1e-6)
    for bound in (epsilon_of_test, gaussian_epsilon):
        assert (bound(0.4, 0.5, 1e-5), bound(1.0, 0.0, 1e-5)) == (0, math.inf)


CLAIM = Claim(1.0, 0.05, True)
MU = 1 / accounting.noise_multiplier(1.0, 0.05)


def samples(shift: list[float], trials: int, generator: torch.Generator) -> Any:
    """Draws about the shift and about 0, and the shift."""
    moved = torch.tensor(shift, dtype=torch.float64)
    draws = torch.randn(2, trials, 3, generator=generator, dtype=torch.float64)
    return draws[0] + moved, draws[1], moved


def test_a_kept_promise_is_called_broken_as_rarely_as_stated() -> None:
    """100 audits of the exact Gaussian at 90 %: at most 10 %, up to 4 deviations of the count."""
    generator = torch.Generator().manual_seed(0)
    drawn = (samples([MU, 0, 0], 400, generator) for _ in range(100))
    broken = sum(judge(*each, claim=CLAIM, confidence=0.9).broken for each in drawn)
    assert broken <= 10 + 4 * math.sqrt(100 * 0.1 * 0.9)


def test_samples_that_hardly_vary_make_scores_no_square_of_which_overflows() -> None:
    """Directions weigh what does not vary by up to 10^300; order is all that counts."""
    scores = [np.array([0.0, -7.8e298, 3e-10]), np.array([1.6e297, 0.0, 2.0])]
    first, second = in_one_unit(scores)
    assert np.isfinite(first.var() + second.var())
    assert np.array_equal(np.argsort(np.concatenate(scores)), np.argsort([*first, *second]))
    assert all((part == 0).all() for part in in_one_unit([np.zeros(2), np.zeros(2)]))


def test_a_broken_promise_is_found_and_noise_that_cancels_too() -> None:
    generator = torch.Generator().manual_seed(1)
    twice = samples([2 * MU, 0.0, 0.0], 2000, generator)
    assert judge(*twice, claim=CLAIM, confidence=0.9999).broken
    first, second, _ = samples([MU / 2, 0.0, 0.0], 400, generator)
    for drawn in (first, second):
        drawn[:, 1] = drawn[:, 0]
    first[:, 1] -= MU / 4
    shift = torch.tensor([MU / 2, MU / 4, 0.0], dtype=torch.float64)
    assert judge(first, second, shift, CLAIM, confidence=0.9999).epsilon > 3


@pytest.mark.parametrize("unit", ["record", "user"])
@pytest.mark.parametrize("group_size", [1, 3])
def test_neighbours_differ_in_what_is_protected(unit, group_size: int) -> None:
    promise = Privacy(1.0, 1e-5, 0.6, unit=unit, group_size=group_size)
    federation = WorstCase(7, 2, 2, 3, promise, min_survivors=6)
    federation.validate()
    assert federation.dishonest == range(0, 2)
    assert federation.dropped == range(2, 3)
    for pair in federation.neighbours():
        assert pair.first.users is not None
        changed = (pair.first.embeddings != pair.second.embeddings).any(1)
        changed |= pair.first.labels != pair.second.labels
        touched = np.flatnonzero(changed)
        assert unit == "record" or set(pair.first.users[touched]) <= set(range(7 - group_size, 7))
        assert unit == "user" or len(touched) <= group_size
        assert touched.min() >= 7 * 2 - group_size * (2 if unit == "user" else 1)
        assert set(pair.first.users[touched]).isdisjoint([*federation.dishonest, 2])


def test_dishonest_noise_is_exactly_what_is_missing() -> None:
    """The discrete sum without their noise is the whole sum minus it, bit for bit."""
    method = build_method("softmax", PublicTransform.identity(1), 2, {"l2_reg": 1.0}).statistic
    sizes, drawn = torch.full((4,), 2), []
    guarantee = Guarantee.of(sizes, method, ONE)
    submissions = torch.arange(4.0)[:, None].double().expand(4, method.dimension) / 8

    def recorded(std: float, count: int) -> np.ndarray:
        drawn.append(discrete_gaussian(std, count))
        return drawn[-1]

    made = DiscreteGaussian.calibrated(method, guarantee, sizes)

    def opened(sampler: NoiseSampler, bare: frozenset[int] = frozenset()) -> torch.Tensor:
        planned = PlannedSum(method, guarantee, replace(made, sampler=sampler))
        summed = RunningSum(planned, bare)
        summed.add(torch.arange(4), submissions)
        return summed.total()

    whole = opened(recorded)
    known, replay = drawn[0] + drawn[1], drawn[2:]
    missing = torch.from_numpy(made.step * known)
    bare = opened(lambda std, count: replay.pop(0), frozenset({0, 1}))
    assert torch.equal(whole - missing, bare)
    assert not replay


def test_float_noise_of_the_dishonest_is_missing_too() -> None:
    method = build_method("softmax", PublicTransform.identity(1), 5000, {"l2_reg": 1.0}).statistic
    guarantee = Guarantee.of(torch.full((6,), 2), method, ONE)
    noise = FloatGaussian.simulated(method, guarantee, torch.Generator().manual_seed(0))
    summed = RunningSum(PlannedSum(method, guarantee, noise), frozenset({0, 2}))
    summed.add(torch.arange(6), torch.zeros(6, method.dimension, dtype=torch.float64))
    expected = noise.local_std * math.sqrt(4)
    assert float(summed.total().std()) == pytest.approx(expected, rel=0.03)


def test_an_audited_release_is_marked() -> None:
    data = next(iter(WorstCase(4, 2, 1, 2, ONE).neighbours())).first
    known, unknown = (FaultInjection(known_noise=[user]) for user in (0, 4))
    report = release(data, "discriminant", ONE, faults=known, sums=1).report
    assert report["suitable_for_release"] is False
    assert "an audit: 1 users or servers added no noise" in report["unsuitable_because"]
    with pytest.raises(ValueError, match=r"known_noise must hold users in \[0, 4\), got 4"):
        release(data, "discriminant", ONE, faults=unknown, sums=1)


def test_the_worst_pair_attains_the_stated_sensitivity() -> None:
    """Class sums at 180 degrees; an SVM by its label; least squares with heavy moments between."""
    for method, options, pair in (
        ("discriminant", {}, "180 degrees, same label"),
        ("svm", {"l2_reg": 20.0, "prior": "private"}, "0 degrees, another label"),
        ("discriminant", {"alpha": 1.5}, "105 degrees, same label"),
    ):
        target = Target(method, WorstCase(2, 2, 2, 2, ONE), "float", options)
        found, shift = worst_pair(target)
        built = build_method(method, target.transform, 2, options).statistic
        reach = math.sqrt(built.compositions) * built.record_sensitivity(torch.tensor([2, 2]))
        assert str(found) == pair
        assert 0.98 * reach < float(shift.norm()) <= reach * (1 + 1e-9)


def test_two_releases_are_claimed_as_what_they_come_to_together() -> None:
    once = Target("discriminant", WorstCase(1, 1, 1, 2, Privacy(8.0, 1e-6)), "float")
    twice = replace(once, releases=2)  # with ε of 8 and 4
    data = next(iter(once.federation.neighbours())).first
    mu = [1 / accounting.noise_multiplier(epsilon, 1e-6) for epsilon in (8.0, 4.0)]
    expected = accounting.epsilon(1e-6, 1 / math.hypot(*mu))
    assert twice.claim(data).epsilon == pytest.approx(expected, rel=1e-6)
    assert len(twice.opened(data)) == 2 * len(once.opened(data))
    amp = replace(twice, method="amp")
    with pytest.raises(ValueError, match="releases must be 1 for method 'amp'"):
        amp.claim(data)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(standing())))
def test_no_standing_configuration_is_broken(number: int) -> None:
    target = standing()[number]
    assert not attack(target, trials=600 if target.noise == "discrete" else 2000).broken


def test_servers_are_audited_in_every_configuration_and_one_of_them_is_corrupt() -> None:
    found = by_servers()
    assert len(found) == len(standing())
    for target in found:
        where = target.federation
        assert (list(where.known_noise), list(where.dishonest)) == ([0], [])
        assert where.privacy.noise_by == "servers"
    pair, _ = worst_pair(found[2])
    assert found[2].claim(pair.first).epsilon == found[2].federation.privacy.epsilon
    plain = [found[2].noiseless(pair.first) for _ in range(2)]
    assert torch.equal(*plain)
    assert not torch.equal(found[2].opened(pair.first), plain[0])


def test_the_command_says_so_and_exits_with_it(call, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(worst_case, "DEGREES", (0, 180))
    words = "--method discriminant --noise float --users 1 --epsilon 8 --trials 60 --canaries 0"
    code, printed, error = call("audit", *words.split(), "--out", "good")
    assert (code, error) == (0, "")
    assert "0 of 1 promises broken at 99.99 % confidence each" in printed
    assert printed.startswith((tmp_path / "good" / "table.txt").read_text().rstrip())
    saved = json.loads((tmp_path / "good" / "audit.json").read_text())
    assert saved["audits"][0]["claim"] == {"epsilon": 8.0, "delta": 1e-5, "gaussian": True}
    right = mechanism.gaussian
    with monkeypatch.context() as patch:
        patch.setattr(mechanism, "gaussian", lambda size, std, g: right(size, std / 5, g))
        code, printed, _ = call("audit", *words.split(), "--out", "bad")
    assert code == 1
    assert "BROKEN" in printed
    assert json.loads((tmp_path / "bad" / "audit.json").read_text())["broken"] == 1
    code, printed, error = call("audit --method svm --canaries 64 --trials 20 --out both")
    assert (code, error) == (0, "")
    assert "by one run" in printed
    (saved,) = json.loads((tmp_path / "both" / "audit.json").read_text())["audits"]
    assert (saved["canaries"], saved["trials"]) == (64, 20)
    bounds = [saved[name] for name in ("one_run", "clopper_pearson", "gaussian")]
    assert saved["epsilon_at_least"] == max(bounds)


@pytest.mark.parametrize(
    ("method", "options", "promise"),
    [
        ("discriminant", {"user_clip": [0.3, 0.5]}, {"unit": "user"}),  # as `rehearse` writes it
        ("svm", {"l2_reg": 7.0, "prior": "equal"}, {"group_size": 2}),
        ("discriminant", {"sums": 2}, {"noise_by": "servers"}),
        ("dp-svm-smo", {"l2_reg": 5.0}, {}),
        ("evaluation", {}, {"honest_fraction": 0.5, "group_size": 2}),
    ],
)
def test_a_file_says_what_is_attacked(call, tmp_path, monkeypatch, method, options, promise):
    monkeypatch.setattr(worst_case, "DEGREES", (0, 180))
    privacy = {"epsilon": 2.0, "delta": 1e-5} | promise
    said = {"method": method, "options": options, "privacy": privacy}
    (tmp_path / "c.json").write_text(json.dumps(said))
    typed = "--config c.json --canaries 0 --trials 16 --out made" + " --epsilon 2" * bool(promise)
    code, _, error = call("audit", *typed.split())
    assert (code, error) == (0, "")
    (audited,) = json.loads((tmp_path / "made" / "audit.json").read_text())["audits"]
    assert audited["method"] == method
    assert audited["options"].items() >= options.items()
    assert audited["federation"]["privacy"].items() >= privacy.items()


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


PLANTED = [pytest.param(name, marks=[pytest.mark.slow] * ("two sums" in name)) for name in FAULTS]


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found_in_one_release(fault: str, monkeypatch) -> None:
    plant, target = FAULTS[fault]
    right, promised = canaries_of(target), target.federation.privacy.epsilon
    assert right <= promised
    assert promised > 1 or right > 0.45
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
