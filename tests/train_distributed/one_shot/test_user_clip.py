"""The users' clip: no norm above it in exact arithmetic, no neighbours further apart than said."""

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from embed import EmbeddingSet, PublicTransform
from heads.projection import ball_margin
from train_distributed import Privacy
from train_distributed.one_shot.registry import METHODS, build_method
from train_distributed.one_shot.statistic import Chunk, NoisedSum, Statistic
from train_distributed.privacy import Guarantee
from train_distributed.privacy.mechanism import DiscreteGaussian, FloatGaussian

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


SUMS = [name for name, entry in METHODS.items() if entry.sums_rows and entry.classes]


def made(name: str, norm: float | None, options: dict[str, Any] | None = None) -> Any:
    clip = {} if norm is None else {"user_clip": norm}
    return build_method(name, TRANSFORM, K, (options or {}) | clip).statistic


def opposites(method: Statistic, n: int = ROWS) -> Chunk:
    """Two users of one class each, features of full length, opposite to each other."""
    x = torch.zeros(2, n, FEATURES + 1, dtype=torch.float64)
    x[..., 0] = TRANSFORM.constant
    x[0, :, 1] = math.sqrt(TRANSFORM.clip_norm**2 - TRANSFORM.constant**2) * (1 - 1e-12)
    x[1, :, 1] = -x[0, :, 1]
    y = torch.zeros(2, n, dtype=torch.int64)
    return Chunk(torch.arange(2), x, y, torch.tensor([n, n]))


def drawn(seed: int, users: int = 4, n: int = ROWS) -> Chunk:
    generator = torch.Generator().manual_seed(seed)
    u = torch.randn(users, n, FEATURES, generator=generator, dtype=torch.float64)
    rows = TRANSFORM(u.flatten(0, 1)).unflatten(0, (users, n))
    y = torch.randint(K, (users, n), generator=generator)
    counts = torch.randint(1, n + 1, (users,), generator=generator)
    return Chunk(torch.arange(users), rows, y, counts)


def exact_square(values: torch.Tensor | np.ndarray, scale: Any) -> Fraction:
    """‖values ∘ scale‖² of these floats, without any rounding."""
    scales = np.broadcast_to(np.asarray(scale, np.float64), np.shape(values)).tolist()
    pairs = zip(np.asarray(values).tolist(), scales, strict=True)
    return sum(((Fraction(v) * Fraction(s)) ** 2 for v, s in pairs), Fraction(0))


@pytest.mark.parametrize(("name", "options"), CASES)
@pytest.mark.parametrize("share", [1e-3, 0.3, 0.999, 1.0])
def test_no_norm_is_above_the_clip_in_exact_arithmetic(
    name: str, options: dict[str, Any], share: float
) -> None:
    """Floats as they are submitted, and the whole numbers of statistics that leave a user."""
    bare = made(name, None, options)
    for seed in range(3):
        chunk = drawn(seed)
        norm = share * float((bare.submit(chunk) * bare.scale).norm(dim=1).median())
        method = made(name, norm, options)
        for submitted in method.submit(chunk):
            assert exact_square(submitted, method.scale) <= Fraction(norm) ** 2
        guarantee = Guarantee.of(chunk.counts, method, Privacy(1.0, 1e-5, unit="user"))
        mechanism = DiscreteGaussian.calibrated(method, guarantee, chunk.counts)
        if mechanism.grid is None:
            continue
        sent = method.submit(chunk.rounded(mechanism.grid)) * method.scale
        for submission in sent:
            steps = mechanism.encode(submission.numpy()).view(np.int64)
            assert exact_square(steps, mechanism.step) <= Fraction(norm) ** 2


