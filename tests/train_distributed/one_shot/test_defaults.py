"""What is left out follows the noise, never a row; what is given wins."""

import math
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from embed import EmbeddingSet, PublicTransform
from embed.known_classes import ClassGuess, KnownClasses
from embed.water_filling import MOST, PLANNED_SHARE, Channel
from tests.train_distributed.one_shot.builders import METHODS_OF_CLASSES, embedded, simulated
from train_distributed import Privacy
from train_distributed.one_shot.registry import METHODS, SURE, build_method, moment_weight
from train_distributed.one_shot.request import (
    L2_REGS,
    QUIET,
    RIVALS,
    ROUNDS,
    FederationSize,
    ReleaseRequest,
    components_of,
    rule_of,
)
from train_distributed.one_shot.summation import Plan
from train_distributed.partition import split
from train_distributed.research.rivals.learn import ALL_METHODS

PLAIN = PublicTransform.identity(5)
HEADS = ("softmax", "svm", "logistic")
BY_USER = Privacy(1.0, 1e-5, unit="user")


def known(
    method: str = "discriminant", epsilon: float = 1.0, users: int = 100, rows: int = 25, **own: Any
) -> ReleaseRequest:
    """Fields of the sizes, of the request, and options of the method."""
    size = {"sizes": torch.full((users,), rows), "num_classes": 10, "held_by": "process"}
    size = {name: own.pop(name, value) for name, value in size.items()}
    given = {"transform": PLAIN, "privacy": Privacy(epsilon, 1e-5), "min_survivors": None}
    given = {name: own.pop(name, value) for name, value in given.items()}
    return ReleaseRequest(embeddings=FederationSize(**size), method=method, options=own, **given)


def noise_of(method: str = "discriminant", *given: Any, **more: Any) -> float:
    """t of a method's only sum."""
    return known(method, *given, **more).class_noise()


def settings(method: str = "discriminant", **more: Any) -> dict[str, Any]:
    return known(method, **more).settings.options


def digits_like(n: int, seed: int, classes: int = 10) -> EmbeddingSet:
    """Ten classes far apart in 40 of 200 directions, on top of directions that say nothing."""
    rng, means = np.random.default_rng(seed), np.zeros((classes, 200))
    means[:, :40] = np.random.default_rng(9).standard_normal((classes, 40))
    labels = rng.integers(classes, size=n)
    spread = np.concatenate([np.full(40, 1.0), np.geomspace(0.7, 0.1, 160)])
    rows = means[labels] + spread * rng.standard_normal((n, 200))
    return embedded(rows, labels, classes, test=np.arange(n) >= n - 1000)


@cache
def public_transform() -> PublicTransform:
    return PublicTransform.fit(digits_like(1500, 2, classes=30))


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
    plan = Plan.of(method, facts.size.sizes, privacy, min_survivors=90, discrete=False)
    own = next(each.mechanism for each in plan.sums if each.submission is method.statistic)
    std = own.noise_std(100) / 250
    found = facts.class_noise(**more)
    assert found == pytest.approx(std, rel=1e-6)


def test_rows_of_users_that_are_clipped_are_as_many_as_the_clip_is_long() -> None:
    """Where users are protected: a clip of C_u is known of sums, not of heads."""
    facts, one = known(privacy=BY_USER), noise_of()
    assert facts.class_noise() == pytest.approx(25 * one)
    assert facts.class_noise(5.0) == pytest.approx(5 * one)
    assert facts.class_noise(50.0) == facts.class_noise()
    assert known().class_noise(0.5) == one
    pair = known(privacy=replace(BY_USER, group_size=2))
    assert pair.class_noise(5.0) == pytest.approx(10 * one)
    given = {"privacy": BY_USER, "transform": public_transform(), "user_clip": 5.0}
    assert settings(**given)["class_noise"] == facts.class_noise(5.0)
    assert settings("softmax", **given)["class_noise"] == noise_of("softmax", privacy=BY_USER)


def test_noise_of_other_ways_to_add_it() -> None:
    """m: w/H users share it, each of w adds all of it, or one place does."""
    sums, alone, one = (noise_of(m) for m in ("softmax", "dp-fl", "amp"))
    assert sums == pytest.approx(math.sqrt(2) * one)
    assert alone == pytest.approx(10 * one)
    servers = noise_of("softmax", privacy=Privacy(1.0, 1e-5, noise_by="servers"))
    assert servers == pytest.approx(math.sqrt(2) * one)
    several = noise_of("output-perturbation")  # of ten parts that a record moves
    assert several == pytest.approx(math.sqrt(10) * sums, rel=0.01)
    assert noise_of("softmax", math.inf) == 0


def regulariser(method: str, noise: float) -> float:
    l2_reg = rule_of(method).l2_reg
    assert l2_reg is not None
    return min(max(l2_reg * noise, L2_REGS[0]), L2_REGS[1])


