"""What is left out follows the noise, never a row; what is given wins."""

import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from embed import EmbeddingSet, PublicTransform
from embed.known_classes import ClassGuess, KnownClasses
from embed.water_filling import MOST, PLANNED_SHARE, Channel
from tests.train_distributed.research.learning import learn
from train_distributed import Privacy, release
from train_distributed.one_shot.defaults import (
    L2_REGS,
    OTHERS,
    QUIET,
    RIVALS,
    ROUNDS,
    PublicFacts,
    components_of,
    rule_of,
)
from train_distributed.one_shot.first_sum import FIRST_SHARE
from train_distributed.one_shot.further_rounds import OWN_SHARE
from train_distributed.one_shot.registry import METHODS, SURE, build_method, moment_weight
from train_distributed.one_shot.summation import Plan
from train_distributed.partition import split
from train_distributed.research.baselines.learn import ALL_METHODS

PLAIN = PublicTransform.identity(5)
HEADS = ("softmax", "svm", "logistic")
BY_USER = Privacy(1.0, 1e-5, unit="user")


def known(epsilon: float = 1.0, users: int = 100, rows: int = 25, **more: Any) -> PublicFacts:
    privacy = more.pop("privacy", Privacy(epsilon, 1e-5))
    sizes = torch.full((users,), rows)
    return PublicFacts(sizes=sizes, privacy=privacy, **{"num_classes": 10, **more})


def digits_like(n: int, seed: int, classes: int = 10) -> EmbeddingSet:
    """Ten classes far apart in 40 of 200 directions, on top of directions that say nothing."""
    rng = np.random.default_rng(seed)
    means = np.zeros((classes, 200))
    means[:, :40] = np.random.default_rng(9).standard_normal((classes, 40))
    labels = rng.integers(classes, size=n)
    spread = np.concatenate([np.full(40, 1.0), np.geomspace(0.7, 0.1, 160)])
    rows = means[labels] + spread * rng.standard_normal((n, 200))
    cut = (np.arange(n) >= n - 1000).astype(np.uint8)
    names = {"class_names": [str(k) for k in range(classes)]}
    return EmbeddingSet(embeddings=rows.astype(np.float32), labels=labels, split=cut, meta=names)


@cache
def public_transform() -> PublicTransform:
    return PublicTransform.fit(digits_like(1500, 2, classes=30))


# Noise


@pytest.mark.parametrize(
    ("sums", "rounds", "share"),
    [
        (1, 0, 1.0),
        (2, 0, 1 - FIRST_SHARE),
        (1, 4, OWN_SHARE),
        (2, 4, (1 - FIRST_SHARE) * OWN_SHARE),
    ],
)
def test_the_noise_is_that_of_a_class_mean(sums: int, rounds: int, share: float) -> None:
    """By simulation: K class sums, each of N/K rows of norm 1, and one sum's noise.

    A row may become the opposite one, which moves its class sum by 2.
    """
    facts, draw = known(1.0), torch.Generator().manual_seed(0)
    multiplier = 3.7306  # of epsilon 1 at delta 1e-5
    shares = torch.randn(100, 10_000, generator=draw, dtype=torch.float64)
    noise = 2 * shares.sum(0) * multiplier / math.sqrt(50 * share)  # half of 100 users must suffice
    expected = float(noise.std()) / 250
    found = facts.noise(rule_of("discriminant"), sums=sums, rounds=rounds)
    assert found == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(
    "privacy",
    [
        Privacy(1.0, 1e-5),
        Privacy(0.1, 1e-9, group_size=3),
        Privacy(3.0, 1e-5, honest_fraction=0.8),
        Privacy(1.0, 1e-5, noise_by="servers"),
        BY_USER,
    ],
)
@pytest.mark.parametrize("more", [{}, {"sums": 2}, {"rounds": 3}, {"sums": 2, "rounds": 3}])
def test_it_is_what_the_guarantee_of_class_sums_says(privacy: Privacy, more: dict) -> None:
    """Of that sum, with the share of the promise that other sums leave it."""
    facts = known(privacy=privacy, min_survivors=90)
    transform = PublicTransform.identity(4, math.sqrt(1.25), 0.5)
    given = {**more, "moments": False, "class_noise": 1.0, "components": 4}
    method = build_method("discriminant", transform, 10, given)
    plan = Plan.of(method, facts.sizes, privacy, min_survivors=90, discrete=False)
    own = next(each.mechanism for each in plan.sums if each.submission is method.statistic)
    std = own.noise_std(100) / 250
    found = facts.noise(rule_of("discriminant"), **more)
    assert found == pytest.approx(std, rel=1e-6)


