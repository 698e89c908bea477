"""Integers end to end, what a sum gives back and how long it may be, and what is promised of it."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from embed import PublicTransform
from tests.train_distributed.one_shot.builders import METHODS_OF_CLASSES, SUMS, made, one_user
from train_distributed import Privacy, accounting
from train_distributed.one_shot import summation as module
from train_distributed.one_shot.attacker import best_guess, gaussian_mu, true_positives
from train_distributed.one_shot.reachable import unreachable
from train_distributed.one_shot.report_file import Report
from train_distributed.one_shot.statistic import Chunk, submissions
from train_distributed.one_shot.summation import Plan, PlannedSum, RunningSum
from train_distributed.privacy.guarantee import Guarantee
from train_distributed.privacy.mechanism import DiscreteGaussian, FloatGaussian
from train_distributed.secure_sum.reports import report_bytes

TRANSFORM = PublicTransform.identity(5, clip_norm=math.sqrt(1.25), constant=0.5)
USERS, ROWS, CLASSES = 5, 8, 3


def chunk(seed: int = 0) -> Chunk:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(USERS * ROWS, 5, generator=generator)
    y = torch.randint(CLASSES, (USERS, ROWS), generator=generator)
    rows = TRANSFORM(x).unflatten(0, (USERS, ROWS))
    return Chunk(torch.arange(USERS), rows, y, torch.full((USERS,), ROWS))


def statistic(name: str, **options: Any) -> Any:
    return made(name, TRANSFORM, CLASSES, **options).statistic


def parts(name: str, epsilon: float = 1.0, fewest: int | None = None, **promise: Any):
    method, sizes = statistic(name), torch.full((USERS,), ROWS)
    return method, Guarantee.of(sizes, method, Privacy(epsilon, 1e-5, **promise), fewest), sizes


def exact(method: Any, guarantee: Guarantee, sizes: Tensor, **changed: Any) -> PlannedSum:
    mechanism = DiscreteGaussian.calibrated(method, guarantee, sizes)
    return PlannedSum(method, guarantee, replace(mechanism, **changed))


def quiet(method: Any, guarantee: Guarantee, sizes: Tensor) -> tuple[RunningSum, Any]:
    """A sum without noise, and its integers."""
    planned = exact(method, guarantee, sizes, sampler=lambda std, n: np.zeros(n, np.int64))
    return RunningSum(planned), planned.mechanism


@pytest.mark.parametrize("name", METHODS_OF_CLASSES)
def test_without_noise_the_secure_sum_is_the_plain_sum(name: str):
    method, guarantee, sizes = parts(name)
    summation, mechanism = quiet(method, guarantee, sizes)
    held = chunk().rounded(mechanism.grid)
    sent = method.submit(held) * method.scale
    summation.add(held.users, sent)
    rounding = 0 if mechanism.grid else 0.5 * USERS * float(np.max(mechanism.step))
    difference = (summation.total() - sent.sum(0)).abs().max().item()
    assert difference <= rounding + 1e-12 * sent.abs().sum().item()


@pytest.mark.parametrize("name", SUMS)
def test_few_submissions_are_in_memory_at_a_time(name: str, monkeypatch: pytest.MonkeyPatch):
    """As many users as fit into a block, at least one; the sum is that of all, bit for bit."""
    totals, taken, plain = [], [], RunningSum.add
    monkeypatch.setattr(RunningSum, "add", lambda s, u, x: (taken.append(len(x)), plain(s, u, x)))
    method, guarantee, sizes = parts(name)
    for block in (1, 100, 1 << 22):
        summation, _ = quiet(method, guarantee, sizes)
        monkeypatch.setattr(module, "BLOCK", block)
        summation.add_chunk(method, chunk().rounded(2.0**-10))
        totals.append(summation.total())
    per_block = max(1, 100 // method.dimension)
    blocks = [min(per_block, USERS - start) for start in range(0, USERS, per_block)]
    assert taken == [1] * USERS + blocks + [USERS]
    assert all(torch.equal(total, totals[0]) for total in totals)


@pytest.mark.parametrize("name", METHODS_OF_CLASSES)
@pytest.mark.parametrize("epsilon", [0.05, 1.0, 8.0])
def test_discrete_noise_is_never_less_and_hardly_more(name: str, epsilon: float):
    method, guarantee, sizes = parts(name, epsilon)
    discrete = DiscreteGaussian.calibrated(method, guarantee, sizes).local_std
    continuous = FloatGaussian.simulated(method, guarantee).local_std
    assert continuous <= discrete <= continuous * 1.001


@pytest.mark.parametrize("group", [1, 4])
def test_the_integer_release_meets_the_promise_for_every_user_that_a_group_touches(group: int):
    plan = DiscreteGaussian.calibrated(*parts("softmax", 0.7, group_size=group))
    assert plan.rounded_users == group
    assert plan.epsilon(1e-5) <= 0.7
    assert plan.honest == USERS - USERS // 2
    assert accounting.delta(0.7, plan.noise_multiplier) <= 1e-5


@pytest.mark.parametrize(
    ("users", "rows", "message"),
    [(20_000, 2**41, r"must be < 2\^63, got"), (1, 2**50, r"at most 2\^50 steps")],
)
def test_a_sum_that_could_wrap_around_is_refused(users: int, rows: int, message: str):
    """Or that of one user that float64 would not hold exactly."""
    method = statistic("discriminant", moments=False)
    sizes = torch.full((users,), rows)
    guarantee = Guarantee.of(sizes, method, Privacy(50.0, 1e-5))
    with pytest.raises(ValueError, match=message):
        DiscreteGaussian.calibrated(method, guarantee, sizes)


@pytest.mark.parametrize("moments", [True, False])
def test_one_user_with_many_rows_sends_the_exact_sum(moments: bool):
    """Where float64 would round 40,000 products of 2^40 steps: by whole-number arithmetic."""
    count = 40_000
    method = statistic("discriminant", moments=moments)
    sizes = torch.tensor([count])
    guarantee = Guarantee.of(sizes, method, Privacy(1.0, 1e-5))
    summation, mechanism = quiet(method, guarantee, sizes)
    assert mechanism.grid is not None
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 5, generator=generator) / 50 + torch.eye(5)[0]
    y = torch.randint(CLASSES, (1, count), generator=generator)
    held = Chunk(torch.zeros(1, dtype=torch.int64), TRANSFORM(x)[None], y, sizes)
    held = held.rounded(mechanism.grid)
    summation.add(held.users, method.submit(held) * method.scale)
    whole = np.rint(held.x[0].numpy() / mechanism.grid).astype(np.int64)
    sums = np.stack([whole[y[0].numpy() == k].sum(0) for k in range(CLASSES)], 1).ravel()
    if moments:
        row, column = np.triu_indices(5)
        sums = np.append(sums, (whole[:, 1:].T @ whole[:, 1:])[row, column])
    assert np.array_equal(summation.total(), sums * mechanism.step)


def test_a_plan_alone_reports_no_sum_but_what_users_would_send():
    """Where servers add the noise these are two shares and a proof."""
    method, guarantee, sizes = parts("softmax")
    plan = Plan.of(method, sizes, guarantee.privacy)
    assert {"secure_sum", "bytes_per_user"}.isdisjoint(plan.report())
    assert plan.report_sent() == {
        "secure_sum": "none, one process added all submissions",
        "bytes_per_user": 8 * method.dimension,
    }
    with pytest.raises(ValueError, match=f"users must be >= {USERS}, got 0"):
        RunningSum(plan.main).total()
    plan = Plan.of(method, sizes, Privacy(1.0, 1e-5, noise_by="servers"))
    longest = max(plan.integers[0].norm_bounds(method, sizes))
    assert plan.report_sent()["bytes_per_user"] == report_bytes(method.dimension, longest)


@pytest.mark.parametrize("name", ["discriminant", "softmax", "svm"])
@pytest.mark.parametrize("clip", [{}, {"user_clip": 0.5}], ids=["whole", "clipped"])
def test_servers_add_all_the_noise_each_and_every_length_can_be_proved(name, clip) -> None:
    """As with half-honest users, the sum holds twice the noise that the promise needs."""
    method, sizes = statistic(name, **clip), torch.full((USERS,), ROWS)
    by_users = Guarantee.of(sizes, method, Privacy(1.0, 1e-5))
    by_servers = Guarantee.of(sizes, method, Privacy(1.0, 1e-5, noise_by="servers"))
    both = [DiscreteGaussian.calibrated(method, each, sizes) for each in (by_users, by_servers)]
    assert both[1].honest == 1
    assert both[1].epsilon(1e-5) <= 1.0
    assert np.ndim(both[1].step) == 0
    certain = USERS - USERS // 2
    assert both[1].local_std == pytest.approx(both[0].local_std * math.sqrt(certain), rel=1e-3)
    assert both[1].noise_std(USERS) == both[1].local_std * math.sqrt(2)
    bounds = both[1].norm_bounds(method, sizes)
    assert max(bounds) < 2**31
    held = chunk().rounded(both[1].grid)
    for submission, bound in zip(method.submit(held) * method.scale, bounds, strict=True):
        steps = both[1].encode(submission.numpy()).view(np.int64)
        assert sum(int(step) ** 2 for step in steps) <= bound**2


@pytest.mark.parametrize("bare", [frozenset(), frozenset({0}), frozenset({0, 1})])
def test_the_noise_of_servers_is_in_the_sum_once_each(bare: frozenset[int]) -> None:
    method, guarantee, sizes = parts("softmax", noise_by="servers")
    sevens = exact(method, guarantee, sizes, sampler=lambda s, n: np.full(n, 7))
    plain, mechanism = quiet(method, guarantee, sizes)
    summation = RunningSum(sevens, bare)
    for each in (summation, plain):
        held = chunk().rounded(mechanism.grid)
        each.add(held.users, method.submit(held) * method.scale)
    extra = (summation.total() - plain.total()) / float(mechanism.step)
    assert torch.equal(extra, torch.full_like(extra, 7.0 * (2 - len(bare))))


def test_users_are_added_once_and_the_sum_is_opened_once_with_one_noise_of_the_servers() -> None:
    """A user's records would move it twice as far; two noises show what they are to hide."""
    method, guarantee, sizes = parts("softmax", fewest=USERS - 1, noise_by="servers")
    summation = RunningSum(exact(method, guarantee, sizes))
    zeros = torch.zeros(USERS, method.dimension, dtype=torch.float64)
    summation.add(torch.arange(1, USERS), zeros[1:])
    for user, words in ((2, "user must be added once, got 2 again"), (USERS, "user must be in")):
        with pytest.raises(ValueError, match=words):
            summation.add(torch.tensor([user]), zeros[:1])
    assert torch.equal(summation.total(), summation.total())
    with pytest.raises(ValueError, match="users must be added before the sum is opened"):
        summation.add(torch.tensor([0]), zeros[:1])


