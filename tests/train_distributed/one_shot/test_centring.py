"""A first sum finds where the rows lie: what it may show, what it serves, and what is refused."""

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from embed.centre import about, length_about
from embed.recentred import recentred
from train_distributed import Privacy, release
from train_distributed.ledger.entry import Entry
from train_distributed.one_shot.centring import CENTRE_SHARE, FeatureSum
from train_distributed.one_shot.course import Course
from train_distributed.one_shot.faults import FaultInjection
from train_distributed.one_shot.model import Release
from train_distributed.one_shot.registry import build_method
from train_distributed.one_shot.rounds import further_sums, mu_shares
from train_distributed.one_shot.statistic import NoisedSum, Statistic
from train_distributed.one_shot.users import Chunk

P, K, USERS, EACH = 6, 3, 40, 30
PROMISE = Privacy(1.0, 1e-5)


def rows_at(shift: float, seed: int = 0) -> EmbeddingSet:
    """Classes around a point far from where the public rows lie."""
    rng = np.random.default_rng(seed)
    labels = np.arange(USERS * EACH) % K
    x = shift + 1.5 * np.eye(K, P)[labels] + 0.5 * rng.standard_normal((len(labels), P))
    return EmbeddingSet(
        embeddings=x.astype(np.float32),
        labels=labels,
        users=np.arange(len(labels)) // EACH,
        meta={"class_names": ["a", "b", "c"]},
    )


def fitted() -> PublicTransform:
    rng = np.random.default_rng(1)
    public = rng.standard_normal((500, P)).astype(np.float32)
    return PublicTransform.fit(public, components=P - 1)


def chunk_of(x: Tensor, y: Tensor) -> Chunk:
    return Chunk(torch.zeros(1, dtype=torch.int64), x[None], y[None], torch.tensor([len(y)]))


def spent(fields: dict[str, Any]) -> float:
    """ε at δ = 1e-5 of the ledger's entry with these fields, of ε = 1."""
    known = {"kind": "release", "data": "rows", "method": "discriminant", "unit": "record"}
    return Entry(**known, epsilon=1.0, delta=1e-5, **fields).cost.at(1e-5)


def moved(statistic: Statistic, course: Course, first: Tensor, second: Tensor, labels: Tensor):
    """How far a scaled submission of eight rows moves when one of them and its label change."""
    sums = []
    for row, label in ((first, labels[0]), (second, labels[1])):
        rest = torch.full((7, P), 0.3)
        rest[:, 0] = 1
        y = torch.tensor([label, *([0] * 7)])
        chunk = course.rows(chunk_of(torch.cat([row[None], rest]), y))
        sums.append(statistic.submit(chunk) * statistic.scale)
    return float((sums[0] - sums[1]).norm())


def found_at(length: float, towards: Tensor, mean_square: float = 1.0) -> Tensor:
    """What a first sum finds where rows have this length of their unit in common."""
    return torch.cat([length * towards / towards.norm(), torch.full((1,), mean_square).double()])


def longest(draw: torch.Generator) -> Tensor:
    x = torch.randn(P - 1, generator=draw, dtype=torch.float64)
    return torch.cat([torch.ones(1), (0.9999999 * x / x.norm()).float()])


def test_a_replaced_record_moves_the_first_sum_by_2r_and_no_further() -> None:
    transform, draw = fitted(), torch.Generator().manual_seed(0)
    statistic = FeatureSum(transform=transform)
    course = Course(build_method("discriminant", transform, K, {"centre": "private"}))
    assert statistic.record_sensitivity(torch.tensor([8])) == pytest.approx(2.0)
    most = 0.0
    for _ in range(300):
        first, second = longest(draw), longest(draw)
        opposite = torch.cat([first[:1], -first[1:]])
        share = 2 * float(torch.rand((), generator=draw)) - 1
        shorter = torch.cat([first[:1], share * first[1:]])
        for other in (second, opposite, shorter):
            most = max(most, moved(statistic, course, first, other, torch.tensor([0, 1])))
    assert 2.0 * (1 - 1e-5) < most <= 2.0