def test_rows_of_users_that_are_clipped_are_as_many_as_the_clip_is_long() -> None:
    """Where users are protected: a clip of C_u is known of sums, not of heads."""
    rule = rule_of("discriminant")
    facts = known(privacy=BY_USER)
    assert facts.noise(rule) == pytest.approx(25 * known().noise(rule))
    assert facts.noise(rule, 5.0) == pytest.approx(5 * known().noise(rule))
    assert facts.noise(rule, 50.0) == facts.noise(rule)
    assert known().noise(rule, 0.5) == known().noise(rule)
    pair = replace(facts, privacy=replace(BY_USER, group_size=2))
    assert pair.noise(rule, 5.0) == pytest.approx(10 * known().noise(rule))
    for method, clipped in (("discriminant", facts.noise(rule, 5.0)), ("softmax", None)):
        found = facts.settings(method, public_transform(), {"user_clip": 5.0})["class_noise"]
        assert found == (facts.noise(rule_of(method)) if clipped is None else clipped)


def test_noise_of_other_ways_to_add_it() -> None:
    """m: w/H users share it, each of w adds all of it, or one place does."""
    sums, alone, central = (rule_of(m) for m in ("softmax", "dp-fl", "amp"))
    one = known().noise(central)
    assert known().noise(sums) == pytest.approx(math.sqrt(2) * one)
    assert known().noise(alone) == pytest.approx(10 * one)
    servers = known(privacy=Privacy(1.0, 1e-5, noise_by="servers"))
    assert servers.noise(sums) == pytest.approx(math.sqrt(2) * one)
    several = known().noise(rule_of("output-perturbation"))  # of ten parts that a record moves
    assert several == pytest.approx(math.sqrt(10) * known().noise(sums), rel=0.01)
    assert known(math.inf).noise(sums) == 0


def test_more_of_anything_that_hides_gives_fewer_directions_and_more_regularisation() -> None:
    transform = public_transform()
    for method in ("discriminant", *HEADS):
        found = [
            known(e, users=400, rows=50).settings(method, transform, {})
            for e in (0.01, 0.1, 1, 20, math.inf)
        ]
        scarce = [each["components"] for each in found]
        assert scarce == sorted(scarce)
        assert 1 <= scarce[0] < scarce[-1] <= MOST
        noises = [each["class_noise"] for each in found]
        assert noises == sorted(noises, reverse=True)
        assert noises[-1] == 0
    l2_regs = [
        known(e).settings("softmax", PLAIN, {})["l2_reg"] for e in (0.05, 1, 3, 10, math.inf)
    ]
    assert l2_regs == sorted(l2_regs, reverse=True)
    assert (l2_regs[0], l2_regs[-1]) == (L2_REGS[1], L2_REGS[0])
    rule = rule_of("softmax")
    one = known().noise(rule)
    for harder in (
        known(privacy=BY_USER),
        known(privacy=Privacy(1.0, 1e-5, group_size=3)),
        known(privacy=Privacy(1.0, 1e-5, honest_fraction=0.2)),
        known(min_survivors=80),
        known(num_classes=20),
        known(rows=10),
    ):
        assert harder.noise(rule) > one


# Settings