def test_many_rows_take_a_coarser_step_whose_rounding_is_charged() -> None:
    method, sizes = statistic("softmax"), torch.tensor([10**7, 10**7])
    guarantee = Guarantee.of(sizes, method, Privacy(1.0, 1e-5, noise_by="servers"))
    mechanism = DiscreteGaussian.calibrated(method, guarantee, sizes)
    assert max(mechanism.norm_bounds(method, sizes)) < 2**31
    assert mechanism.charged_sensitivity > guarantee.joint_sensitivity
    assert mechanism.epsilon(1e-5) <= 1.0


FORTY = 40  # rows of every user


def planned(name: str, users: int, epsilon: float, **options: Any):
    method, sizes = statistic(name, **options), torch.full((users,), FORTY)
    guarantee = Guarantee.of(sizes, method, Privacy(epsilon, 1e-5))
    return method, DiscreteGaussian.calibrated(method, guarantee, sizes), sizes


def alike(method: Any, integers: DiscreteGaussian, users: int) -> np.ndarray:
    """(users, D) uint64: every row the same and of full length: the longest that there is."""
    row = torch.zeros(FORTY, 6, dtype=torch.float64)
    row[:, 0], row[:, 1] = TRANSFORM.constant, TRANSFORM.reach
    held = one_user(row, torch.zeros(FORTY, dtype=torch.int64))
    words = integers.encode(submissions(method, held, integers.grid)[0].numpy())
    return np.stack([integers.noised(words) for _ in range(users)])


