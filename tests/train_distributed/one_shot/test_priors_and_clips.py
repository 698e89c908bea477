"""Options of any method: the prior of its classes, and the clip of what a user sends."""

import json
import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from heads.projection import ball_margin
from tests.train_distributed.one_shot.builders import SUMS, embedded, made, one_user, simulated
from train_distributed import Privacy, Release, release
from train_distributed.one_shot.blind_averaging import HEADS, AveragedHeads, TrainedHeads
from train_distributed.one_shot.class_prior import ClassPrior, checked_prior, read_shares, shares_of
from train_distributed.one_shot.metrics import brief
from train_distributed.one_shot.registry import METHODS
from train_distributed.one_shot.release import measure
from train_distributed.one_shot.report_file import MEASURED
from train_distributed.one_shot.source import EmbeddingUsers, own_partition
from train_distributed.one_shot.statistic import Chunk, NoisedSum, submissions
from train_distributed.partition import Partition, split
from train_distributed.privacy import Guarantee
from train_distributed.privacy.mechanism import DiscreteGaussian

CONSTANT, P = 0.5, 6
NAMES, GIVEN = ("cat", "dog", "owl"), (0.2, 0.3, 0.5)


def rows_of(n: int, shares: list[float], seed: int = 0, gap: float = 1.0) -> EmbeddingSet:
    """Gaussian classes off the origin; every fourth row is for testing; the classes are public."""
    rng, every = np.random.default_rng(seed), np.arange(n)
    means = gap * np.random.default_rng(9).standard_normal((len(shares), P)) + 0.5
    labels = rng.choice(len(shares), n, p=shares)
    x = means[labels] + rng.standard_normal((n, P))
    return embedded(x, labels, len(shares), users=every % 40, test=every // 40 % 4 == 3)


@pytest.fixture(scope="module")
def transform() -> PublicTransform:
    public = rows_of(4000, [0.1] * 10, 1, gap=2.0)
    return PublicTransform.fit(public, constant=CONSTANT, clip_quantile=0.9)


@pytest.mark.parametrize("name", ["discriminant", "softmax", "logistic"])
@pytest.mark.parametrize(("epsilon", "least"), [(1.0, 0.70), (3.0, 0.76)])
def test_equal_shares_keep_a_class_of_a_tenth(transform, name, epsilon, least):
    """Noise and ridge pull scores to the shares: a constant would stand at 50."""
    data, found = rows_of(5400, [0.9, 0.1], 2, gap=0.8), []
    more: dict[str, Any] = {} if name == "discriminant" else {"l2_reg": 0.03}
    for seed in range(3):
        own = simulated(data, name, epsilon, seed, transform=transform, prior="equal", **more)
        assert own.report["class_prior"] == {"a": 0.5, "b": 0.5}
        found.append(measure(own, data)["balanced_accuracy"])
    assert np.mean(found) > least


def test_probabilities_are_calibrated_to_the_prior(transform: PublicTransform) -> None:
    """Classes are equal in use, though 85 % of the private rows, which no clip maps, are of one."""
    data, used = rows_of(6000, [0.85, 0.15], 5, 0.6), rows_of(6000, [0.5, 0.5], 6, 0.6)
    method = made("discriminant", transform, 2, prior="equal")
    own = release(data, method, Privacy(1e3, 1e-5), noise="float")
    sure = own.predict_proba(used.embeddings)[:, 1].numpy()
    for low, high in ((0.05, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 0.95)):
        held = (sure >= low) & (sure < high)
        assert held.sum() > 100
        assert abs(used.labels[held].mean() - sure[held].mean()) < 0.08


def head_method(name: str, prior: Any = "equal", l2_reg: float = 0.05) -> TrainedHeads:
    head = HEADS[name](num_classes=3, l2_reg=l2_reg, clip_norm=math.hypot(1, CONSTANT))
    return TrainedHeads(head=head, dim=4, prior=prior, constant=CONSTANT)


def mean_of(heads: TrainedHeads, total: Tensor, rows: int) -> Tensor:
    return AveragedHeads(statistic=heads).fit(NoisedSum(total, rows, 0.0)).weights


@pytest.mark.parametrize("name", HEADS)
def test_the_sum_of_features_is_charged(name: str) -> None:
    """An opposite row of full length moves it by all that is stated for it, and no less is."""
    sizes = torch.tensor([40])
    joint, alone = head_method(name), head_method(name, "private")
    assert joint.dimension == alone.dimension + 3
    for stated, of_head in (
        (joint.record_sensitivity(sizes), alone.record_sensitivity(sizes)),
        (float(joint.user_sensitivity(sizes)), float(alone.user_sensitivity(sizes))),
    ):
        assert stated == pytest.approx(math.sqrt(1.1) * of_head, rel=2e-3)
    x = torch.tensor([CONSTANT, 1.0, 0.0, 0.0], dtype=torch.float64).repeat(2, 40, 1)
    x[1, -1, 1] = -1.0  # two users alike but for their last record, whose row is opposite
    y = torch.zeros(2, 40, dtype=torch.int64)
    chunk = Chunk(torch.arange(2), x, y, torch.tensor([40, 40]))
    sent = (joint.submit(chunk) * joint.scale)[:, -3:]
    moved = float((sent[0] - sent[1]).norm()) / math.sqrt(joint.compositions)
    left = math.sqrt(joint.record_sensitivity(sizes) ** 2 - alone.record_sensitivity(sizes) ** 2)
    assert moved <= left * (1 + 1e-7)
    assert moved == pytest.approx(left, rel=1e-6)
    removed = joint.zero_out_sensitivity(sizes) ** 2 - alone.zero_out_sensitivity(sizes) ** 2
    assert math.sqrt(removed) == pytest.approx(moved / 2, rel=1e-6)


@pytest.mark.parametrize("name", HEADS)
def test_what_all_rows_share_does_not_decide(name: str) -> None:
    """Rows far from the public centre, heavily regularised: few classes win without the mean."""
    draw, y = torch.Generator().manual_seed(1), torch.arange(3).repeat(200)
    apart = torch.tensor([[0.2, 0.2, 0.0], [0.0, 0.2, 0.2], [0.0, 0.0, 0.0]])
    x = 0.5 + apart[y] + 0.05 * torch.randn(600, 3, generator=draw)
    x = torch.cat([torch.full((600, 1), CONSTANT), 0.99 * x / x.norm(dim=1).max()], 1).double()
    found = {}
    for prior in ("equal", "private"):
        method = head_method(name, prior, l2_reg=1.0)
        weights = mean_of(method, method.submit(one_user(x, y))[0], 600)
        found[prior] = float(((x @ weights).argmax(1) == y).double().mean())
    assert found["private"] < 0.7
    assert found["equal"] > 0.9


@pytest.mark.parametrize("name", ["softmax", "logistic"])
@pytest.mark.parametrize("scheme", ["iid", "one-class"])
def test_rows_without_features_end_at_the_wanted_shares(name: str, scheme: str) -> None:
    """Whoever holds which rows: the intercepts are those of the wanted shares."""
    y, order = (torch.repeat_interleave(torch.tensor(n)) for n in ([60, 30, 10], [20, 30, 50]))
    x = torch.zeros(100, 4, dtype=torch.float64)
    x[:, 0] = CONSTANT
    method = head_method(name, GIVEN)
    partition = split(y, 10, scheme, generator=torch.Generator().manual_seed(0))
    total = torch.zeros(method.dimension, dtype=torch.float64)
    for bucket in partition.buckets(100):
        chunk = Chunk(bucket.users, x[bucket.rows], y[bucket.rows], bucket.counts)
        total += method.submit(chunk).sum(0)
    alone = replace(method, prior="private")
    expected = mean_of(alone, alone.submit(one_user(x, order))[0], 100)
    assert torch.allclose(mean_of(method, total, 100), expected, atol=3e-4)  # what solvers leave


PRIORS: tuple[ClassPrior, ...] = ("equal", "private", GIVEN)
ROWS = rows_of(2400, [0.6, 0.3, 0.1], gap=0.6)  # which lie close together


def released(method: str = "discriminant", epsilon: float = 1.0, **options: Any) -> Any:
    return simulated(ROWS, method, epsilon, **options)


@pytest.fixture(scope="module")
def model() -> Any:
    return released()


@pytest.mark.parametrize("prior", PRIORS[1:])
def test_scores_differ_by_the_log_ratio(model: Any, prior: ClassPrior) -> None:
    """Of tempered shares: T log π."""
    assert (model.prior, model.report["prior"]) == ("equal", "equal")
    assert model.temperature != 1
    shares = model.class_shares.numpy() if prior == "private" else np.array(GIVEN)
    powers = shares**model.temperature
    moved = model.with_prior(prior).scores(ROWS.embeddings) - model.scores(ROWS.embeddings)
    wanted = np.log(powers / powers.sum()) - np.log(1 / 3)
    assert np.abs(moved.numpy() - wanted).max() < 1e-12
    again = model.with_prior(prior).with_prior("equal")
    assert torch.allclose(again.weights, model.weights, rtol=0, atol=1e-12)
    assert torch.equal(again.weights[1:], model.weights[1:])
    assert model.with_prior("equal") is model
    with pytest.raises(ValueError, match="prior must be the model's own, unknown"):
        replace(model, prior=None).with_prior("equal")
    for wrong in ("flat", (0.5, 0.5), (0.5, 0.4, 0.2)):
        with pytest.raises(ValueError, match="prior must"):
            model.with_prior(wrong)


@pytest.mark.parametrize("options", [{}, {"rounds": 2}, {"moments": False}])
@pytest.mark.parametrize("prior", PRIORS[1:])
def test_a_model_moved_is_the_model_made(prior: ClassPrior, options: dict[str, Any]) -> None:
    """One prior is chosen before the sum, the other after it; the noise is the same."""
    moved, meant = released(**options).with_prior(prior), released(prior=prior, **options)
    assert torch.allclose(moved.weights, meant.weights, rtol=1e-9, atol=1e-12)
    assert moved.prior == meant.prior == prior
    assert moved.report.class_prior == pytest.approx(meant.report.class_prior)
    assert moved.report.prior == meant.report.prior
    assert moved.report.learned_shares == pytest.approx(meant.report.learned_shares)
    assert not set(MEASURED) & set(moved.report)
    assert torch.equal(moved.class_shares, meant.class_shares)


def test_metrics_are_those_of_each_model(model: Any) -> None:
    metrics = model.report["test_metrics"]
    assert list(metrics["by_prior"]) == ["equal", "private"]
    for prior, found in metrics["by_prior"].items():
        alone = measure(model.with_prior(prior), ROWS)
        assert found == {name: alone[name] for name in ("accuracy", "balanced_accuracy")}
    assert metrics["by_prior"]["equal"]["accuracy"] == metrics["accuracy"]
    equal, private = metrics["by_prior"].values()
    assert private["accuracy"] > equal["accuracy"]
    assert equal["balanced_accuracy"] > private["balanced_accuracy"]
    assert {"with prior equal", "with prior private"} <= dict(brief(metrics)).keys()
    assert model.report.test_metrics.by_prior["private"].accuracy == private["accuracy"]


@pytest.mark.parametrize("method", HEADS)
def test_a_head_has_one_prior_and_says_so(method: str, tmp_path: Path) -> None:
    head = released(method)
    head.save(tmp_path / "head")
    for each in (head, Release.load(tmp_path / "head")):
        assert (each.prior, each.class_shares) == ("equal", None)
    assert "class_shares" not in load_file(tmp_path / "head" / "model.safetensors")
    assert "carries the prior of its rows inside" in head.report.other_priors
    assert "by_prior" not in head.report["test_metrics"]
    assert head.with_prior("equal") is head
    with pytest.raises(ValueError, match=r"prior must be the model's own, 'equal' .*inside.* got"):
        head.with_prior("private")


@pytest.mark.parametrize("prior", PRIORS)
def test_shares_and_prior_are_saved_and_loaded(model, prior, tmp_path):
    moved = model.with_prior(prior)
    moved.save(tmp_path / "model")
    loaded: Any = Release.load(tmp_path / "model")
    assert torch.equal(loaded.class_shares, model.class_shares)
    assert loaded.prior == prior
    assert torch.equal(loaded.with_prior("equal").weights, moved.with_prior("equal").weights)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"cat": 0.5, "dog": 0.5}', "'owl'"),
        ('{"cat": 0.2, "dog": 0.3, "owl": 0.4, "emu": 0.1}', "'emu'"),
        ('{"cat": 0.2, "cat": 0.3, "dog": 0.3, "owl": 0.2}', "'cat' twice"),
        ('{"0": 0.2, "1": 0.3, "owl": 0.5}', "'cat'"),
        ('{"cat": 1, "dog": 1, "owl": 1}', "sum 1, got 3"),
    ],
)
def test_files_that_are_no_prior_are_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "prior.json").write_text(text)
    with pytest.raises(ValueError, match=r"prior must be .*prior\.json") as caught:
        read_shares(tmp_path / "prior.json", NAMES)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_file_may_name_classes_or_number_them(tmp_path: Path) -> None:
    path = tmp_path / "prior.json"
    for shares in ({"owl": 0.5, "cat": 0.2, "dog": 0.3}, {"2": 0.5, "0": 0.2, "1": 0.3}):
        path.write_text(json.dumps(shares))
        assert read_shares(path, NAMES) == GIVEN
    assert checked_prior([0.5, 0.5], 2) == (0.5, 0.5)
    exact = shares_of((0.5, 0.5000001), torch.ones(2).double())
    assert float(exact.sum()) == 1.0