def test_rows_of_a_public_transform_are_summed_twice_and_mapped_for_their_noise() -> None:
    transform, facts = public_transform(), known()
    rule = rule_of("discriminant")
    found = facts.settings("discriminant", transform, {})
    noise = facts.noise(rule, sums=2)
    assert found == {
        "sums": 2,
        "class_noise": noise,
        "components": components_of(rule, transform, noise),
    }
    for method in HEADS:
        rule = rule_of(method)
        noise = facts.noise(rule, sums=2)
        l2_reg = rule.l2_reg * noise  # pyright: ignore[reportOptionalOperand]
        assert facts.settings(method, transform, {}) == {
            "sums": 2,
            "class_noise": noise,
            "components": components_of(rule, transform, noise),
            "l2_reg": min(max(l2_reg, L2_REGS[0]), L2_REGS[1]),
            "prior": "equal",
        }


def test_rows_of_the_identity_are_summed_once_as_they_are() -> None:
    assert known().settings("discriminant", PLAIN, {}) == {}
    for method in HEADS:
        found = known(0.3).settings(method, PLAIN, {})
        rule = rule_of(method)
        assert found.keys() == {"l2_reg", "prior"}
        wanted = rule.l2_reg * known(0.3).noise(rule)  # pyright: ignore[reportOptionalOperand]
        assert found["l2_reg"] == min(wanted, L2_REGS[1])


@pytest.mark.parametrize(
    ("given", "unit", "sums"),
    [
        ({}, "record", 2),
        ({}, "user", 1),
        ({"user_clip": 5.0}, "record", 1),
        ({"user_clip": 5.0}, "user", 1),
        ({"user_clip": (5.0,)}, "user", 1),
        ({"user_clip": (4.0, 5.0)}, "record", 2),
        ({"user_clip": (4.0, 5.0)}, "user", 2),
        ({"sums": 1}, "record", 1),
        ({"sums": 2}, "user", 2),
        ({"sums": 1, "user_clip": (4.0,)}, "record", 1),
    ],
)
@pytest.mark.parametrize("method", ["discriminant", "softmax"])
def test_two_sums_are_for_records_or_where_the_first_is_clipped(
    method: str, given: dict, unit: Any, sums: int
) -> None:
    """50 rows of one user move a sum of features by 100, unless it is clipped."""
    facts = known(privacy=Privacy(1.0, 1e-5, unit=unit))
    found = facts.settings(method, public_transform(), given)
    assert found["sums"] == sums
    built = build_method(method, public_transform(), 10, found)
    assert (built.first is not None) == (sums == 2)
    assert (
        built.statistic.own_transform is None
        or built.statistic.own_transform.directions is not None
    )


def test_what_is_given_wins() -> None:
    transform, facts = public_transform(), known()
    plain = {"l2_reg": 7.0, "prior": "private"}
    assert facts.settings("svm", PLAIN, plain) == plain
    assert facts.settings("softmax", PLAIN, {"l2_reg": 7.0}) == {"l2_reg": 7.0, "prior": "equal"}
    given = {"sums": 1, "class_noise": 0.3, "components": 7, "l2_reg": 0.2, "prior": "private"}
    assert facts.settings("logistic", transform, given) == given
    few = facts.settings("discriminant", transform, {"components": 7})
    assert few["components"] == 7
    noisy = facts.settings("discriminant", transform, {"class_noise": 9.0})
    assert noisy["components"] == components_of(rule_of("discriminant"), transform, 9.0)
    clipped = facts.settings("softmax", transform, {"user_clip": 1.0})
    assert "prior" not in clipped  # a clip would shorten the features with the head


def test_directions_hold_what_the_rule_asks_for_and_all_where_classes_are_known() -> None:
    transform = public_transform()
    for method in ("discriminant", "softmax"):
        rule = rule_of(method)
        channel = Channel.of(transform.public, PLANNED_SHARE)
        for noise in (1e-3, 0.05, 2.0):
            q = components_of(rule, transform, noise)
            heard = channel.strengths * channel.lengths(noise).square() / noise**2
            held = heard.log1p().cumsum(0) / heard.log1p().sum()
            assert float(held[q - 1]) >= min(rule.information, 1 - 1e-9)
            assert q == 1 or float(held[q - 2]) < rule.information
    few = components_of(rule_of("discriminant"), transform, 2.0)
    width = len(transform.row_mean)
    guess = ClassGuess("names", torch.zeros(width, 10).double(), torch.eye(width).double())
    knowing = replace(transform, known=KnownClasses(tuple("abcdefghij"), (guess,)))
    assert few < components_of(rule_of("discriminant"), knowing, 2.0) == min(MOST, width)