@pytest.mark.parametrize("method", METHODS_OF_CLASSES)
def test_settings_follow_from_the_noise_of_the_method_s_own_sum(method: str) -> None:
    """Rows of a public transform are summed twice and mapped, those of the identity as they are."""
    transform, noise = public_transform(), known(method).class_noise(sums=2)
    q = components_of(rule_of(method), transform, noise)
    mapped = {"sums": 2, "class_noise": noise, "components": q}
    plain: dict[str, Any] = {}
    if method in HEADS:
        mapped |= {"l2_reg": regulariser(method, noise), "prior": "equal"}
        plain = {"l2_reg": regulariser(method, noise_of(method, 0.3)), "prior": "equal"}
    assert settings(method, transform=transform) == mapped
    assert settings(method, epsilon=0.3) == plain


MAPPED: dict[str, Any] = {"transform": public_transform()}
ALONE: dict[str, Any] = {"epsilon": 3.0, "users": 1, "rows": 7000}  # one owner, little noise
CROWD, HONEST = torch.full((1000,), 50), 7.9  # √(1.25 · 50)
STRANGERS: dict[str, Any] = {"held_by": "strangers", "sizes": CROWD}
EXTREME = [(math.inf, L2_REGS[0]), (0.05, L2_REGS[1])]
TRAINED = {"l2_reg": 7.0, "prior": "private"}
GIVEN = {"sums": 1, "class_noise": 0.3, "components": 7, "l2_reg": 0.2, "prior": "private"}
TWO_SUMS: list[tuple[dict[str, Any], Any, int]] = [
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
]
SETTINGS: list[tuple[dict[str, Any], dict[str, Any]]] = [  # asked, and what is found; None: nothing
    # two sums are for records, or where the first is clipped: 50 rows of a user move it by 100
    *(
        (given | more | {"privacy": Privacy(1.0, 1e-5, unit=unit)}, {"sums": sums})
        for more in (MAPPED, MAPPED | {"method": "softmax"}, MAPPED | {"held_by": "parties"})
        for given, unit, sums in TWO_SUMS
    ),
    *(({"method": "softmax", "epsilon": e}, {"l2_reg": b}) for e, b in EXTREME),
    # what is given wins
    (TRAINED | {"method": "svm"}, TRAINED),
    ({"method": "softmax", "l2_reg": 7.0}, {"l2_reg": 7.0, "prior": "equal"}),
    (GIVEN | MAPPED | {"method": "logistic"}, GIVEN),
    (MAPPED | {"components": 7}, {"components": 7}),
    (MAPPED | {"method": "softmax", "user_clip": 1.0}, {"prior": None}),  # shortens features too
    # further rounds are one owner's, where noise is small
    *(
        (ALONE | more | other, {"rounds": rounds})
        for more in ({}, MAPPED)
        for other, rounds in (
            ({}, ROUNDS),
            ({"users": 2, "rows": 35_000}, None),
            ({"epsilon": math.inf}, None),  # nothing is hidden
            ({"epsilon": 0.1}, None),
            ({"user_clip": 3.0}, None),
            ({"method": "softmax"}, None),
            ({"held_by": "parties"}, 0),
            ({"rounds": 0}, 0),
            ({"rounds": 4}, 4),
        )
    ),
    # many users' vectors are as long as honest ones; liars do not lengthen them
    *(
        (STRANGERS | other, {"user_clip": clip})
        for other, clip in (
            ({}, HONEST),
            ({"prior": "equal"}, HONEST),
            ({"user_clip": 3.0}, 3.0),
            ({"sizes": CROWD[:99]}, None),
            ({"sizes": CROWD[:100]}, HONEST),
            ({"method": "softmax"}, None),
            ({"held_by": "parties"}, None),
            ({"sizes": torch.cat([CROWD[:900], torch.full((100,), 10**6)])}, HONEST),
            ({"sizes": torch.cat([CROWD[:900], torch.full((100,), 1)])}, HONEST),
            (MAPPED, (55.9, HONEST)),  # √1.25 · 50 of rows with a mean in common
            (MAPPED | {"sums": 1}, HONEST),
        )
    ),
]


@pytest.mark.parametrize(("asked", "found"), SETTINGS)
def test_settings_that_are_left_out(asked: dict[str, Any], found: dict[str, Any]) -> None:
    request = known(**asked)
    options = request.settings.options
    assert {name: options.get(name) for name in found} == found
    if "sums" in found:
        assert (request.built.first is not None) == (found["sums"] == 2)


def test_settings_of_mapped_rows_follow_from_the_noise_of_the_own_sum() -> None:
    noisy = settings(**MAPPED, class_noise=9.0)
    assert noisy["components"] == components_of(rule_of("discriminant"), public_transform(), 9.0)
    for more, sums in (({}, 1), (MAPPED, 2)):
        assert 0 < known(**ALONE, **more).class_noise(sums=sums) < QUIET
    noise = known(**ALONE, **MAPPED).class_noise(sums=2, rounds=ROUNDS)
    assert settings(**ALONE, **MAPPED)["class_noise"] == noise