@pytest.mark.parametrize("moments", [True, False])
@pytest.mark.parametrize("length", [0.0, 0.7, 1.0])
def test_whatever_the_centre_is_a_record_moves_the_second_sum_no_further(
    moments: bool, length: float
) -> None:
    transform, draw = fitted(), torch.Generator().manual_seed(1)
    options = {"centre": "private", "moments": moments}
    started = Course(build_method("discriminant", transform, K, options))
    most = 0.0
    for _ in range(200):
        first, second = longest(draw), longest(draw)
        mean_square = float(torch.rand((), generator=draw))  # whatever an operator publishes
        course = started.told(found_at(length, first[1:].double(), mean_square))
        statistic = course.statistic
        bound = statistic.record_sensitivity(torch.tensor([8]))
        labels = torch.randint(K, (2,), generator=draw)
        most = max(most, moved(statistic, course, first, second, labels) / bound)
    assert 0.5 < most <= 1


def test_a_centre_that_noise_explains_is_none_and_none_is_longer_than_a_row() -> None:
    statistic = FeatureSum(transform=fitted())
    total = torch.full((P,), 300.0, dtype=torch.float64)  # of length 0.67 of 1,000 rows
    total[-1] = 800.0  # of squared lengths
    found = statistic.centre(NoisedSum(total, 1000, 0.0))
    torch.testing.assert_close(found, total / 1000, rtol=1e-15, atol=0)
    assert statistic.common(found) == pytest.approx(5 * 0.3**2 / 0.8)
    kept = statistic.centre(NoisedSum(total, 1000, 150.0))
    torch.testing.assert_close(kept[:-1], (1 - 150**2 / 300**2) * total[:-1] / 1000)
    for none in (NoisedSum(total, 1000, 300.0), NoisedSum(0 * total, 1000, 0.0)):
        assert not statistic.centre(none)[:-1].any()
        assert statistic.common(statistic.centre(none)) == 0
    huge = statistic.centre(NoisedSum(1e90 * total, 1000, 1.0))
    assert 0.999 < float(huge[:-1].norm()) <= 1
    assert huge[-1] == 1
    statistic.about(huge)
    total[-1] = -5.0  # noise: rows are no shorter than their mean
    assert statistic.common(statistic.centre(NoisedSum(total, 1000, 0.0))) == 1


def test_a_release_about_its_rows_is_worth_more_and_says_what_it_did(tmp_path) -> None:
    private, transform, fields = rows_at(8.0), fitted(), {}
    plain = release(private, "discriminant", PROMISE, transform=transform, centre="public")
    found = release(private, "discriminant", PROMISE, transform=transform, reserve=fields.update)
    report = found.report
    assert (report["rounds"], plain.report["rounds"]) == (2, 1)
    assert report["share_per_round"] == [CENTRE_SHARE, 1 - CENTRE_SHARE]
    assert report["common_share"] > 0.7
    assert "common_share" not in plain.report
    assert report["sensitivity"] == plain.report["sensitivity"]
    ratio = report["local_noise_std"] / plain.report["local_noise_std"]
    assert ratio == pytest.approx(1 / math.sqrt(1 - CENTRE_SHARE), rel=1e-6)
    assert found.opened is not None
    assert len(found.opened) == P + len(plain.opened)  # pyright: ignore[reportArgumentType]
    assert spent(fields) == pytest.approx(1.0, rel=1e-6)
    found.save(tmp_path / "model")
    again = Release.load(tmp_path / "model")
    assert torch.equal(again.scores(private.embeddings), found.scores(private.embeddings))


def test_rows_far_from_the_public_ones_are_told_apart_better_about_their_centre() -> None:
    private, transform = rows_at(8.0), fitted()
    truth = torch.from_numpy(private.labels)
    right = {"public": 0.0, "private": 0.0}
    for centre, seed in product(right, range(10)):
        draw = torch.Generator().manual_seed(seed)
        given: dict[str, Any] = {"centre": centre, "noise": "float", "generator": draw}
        found = release(private, "discriminant", PROMISE, transform=transform, **given)
        right[centre] += float((found.predict(private.embeddings) == truth).float().mean()) / 10
    assert right["private"] > right["public"] + 0.05


def test_the_model_is_that_of_rows_taken_about_the_centre_by_hand() -> None:
    private, transform = rows_at(3.0), fitted()
    bare = Privacy(math.inf, 1e-5)
    for method in ("discriminant", "softmax"):
        given: dict[str, Any] = {"l2_reg": 0.1} if method == "softmax" else {}
        found = release(private, method, bare, transform=transform, centre="private", **given)
        x = transform(private.embeddings)
        centre = x[:, 1:].double().mean(0)
        torch.testing.assert_close(found.transform.centre, centre, rtol=0, atol=1e-5)
        squares = torch.stack([centre.square().sum(), x[:, 1:].double().square().sum(1).mean()])
        length = length_about(*(squares / transform.reach**2).tolist())
        by_hand = about(x, centre, length, transform.clip_norm, transform.constant)
        alike = (found.transform(private.embeddings) - by_hand).abs().max()
        assert alike < 1e-4
        placed = release(private, method, bare, transform=found.transform, **given)
        torch.testing.assert_close(placed.weights, found.weights, rtol=1e-6, atol=1e-6)