def test_one_owner_makes_further_rounds_where_noise_is_small_and_nobody_else_does() -> None:
    alone = known(3.0, users=1, rows=7000)
    rule = rule_of("discriminant")
    for transform, sums in ((PLAIN, 1), (public_transform(), 2)):
        assert 0 < alone.noise(rule, sums=sums) < QUIET
        found = alone.settings("discriminant", transform, {})
        assert found["rounds"] == ROUNDS
        if sums == 2:
            assert found["class_noise"] == alone.noise(rule, sums=2, rounds=ROUNDS)
        for other in (
            known(3.0, users=2, rows=35_000),
            known(math.inf, users=1, rows=7000),  # nothing is hidden
            known(0.1, users=1, rows=7000),
        ):
            assert "rounds" not in other.settings("discriminant", transform, {})
        assert "rounds" not in alone.settings("discriminant", transform, {"user_clip": 3.0})
        assert alone.settings("discriminant", transform, {"rounds": 0})["rounds"] == 0
        assert alone.settings("discriminant", transform, {"rounds": 4})["rounds"] == 4
        assert "rounds" not in alone.settings("softmax", transform, {})


def test_many_users_vectors_are_as_long_as_honest_ones() -> None:
    """Unless there are few users, a clip, or heads; liars do not lengthen them."""
    many = known(users=1000, rows=50)
    honest = {"user_clip": 7.9}  # √(1.25 · 50)
    assert many.against_liars("discriminant", {}) == honest
    assert many.against_liars("discriminant", {"prior": "equal"}) == {"prior": "equal", **honest}
    assert many.against_liars("discriminant", {"user_clip": 3.0}) == {"user_clip": 3.0}
    assert known(users=99).against_liars("discriminant", {}) == {}
    assert known(users=100).against_liars("discriminant", {}) == {"user_clip": 5.6}
    assert many.against_liars("softmax", {}) == {}
    boasting = replace(many, sizes=torch.cat([many.sizes[:900], torch.full((100,), 10**6)]))
    assert boasting.against_liars("discriminant", {}) == honest
    modest = replace(many, sizes=torch.cat([many.sizes[:900], torch.full((100,), 1)]))
    assert modest.against_liars("discriminant", {}) == honest


def test_second_moments_weigh_more_the_less_noise_the_means_have() -> None:
    """From where they cost nothing to √2 times that, which costs the sums 6 % more noise."""
    assert moment_weight(4.001 * SURE) is None
    assert moment_weight(3.9 * SURE) == 0.71
    assert moment_weight(2 * SURE) == 0.84
    assert moment_weight(SURE) == moment_weight(0.1 * SURE) == moment_weight(0.0) == 1.0
    transform = public_transform()

    def weight(noise: float, **given: Any) -> float | None:
        options = {"class_noise": noise, "components": 4, **given}
        statistic: Any = build_method("discriminant", transform, 10, options).statistic
        return statistic.unclipped.alpha

    assert weight(1.0) is None
    assert weight(2 * SURE) == 0.84
    assert weight(2 * SURE, sums=2) == 0.84
    assert weight(2 * SURE, alpha=0.5) == 0.5
    for left_out in ({"moments": False}, {"user_clip": 3.0}):
        assert weight(2 * SURE, **left_out) is None
    plain = PublicTransform.identity(3, 1.25**0.5, 0.5)
    free, heavy = (
        build_method("discriminant", plain, 10, given).statistic.record_sensitivity(torch.ones(1))
        for given in ({}, {"alpha": 1.0})
    )
    assert 1.06 < heavy / free < 1.061


# Methods that we compare with