@pytest.mark.parametrize("name", METHODS_OF_CLASSES)
@pytest.mark.parametrize("epsilon", [1e-3, 1.0, 1e4])
def test_honest_users_reach_every_sum_of_theirs(name: str, epsilon: float) -> None:
    method, integers, sizes = planned(name, 5, epsilon)
    total = integers.decode(alike(method, integers, 5).sum(0, dtype=np.uint64))
    assert unreachable(total, method, integers, sizes) is None


@pytest.mark.parametrize("name", METHODS_OF_CLASSES)
@pytest.mark.parametrize("times", [10, 2**20])
def test_one_vector_ten_times_too_long_is_named(name: str, times: int) -> None:
    strong = {} if name in SUMS else {"l2_reg": 30.0}  # as long as heads can be
    method, integers, sizes = planned(name, 5, 1e3, **strong)
    sent = alike(method, integers, 5)
    sent[0] *= np.uint64(times)
    total = integers.decode(sent.sum(0, dtype=np.uint64))
    found = str(unreachable(total, method, integers, sizes))
    assert "honest users and their noise reach" in found


def test_noise_alone_stays_within_its_tails() -> None:
    """At most 2^-40 of sums are beyond, so none of 1,000; and the bounds are not idle."""
    method, integers, sizes = planned("discriminant", 2, 1e-3)
    words = np.zeros(method.dimension, np.uint64)
    totals = [integers.decode(integers.noised(words) + integers.noised(words)) for _ in range(1000)]
    assert all(unreachable(total, method, integers, sizes) is None for total in totals)
    longest = max(totals, key=torch.linalg.vector_norm)
    assert unreachable(12 * longest, method, integers, sizes) is not None