K, FEATURES, EACH = 3, 4, 6
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


def method_of(name: str, norm: float | None, **options: Any) -> Any:
    clip = {} if norm is None else {"user_clip": norm}
    return made(name, TRANSFORM, K, **options, **clip)


def statistic_of(name: str, norm: float | None, **options: Any) -> Any:
    return method_of(name, norm, **options).statistic


def chunk_of(seed: int, users: int = 4, n: int = EACH) -> Chunk:
    generator = torch.Generator().manual_seed(seed)
    u = torch.randn(users, n, FEATURES, generator=generator, dtype=torch.float64)
    rows = TRANSFORM(u.flatten(0, 1)).unflatten(0, (users, n))
    y = torch.randint(K, (users, n), generator=generator)
    counts = torch.randint(1, n + 1, (users,), generator=generator)
    return Chunk(torch.arange(users), rows, y, counts)


def exact_square(values: Tensor | np.ndarray, scale: Any) -> Fraction:
    """‖values ∘ scale‖² of these floats, without any rounding."""
    pairs = zip(*(each.tolist() for each in np.broadcast_arrays(values, scale)), strict=True)
    return sum(((Fraction(v) * Fraction(s)) ** 2 for v, s in pairs), Fraction(0))


@EVERY
@pytest.mark.parametrize("share", [1e-3, 0.3, 0.999, 1.0])
def test_no_norm_is_above_the_clip_in_exact_arithmetic(name, options, share):
    """Floats as they are submitted, and the whole numbers of statistics that leave a user."""
    bare = statistic_of(name, None, **options)
    for seed in range(3):
        chunk = chunk_of(seed)
        norm = share * float((bare.submit(chunk) * bare.scale).norm(dim=1).median())
        own = statistic_of(name, norm, **options)
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
    own = made("discriminant", transform, 2, user_clip=3.0).statistic
    draw = np.random.default_rng(length)
    entries = 2.0**exponent * (1 + draw.integers(1, 2**20, (3, own.dimension)) * 2.0**-40)
    for clipped in own.clipped_(torch.from_numpy(entries), torch.zeros(3)):
        assert exact_square(clipped, 1.0) <= 9
        if exponent >= 8:
            assert exact_square(clipped, 1.0) >= Fraction(9) * (1 - Fraction(1, 10**11))