def test_rules_are_of_methods_that_exist() -> None:
    assert set(RIVALS) <= set(ALL_METHODS)
    assert OTHERS.l2_reg is None
    for method in METHODS:
        assert rule_of(method) is METHODS[method].rule


def test_rows_of_rivals_are_mapped_once_for_their_own_noise() -> None:
    transform, facts = public_transform(), known()
    for method in sorted(set(ALL_METHODS) - set(METHODS)):
        rule = rule_of(method)
        noise = facts.noise(rule)
        made, options = facts.of_rival(method, transform, {})
        q = components_of(rule, transform, noise)
        assert made.same_rows(transform.mapped(noise, q))
        assert ("l2_reg" in options) == (rule.l2_reg is not None)
        if rule.l2_reg is not None:
            assert options["l2_reg"] == min(max(rule.l2_reg * noise, L2_REGS[0]), L2_REGS[1])
        few, rest = facts.of_rival(method, transform, {"components": 3})
        assert few.same_rows(transform.mapped(noise, 3))
        assert "components" not in rest
        for as_they_are in (PLAIN, made):
            assert facts.of_rival(method, as_they_are, {})[0] is as_they_are
    kept = {"l2_reg": 0.5, "cut_rounds": 9}
    for method in ("amp", "charter"):
        assert facts.of_rival(method, PLAIN, kept)[1] == kept
    assert facts.of_rival("charter", PLAIN, {})[1] == {"cut_rounds": 2}
    tiny = replace(facts, sizes=torch.tensor([100, 4]))
    assert tiny.of_rival("charter-sum", PLAIN, {})[1] == {"cut_rounds": 1}


@pytest.mark.parametrize("users", [1, 2, 1000])
def test_a_single_user_and_tiny_sets_have_defaults_too(users: int) -> None:
    facts, transform = known(0.01, users=users, rows=1, num_classes=2), public_transform()
    for method in ALL_METHODS:
        if method not in METHODS:
            made, options = facts.of_rival(method, transform, {})
            assert 2 <= made.dim <= 1 + MOST
        else:
            options = facts.settings(method, transform, {})
            assert 1 <= options["components"] <= MOST
            assert build_method(method, transform, 2, options).dim >= 2
        assert all(0 < value < math.inf for name, value in options.items() if name != "prior")


# What they are worth


@pytest.mark.parametrize(
    ("method", "loss"), [("softmax", 0.05), ("svm", 0.05), ("discriminant", 0.05)]
)
def test_defaults_are_near_the_best_of_a_grid(method: str, loss: float) -> None:
    """Rows of no task that the rule was fitted to; the grid looks at the test rows, it does not."""
    data = digits_like(3500, 1)
    users = split(torch.from_numpy(data.labels[:2500]), 100, "iid", generator=torch.Generator())
    transform = PublicTransform.fit(digits_like(1500, 2))

    def accuracy(**options: Any) -> float:
        made = learn(
            data,
            method,
            Privacy(3.0, 1e-5),
            transform=transform,
            partition=users,
            noise="float",
            generator=torch.Generator().manual_seed(0),
            **options,
        )
        return made.report["test_accuracy"]

    l2_regs = (0.03, 0.3, 1.0) if method != "discriminant" else (None,)
    grid = [
        accuracy(components=q, **({} if l2_reg is None else {"l2_reg": l2_reg}))
        for q in (4, 9, 40)
        for l2_reg in l2_regs
    ]
    assert accuracy() > max(grid) - loss


def test_a_release_says_which_regulariser_it_took() -> None:
    data = digits_like(1400, 3)
    users = split(torch.from_numpy(data.labels[:400]), 10, "iid", generator=torch.Generator())
    promise = Privacy(3.0, 1e-5)
    facts = known(3.0, users=10, rows=40)
    for transform in (None, public_transform()):
        made = release(
            data, "softmax", promise, partition=users, noise="float", transform=transform
        )
        wanted = facts.settings("softmax", transform or PLAIN, {})
        assert made.report["l2_reg"] == wanted["l2_reg"]