def test_sums_out_of_reach_are_named() -> None:
    """Three users' longest sum as that of two, words at random, entries that are long together."""
    method, integers, sizes = planned("discriminant", 3, 1e5)
    total = integers.decode(alike(method, integers, 3).sum(0, dtype=np.uint64))
    assert unreachable(total, method, integers, sizes[:2]) is not None
    words = np.random.default_rng(0).integers(0, 2**64, method.dimension, np.uint64)
    assert "an entry" in str(unreachable(integers.decode(words), method, integers, sizes))
    entry = 0.9 * sum(method.entry_bound(int(n)) for n in sizes)
    total = torch.full((method.dimension,), entry, dtype=torch.float64)
    assert "the length" in str(unreachable(total, method, integers, sizes))


DELTA = 1e-5
RATES = np.array([0.0, 1e-5, 1e-3, 0.02, 0.3, 0.9, 1.0])


def plan_of(sizes: Any, fewest: int | None = None, *, name: str = "discriminant", **more: Any):
    discrete, epsilon = more.pop("discrete", True), more.pop("epsilon", 1.0)
    statistic = made(name, PublicTransform.identity(4), 3).statistic
    privacy = Privacy(epsilon, DELTA, **more)
    return Plan.of(statistic, torch.as_tensor(sizes), privacy, fewest, discrete=discrete)


