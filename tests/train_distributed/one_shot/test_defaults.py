"""What is left out follows the noise, never a row; what is given wins."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from embed.transform_options import TransformOptions
from train_distributed.one_shot.centring import OTHER

from embed import EmbeddingSet, PublicTransform
from tests.train_distributed.research.learning import learn
from train_distributed import Privacy, release
from train_distributed.commands.configuration import RunConfig
from train_distributed.one_shot.defaults import (
    COMPONENTS,
    FAINT,
    L2_REGS,
    OTHERS,
    QUIET,
    RIVALS,
    ROUNDS,
    WRITTEN,
    PublicFacts,
    rule_of,
)
from train_distributed.one_shot.registry import METHODS, build_method
from train_distributed.partition import split
from train_distributed.research.baselines.learn import ALL_METHODS


def known(epsilon: float = 1.0, users: int = 100, rows: int = 25, **more: Any) -> PublicFacts:
    privacy = more.pop("privacy", Privacy(epsilon, 1e-5))
    sizes = torch.full((users,), rows)
    return PublicFacts(sizes=sizes, privacy=privacy, **{"num_classes": 10, **more})


def test_the_noise_is_that_of_a_class_mean() -> None:
    """By simulation: K class sums, each of N/K rows of norm 1, and one sum's noise."""
    rule, circumstances = rule_of("discriminant"), known(1.0)
    draw = torch.Generator().manual_seed(0)
    multiplier = 3.7306  # of epsilon 1 at delta 1e-5
    shares = torch.randn(100, 10_000, generator=draw, dtype=torch.float64)
    noise = shares.sum(0) * multiplier / math.sqrt(50)  # half of 100 users must suffice
    assert circumstances.noise(rule) == pytest.approx(float(noise.std()) / 250, rel=0.02)


def test_many_users_vectors_are_as_long_as_honest_ones() -> None:
    """Unless there are few users, a clip, further rounds, or heads; liars do not lengthen them."""
    many = known(users=1000, rows=50)
    assert many.against_liars("discriminant", {}, 2**0.5) == {"user_clip": 10.0}
    assert many.against_liars("discriminant", {"prior": "equal"}, 2**0.5) == {
        "prior": "equal",
        "user_clip": 10.0,
    }
    for given in ({"user_clip": 3.0}, {"rounds": 4}):
        assert many.against_liars("discriminant", given, 2**0.5) == given
    assert known(users=99).against_liars("discriminant", {}, 2**0.5) == {}
    assert many.against_liars("softmax", {}, 2**0.5) == {}
    boasting = replace(many, sizes=torch.cat([many.sizes[:900], torch.full((100,), 10**6)]))
    assert boasting.against_liars("discriminant", {}, 2**0.5) == {"user_clip": 10.0}


def test_more_of_anything_that_hides_gives_fewer_directions_and_more_regularisation() -> None:
    for method in ("discriminant", "softmax", "svm", "logistic"):
        scarce = [known(e, users=400, rows=50).components(method, 1280) for e in (0.05, 0.5, 3, 20)]
        assert scarce == sorted(scarce)
        assert scarce[0] < scarce[-1]
        assert COMPONENTS[0] <= scarce[0]
        assert scarce[-1] <= COMPONENTS[1]
    l2_regs = [known(e).options("softmax", {})["l2_reg"] for e in (0.1, 1, 3, 10, math.inf)]
    assert l2_regs == sorted(l2_regs, reverse=True)
    assert l2_regs[-1] == L2_REGS[0]
    rule = rule_of("softmax")
    one = known(privacy=Privacy(1.0, 1e-5)).noise(rule)
    for harder in (
        known(privacy=Privacy(1.0, 1e-5, unit="user")),
        known(privacy=Privacy(1.0, 1e-5, group_size=3)),
        known(privacy=Privacy(1.0, 1e-5, honest_fraction=0.2)),
        known(min_survivors=80),
        known(num_classes=20),
        known(rows=10),
    ):
        assert harder.noise(rule) > one


def test_many_classes_keep_more_directions_than_their_noise_says_and_two_keep_fewer() -> None:
    rule = rule_of("discriminant")
    for classes, epsilon in ((2, 0.1), (10, 0.5), (40, 3.0)):
        facts = known(epsilon, num_classes=classes)
        alone = rule.components / facts.noise(rule) ** rule.exponent
        wanted = alone * (classes / 10) ** (rule.exponent / 2)
        assert COMPONENTS[0] < wanted < COMPONENTS[1]
        assert facts.components("discriminant", 1280) == round(wanted)


def test_what_is_given_wins_and_a_narrow_set_is_kept_whole() -> None:
    assert known().options("softmax", {"l2_reg": 7.0}) == {"l2_reg": 7.0, "prior": "equal"}
    plain = {"l2_reg": 7.0, "prior": "private"}
    assert known().options("svm", plain) == plain
    assert known(math.inf).components("discriminant", 5) == 5
    for method in ALL_METHODS:
        assert 1 <= known().components(method, 12) <= 12


