"""What users send: averaged heads, class sums and moments, sums of findings; what is made of it."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from embed.known_classes import ClassGuess, KnownClasses
from heads import (
    HuberSVMHead,
    LogisticHead,
    SoftmaxHead,
    class_sums,
    class_sums_sensitivity,
    default_tolerance,
    finding_sums_sensitivity,
    fit_exact,
    fit_sgd,
    least_squares_sensitivity,
    project_ball,
    second_moments,
    sgd_rounding,
    sgd_sensitivity,
)
from tests.train_distributed.one_shot.builders import embedded, made, one_user, several
from train_distributed import Privacy, Release, release
from train_distributed.one_shot.blind_averaging import HEADS, AveragedHeads, TrainedHeads
from train_distributed.one_shot.discriminant import class_counts
from train_distributed.one_shot.method import ReleaseState
from train_distributed.one_shot.release import release_of
from train_distributed.one_shot.request import ReleaseRequest
from train_distributed.one_shot.statistic import Chunk, NoisedSum

K, FEATURES, CONSTANT, DIM, CLIP = 3, 4, 0.5, 5, 1.25
SGD: dict[str, Any] = {"solver": "sgd", "epochs": 3, "batch_size": 4}
STEPS: dict[str, Any] = {"epochs": 3, "batch_size": 4}


def identity(features: int) -> PublicTransform:
    return PublicTransform.identity(features, math.sqrt(1 + CONSTANT**2), CONSTANT)


TRANSFORM = identity(FEATURES)


def statistic(name: str, transform: PublicTransform, k: int = K, **options: Any) -> Any:
    return made(name, transform, k, **options).statistic


def averaging(name: str, radius: float | None = None, **more: Any) -> TrainedHeads:
    head = HEADS[name](num_classes=K, l2_reg=0.5, clip_norm=CLIP, radius=radius)
    return TrainedHeads(head=head, dim=DIM, **more)


def full_rows(users: int, n: int, counts: list[int] | None = None) -> Chunk:
    """Rows of full length; float64, so that what is compared is not their rounding."""
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(users, n, DIM, generator=draw, dtype=torch.float64)
    x = x / x.norm(dim=2, keepdim=True) * CLIP * (1 - 1e-15)
    y = torch.randint(K, (users, n), generator=draw)
    return Chunk(torch.arange(users), x, y, torch.tensor(counts or [n] * users))


def parts(method: TrainedHeads, submissions: Tensor) -> Tensor:
    """(u, C) norms, one for each part that a record moves by `record_sensitivity`."""
    weights = submissions.unflatten(1, (DIM, K))
    return torch.linalg.vector_norm(weights, dim=method.head.norm_dims).reshape(len(weights), -1)


@pytest.mark.parametrize("radius", [None, 0.05])
@pytest.mark.parametrize("name", HEADS)
def test_the_charge_is_the_solvers_own(name: str, radius: float | None) -> None:
    """Of the exact one its tolerance, of SGD its rounding: as `heads` states them, n times."""
    exact, sgd = averaging(name, radius), averaging(name, radius, **SGD)
    for n in (1, 7, 1000):
        size, held = torch.tensor([n]), full_rows(1, n)
        least = exact.head.sensitivity(n) + 2 * default_tolerance(exact.head, n) / 0.5
        assert exact.record_sensitivity(size) > n * least
        found = fit_exact(exact.without_radius, held.x[0], held.y[0])
        assert exact.record_sensitivity(size) >= n * found.sensitivity(n)
        charged = n * sgd_sensitivity(sgd.head, n, DIM, **STEPS)
        assert sgd.record_sensitivity(size) == charged
        rho = sgd_rounding(sgd.head, n, DIM, **STEPS)
        reach = 2 * sgd.head.lipschitz / 0.5
        assert reach < charged == pytest.approx(reach * (1 + n * rho), rel=1e-15)
    published = 2 * (0.5 * 1.0 + exact.head.lipschitz) / 0.5
    paper = averaging(name, radius=1.0, bound="paper")
    assert paper.record_sensitivity(torch.tensor([4, 60])) == published


def test_the_size_whose_rounding_is_largest_decides() -> None:
    """Neither always the largest user nor the smallest: the Gram form may round more."""
    sgd = averaging("softmax", **SGD)
    sizes = torch.tensor([1, 500, 20])
    assert sgd.record_sensitivity(sizes) == sgd.record_sensitivity(torch.tensor([500]))
    assert sgd.record_sensitivity(sizes) > sgd.record_sensitivity(torch.tensor([20]))
    head = SoftmaxHead(num_classes=10, l2_reg=0.1, clip_norm=2**0.5, radius=0.02)
    sgd = TrainedHeads(head=head, dim=1281, solver="sgd", epochs=10, batch_size=20)
    small, large = (sgd.record_sensitivity(torch.tensor([n])) for n in (640, 1281))
    assert small > 1.009 * large
    assert sgd.record_sensitivity(torch.tensor([3, 1281, 640, 1281])) == small


@pytest.mark.parametrize("solver", [{}, SGD])
def test_every_user_reaches_as_far_as_its_own_size_says(solver: dict) -> None:
    """The bound on ‖W‖ depends on n: neither the first nor the smallest user's is all users'."""
    method, sizes = averaging("softmax", **solver), torch.tensor([1, 500, 20, 500])
    alone = [float(method.user_sensitivity(sizes[k : k + 1])) for k in range(len(sizes))]
    assert method.user_sensitivity(sizes).tolist() == alone
    assert len({method.weight_bound(n) for n in (1, 20, 500)}) == 3


@pytest.mark.parametrize("solver", [{}, SGD])
@pytest.mark.parametrize("name", HEADS)
def test_a_model_is_the_mean_of_all_heads_weighted_by_their_rows(name: str, solver: dict) -> None:
    method, held = averaging(name, **solver), full_rows(3, 6, [6, 2, 5])
    sent = method.submit(held)
    mean = AveragedHeads(statistic=method).fit(NoisedSum(sent.sum(0), 13, 0.0)).weights
    heads = sent.unflatten(1, (DIM, K)) / held.counts[:, None, None]
    assert (parts(method, heads.flatten(1)) <= method.weight_bound(6)).all()
    assert torch.allclose(mean, (6 * heads[0] + 2 * heads[1] + 5 * heads[2]) / 13)


@pytest.mark.parametrize("name", HEADS)
def test_the_minimiser_is_projected_once(name: str) -> None:
    held, radius = full_rows(2, 9), 0.02
    method = averaging(name, radius=radius)
    free = fit_exact(method.without_radius, held.x, held.y).weights
    projected = project_ball(free, radius, method.head.norm_dims)
    assert (parts(method, free.flatten(1)) > 2 * radius).all()
    assert torch.equal(method.submit(held), (projected * 9).flatten(1))
    capped = method.record_sensitivity(held.counts)
    bare = averaging(name).record_sensitivity(held.counts)
    assert bare < capped < bare * (1 + 1e-9)  # the projection's own rounding is charged


def test_what_is_sent_are_sums_and_the_triangle_of_moments() -> None:
    y = (torch.arange(41) % 6).clamp(max=K - 1)
    x = torch.randn(41, FEATURES, generator=torch.Generator().manual_seed(0)) / 4
    held = one_user(TRANSFORM(x + torch.eye(K, FEATURES)[y] / 2), y)
    sums = class_sums(held.x, held.y, K).flatten(1)
    alone, both = (statistic("discriminant", TRANSFORM, moments=m) for m in (False, True))
    assert torch.equal(alone.submit(held), sums)
    assert alone.scale == 1.0
    assert torch.equal(both.submit(held), torch.cat([sums, second_moments(held.x[..., 1:])], 1))
    sizes = torch.tensor([3, 50])
    assert alone.record_sensitivity(sizes) == class_sums_sensitivity(TRANSFORM.clip_norm, CONSTANT)
    stated = least_squares_sensitivity(TRANSFORM.clip_norm, both.weight, CONSTANT)
    assert both.record_sensitivity(sizes) == stated
    noised, x = NoisedSum(both.submit(held)[0], 41, 1.0), held.x[0].double()
    assert torch.allclose(both.moment_matrix(noised), x[:, 1:].T @ x[:, 1:])
    assert torch.equal(both.sums(noised)[0], CONSTANT * y.bincount().double())
    assert both.counted_rows(noised) == (41.0, K * (1.0 / CONSTANT) ** 2)


def test_a_users_clip_leaves_the_moments_out() -> None:
    """Of n rows they are about n/√2 long, where class sums of mixed classes are √n long."""
    clipped = statistic("discriminant", TRANSFORM, user_clip=1.0)
    assert clipped.dimension == TRANSFORM.dim * K
    assert clipped.unclipped == statistic("discriminant", TRANSFORM, moments=False)


@pytest.mark.parametrize("counts", [[30.0, 30, 30], [60.0, 20, 10], [88.0, 1, 1]])
def test_class_counts_are_exact_without_noise_and_equal_where_it_explains_all(counts) -> None:
    true = torch.tensor(counts, dtype=torch.float64)
    least = true.clamp(min=1.5)
    for std, expected in ((0.0, least * 90 / least.sum()), (1.0, None), (1e6, 0 * true + 30)):
        found = class_counts(CONSTANT * true, CONSTANT, 90, std)
        assert float(found.sum()) == pytest.approx(90)
        assert (found > 0).all()
        assert expected is None or torch.allclose(found, expected)


@pytest.mark.parametrize("std", [0.3, 3.0, 12.0, 40.0])
@pytest.mark.parametrize("counts", [[22.0, 26, 19, 23], [30.0, 40, 15, 5]])
def test_class_counts_are_posterior_means(counts: list[float], std: float) -> None:
    """By quadrature: equal, or spread by c, at even odds."""
    noised = torch.tensor(counts, dtype=torch.float64)
    spread, noise = noised / 22.5 - 1, (std / CONSTANT / 22.5) ** 2
    squares = float(spread.square().sum())

    def likely(own: float) -> float:
        return (own + noise) ** -1.5 * math.exp(-squares / (2 * (own + noise)))

    def integral(value: Callable[[float], float]) -> float:
        return quad(lambda c: math.exp(-2 * c**2) * value(c**2), 0, math.sqrt(3), limit=500)[0]

    kept = integral(lambda own: likely(own) * own / (own + noise))
    keep = kept / (integral(lambda _: 1.0) * likely(0.0) + integral(likely))
    found = class_counts(CONSTANT * noised, CONSTANT, 90, std)
    assert torch.allclose(found, 22.5 * (1 + keep * spread), rtol=1e-4, atol=1e-4)


CLASSES, P, Q = 4, 12, 8


def drawn(n: int, classes: int, seed: int) -> EmbeddingSet:
    """Gaussian classes; public and private means are drawn alike, so differ by their seed."""
    rng = np.random.default_rng(seed)
    means = 1.5 * rng.standard_normal((classes, P))
    labels = rng.choice(classes, n)
    rows = means[labels] + rng.standard_normal((n, P)) * np.linspace(0.3, 2.0, P)
    return embedded(rows, labels, classes, test=np.arange(n) % 4 == 3)


@pytest.fixture(scope="module")
def transform() -> PublicTransform:
    return PublicTransform.fit(drawn(4000, 30, 1), components=Q, constant=CONSTANT)


@pytest.mark.parametrize("epsilon", [1e-3, 2.0, math.inf])
def test_the_model_is_a_function_of_what_was_opened(transform, epsilon):
    """By two sums, one after the other; the first says along which directions the second is."""
    data = drawn(400, CLASSES, 7)
    request = ReleaseRequest(
        embeddings=data,
        method="discriminant",
        privacy=Privacy(epsilon, 1e-5),
        transform=transform,
        generator=torch.Generator().manual_seed(1),
        noise="float",
        options={"alpha": 0.5},
    )
    released: Any = release_of(request)
    state = ReleaseState(request.built)
    stds = released.report["local_noise_std_per_round"]  # of the one user
    for total, std in zip((released.opened[: Q + 1], released.opened[Q + 1 :]), stds, strict=True):
        state = state.advance(total, 300, std)
    found = state.fitted()
    assert torch.equal(found.weights, released.weights)
    assert found.temperature == released.temperature
    assert 0 < released.temperature < math.inf
    assert released.predict_proba(data.embeddings).isfinite().all()


def test_a_guess_that_errs_where_public_classes_do_not_differ_still_serves(transform):
    """A source that says V = one direction, and errs in all: as good as if it had said C."""
    draw, counts, spread = torch.Generator().manual_seed(8), 100.0, transform.public.covariance
    root = torch.linalg.cholesky(0.3 * spread)
    risks = torch.zeros(3, dtype=torch.float64)
    narrow = 0.3 * spread.trace() * torch.eye(Q, dtype=torch.float64)[:, :1]
    shapes = {1: narrow @ narrow.T / float(narrow.norm()), 2: 0.3 * spread.double()}
    for _ in range(20):
        normal = torch.randn(3, Q, CLASSES, generator=draw, dtype=torch.float64)
        truth = 1.5 * torch.linalg.cholesky(spread) @ normal[0]
        guessed = truth + root @ normal[1]
        std = counts * float(root.diagonal().mean())
        counted = torch.full((1, CLASSES), counts * CONSTANT)
        sums = torch.cat([counted, counts * truth + std * normal[2]])
        noised = NoisedSum(sums.flatten(), int(counts) * CLASSES, std)
        for place in range(3):
            guess = () if not place else (ClassGuess("names", guessed, shapes[place]),)
            known = KnownClasses(tuple("abcd"), guess) if guess else None
            method = made("discriminant", replace(transform, known=known), CLASSES, moments=False)
            found, odds = method.estimator.posterior(noised)
            assert sum(odds.values()) == pytest.approx(1)
            risks[place] += (found.means - truth).square().sum()
    nothing, narrowly, widely = risks.tolist()
    assert widely < 0.9 * nothing
    assert narrowly < 1.05 * widely


def records(x: Tensor, y: Tensor) -> Chunk:
    """One user for every row: (n, q) features and (n, K) findings."""
    rows = torch.nn.functional.pad(x, (1, 0), value=CONSTANT)[:, None]
    return Chunk(torch.arange(len(x)), rows, y[:, None].to(torch.int8), torch.ones(len(x)).long())


@pytest.mark.parametrize("g", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(("m", "k"), [(1, 2), (1, 3), (2, 6), (3, 14), (4, 5)])
@pytest.mark.parametrize("constant", [0.1, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("heavy", [0.5, 1.0, 2.0])
def test_no_numbers_of_findings_move_a_sum_further(g, m, k, constant, heavy):
    """Every |y|, |z| and overlap, at every angle; counts that are free, and heavier ones."""
    length2, kappa = 1 + g**2 * min(m, k), max(1.0, k / m) / g**2
    alpha = heavy * math.sqrt(length2 / 2)
    free = (length2 + 1) / (2 * length2) - constant**2
    t = np.linspace(-1, 1, 401)
    for counts in {0.0, max(free, 0.0), max(free, 0.0) + 0.5}:
        c, worst = counts / kappa, 0.0
        stated = finding_sums_sensitivity(math.hypot(1, constant), constant, length2, alpha, counts)
        for i, j in itertools.product(range(k + 1), repeat=2):
            for both in range(max(0, i + j - k), min(i, j) + 1):
                w, v = (min(1.0, math.sqrt(m / max(n, 1))) for n in (i, j))
                own = 2 + g**2 * (w**2 * i + v**2 * j)
                dot = 1 + g**2 * w * v * both
                moved = (1 + constant**2) * own - 2 * (constant**2 + t) * dot
                moved += 2 * alpha**2 * (1 - t**2) + c * (i + j - 2 * both)
                worst = max(worst, float(moved.max()))
        assert math.sqrt(worst) <= stated * (1 + 1e-12)
        if heavy <= 1 and 0 <= counts <= free:
            assert stated == pytest.approx(2 * math.sqrt(length2), rel=1e-12)
            assert math.sqrt(worst) >= stated * (1 - 1e-3)


@pytest.mark.parametrize(("m", "k", "ask"), [(1, 14, None), (2.5, 4, "ask"), (3, 9, None)])
def test_the_spread_is_that_of_the_lightest_findings(m: float, k: int, ask: str | None) -> None:
    """No two records' findings differ in more places than κ times their distance."""
    own = statistic("findings", TRANSFORM, k, most_findings=m, unknown=ask)
    y = several(k)
    sent = own.submit(records(torch.zeros(len(y), FEATURES).double(), y)) * own.scale / CONSTANT
    b = sent[:, k : k + own.columns]
    places = torch.cdist((y == 1).double(), (y == 1).double()).square()
    assert (places <= own.spread * torch.cdist(b, b).square() + 1e-9).all()
    assert float(b.square().sum(1).max()) <= own.length2 + 1e-12