@pytest.mark.parametrize("discrete", [False, True])
@pytest.mark.parametrize(("users", "stated"), [(5, 1.47), (20, 2.7), (100, 6.9), (1000, 30)])
def test_one_users_own_noise_is_what_is_left(discrete: bool, users: int, stated: float) -> None:
    plan = plan_of([6] * users, -(-4 * users // 5), discrete=discrete)  # as a federation's
    found, guarantee = plan.report()["epsilon_if_all_others_collude"], plan.main.guarantee
    distance = guarantee.sensitivity * math.sqrt(guarantee.compositions)
    alone = plan.main.mechanism.local_std / distance
    exact = accounting.epsilon(DELTA, alone)
    assert exact <= found <= exact * 1.001
    assert found == pytest.approx(stated, rel=0.02)


@pytest.mark.parametrize("promise", [{"unit": "user"}, {"group_size": 3}, {"honest_fraction": 1}])
def test_it_is_never_below_the_promise(promise: dict[str, Any]) -> None:
    once, twice = map(plan_of([6] * 5, **promise).epsilon_if_all_others_collude, (1, 2))
    assert 1.0 < once < twice


def test_without_noise_or_with_that_of_servers_nothing_is_stated() -> None:
    """Two servers that collude see all that was sent: no ε is left, whatever the noise."""
    bare = plan_of([6] * 5, epsilon=math.inf).report()
    assert not {"epsilon_if_all_others_collude", "zero_out_epsilon"} & bare.keys()
    report = plan_of([6] * 5, noise_by="servers").report()
    assert "epsilon_if_all_others_collude" not in report
    said = report["noise_by"], report["honest_servers"], report["noise_servers"]
    assert said == ("servers", 1, 2)
    alone = plan_of([6])  # nobody is beside a single user
    assert alone.epsilon_if_all_others_collude() == pytest.approx(1.0, rel=1e-4)


@pytest.mark.parametrize("name", METHODS_OF_CLASSES)
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
@pytest.mark.parametrize("unit", ["record", "user"])
@pytest.mark.parametrize("group", [1, 2])
def test_the_same_noise_promises_no_less(name: str, epsilon: float, unit: Any, group: int) -> None:
    """ε follows the exact curve at the distance that is left; never above what is promised."""
    promise: dict[str, Any] = {"epsilon": epsilon, "unit": unit, "group_size": group}
    for discrete in (False, True):
        plan = plan_of([7, 3, 5, 5], name=name, discrete=discrete, **promise)
        found, (planned,) = plan.report(), plan.sums
        assert found["zero_out_epsilon"] <= epsilon * (1 + 1e-9)
        std = planned.mechanism.local_std * math.sqrt(planned.guarantee.honest)
        distance = found["zero_out_sensitivity"] * math.sqrt(planned.guarantee.compositions)
        exact = accounting.epsilon(DELTA, std / distance)
        assert exact <= found["zero_out_epsilon"] <= exact * 1.01


def report_of(epsilon: float, delta: float, **more: object) -> Report:
    multiplier = accounting.noise_multiplier(epsilon, delta, 2)
    curve = {"privacy_curve": "gaussian", "noise_multiplier": multiplier, "compositions": 2}
    return Report.of({"private": True, "epsilon": epsilon, "delta": delta, **curve, **more})


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
def test_the_best_test_of_two_gaussians_is_on_the_curve_and_none_is_above(epsilon: float) -> None:
    report = report_of(epsilon, DELTA)
    mu: Any = gaussian_mu(report)
    draws = np.random.default_rng(0).standard_normal(400_000)
    for rate in (0.001, 0.05, 0.5):
        found = (draws + mu > np.quantile(draws, 1 - rate)).mean()
        claimed = float(true_positives(report, np.array([rate]))[0])
        assert found == pytest.approx(claimed, abs=0.004)
        worse = (np.abs(draws + mu) > np.quantile(np.abs(draws), 1 - rate)).mean()
        assert worse < claimed + 0.004


def test_no_promise_is_exceeded_and_without_a_gaussian_curve_the_bound_is_looser() -> None:
    gaussian, other = (report_of(2.0, 1e-3, privacy_curve=curve) for curve in ("gaussian", None))
    for report in (gaussian, other):
        found = true_positives(report, RATES)
        assert (found >= RATES).all()
        assert (found <= np.minimum(math.exp(2.0) * RATES + 1e-3, 1) + 1e-12).all()
        assert (np.diff(found) >= 0).all()
        assert found[-1] == 1
        assert 2 * best_guess(report) - 1 >= (found - RATES).max() - 1e-9
    assert gaussian_mu(other) is None
    assert (true_positives(other, RATES) >= true_positives(gaussian, RATES)).all()