def test_one_trusted_server_takes_further_rounds_where_noise_is_small_and_nobody_else_does() -> (
    None
):
    alone = Privacy(3.0, 1e-5, honest_fraction=1.0)
    quiet = known(privacy=alone, rows=70)
    assert quiet.noise(rule_of("discriminant")) < QUIET
    counted = {"centre": "private", "rounds": ROUNDS}
    private = {"prior": "private"}  # gradients count no classes
    default = {**counted, "descent_above": OTHER, **private}
    assert quiet.options("discriminant", private) == default
    assert quiet.options("discriminant", {}) == counted
    single = replace(quiet, sizes=torch.tensor([7000]), privacy=Privacy(3.0, 1e-5))
    assert single.options("discriminant", {"prior": "equal"}) == {**counted, "prior": "equal"}
    for other in (
        replace(quiet, privacy=Privacy(3.0, 1e-5)),  # half of the users know their noise
        replace(quiet, privacy=Privacy(3.0, 1e-5, noise_by="servers")),
        replace(quiet, privacy=replace(alone, epsilon=math.inf)),  # nothing is hidden
        replace(quiet, min_survivors=99),  # one user's noise may be missing
    ):
        assert other.options("discriminant", {}).keys() == {"centre", "alpha"}
    for epsilon, above in ((1.0, OTHER), (0.3, WRITTEN)):  # too noisy for rounds after a sum
        noisy = replace(quiet, privacy=replace(alone, epsilon=epsilon))
        weighed = {"alpha": noisy.moment_weight("discriminant", {})} if epsilon == 1 else {}
        centred = {"centre": "private", "descent_above": above} | weighed | private
        assert noisy.options("discriminant", private) == centred
        filled = RunConfig("discriminant", TransformOptions(), private, noisy.privacy).filled_in(
            noisy, list("abcdefghij"), width=640
        )
        assert filled.transform_options.components == COMPONENTS[1]
    quietest = replace(quiet, sizes=torch.full((1000,), 70))
    assert quietest.noise(rule_of("discriminant")) < FAINT
    assert quietest.options("discriminant", private) == counted | private
    asked_once = replace(quiet, one_sum=True)
    assert asked_once.options("discriminant", {}) == {"alpha": 1.0}
    assert quiet.options("discriminant", {}, placed=True) == {}
    for given in ({"rounds": 4}, {"user_clip": 3.0}):
        assert quiet.options("discriminant", given) == given
    for given in ({"centre": "public"}, {"centre": "private", "rounds": 0}):
        assert quiet.options("discriminant", given) == given | {"alpha": 1.0}
    bare = RunConfig("discriminant", TransformOptions(), {}, alone)
    for bound, options in (
        (None, default),
        (10**6, {"centre": "private", "rounds": 0, "alpha": 1.0, **private}),
    ):
        filled = bare.filled_in(quiet, list("abcdefghij"), width=40, most_bytes=bound)
        assert quiet.options("discriminant", filled.options) == options
    wide = bare.filled_in(quiet, list("abcdefghij"), width=640)  # rounds learn along all of them
    assert "keep" not in wide.options
    assert wide.transform_options.components == quiet.components("discriminant", 640)
    one_sum = replace(bare, options={"rounds": 0}).filled_in(quiet, list("abcdefghij"), width=640)
    assert "keep" in one_sum.options


def test_second_moments_weigh_more_the_less_noise_the_means_have() -> None:
    """From where they cost nothing to √2 times that, which costs the sums 6 % more noise."""
    few = {epsilon: known(epsilon, rows=70) for epsilon in (0.3, 1.0, 3.0, math.inf)}
    found = {epsilon: facts.options("discriminant", {}) for epsilon, facts in few.items()}
    assert "alpha" not in found[0.3]
    assert found[1.0]["alpha"] == 0.81
    assert found[3.0]["alpha"] == found[math.inf]["alpha"] == 1.0
    transform = PublicTransform.identity(3, 1.25**0.5, 0.5)
    free, heavy = (
        build_method("discriminant", transform, 10, given).statistic.record_sensitivity(
            few[1.0].sizes
        )
        for given in ({}, {"alpha": 1.0})
    )
    assert 1.06 < heavy / free < 1.061
    for given in ({"alpha": 0.5}, {"user_clip": 3.0}, {"moments": False}):
        assert few[3.0].moment_weight("discriminant", given) is None
    assert few[3.0].moment_weight("discriminant", {"moments": True}) == 1.0
    assert few[3.0].moment_weight("softmax", {}) is None
    assert (
        known(privacy=Privacy(100.0, 1e-5, unit="user")).moment_weight("discriminant", {}) is None
    )


