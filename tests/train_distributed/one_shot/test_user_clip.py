"""The users' clip: no norm above it in exact arithmetic, what it leaves out, and its releases."""

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from heads.projection import ball_margin
from tests.train_distributed.one_shot import builders
from tests.train_distributed.one_shot.builders import SUMS, embedded, fitted, one_user
from train_distributed import Privacy, release
from train_distributed.one_shot.registry import METHODS
from train_distributed.one_shot.source import EmbeddingUsers, own_partition
from train_distributed.one_shot.statistic import Chunk, NoisedSum, submissions
from train_distributed.partition import Partition
from train_distributed.privacy import Guarantee
from train_distributed.privacy.mechanism import DiscreteGaussian

K, FEATURES, ROWS = 3, 4, 6
TRANSFORM = PublicTransform.identity(FEATURES, math.sqrt(1 + 0.125**2), 0.125)
CASES: list[tuple[str, dict[str, Any]]] = [
    ("discriminant", {"moments": False}),
    ("softmax", {"l2_reg": 0.3}),
    ("svm", {"l2_reg": 30.0}),
    ("logistic", {"l2_reg": 0.3}),
    ("softmax", {"l2_reg": 0.3, "prior": "equal"}),
    ("softmax", {"l2_reg": 0.3, "solver": "sgd", "epochs": 3, "batch_size": 4}),
]
EVERY = pytest.mark.parametrize(("name", "options"), CASES)


def made(name: str, norm: float | None, **options: Any) -> Any:
    clip = {} if norm is None else {"user_clip": norm}
    return builders.made(name, TRANSFORM, K, **options, **clip)


def statistic(name: str, norm: float | None, **options: Any) -> Any:
    return made(name, norm, **options).statistic


def opposites() -> Chunk:
    """Two users of one class each, features of full length, opposite to each other."""
    x = torch.zeros(2, ROWS, FEATURES + 1, dtype=torch.float64)
    x[..., 0] = TRANSFORM.constant
    x[0, :, 1] = TRANSFORM.reach * (1 - 1e-12)
    x[1, :, 1] = -x[0, :, 1]
    y = torch.zeros(2, ROWS, dtype=torch.int64)
    return Chunk(torch.arange(2), x, y, torch.tensor([ROWS, ROWS]))


def drawn(seed: int, users: int = 4, n: int = ROWS) -> Chunk:
    generator = torch.Generator().manual_seed(seed)
    u = torch.randn(users, n, FEATURES, generator=generator, dtype=torch.float64)
    rows = TRANSFORM(u.flatten(0, 1)).unflatten(0, (users, n))
    y = torch.randint(K, (users, n), generator=generator)
    counts = torch.randint(1, n + 1, (users,), generator=generator)
    return Chunk(torch.arange(users), rows, y, counts)


def exact_square(values: Tensor | np.ndarray, scale: Any) -> Fraction:
    """‖values ∘ scale‖² of these floats, without any rounding."""
    scales = np.broadcast_to(np.asarray(scale, np.float64), np.shape(values)).tolist()
    pairs = zip(np.asarray(values).tolist(), scales, strict=True)
    return sum(((Fraction(v) * Fraction(s)) ** 2 for v, s in pairs), Fraction(0))


@EVERY
@pytest.mark.parametrize("share", [1e-3, 0.3, 0.999, 1.0])
def test_no_norm_is_above_the_clip_in_exact_arithmetic(name, options, share):
    """Floats as they are submitted, and the whole numbers of statistics that leave a user."""
    bare = statistic(name, None, **options)
    for seed in range(3):
        chunk = drawn(seed)
        norm = share * float((bare.submit(chunk) * bare.scale).norm(dim=1).median())
        own = statistic(name, norm, **options)
        for submitted in own.submit(chunk):
            assert exact_square(submitted, own.scale) <= Fraction(norm) ** 2
        guarantee = Guarantee.of(chunk.counts, own, Privacy(1.0, 1e-5, unit="user"))
        mechanism = DiscreteGaussian.calibrated(own, guarantee, chunk.counts)
        if mechanism.grid is None:
            continue
        for submission in submissions(own, chunk, mechanism.grid):
            steps = mechanism.encode(submission.numpy()).view(np.int64)
            assert exact_square(steps, mechanism.step) <= Fraction(norm) ** 2