def test_users_that_drop_out_are_in_neither_sum() -> None:
    private, transform = rows_at(3.0), fitted()
    gone = FaultInjection(dropped=(0, 1, 2))
    kept = private.subset(private.users > 2)  # pyright: ignore[reportOptionalOperand]
    bare = Privacy(math.inf, 1e-5)
    given: dict[str, Any] = {"min_survivors": USERS - 3, "faults": gone}
    found = release(private, "discriminant", bare, transform=transform, **given)
    alone = release(kept, "discriminant", bare, transform=transform)
    torch.testing.assert_close(found.weights, alone.weights)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"centre": "private", "user_clip": 2.0}, "centre must be 'public' with user_clip"),
        ({"centre": "middle"}, "centre must be one of"),
    ],
)
def test_other_centres_are_refused(given: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_method("discriminant", fitted(), K, given)


def test_rounds_after_a_centre_are_of_rows_about_it_and_all_sums_keep_one_promise() -> None:
    private, transform, fields = rows_at(3.0), fitted(), {}
    given: dict[str, Any] = {"centre": "private", "rounds": 3}
    found = release(
        private, "discriminant", PROMISE, transform=transform, reserve=fields.update, **given
    )
    first, each = mu_shares(3)
    left = 1 - CENTRE_SHARE
    shares = [CENTRE_SHARE, left * first, *3 * [left * each]]
    assert found.report["share_per_round"] == pytest.approx(shares)
    assert sum(shares) == pytest.approx(1)
    assert spent(fields) == pytest.approx(1.0, rel=1e-6)
    bare = Privacy(math.inf, 1e-5)
    exact = release(private, "discriminant", bare, transform=transform, **given)
    about_it = release(private, "discriminant", bare, transform=exact.transform, rounds=3)
    torch.testing.assert_close(about_it.weights, exact.weights, rtol=1e-6, atol=1e-6)
    with pytest.raises(ValueError, match="centre must be 'public' with rounds of a federation"):
        further_sums(build_method("discriminant", transform, K, given))


def test_a_transform_with_a_centre_has_no_second_one() -> None:
    private, transform = rows_at(3.0), recentred(fitted(), torch.full((P - 1,), 0.2))
    assert release(private, "discriminant", PROMISE, transform=transform).report["rounds"] == 1
    with pytest.raises(
        ValueError, match="centre must be 'public' with a transform that has one or guesses"
    ):
        release(
            private,
            "discriminant",
            PROMISE,
            transform=transform,
            centre="private",
            reserve=lambda _: pytest.fail("spent"),
        )


def test_hostile_centres_are_refused_by_users() -> None:
    course = Course(build_method("discriminant", fitted(), K, {"centre": "private"}))
    for value in (math.nan, math.inf, 1e300, 0.5):
        with pytest.raises(ValueError, match="centre"):
            course.told(torch.full((P,), value, dtype=torch.float64))
    for square in (math.nan, math.inf, -0.1, 1.1):
        with pytest.raises(ValueError, match="centre_squared_length must be in"):
            course.told(found_at(0.5, torch.ones(P - 1).double(), square))


def test_the_noise_of_the_first_sum_is_that_of_its_share() -> None:
    """By many centres of the same rows, none of them shrunk: their spread is the noise's."""
    private, transform = rows_at(3.0), fitted()
    promise = Privacy(3.0, 1e-5)
    seen = torch.stack(
        [
            release(
                private,
                "discriminant",
                promise,
                transform=transform,
                centre="private",
                noise="float",
                generator=torch.Generator().manual_seed(seed),
            ).opened[: P - 1]  # pyright: ignore[reportOptionalSubscript]
            for seed in range(200)
        ]
    )
    report = release(private, "discriminant", promise, transform=transform, centre="private").report
    expected = report["local_noise_std_per_round"][0] * math.sqrt(USERS)
    assert float(seen.std(0).mean()) == pytest.approx(expected, rel=0.05)