def test_what_is_known_of_the_classes_asks_for_faint_directions_in_spite_of_noise() -> None:
    few = PublicFacts(sizes=torch.full((10,), 50), num_classes=10, privacy=Privacy(0.1, 1e-5))
    given = TransformOptions()
    plain = few.transform("discriminant", given, 512)
    known = few.transform("discriminant", given, 512, knowing=True)
    assert plain.components is not None
    assert plain.components < 64
    assert known == replace(plain, components=256, leading=plain.components)
    assert few.transform("discriminant", given, 100, knowing=True).components == 100
    assert few.transform("discriminant", given, 16, knowing=True) == plain
    own = few.transform("discriminant", replace(given, leading=40), 512, knowing=True)
    assert (own.components, own.leading) == (256, 40)
    many = replace(few, sizes=torch.full((10_000,), 50), privacy=Privacy(3.0, 1e-5))
    assert many.transform("discriminant", given, 512, knowing=True).leading is None
    kept = replace(given, components=9, directions="principal")
    assert few.transform("discriminant", kept, 512, knowing=True) == kept


def test_a_transform_is_filled_in_where_it_was_left_out() -> None:
    filled = known(3.0, rows=100).transform("discriminant", TransformOptions(), 1280)
    assert (filled.directions, filled.components) == ("hedge", 256)
    assert known(1e-3).transform("discriminant", TransformOptions(), 1280).components == 16
    assert known(3.0).transform("softmax", TransformOptions(), 1280).directions == "tempered"
    given = TransformOptions(components=7, directions="mixed")
    assert known().transform("discriminant", given, 1280) == given
    unwhitened = known().transform("discriminant", TransformOptions(whiten=False), 1280)
    assert unwhitened.directions == "principal"  # tempered ones are whitened in part


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("discriminant", {}),
        ("discriminant", {"moments": False}),
        ("discriminant", {"user_clip": 3.0}),
        ("softmax", {"l2_reg": 1.0, "prior": "equal"}),
        ("svm", {"l2_reg": 1.0}),
    ],
)
def test_most_bytes_bounds_what_a_user_sends(method: str, options: dict[str, Any]) -> None:
    """The submission of q directions fits, that of q + 1 does not."""

    def sent(q: int) -> int:
        transform = PublicTransform.identity(q, clip_norm=2**0.5)
        return 8 * build_method(method, transform, 10, options).statistic.dimension

    q = known().most_components(method, 300, options, 30_000)
    assert sent(q) <= 30_000 < sent(q + 1) or q == 300
    assert known().bytes_per_user(method, q, options) == sent(q)
    assert known().most_components(method, 300, options, 10**9) == 300
    with pytest.raises(ValueError, match="most_bytes must be in"):
        known().most_components(method, 300, options, 100)


def test_most_bytes_is_for_methods_of_one_sum_and_refuses_given_directions() -> None:
    with pytest.raises(ValueError, match="most_bytes must be left out with method 'dp-fl'"):
        known().most_components("dp-fl", 300, {}, 10**6)
    with pytest.raises(ValueError, match=r"components must be in \[1, 80\], got 200"):
        known().transform("discriminant", TransformOptions(200), 80)


def test_rules_are_of_methods_that_exist() -> None:
    assert set(RIVALS) <= set(ALL_METHODS)
    assert OTHERS.l2_reg is None


@pytest.mark.parametrize("users", [1, 2, 1000])
def test_a_single_user_and_tiny_sets_have_defaults_too(users: int) -> None:
    for method in ALL_METHODS:
        found = known(0.01, users=users, rows=1, num_classes=2)
        least, head = COMPONENTS[0], METHODS.get(method) and rule_of(method).l2_reg
        slow = head or method == "discriminant"  # of a rule with a root
        assert found.components(method, 512) in (range(least, 48) if slow else (least,))
        options = found.options(method, {})
        assert all(
            0 < v < math.inf for name, v in options.items() if name not in ("prior", "centre")
        )


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


@pytest.mark.parametrize(
    ("method", "loss"), [("softmax", 0.1), ("svm", 0.1), ("discriminant", 0.05)]
)
def test_defaults_are_near_the_best_of_a_grid(method: str, loss: float) -> None:
    """Rows of no task that the rule was fitted to; the grid looks at the test rows, it does not.

    Heads keep many directions, as pictures of other kinds than the public ones need; that costs
    most here, where the classes lie in the first few.
    """
    data, public = digits_like(3500, 1), digits_like(1500, 2)
    users = split(torch.from_numpy(data.labels[:2500]), 100, "iid", generator=torch.Generator())
    circumstances = known(3.0)

    def accuracy(kept: TransformOptions, **options: Any) -> float:
        transform = PublicTransform.fit(public.embeddings, **kept.arguments())
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
        accuracy(TransformOptions(q), **({} if l2_reg is None else {"l2_reg": l2_reg}))
        for q in (16, 40, 200)
        for l2_reg in l2_regs
    ]
    kept = circumstances.transform(method, TransformOptions(), 200)
    assert accuracy(kept) > max(grid) - loss


def test_a_release_says_which_regulariser_it_took() -> None:
    data = digits_like(1400, 3)
    users = split(torch.from_numpy(data.labels[:400]), 10, "iid", generator=torch.Generator())
    made = release(data, "softmax", Privacy(3.0, 1e-5), partition=users, noise="float")
    wanted = known(3.0, users=10, rows=40).options("softmax", {})
    assert made.report["l2_reg"] == wanted["l2_reg"]
