"""The audit itself: its bounds, its neighbours, what the attacker sees, its command."""

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binomtest, norm

from embed import PublicTransform
from train_distributed import Privacy, accounting, release
from train_distributed.one_shot.registry import build_method
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
    power_and_size,
    worst_pair,
)
from train_distributed.research.audit.target import by_servers, standing

ONE = Privacy(1.0, 1e-5)


@pytest.mark.parametrize(("hits", "trials"), [(0, 20), (7, 20), (20, 20), (300, 5000)])
def test_intervals_are_those_of_clopper_and_pearson(hits: int, trials: int) -> None:
    exact = binomtest(hits, trials).proportion_ci(0.99, method="exact")
    assert power_and_size(hits, trials, hits, trials, 0.99) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.2, 0.05), (1.0, 1e-5), (1.0, 0.1), (8.0, 1e-6)])
def test_bounds_of_exact_rates_are_the_promise(epsilon: float, delta: float) -> None:
    """With infinitely many trials either bound attains ε of a Gaussian sum; no cut exceeds it."""
    mu = 1 / accounting.noise_multiplier(epsilon, delta)
    cuts = np.linspace(-8, 8, 8001)  # the best one lies at 5.99 at most
    rates = zip(norm.sf(cuts - mu), norm.sf(cuts), strict=True)
    found = [epsilon_of_test(*rate, delta) for rate in rates]
    assert max(found) == pytest.approx(epsilon, rel=1e-4)
    assert max(found) <= epsilon * (1 + 1e-9)
    middle = gaussian_epsilon(float(norm.sf(-mu / 2)), float(norm.sf(mu / 2)), delta)
    assert middle == pytest.approx(epsilon, rel=1e-6)


def test_no_power_proves_nothing() -> None:
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
    broken = sum(judge(*each, CLAIM, confidence=0.9).broken for each in drawn)
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
    assert judge(*twice, CLAIM, confidence=0.9999).broken
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
        if unit == "user":
            assert set(pair.first.users[touched]) <= set(range(7 - group_size, 7))
        else:
            assert len(touched) <= group_size
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
    monkeypatch.setattr(mechanism, "gaussian", lambda size, std, g: right(size, std / 5, g))
    code, printed, _ = call("audit", *words.split(), "--out", "bad")
    assert code == 1
    assert "BROKEN" in printed
    assert json.loads((tmp_path / "bad" / "audit.json").read_text())["broken"] == 1


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