@EVERY
def test_what_the_clip_rounds_is_charged_to_the_method_s_own_bounds(name, options):
    """Where the clip is too long to bind, a submission that it scales is still off by 2 C_u m."""
    bare, sizes = statistic_of(name, None, **options), torch.tensor([EACH, 2])
    longest = float(bare.user_zero_out(sizes).max()) * math.sqrt(bare.compositions)
    for norm in (1.5 * longest, 0.9 * longest):
        own = statistic_of(name, norm, **options)
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
    one = chunk_of(3, users=1, n=40)
    x, y = one.x.expand(5, -1, -1).clone(), one.y.expand(5, -1).clone()
    chunk = Chunk(torch.arange(5), x, y, torch.full((5,), 40))
    bare, centre = method_of(name, None, moments=False), statistic_of(name, 1.0).centre
    whole = bare.statistic.submit(chunk).sum(0)
    own = float(((whole - 200 * centre) * bare.statistic.scale).norm()) / 5
    expected = bare.fit(NoisedSum(whole, 200, 1e-9)).weights
    for share in (0.9, 0.25, 0.01):
        method = method_of(name, share * own)
        noised = NoisedSum(method.statistic.submit(chunk).sum(0), 200, share * 1e-9)
        restored = method.statistic.restored(noised)
        assert restored.rows == 200
        assert restored.noise_std == pytest.approx(1e-9, rel=1e-6)
        assert torch.allclose(restored.total, whole, atol=1e-6)
        found = method.fit(noised).weights
        assert torch.allclose(found, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


def test_rows_that_noise_explains_are_not_missed() -> None:
    own, rows = statistic_of("discriminant", 1.0), 100
    total = torch.zeros(own.dimension, dtype=torch.float64)
    for counted in (-1e4, 0.0, 1.0, 40.0, 50.0, 1e6):  # of 50, which clips may not touch
        total[:K] = counted * TRANSFORM.constant / K
        assert own.restored(NoisedSum(total, rows, 1e4)).noise_std == 1e4
        left = min(1.0, max(1 / rows, counted / 50))
        found = own.restored(NoisedSum(total, rows, 1e-9)).noise_std
        assert found == pytest.approx(1e-9 / left, rel=1e-6)
    assert statistic_of("softmax", 1.0).restored(NoisedSum(total, rows, 0.0)).total is total


def test_what_a_user_sends_may_be_longer_by_the_centre() -> None:
    """Rows of full length, opposite to the public ones, and a clip that leaves them alone."""
    mean = torch.tensor([-0.6, 0.0, 0.0, 0.0], dtype=torch.float64)
    transform = replace(TRANSFORM, row_mean=mean)
    bare, own = (
        made("discriminant", transform, K, **clip).statistic
        for clip in ({"moments": False}, {"user_clip": 1e3})
    )
    x = torch.zeros(EACH, FEATURES + 1, dtype=torch.float64)
    x[:, 0], x[:, 1] = TRANSFORM.constant, TRANSFORM.reach * (1 - 1e-12)
    chunk = one_user(x, torch.zeros(EACH, dtype=torch.int64))
    longest = (own.submit(chunk) * own.scale).norm()
    assert bare.norm_bounds(chunk.counts).max() < longest <= own.norm_bounds(chunk.counts).max()


def test_a_public_row_is_expected_as_public_rows_are() -> None:
    """The centre is the mean submission of public rows whose classes are drawn at random."""
    draw = torch.Generator().manual_seed(0)
    points = torch.rand(3000, 5, generator=draw).pow(6)  # skewed: clipped, their mean is not 0
    public = embedded(points.numpy(), np.zeros(3000, np.int64), 1)
    transform = PublicTransform.fit(public, components=4)
    own = made("discriminant", transform, K, user_clip=1.0).statistic
    y = torch.randint(K, (3000,), generator=draw)
    found = own.unclipped.submit(one_user(transform(points), y))[0] / 3000
    found[:K] *= 0.5  # the other half of a count stays in what is sent
    assert torch.allclose(found, own.centre, atol=0.01)
    assert float(found[K:].norm()) > 0.1


def uneven_rows(name: str, sizes: list[int]) -> EmbeddingSet:
    """Of classes, or of findings for a method of those."""
    draw, n = np.random.default_rng(0), sum(sizes)
    labels, users = draw.integers(0, K, n), np.repeat(range(len(sizes)), sizes)
    x = draw.standard_normal((n, FEATURES)) + 3 * np.eye(FEATURES)[labels]
    if METHODS[name].classes:
        return embedded(x, labels, K, users=users)
    one_hot = np.eye(K, dtype=np.int8)[labels]
    findings = np.maximum(one_hot, one_hot[::-1])
    return embedded(x, np.full(n, -1), K, users=users, findings=findings)


@pytest.mark.parametrize("name", METHODS)
def test_the_sum_is_that_of_submissions_clipped_one_by_one(monkeypatch, name):
    """Uneven sizes: short submissions stay as they are, long ones have the clip's length."""
    monkeypatch.setattr(Partition, "shuffled", lambda partition, generator: partition)
    rows = uneven_rows(name, [1, 3, 30, 60])
    bare = statistic_of(name, None, **({"moments": False} if METHODS[name].sums_rows else {}))
    centre = statistic_of(name, 1.0).centre
    alone = []
    for chunk in EmbeddingUsers(rows, TRANSFORM, own_partition(rows)).chunks():
        expected = 0.0 if centre is None else chunk.counts[:, None] * centre * bare.scale
        alone += list(submissions(bare, chunk, None) - expected)
    lengths = [float(each.norm()) for each in alone]
    norm = (sorted(lengths)[1] + sorted(lengths)[2]) / 2
    pairs = zip(alone, lengths, strict=True)
    expected = torch.stack([each * min(1.0, norm / length) for each, length in pairs]).sum(0)
    for epsilon, noise in ((math.inf, "float"), (1e4, "float"), (1e4, "discrete")):
        given: dict[str, Any] = {"transform": TRANSFORM, "noise": noise}
        promise = Privacy(epsilon, 1e-5, unit="user")
        released: Any = release(rows, method_of(name, norm), promise, **given)
        report = released.report
        assert (report["method"], report["user_clip"]) == (name, norm)
        parts = math.sqrt(report["compositions"])
        assert parts * report["sensitivity"] == pytest.approx(2 * norm, rel=1e-6)
        if epsilon == math.inf:
            assert torch.allclose(released.opened, expected, rtol=1e-9, atol=1e-9)
        else:
            assert parts * report["zero_out_sensitivity"] == pytest.approx(norm, rel=1e-6)
