"""Directions kept after a first sum: which, what is sent of them, and what no option may change."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from embed import PublicTransform
from embed.recentred import recentred
from embed.transform_options import TransformOptions
from tests.train_distributed.one_shot.test_centring import (
    PROMISE,
    K,
    P,
    chunk_of,
    fitted,
    found_at,
    longest,
    moved,
    rows_at,
    spent,
)
from train_distributed import Privacy, release
from train_distributed.commands.configuration import RunConfig
from train_distributed.one_shot.centring import (
    ALIKE,
    AMONG_MANY,
    CENTRE_SHARE,
    OTHER,
    FeatureSum,
)
from train_distributed.one_shot.course import Course
from train_distributed.one_shot.defaults import (
    CLEAR,
    COMPONENTS,
    KEEP,
    MOST_SEPARATING,
    SEPARATING,
    PublicFacts,
    rule_of,
)
from train_distributed.one_shot.model import Release
from train_distributed.one_shot.registry import build_method

SUMS = ["discriminant", "class-sums", "least-squares"]
ALL: dict[str, Any] = {"centre": "private"}
DESCENDS: dict[str, Any] = {"descent_above": 0.3, "prior": "private"}


def kept(keep: int) -> dict[str, Any]:
    """Options of a method that keeps so many directions, whatever rows have in common."""
    return ALL | {"keep": (keep,) * 3}


@pytest.mark.parametrize(
    ("common", "place"),
    [(0.0, 0), (ALIKE - 1e-9, 0), (ALIKE + 1e-9, 1), (OTHER - 1e-9, 1), (OTHER + 1e-9, 2), (1, 2)],
)
def test_how_much_rows_have_in_common_says_how_many_directions(common: float, place: int) -> None:
    keep = (4, 2, 3)
    transform = fitted()
    centring = FeatureSum(transform=transform, keep=keep)
    towards = torch.arange(1.0, P, dtype=torch.float64)
    centre = math.sqrt(common) * transform.reach * towards / towards.norm()
    found = torch.cat([centre, torch.ones(1, dtype=torch.float64)])
    about = centring.about(found)
    assert about.dim == keep[place] + 1
    assert about.same_rows(recentred(transform, centre, keep[place]))
    whole = replace(centring, keep=None).about(found)
    assert whole.dim == P


def offering(number: int) -> PublicTransform:
    """The transform with so many other directions to choose."""
    draw = torch.Generator().manual_seed(3)
    other = torch.randn(P - 1, number, generator=draw, dtype=torch.float64)
    other[0] *= 30
    return replace(fitted(), discriminants=other / torch.linalg.matrix_norm(other, 2) / 1.001)


@pytest.mark.parametrize(
    ("common", "place"),
    [(0.0, 0), (AMONG_MANY[0] - 1e-9, 0), (AMONG_MANY[0] + 1e-9, 1), (AMONG_MANY[1] - 1e-9, 1)],
)
def test_rows_with_little_in_common_are_not_taken_along_discriminants(
    common: float, place: int
) -> None:
    """The share is that along as many directions as may be kept, here the first four of five."""
    keep = (4, 2, 3)
    transform = offering(3)
    centring = FeatureSum(transform=transform, keep=keep)
    squares = transform.second_moment.diagonal()[1:]
    part = float(squares[:4].sum() / squares.sum())
    towards = torch.tensor([1.0, 2, 3, 4, 0], dtype=torch.float64)
    centre = math.sqrt(common * part) * transform.reach * towards / towards.norm()
    found = torch.cat([centre, torch.ones(1, dtype=torch.float64)])
    assert centring.common(found) == pytest.approx(common, abs=1e-12)
    assert centring.about(found).same_rows(recentred(fitted(), centre, keep[place]))
    beside = found + torch.tensor([0, 0, 0, 0, 0.3, 0], dtype=torch.float64)
    assert centring.common(beside) == centring.common(found)


@pytest.mark.parametrize("common", [AMONG_MANY[1] + 1e-9, 0.5, 1.0])
def test_rows_with_much_in_common_are_taken_along_discriminants(common: float) -> None:
    transform = offering(3)
    centring = FeatureSum(transform=transform, keep=(5, 2, 3))
    towards = torch.arange(1.0, P, dtype=torch.float64)
    centre = math.sqrt(common) * transform.reach * towards / towards.norm() * (1 - 2.0**-40)
    found = torch.cat([centre, torch.ones(1, dtype=torch.float64)])
    along = recentred(transform, centre, discriminants=True)
    for each in (centring, replace(centring, keep=None)):
        assert each.about(found).same_rows(along)
    assert not along.same_rows(recentred(transform, centre, 3))


@pytest.mark.parametrize("method", SUMS)
@pytest.mark.parametrize("keep", [1, 2, P - 1])
@pytest.mark.parametrize("length", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("other", [False, True])
def test_a_record_moves_the_second_sum_no_further(
    method: str, keep: int, length: float, other: bool
) -> None:
    """By the sensitivity that was stated before anybody knew which directions are kept."""
    draw, most = torch.Generator().manual_seed(1), 0.0
    transform = offering(keep) if other else fitted()
    started = Course(build_method(method, transform, K, kept(keep)))
    planned = started.method.statistic
    for _ in range(150):
        first, second = longest(draw), longest(draw)
        course = started.told(found_at(length, first[1:].double()))
        assert course.statistic.dimension == planned.dimension
        labels = torch.randint(K, (2,), generator=draw)
        found = moved(course.statistic, course, first, second, labels)
        most = max(most, found / planned.record_sensitivity(torch.tensor([8])))
    assert 0.4 < most <= 1


@pytest.mark.parametrize("method", SUMS)
@pytest.mark.parametrize("keep", [(1,) * 3, (3,) * 3, (P - 1,) * 3, (4, 4, 2), (2, 2, 4)])
@pytest.mark.parametrize("other", [False, True])
def test_what_is_sent_of_kept_directions_is_their_own_sum(
    method: str, keep: tuple[int, int, int], other: bool
) -> None:
    """The rest is zero, so that leaving it out loses nothing but noise."""
    transform = offering(keep[2]) if other else fitted()
    started = Course(build_method(method, transform, K, ALL | {"keep": keep}))
    assert started.method.statistic.own_transform is not None
    assert started.method.statistic.own_transform.dim == max(keep) + 1
    draw = torch.Generator().manual_seed(2)
    x = torch.stack([longest(draw) for _ in range(20)])
    chunk = chunk_of(x, torch.arange(20) % K)
    course = started.told(torch.tensor([*[0.2] * (P - 1), 1.0], dtype=torch.float64))
    sent = course.statistic.submit(course.rows(chunk))[0]
    own = course.method.statistic
    alone = own.submit(replace(chunk, x=course.moved(x)[None]))[0]
    places = own.positions(course.statistic)
    torch.testing.assert_close(sent[places], alone)
    others = torch.ones(len(sent), dtype=torch.bool)
    others[places] = False
    assert not sent[others].any()
    assert torch.equal(
        torch.as_tensor(own.scale).expand(len(alone)),
        torch.as_tensor(course.statistic.scale).expand(len(sent))[places],
    )


@pytest.mark.parametrize("method", SUMS)
@pytest.mark.parametrize("noise", ["float", "discrete"])
@pytest.mark.parametrize("other", [False, True])
def test_without_noise_the_model_is_that_of_a_transform_of_these_directions(
    method: str, noise: Any, other: bool
) -> None:
    private, bare = rows_at(3.0), Privacy(math.inf, 1e-5)
    transform = offering(2) if other else fitted()
    found = release(private, method, bare, transform=transform, noise=noise, **kept(2))
    assert (found.transform.discriminants is not None) == other
    assert found.transform.dim == len(found.weights) == 3
    assert found.report["directions_kept"] == 2
    placed = release(private, method, bare, transform=found.transform, noise=noise)
    torch.testing.assert_close(placed.weights, found.weights, rtol=1e-6, atol=1e-6)


def test_further_rounds_are_of_kept_directions() -> None:
    private, bare = rows_at(3.0), Privacy(math.inf, 1e-5)
    given: dict[str, Any] = kept(2) | {"rounds": 3}
    found = release(private, "discriminant", bare, transform=fitted(), **given)
    about = release(private, "discriminant", bare, transform=found.transform, rounds=3)
    torch.testing.assert_close(about.weights, found.weights, rtol=1e-6, atol=1e-6)


def test_a_release_keeps_one_promise_and_can_be_read(tmp_path: Path) -> None:
    private, transform, fields = rows_at(8.0), fitted(), {}
    given: dict[str, Any] = {"transform": transform, "reserve": fields.update}
    whole = release(private, "discriminant", PROMISE, transform=transform, **ALL)
    found = release(private, "discriminant", PROMISE, **given, **ALL, keep=(1, 1, 2))
    assert found.report["share_per_round"] == [CENTRE_SHARE, 1 - CENTRE_SHARE]
    for word in ("sensitivity", "local_noise_std_per_round"):
        assert found.report[word] == whole.report[word]
    assert found.report["bytes_per_round"][0] == whole.report["bytes_per_round"][0]
    assert found.report["bytes_per_round"][1] < whole.report["bytes_per_round"][1]
    assert found.report["directions_kept"] == 2
    assert "directions_kept" not in whole.report
    assert spent(fields) == pytest.approx(1.0, rel=1e-6)
    found.save(tmp_path / "model")
    again = Release.load(tmp_path / "model")
    assert torch.equal(again.scores(private.embeddings), found.scores(private.embeddings))


@pytest.mark.parametrize(
    ("method", "options", "rule"),
    [
        ("discriminant", {"keep": (1, 1, 1)}, "keep must be left out without a private centre"),
        ("softmax", ALL | {"l2_reg": 0.1, "keep": (1, 1, 1)}, "keep must be left out without"),
        ("discriminant", ALL | {"keep": (1, 0, 1)}, r"keep must be in \[1, 5\], got 0"),
        ("discriminant", ALL | {"keep": (1, 1, P)}, r"keep must be in \[1, 5\], got 6"),
        ("discriminant", ALL | {"keep": (1, 2)}, "keep_numbers must be 3, got 2"),
        ("discriminant", ALL | {"keep": ()}, "keep_numbers must be 3, got 0"),
    ],
)
def test_other_numbers_are_refused(method: str, options: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        build_method(method, fitted(), K, options)


def test_a_transform_that_has_a_centre_already_is_refused_in_the_same_words() -> None:
    placed = recentred(fitted(), torch.zeros(P - 1, dtype=torch.float64))
    with pytest.raises(ValueError, match="centre must be 'public' with a transform that has one"):
        build_method("discriminant", placed, K, ALL | {"keep": (2, 2, 2)})


def test_another_number_than_that_of_the_discriminants_is_refused() -> None:
    with pytest.raises(ValueError, match="keep_of_other_rows must be 3, got 2"):
        build_method("discriminant", offering(3), K, ALL | {"keep": (3, 3, 2)})


def facts(epsilon: float = 1.0, **given: Any) -> PublicFacts:
    known: dict[str, Any] = {"num_classes": 10, "privacy": Privacy(epsilon, 1e-5)} | given
    return PublicFacts(sizes=torch.full((100,), 70), **known)


def filled(options: dict[str, Any], transform: TransformOptions, **given: Any) -> RunConfig:
    return filled_at(1.0, options, transform, **given)


def filled_at(
    epsilon: float, options: dict[str, Any], transform: TransformOptions, **given: Any
) -> RunConfig:
    plain = RunConfig("discriminant", transform, options, Privacy(epsilon, 1e-5))
    known: dict[str, Any] = {"width": 512} | given
    return plain.filled_in(facts(epsilon), (), **known)


def test_the_rule_multiplies_the_number_that_the_noise_allows() -> None:
    plain = facts().components("discriminant", 512)
    few, fewer, more = facts().keep_by_rule("discriminant", 512)
    assert few == plain
    assert fewer == pytest.approx(KEEP[1] * plain, abs=1)
    assert more == pytest.approx(KEEP[2] * plain, abs=1)
    assert facts().keep_by_rule("discriminant", 40) == (40, 40, 40)
    found = filled_at(0.3, {}, TransformOptions())
    few, fewer, more = facts(0.3).keep_by_rule("discriminant", 512)
    assert found.options == {"keep": (few, fewer, more)}
    assert found.transform_options == TransformOptions(more, "hedge")
    assert facts(0.3).options("discriminant", found.options) == ALL | found.options
    given = filled({"keep": (7, 6, 5)}, TransformOptions())
    assert given.options["keep"] == (7, 6, 5)
    assert given.transform_options.components == 7
    assert given.transform_options.discriminants is None


@pytest.mark.parametrize(("width", "among"), [(512, 512), (300, 300), (1280, 512)])
def test_where_noise_is_small_rows_with_much_in_common_are_taken_along_discriminants(
    width: int, among: int
) -> None:
    few, fewer, _ = facts().keep_by_rule("discriminant", width)
    found = filled({}, TransformOptions(), width=width)
    assert found.options == {"keep": (few, fewer, SEPARATING)}
    assert found.transform_options == TransformOptions(among, "hedge", discriminants=SEPARATING)
    weighed = {"alpha": facts().moment_weight("discriminant", {})}
    assert facts().options("discriminant", found.options) == ALL | found.options | weighed
    given = filled_at(0.3, {}, TransformOptions(discriminants=50))
    assert given.options["keep"] == (*facts(0.3).keep_by_rule("discriminant", 512)[:2], 50)
    assert given.transform_options == TransformOptions(512, "hedge", discriminants=50)


def test_one_trusted_server_sums_gradients_about_the_centre_instead() -> None:
    """Along all directions of the transform, whatever it offers."""
    trusted = PublicFacts(
        sizes=torch.tensor([7000]),
        num_classes=10,
        privacy=Privacy(1.0, 1e-5, honest_fraction=1.0),
    )
    plain = RunConfig("discriminant", TransformOptions(), {"prior": "private"}, trusted.privacy)
    found = plain.filled_in(trusted, (), width=512)
    options = trusted.options("discriminant", found.options)
    assert options["descent_above"] == OTHER
    assert found.transform_options.discriminants is None
    offered = offering(2)
    method = build_method("discriminant", offered, K, ALL | {"keep": (2, 2, 2)} | DESCENDS)
    course = Course(method).after(torch.zeros(P, dtype=torch.float64), 10, 0.0)
    assert course.about is None
    far = 10 * offered.reach * torch.tensor([*[0.4] * (P - 1), 1.0], dtype=torch.float64)
    course = Course(method).after(far, 10, 0.0)
    assert course.about is not None
    assert course.sent(torch.ones(4, P)).shape == (4, P)


def test_the_number_of_discriminants_grows_with_the_classes_and_ends_where_noise_is_large() -> None:
    at = [facts(e).noise(rule_of("discriminant")) for e in (0.7, 0.9)]
    assert at[0] > CLEAR > at[1]
    assert facts(0.7).discriminants("discriminant", 512) is None
    assert facts(0.9).discriminants("discriminant", 512) == SEPARATING
    assert facts(0.9).discriminants("discriminant", 100) == 100
    assert facts(0.9).discriminants("class-sums", 512) is None
    two = facts(num_classes=2).discriminants("discriminant", 512)
    assert two == round(SEPARATING * math.sqrt(0.2))
    assert facts(10.0, num_classes=60).discriminants("discriminant", 512) == COMPONENTS[1]


def test_where_noise_is_very_small_there_are_more_discriminants() -> None:
    """Although the three numbers of the rule are equal there; not without more public ones."""
    few, fewer, more = facts(8.0).keep_by_rule("discriminant", 512)
    assert few == fewer == more == COMPONENTS[1]
    for epsilon, width, kept in (
        (8.0, 512, MOST_SEPARATING),
        (8.0, 300, 300),
        (3.0, 512, SEPARATING),
    ):
        found = filled_at(epsilon, {}, TransformOptions(), width=width)
        assert found.options["keep"][2] == kept
        assert found.transform_options.discriminants == kept
    narrow = filled_at(8.0, {}, TransformOptions(), width=200)
    assert narrow.options == {}
    assert narrow.transform_options == TransformOptions(200, "hedge")


@pytest.mark.parametrize(
    ("options", "transform", "given"),
    [
        ({"centre": "public"}, {}, {}),
        ({"user_clip": 2.0}, {}, {}),
        ({"rounds": 4}, {}, {}),
        ({"rounds": 4, "centre": "private"}, {}, {}),
        ({}, {"components": 64}, {}),
        ({}, {"directions": "mixed"}, {}),
        ({}, {"whiten": False}, {}),
        ({}, {}, {"knowing": True}),
    ],
)
def test_directions_that_were_chosen_otherwise_are_all_kept(
    options: dict[str, Any], transform: dict[str, Any], given: dict[str, Any]
) -> None:
    assert "keep" not in filled(options, TransformOptions(**transform), **given).options


def test_a_configuration_keeps_the_numbers(tmp_path: Path) -> None:
    path = tmp_path / "configuration.json"
    written = filled({}, TransformOptions())
    path.write_text(written.text())
    assert RunConfig.read(path) == written
    path.write_text(written.text().replace(str(written.options["keep"][1]), '"many"', 1))
    with pytest.raises(ValueError, match="keep must be"):
        RunConfig.read(path)


def test_an_identity_has_directions_too() -> None:
    about = recentred(PublicTransform.identity(4), torch.zeros(4, dtype=torch.float64), 2)
    expected = 2 * torch.eye(2, dtype=torch.float64)
    torch.testing.assert_close(about.second_moment[1:, 1:], expected)