def test_directions_hold_what_the_rule_asks_for_and_all_where_classes_are_known() -> None:
    transform = public_transform()
    channel, counts = Channel.of(transform.public, PLANNED_SHARE), []
    for method, noise in product(("discriminant", "softmax"), (1e6, 2.0, 0.05, 1e-3)):
        rule = rule_of(method)
        counts.append(q := components_of(rule, transform, noise))
        heard = channel.strengths * channel.lengths(noise).square() / noise**2
        held = heard.log1p().cumsum(0) / heard.log1p().sum()
        assert float(held[q - 1]) >= min(rule.information, 1 - 1e-9)
        assert q == 1 or float(held[q - 2]) < rule.information
    assert 1 <= counts[0] <= counts[1] < counts[2] < counts[3] <= MOST
    width = len(transform.row_mean)
    guess = ClassGuess("names", torch.zeros(width, 10).double(), torch.eye(width).double())
    knowing = replace(transform, known=KnownClasses(tuple("abcdefghij"), (guess,)))
    assert counts[1] < components_of(rule_of("discriminant"), knowing, 2.0) == min(MOST, width)


def test_a_resolved_request_says_every_setting() -> None:
    """Those of the method's statistic, too, which no rule fills in."""
    head, alone = known("softmax", **MAPPED, solver="sgd").resolved, known(**ALONE).resolved
    assert (head["sums"], head["options"]["solver"]) == (2, "sgd")
    assert {"epochs", "batch_size", "bound"} <= head["statistic"].keys()
    assert (alone["sums"], alone["statistic"]["moments"]) == (1 + ROUNDS, True)
    assert "statistic" not in known("amp").resolved


def test_second_moments_weigh_more_the_less_noise_the_means_have() -> None:
    """From where they cost nothing to √2 times that."""
    weights = [moment_weight(t * SURE) for t in (4.001, 3.9, 2.0, 1.0, 0.1, 0.0)]
    assert weights == [None, 0.71, 0.84, 1.0, 1.0, 1.0]
    for given, expected in (
        ({"class_noise": 1.0}, None),
        ({}, 0.84),
        ({"sums": 2}, 0.84),
        ({"alpha": 0.5}, 0.5),
        ({"moments": False}, None),
        ({"user_clip": 3.0}, None),
    ):
        options = {"class_noise": 2 * SURE, "components": 4, **given}
        statistic: Any = build_method("discriminant", public_transform(), 10, options).statistic
        assert statistic.unclipped.alpha == expected


def test_rows_of_rivals_are_mapped_once_for_their_own_noise() -> None:
    assert set(RIVALS) <= set(ALL_METHODS)
    transform = public_transform()
    for method in sorted(set(ALL_METHODS) - set(METHODS)):
        rule, noise = rule_of(method), noise_of(method)
        made, options = known(method, **MAPPED).settings
        assert made.same_rows(transform.mapped(noise, components_of(rule, transform, noise)))
        wanted = None if rule.l2_reg is None else regulariser(method, noise)
        assert options.get("l2_reg") == wanted
        few, rest = known(method, **MAPPED, components=3).settings
        assert few.same_rows(transform.mapped(noise, 3))
        assert "components" not in rest
        for as_they_are in (PLAIN, made):
            assert known(method, transform=as_they_are).settings.transform is as_they_are
    kept = {"l2_reg": 0.5, "cut_rounds": 9}
    for method in ("amp", "charter"):
        assert settings(method, **kept) == kept
    assert settings("charter") == {"cut_rounds": 2}
    for fewest in (1, 4):
        sizes = torch.tensor([100, fewest])
        assert settings("charter-sum", sizes=sizes) == {"cut_rounds": 1}


@pytest.mark.parametrize("method", ["softmax", "svm", "discriminant"])
def test_defaults_are_near_the_best_of_a_grid(method: str) -> None:
    """Rows of no task that the rule was fitted to; the grid looks at the test rows, it does not."""
    data, transform = digits_like(3500, 1), PublicTransform.fit(digits_like(1500, 2))
    users = split(torch.from_numpy(data.labels[:2500]), 100, "iid", generator=torch.Generator())

    def accuracy(**options: Any) -> float:
        given = {"transform": transform, "partition": users, **options}
        return simulated(data, method, 3.0, **given).report["test_accuracy"]

    l2_regs = [{"l2_reg": l2_reg} for l2_reg in (0.03, 0.3, 1.0)]
    l2_regs = [{}] if method == "discriminant" else l2_regs
    grid = [accuracy(components=q, **l2_reg) for q in (4, 9, 40) for l2_reg in l2_regs]
    assert accuracy() > max(grid) - 0.05