@pytest.mark.parametrize("exponent", [-200, -40, -8, 8, 40, 300])
@pytest.mark.parametrize("length", [1, 7, 2_000])
def test_norms_of_any_scale_and_length_stay_within(exponent: int, length: int) -> None:
    """Entries of one sign that all round up, where a norm as computed is too small by most."""
    transform = PublicTransform.identity(max(1, length // 2))
    own = builders.made("discriminant", transform, 2, user_clip=3.0).statistic
    draw = np.random.default_rng(length)
    entries = 2.0**exponent * (1 + draw.integers(1, 2**20, (3, own.dimension)) * 2.0**-40)
    for clipped in own.clipped_(torch.from_numpy(entries), torch.zeros(3)):
        assert exact_square(clipped, 1.0) <= 9
        if exponent >= 8:
            assert exact_square(clipped, 1.0) >= Fraction(9) * (1 - Fraction(1, 10**11))


@EVERY
def test_what_the_clip_rounds_is_charged_to_the_method_s_own_bounds(name, options):
    """Where the clip is too long to bind, a submission that it scales is still off by 2 C_u m."""
    bare, sizes = statistic(name, None, **options), torch.tensor([ROWS, 2])
    longest = float(bare.user_zero_out(sizes).max()) * math.sqrt(bare.compositions)
    for norm in (1.5 * longest, 0.9 * longest):
        own = statistic(name, norm, **options)
        part = min(norm, longest) / math.sqrt(own.compositions)
        charge = 4 * ball_margin(own.dimension + 1, torch.float64) * part
        for reach, alone in (
            (own.record_sensitivity(sizes), bare.record_sensitivity(sizes)),
            (float(own.user_sensitivity(sizes)[1]), float(bare.user_sensitivity(sizes)[1])),
        ):
            assert alone < reach < 2 * norm
            assert reach - alone == pytest.approx(charge, rel=1e-2)


@pytest.mark.parametrize("name", SUMS)
def test_what_is_learned_does_not_depend_on_how_much_all_are_clipped(name: str) -> None:
    """Users alike are scaled alike, by what their count of rows shows."""
    one = drawn(3, users=1, n=40)
    x, y = one.x.expand(5, -1, -1).clone(), one.y.expand(5, -1).clone()
    chunk = Chunk(torch.arange(5), x, y, torch.full((5,), 40))
    bare, centre = made(name, None, moments=False), statistic(name, 1.0).centre
    assert centre is not None
    whole = bare.statistic.submit(chunk).sum(0)
    own = float(((whole - 200 * centre) * bare.statistic.scale).norm()) / 5
    expected = fitted(bare, whole, 200, 1e-9)
    for share in (0.9, 0.25, 0.01):
        method = made(name, share * own)
        noised = NoisedSum(method.statistic.submit(chunk).sum(0), 200, share * 1e-9)
        restored = method.statistic.restored(noised)
        assert restored.rows == 200
        assert restored.noise_std == pytest.approx(1e-9, rel=1e-6)
        assert torch.allclose(restored.total, whole, atol=1e-6)
        found = method.fit(noised).weights
        assert torch.allclose(found, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


def test_rows_that_noise_explains_are_not_missed() -> None:
    own, rows = statistic("discriminant", 1.0), 100
    total = torch.zeros(own.dimension, dtype=torch.float64)
    for counted in (-1e4, 0.0, 1.0, 40.0, 50.0, 1e6):  # of 50, which clips may not touch
        total[:K] = counted * TRANSFORM.constant / K
        assert own.restored(NoisedSum(total, rows, 1e4)).noise_std == 1e4
        left = min(1.0, max(1 / rows, counted / 50))
        found = own.restored(NoisedSum(total, rows, 1e-9)).noise_std
        assert found == pytest.approx(1e-9 / left, rel=1e-6)
    assert statistic("softmax", 1.0).restored(NoisedSum(total, rows, 0.0)).total is total


def test_what_a_user_sends_may_be_longer_by_the_centre() -> None:
    """Rows opposite to the public ones, and a clip that leaves them alone."""
    mean = torch.tensor([-0.6, 0.0, 0.0, 0.0], dtype=torch.float64)
    transform = replace(TRANSFORM, row_mean=mean)
    bare, own = (
        builders.made("discriminant", transform, K, **clip).statistic
        for clip in ({"moments": False}, {"user_clip": 1e3})
    )
    chunk = opposites()
    longest = (own.submit(chunk) * own.scale).norm(dim=1).max()
    assert bare.norm_bounds(chunk.counts).max() < longest <= own.norm_bounds(chunk.counts).max()


def test_a_public_row_is_expected_as_public_rows_are() -> None:
    """The centre is the mean submission of public rows whose classes are drawn at random."""
    draw = torch.Generator().manual_seed(0)
    points = torch.rand(3000, 5, generator=draw).pow(6)  # skewed: clipped, their mean is not 0
    public = embedded(points.numpy(), np.zeros(3000, np.int64), 1)
    transform = PublicTransform.fit(public, components=4)
    own = builders.made("discriminant", transform, K, user_clip=1.0).statistic
    y = torch.randint(K, (3000,), generator=draw)
    found = own.unclipped.submit(one_user(transform(points), y))[0] / 3000
    found[:K] *= 0.5  # the other half of a count stays in what is sent
    assert torch.allclose(found, own.centre, atol=0.01)
    assert float(found[K:].norm()) > 0.1


# Releases


def rows_of(name: str, sizes: list[int]) -> EmbeddingSet:
    """Of classes, or of findings for a method of those."""
    draw, n = np.random.default_rng(0), sum(sizes)
    labels = draw.integers(0, K, n)
    x = draw.standard_normal((n, FEATURES)) + 3 * np.eye(FEATURES)[labels]
    users, findings = np.repeat(range(len(sizes)), sizes), {}
    if not METHODS[name].classes:
        one_hot, labels = np.eye(K, dtype=np.int8)[labels], np.full(n, -1)
        findings = {"findings": np.maximum(one_hot, one_hot[::-1])}
    return embedded(x, labels, K, users=users, **findings)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("noise", ["discrete", "float"])
def test_a_release_says_how_its_users_were_clipped(name: str, noise: Any) -> None:
    rows, privacy = rows_of(name, [1, 2, 30, 60]), Privacy(1e4, 1e-5, unit="user")
    report = release(rows, name, privacy, transform=TRANSFORM, noise=noise, user_clip=5.0).report
    assert (report["method"], report["user_clip"]) == (name, 5.0)
    assert "scaled down" in report["user_clip_means"]
    parts = math.sqrt(report["compositions"])
    assert parts * report["sensitivity"] == pytest.approx(10.0, rel=1e-6)
    assert parts * report["zero_out_sensitivity"] == pytest.approx(5.0, rel=1e-6)


@pytest.mark.parametrize("name", METHODS)
def test_the_sum_is_that_of_submissions_clipped_one_by_one(monkeypatch, name):
    """Uneven sizes: short submissions stay as they are, long ones have the clip's length."""
    monkeypatch.setattr(Partition, "shuffled", lambda partition, generator: partition)
    rows = rows_of(name, [1, 3, 30, 60])
    bare = statistic(name, None, **({"moments": False} if METHODS[name].sums_rows else {}))
    centre = statistic(name, 1.0).centre
    alone = []
    for chunk in EmbeddingUsers(rows, TRANSFORM, own_partition(rows)).chunks():
        expected = 0.0 if centre is None else chunk.counts[:, None] * centre * bare.scale
        alone += list(submissions(bare, chunk, None) - expected)
    lengths = [float(each.norm()) for each in alone]
    norm = (sorted(lengths)[1] + sorted(lengths)[2]) / 2
    pairs = zip(alone, lengths, strict=True)
    expected = torch.stack([each * min(1.0, norm / length) for each, length in pairs]).sum(0)
    promise = Privacy(math.inf, 1e-5, unit="user")
    found = release(rows, made(name, norm), promise, transform=TRANSFORM, noise="float").opened
    assert found is not None
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-9)