@pytest.mark.parametrize("exponent", [-200, -40, -8, 8, 40, 300])
@pytest.mark.parametrize("length", [1, 7, 10_000])
def test_norms_of_any_scale_and_length_stay_within(exponent: int, length: int) -> None:
    """Entries of one sign that all round up, where a norm as computed is too small by most."""
    transform = PublicTransform.identity(max(1, length // 2))
    method = build_method("discriminant", transform, 2, {"user_clip": 3.0}).statistic
    draw = np.random.default_rng(length)
    entries = 2.0**exponent * (1 + draw.integers(1, 2**20, (3, method.dimension)) * 2.0**-40)
    for clipped in method.clipped_(torch.from_numpy(entries), torch.zeros(3)):
        assert exact_square(clipped, 1.0) <= 9
        if exponent >= 8:
            assert exact_square(clipped, 1.0) >= Fraction(9) * (1 - Fraction(1, 10**11))


@pytest.mark.parametrize(("name", "options"), CASES)
def test_users_that_turn_round_move_a_submission_by_twice_the_clip(
    name: str, options: dict[str, Any]
) -> None:
    """Neither may the clip be left out, nor C_u be the sensitivity."""
    bare = made(name, None, options)
    chunk = opposites(bare)
    sizes = chunk.counts
    centre = made(name, 1.0, options).centre
    longer = bare.submit(chunk) - (0 if centre is None else ROWS * centre)
    norm = 0.5 * float((longer * bare.scale).norm(dim=1).min())
    method = made(name, norm, options)
    privacy = Privacy(1.0, 1e-5, unit="user")
    stated = Guarantee.of(sizes, method, privacy).joint_sensitivity
    assert stated == pytest.approx(2 * norm, rel=1e-9)
    first, second = method.submit(chunk) * method.scale
    moved = float((first - second).norm())
    assert moved <= stated
    unbound = bare.submit(chunk) * bare.scale
    if bare.dimension == TRANSFORM.dim * K:
        assert moved >= 1.9 * norm
        assert float((unbound[0] - unbound[1]).norm()) > 1.5 * stated
    else:  # neither second moments nor labels turn round with their rows
        assert moved >= 1.5 * norm


@pytest.mark.parametrize(("name", "options"), CASES)
@pytest.mark.parametrize("unit", ["record", "user"])
def test_no_neighbours_are_further_apart_than_stated(
    name: str, options: dict[str, Any], unit: Any
) -> None:
    """Random and worst rows, on both paths, with clips that bind and that do not."""
    for seed in range(6):
        chunk = opposites(made(name, None, options), 5) if seed == 0 else drawn(seed, users=2)
        x, y = chunk.x.clone(), chunk.y.clone()
        x[1], y[1] = x[0], y[0]
        part = slice(0, None) if unit == "user" else slice(0, 1)
        x[1, part, 1:] *= -1
        y[1, part] = (y[1, part] + (seed % 2)) % K
        counts = chunk.counts[:1].expand(2).clone()
        pair = Chunk(torch.arange(2), x, y, counts)
        bare = made(name, None, options)
        long = float((bare.submit(pair) * bare.scale).norm(dim=1).max())
        for share in (0.05, 0.7, 1.3):
            method = made(name, share * long, options)
            guarantee = Guarantee.of(counts, method, Privacy(1.0, 1e-5, unit=unit))
            first, second = method.submit(pair) * method.scale
            assert float((first - second).norm()) <= guarantee.joint_sensitivity
            mechanism = DiscreteGaussian.calibrated(method, guarantee, counts)
            sent = method.submit(pair.rounded(mechanism.grid)) * method.scale
            words = [mechanism.encode(part.numpy()).view(np.int64) for part in sent]
            moved = np.linalg.norm((words[0] - words[1]) * mechanism.step)
            assert moved <= mechanism.charged_sensitivity * (1 + 1e-12)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_the_smaller_of_two_bounds_holds(name: str, options: dict[str, Any]) -> None:
    sizes = torch.tensor([1, 40, 7])
    bare = made(name, None, options)
    parts = math.sqrt(bare.compositions)
    for norm in (1e-3, 1.0, 30.0, 1e9):
        method = made(name, norm, options)
        most = 2 * norm / parts
        for found, alone in (
            (method.record_sensitivity(sizes), bare.record_sensitivity(sizes)),
            (method.zero_out_sensitivity(sizes), bare.zero_out_sensitivity(sizes)),
        ):
            assert found == pytest.approx(min(alone, most), rel=1e-9)
            assert found >= min(alone, most)
        expected = bare.user_sensitivity(sizes).clamp(max=most)
        assert torch.allclose(method.user_sensitivity(sizes), expected, rtol=1e-9)
        assert (method.user_sensitivity(sizes) >= expected).all()
        left_out = 0.0 if method.centre is None else float((method.centre * bare.scale).norm())
        gone = (bare.user_zero_out(sizes) + sizes.double() * left_out).clamp(max=norm / parts)
        assert torch.allclose(method.user_zero_out(sizes), gone, rtol=1e-12)


@pytest.mark.parametrize("group", [1, 2, 3])
def test_a_group_of_users_moves_the_sum_by_twice_the_clip_each(group: int) -> None:
    method, sizes = made("discriminant", 2.0), torch.full((4,), 50)
    privacy = Privacy(1.0, 1e-5, unit="user", group_size=group)
    guarantee = Guarantee.of(sizes, method, privacy)
    assert guarantee.joint_sensitivity == pytest.approx(4.0 * group, rel=1e-9)
    assert guarantee.joint_removal == pytest.approx(2.0 * group, rel=1e-9)
    plan = DiscreteGaussian.calibrated(method, guarantee, sizes)
    assert plan.rounded_users == group  # whole steps are rounded again after the clip
    assert plan.charged_sensitivity > guarantee.joint_sensitivity


@pytest.mark.parametrize(("name", "options"), CASES)
def test_a_clip_that_never_binds_changes_nothing(name: str, options: dict[str, Any]) -> None:
    chunk = drawn(0)
    bare, method = made(name, None, options), made(name, 1e6, options)
    for unit in ("record", "user"):
        privacy: Any = Privacy(1.0, 1e-5, unit=unit)
        plain, clipped = (Guarantee.of(chunk.counts, m, privacy) for m in (bare, method))
        both = ((bare, plain), (method, clipped))
        stds = [FloatGaussian.simulated(m, g).local_std for m, g in both]
        assert stds[1] == pytest.approx(stds[0], rel=1e-9)
        sums = [DiscreteGaussian.calibrated(m, g, chunk.counts) for m, g in both]
        sent = [
            [s.encode(v.numpy()) for v in m.submit(chunk.rounded(s.grid)) * m.scale]
            for m, s in zip((bare, method), sums, strict=True)
        ]
        if name in SUMS:
            assert sums[1].local_std == pytest.approx(sums[0].local_std, rel=1e-3)
            opened = [
                s.decode(np.stack(words).sum(0)) / m.scale
                for s, m, words in zip(sums, (bare, method), sent, strict=True)
            ]
            restored = method.restored(NoisedSum(opened[1], int(chunk.counts.sum()), 0.0)).total
            rounded = 4 * (sums[1].grid or 0.0)  # of the centre, once for each of four users
            assert torch.allclose(restored, opened[0], rtol=0, atol=rounded)


@pytest.mark.parametrize("name", SUMS)
def test_what_is_learned_does_not_depend_on_how_much_all_are_clipped(name: str) -> None:
    """Users alike are scaled alike, by what their count of rows shows."""
    one = drawn(3, users=1, n=40)
    x, y = one.x.expand(5, -1, -1).clone(), one.y.expand(5, -1).clone()
    chunk = Chunk(torch.arange(5), x, y, torch.full((5,), 40))
    bare, centre = made(name, None, {"moments": False}), made(name, 1.0).centre
    assert centre is not None
    whole = bare.submit(chunk).sum(0)
    own = float(((whole - 200 * centre) * bare.scale).norm()) / 5
    expected = (
        build_method(name, TRANSFORM, K, {"moments": False})
        .fit(NoisedSum(whole, 200, 1e-9))
        .weights
    )
    for share in (0.9, 0.25, 0.01):
        method = build_method(name, TRANSFORM, K, {"user_clip": share * own})
        noised = NoisedSum(method.statistic.submit(chunk).sum(0), 200, share * 1e-9)
        restored = method.statistic.restored(noised)
        assert restored.rows == 200
        assert restored.noise_std == pytest.approx(1e-9, rel=1e-6)
        assert torch.allclose(restored.total, whole, atol=1e-6)
        found = method.fit(noised).weights
        assert torch.allclose(found, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


def test_rows_that_noise_explains_are_not_missed() -> None:
    method, rows = made("discriminant", 1.0), 100
    total = torch.zeros(method.dimension, dtype=torch.float64)
    for counted in (-1e4, 0.0, 1.0, 40.0, 50.0, 1e6):  # of 50, which clips may not touch
        total[:K] = counted * TRANSFORM.constant / K
        assert method.restored(NoisedSum(total, rows, 1e4)).noise_std == 1e4
        left = min(1.0, max(1 / rows, counted / 50))
        found = method.restored(NoisedSum(total, rows, 1e-9)).noise_std
        assert found == pytest.approx(1e-9 / left, rel=1e-6)
    head = made("softmax", 1.0, {"l2_reg": 1.0})
    assert head.restored(NoisedSum(total, rows, 0.0)).total is total


def test_what_a_user_sends_may_be_longer_by_the_centre() -> None:
    """Rows opposite to the public ones, and a clip that leaves them alone."""
    mean = torch.tensor([-0.6, 0.0, 0.0, 0.0], dtype=torch.float64)
    transform = replace(TRANSFORM, row_mean=mean)
    bare, method = (
        build_method("discriminant", transform, K, clip).statistic
        for clip in ({"moments": False}, {"user_clip": 1e3})
    )
    chunk = opposites(method)
    longest = (method.submit(chunk) * method.scale).norm(dim=1).max()
    assert bare.norm_bounds(chunk.counts).max() < longest <= method.norm_bounds(chunk.counts).max()


@pytest.mark.parametrize(("name", "options"), CASES)
def test_its_numbers_are_where_the_statistic_s_are_among_those_of_more_features(
    name: str, options: dict[str, Any]
) -> None:
    """Directions of length 0 are sent, and left out of what was summed."""
    wide = PublicTransform.identity(FEATURES + 3, TRANSFORM.clip_norm, TRANSFORM.constant)
    narrow, more = (build_method(name, t, K, options).statistic for t in (TRANSFORM, wide))
    clipped, longer = (
        build_method(name, t, K, options | {"user_clip": 1e6}).statistic for t in (TRANSFORM, wide)
    )
    chunk = drawn(5)
    padded = replace(chunk, x=torch.nn.functional.pad(chunk.x, (0, 3)))
    places = clipped.positions(longer)
    assert torch.equal(places, narrow.positions(more))
    torch.testing.assert_close(
        longer.submit(padded)[:, places], clipped.submit(chunk), rtol=0, atol=5e-3
    )


def test_a_public_row_is_expected_as_public_rows_are() -> None:
    """The centre is the mean submission of public rows whose classes are drawn at random."""
    draw = torch.Generator().manual_seed(0)
    points = torch.rand(3000, 5, generator=draw).pow(6)  # skewed: clipped, their mean is not 0
    public = EmbeddingSet(
        embeddings=points.numpy(), labels=np.zeros(3000, np.int64), meta={"class_names": ["a"]}
    )
    transform = PublicTransform.fit(public, components=4)
    method: Any = build_method("discriminant", transform, K, {"user_clip": 1.0})
    rows = transform(points)
    y = torch.randint(K, (3000,), generator=draw)
    all_rows = Chunk(torch.zeros(1), rows[None], y[None], torch.tensor([3000]))
    found = method.statistic.unclipped.submit(all_rows)[0] / 3000
    found[:K] *= 0.5  # the other half of a count stays in what is sent
    assert torch.allclose(found, method.statistic.centre, atol=0.01)
    assert float(found[K:].norm()) > 0.1


@pytest.mark.parametrize("norm", [0.0, -1.0, math.nan, math.inf, 1e-70, 1e70])
def test_a_clip_out_of_scale_is_refused(norm: float) -> None:
    with pytest.raises(ValueError, match=r"^user_clip must "):
        made("discriminant", norm)


def test_a_clipped_method_is_checked_like_the_method() -> None:
    method = build_method("softmax", TRANSFORM, K, {"user_clip": 1.0, "l2_reg": 1.0})
    assert method.name == "softmax"
    method.check(TRANSFORM, K)
    with pytest.raises(ValueError, match="num_classes must be 3, got 4"):
        method.check(TRANSFORM, 4)
    with pytest.raises(ValueError, match="l2_reg must"):
        made("softmax", 1.0, {"l2_reg": -1.0})
    with pytest.raises(ValueError, match="options must fit method 'softmax'"):
        made("softmax", 1.0, {"alpha": 1.0})


def test_an_integer_path_without_the_clip_refuses_what_is_too_long() -> None:
    """Trained weights have the clip as their bound: what was left unclipped cannot be encoded."""
    method, sizes = made("svm", 0.1, {"l2_reg": 0.3}), torch.tensor([ROWS, ROWS])
    guarantee = Guarantee.of(sizes, method, Privacy(1.0, 1e-5, unit="user"))
    mechanism = DiscreteGaussian.calibrated(method, guarantee, sizes)
    long = method.unclipped.submit(opposites(method))[0]
    with pytest.raises(ValueError, match=r"x must be finite and \|x\| <= bound="):
        mechanism.encode(long.numpy())
    mechanism.encode(method.clipped_(long[None], sizes[:1])[0].numpy())


@pytest.mark.parametrize(("name", "options"), CASES)
def test_what_the_clip_rounds_is_charged_to_the_method_s_own_bounds(
    name: str, options: dict[str, Any]
) -> None:
    """Where the clip is too long to bind, a submission that it scales is still off by 2 C_u m."""
    bare, sizes = made(name, None, options), torch.tensor([ROWS, 2])
    longest = float(bare.user_zero_out(sizes).max()) * math.sqrt(bare.compositions)
    for norm in (1.5 * longest, 0.9 * longest):
        method = made(name, norm, options)
        part = min(norm, longest) / math.sqrt(method.compositions)
        charge = 4 * ball_margin(method.dimension + 1, torch.float64) * part
        for reach, own in (
            (method.record_sensitivity(sizes), bare.record_sensitivity(sizes)),
            (float(method.user_sensitivity(sizes)[1]), float(bare.user_sensitivity(sizes)[1])),
        ):
            assert own < reach < 2 * norm
            assert reach - own == pytest.approx(charge, rel=1e-2)