@pytest.mark.parametrize("ask", [None, "ask"])
def test_sums_and_counts_are_read_back(ask: str | None) -> None:
    own = statistic("findings", TRANSFORM, unknown=ask, most_findings=2)
    x, y = torch.eye(2, FEATURES).double(), torch.tensor([[1, 1, 1], [0, -1, 1]])
    total = own.submit(records(x.repeat(40, 1), y.repeat(40, 1)).pooled())[0]
    noised = NoisedSum(total, 80, 0.0)
    assert own.counts(noised).tolist() == pytest.approx([40, 40, 80])
    w = math.floor(64 * math.sqrt(2 / 3)) / 64
    assert own.weighted_counts(noised).tolist() == pytest.approx([40 * w, 40 * w, 40 * w + 40])
    assert own.sums(noised)[1:, 0].tolist() == pytest.approx([40, 40, 0, 0])
    assert own.known_counts(noised).tolist() == ([80, 40, 80] if ask else [80, 80, 80])
    assert own.counted_rows(noised) == (80.0, 0.0)


def rows_of(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(n, q) rows whose findings shift them, and (n, 4) findings of different prevalence."""
    rng = np.random.default_rng(seed)
    y = (rng.random((n, 4)) < np.linspace(0.1, 0.5, 4)).astype(np.int8)
    shifts = np.random.default_rng(99).standard_normal((4, Q))
    return (y @ shifts + 2 * rng.standard_normal((n, Q))).astype(np.float32), y


def test_without_noise_it_is_fishers_discriminant_and_calibrated() -> None:
    x, y = rows_of(30_000)
    x /= 60.0
    method = made("findings", identity(Q), 4, most_findings=4)
    chunk = records(torch.from_numpy(x).double(), torch.from_numpy(y)).pooled()
    fitted = method.fit(NoisedSum(method.statistic.submit(chunk)[0], len(x), 1e-9))
    assert fitted.class_shares.numpy() == pytest.approx(y.mean(0), rel=1e-3)
    held = np.concatenate([np.full((len(x), 1), CONSTANT), x], 1)
    rates = 1 / (1 + np.exp(-held @ fitted.weights.numpy()))
    for k in range(4):
        theirs = LinearDiscriminantAnalysis().fit(x, y[:, k]).coef_[0]
        ours = fitted.weights[1:, k].numpy()
        assert ours @ theirs / np.linalg.norm(ours) / np.linalg.norm(theirs) > 0.999
        for low, high in ((0, 0.2), (0.2, 0.5), (0.5, 1)):
            part = (rates[:, k] >= low) & (rates[:, k] < high)
            if part.sum() > 300:
                assert rates[part, k].mean() == pytest.approx(y[part, k].mean(), abs=0.06)


@pytest.mark.parametrize("head", [LogisticHead, HuberSVMHead])
def test_a_findings_head_is_that_of_two_classes(head: type) -> None:
    x, y = rows_of(60)
    rows, found = torch.nn.functional.normalize(torch.from_numpy(x).double()), torch.from_numpy(y)
    many, two = (head(num_classes=k, l2_reg=0.1, clip_norm=1.0) for k in (4, 2))
    exact, steps = fit_exact(many, rows, found).weights, fit_sgd(many, rows, found, **STEPS)
    for k in range(4):
        alone = fit_exact(two, rows, found[:, k].long()).weights[:, 1]
        assert torch.allclose(exact[:, k], alone, atol=1e-2)
        alone = fit_sgd(two, rows, found[:, k].long(), **STEPS)[:, 1]
        assert torch.allclose(steps[:, k], alone, atol=1e-9)
    none, zero = torch.full_like(found, -1), torch.zeros(Q, 4, dtype=torch.float64)
    assert not fit_exact(many, rows, none).weights.any()
    assert torch.equal(many.gradient(zero, rows, none), zero)
    with pytest.raises(ValueError, match="svm and logistic"):
        fit_sgd(SoftmaxHead(num_classes=4, l2_reg=0.1, clip_norm=1.0), rows, found, **STEPS)


def held_findings(n: int, *, unknown: bool = False) -> EmbeddingSet:
    x, y = rows_of(n)
    if unknown:
        y[::3, 0] = -1
    meta = {"class_names": list("abcd")} | ({"unknown": "ask"} if unknown else {})
    users = np.arange(n) // 20
    return embedded(x, np.full(n, -1), 4, findings=y, users=users, meta=meta)


@pytest.mark.parametrize(
    ("options", "promise"),
    [
        ({}, {}),
        ({"sums": 1}, {"unit": "user", "noise_by": "servers"}),
        ({"user_clip": (8.0, 8.0)}, {"unit": "user"}),
        ({"prior": (0.2, 0.3, 0.3, 0.9)}, {"group_size": 2}),
    ],
)
@pytest.mark.parametrize("unknown", [False, True])
def test_a_release_of_findings(options, promise, unknown, tmp_path):
    """The default method learns them: by sums, two or one, clipped, and for every unit."""
    public = PublicTransform.fit(rows_of(2000, seed=5)[0])
    rows, privacy = held_findings(600, unknown=unknown), Privacy(5.0, 1e-5, **promise)
    released = release(rows, "discriminant", privacy, transform=public, **options)
    assert released.report["method"] == "findings"
    assert released.report["suitable_for_release"]
    found = released.predict_proba(rows.embeddings)
    assert torch.equal(released.predict(rows.embeddings), (found > 0.5).long())
    released.save(tmp_path / "model")
    again = Release.load(tmp_path / "model")
    assert again.findings
    assert torch.equal(again.predict_proba(rows.embeddings), found)
    equal = released.with_prior("equal")
    moved = torch.logit(equal.predict_proba(rows.embeddings)) - torch.logit(found)
    shift = equal.prior_shift(released.prior or "private")
    assert torch.allclose(moved, shift.neg().expand_as(moved))


def test_findings_of_a_set() -> None:
    """Unknown ones only where the set says that they may be."""
    rows: Any = held_findings(20)
    assert rows.targets is rows.findings
    for findings, words in ((rows.findings - 1, "0 or 1"), (rows.findings[:5], "integers")):
        with pytest.raises(ValueError, match=words):
            replace(rows, findings=findings)
    with pytest.raises(ValueError, match="labels must be -1"):
        replace(rows, labels=np.zeros(20, np.int64))
