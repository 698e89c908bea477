"""Several findings a picture: what a record moves, what is sent, and what is made of it."""

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from heads import (
    HuberSVMHead,
    LogisticHead,
    SoftmaxHead,
    finding_sums_sensitivity,
    fit_exact,
    fit_sgd,
)
from tests.train_distributed.one_shot.fitting import made
from train_distributed import Privacy, release
from train_distributed.one_shot.findings import KNOWN, FindingMoments
from train_distributed.one_shot.model import Release
from train_distributed.one_shot.request import ReleaseRequest
from train_distributed.one_shot.statistic import Chunk, NoisedSum, submissions

FEATURES = 3


def transform(constant: float = 0.5, features: int = FEATURES) -> PublicTransform:
    return PublicTransform.identity(features, math.hypot(1, constant), constant)


def statistic(k: int = 4, constant: float = 0.5, **options: object) -> FindingMoments:
    return made("findings", transform(constant), k, options).statistic


def records(x: Tensor, y: Tensor, constant: float) -> Chunk:
    """One user for every row: (n, q) features and (n, K) findings."""
    rows = torch.cat([torch.full((len(x), 1), constant, dtype=torch.float64), x], 1)[:, None]
    return Chunk(torch.arange(len(x)), rows, y[:, None].to(torch.int8), torch.ones(len(x)).long())


def several(k: int) -> Tensor:
    """Findings 0 to K from the first on, the same from the last on, and all known or unknown."""
    first = (torch.arange(k) < torch.arange(k + 1)[:, None]).long()
    known = torch.cat([first, first.flip(1)])
    return torch.cat([known, known.where(known == 1, -1)])


CASES = [
    (m, k, a, alpha, ask)
    for m, k, a in [
        (1, 2, 0.5),
        (2, 5, 0.5),
        (3, 10, 0.5),
        (4, 14, 0.2),
        (2.5, 4, 0.7),
        (9, 3, 0.9),
    ]
    for alpha in (None, 0.3, 3.0)
    for ask in (None, "ask")
]


@pytest.mark.parametrize(("m", "k", "a", "alpha", "ask"), CASES)
@pytest.mark.parametrize("grid", [None, 2.0**-10])
def test_the_worst_pair_moves_as_far_as_is_stated(
    m: float, k: int, a: float, alpha: float | None, ask: str | None, grid: float | None
) -> None:
    """All pairs of findings at every angle, also of rows that were rounded to a grid."""
    own = statistic(k, a, most_findings=m, alpha=alpha, unknown=ask)
    stated, worst = own.record_sensitivity(torch.ones(1)), 0.0
    angles = torch.linspace(0, math.pi, 25, dtype=torch.float64)
    turned = torch.stack([angles.cos(), angles.sin(), 0 * angles], 1)
    y = several(k)
    straight = torch.eye(1, FEATURES, dtype=torch.float64).expand(len(y), -1)
    one = submissions(own, records(straight, y, a), grid)
    for each in turned:
        other = submissions(own, records(each.expand(len(y), -1), y, a), grid)
        worst = max(worst, float(torch.cdist(one, other).max()))
    assert worst <= stated * (1 + 1e-12)
    if alpha is None and a <= 0.5:
        free = 2 * math.sqrt(own.length2)
        assert stated == pytest.approx(free, rel=1e-12)  # moments and counts cost nothing
        assert worst >= free * (1 - 1e-3 if grid is None else 0.99)


@pytest.mark.parametrize("g", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(("m", "k"), [(1, 2), (1, 3), (2, 6), (3, 14), (4, 5)])
@pytest.mark.parametrize("constant", [0.1, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("heavy", [0.5, 1.0, 2.0])
def test_no_numbers_of_findings_move_a_sum_further(
    g: float, m: int, k: int, constant: float, heavy: float
) -> None:
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
    own, y = statistic(k, most_findings=m, unknown=ask), several(k)
    features = torch.zeros(len(y), FEATURES, dtype=torch.float64)
    sent = own.submit(records(features, y, 0.5)) * own.scale / 0.5
    b = sent[:, k : k + own.columns]
    places = torch.cdist((y == 1).double(), (y == 1).double()).square()
    assert (places <= own.spread * torch.cdist(b, b).square() + 1e-9).all()
    assert float(b.square().sum(1).max()) <= own.length2 + 1e-12


def test_rows_on_a_grid_give_whole_steps_and_fit_their_bounds() -> None:
    """Also of records whose findings weigh less than one each."""
    draw, grid, own = torch.Generator().manual_seed(0), 2.0**-9, statistic(6, most_findings=2)
    x = torch.nn.functional.normalize(torch.randn(80, FEATURES, generator=draw).double())
    held = records(x, several(6).repeat(3, 1)[:80], 0.5)
    sent = own.submit(held.rounded(grid))
    steps = sent / grid ** own.grid_powers.double()
    assert torch.equal(steps, steps.round())
    assert float((sent * own.scale).norm(dim=1).max()) <= own.zero_out_sensitivity(torch.ones(1))
    assert float((sent * own.scale).abs().max()) <= own.entry_bound(1)
    assert own.dimension == sent.shape[1] == len(own.scale)
    pooled = own.submit(held.pooled())[0]
    assert torch.allclose(pooled, own.submit(held).sum(0))
    padded = replace(held.pooled(), counts=torch.tensor([70]))
    assert torch.allclose(own.submit(padded)[0], own.submit(held)[:70].sum(0))


@pytest.mark.parametrize("ask", [None, "ask"])
def test_sums_and_counts_are_read_back(ask: str | None) -> None:
    own, y = statistic(3, unknown=ask, most_findings=2), torch.tensor([[1, 1, 1], [0, -1, 1]] * 40)
    x = torch.eye(2, FEATURES, dtype=torch.float64).repeat(40, 1)
    total = own.submit(records(x, y, 0.5).pooled())[0]
    noised = NoisedSum(total, 80, 0.0)
    assert own.counts(noised).tolist() == pytest.approx([40, 40, 80])
    w = math.floor(64 * math.sqrt(2 / 3)) / 64
    assert own.weighted_counts(noised).tolist() == pytest.approx([40 * w, 40 * w, 40 * w + 40])
    assert own.sums(noised)[1:, 0].tolist() == pytest.approx([40, 40, 0])
    assert own.known_counts(noised).tolist() == ([80, 40, 80] if ask else [80, 80, 80])
    assert own.counted_rows(noised) == (80.0, 0.0)


def rows_of(n: int, k: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(n, q) rows whose findings shift them, and (n, K) findings of different prevalence."""
    rng = np.random.default_rng(seed)
    y = (rng.random((n, k)) < np.linspace(0.1, 0.5, k)).astype(np.int8)
    shifts = np.random.default_rng(99).standard_normal((k, 8))
    return (y @ shifts + 2 * rng.standard_normal((n, 8))).astype(np.float32), y


def test_without_noise_it_is_fishers_discriminant_and_calibrated() -> None:
    x, y = rows_of(30_000)
    x /= 60.0
    method = made("findings", transform(features=8), 4, {"most_findings": 4})
    chunk = records(torch.from_numpy(x).double(), torch.from_numpy(y), 0.5).pooled()
    fitted = method.fit(NoisedSum(method.statistic.submit(chunk)[0], len(x), 1e-9))
    assert fitted.class_shares.numpy() == pytest.approx(y.mean(0), rel=1e-3)
    held = np.concatenate([np.full((len(x), 1), 0.5), x], 1)
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
    rows = torch.nn.functional.normalize(torch.from_numpy(x).double())
    many = head(num_classes=4, l2_reg=0.1, clip_norm=1.0)
    two = head(num_classes=2, l2_reg=0.1, clip_norm=1.0)
    found = torch.from_numpy(y)
    sgd: dict[str, Any] = {"epochs": 3, "batch_size": 7}
    exact, steps = fit_exact(many, rows, found).weights, fit_sgd(many, rows, found, **sgd)
    for k in range(4):
        alone = fit_exact(two, rows, found[:, k].long()).weights[:, 1]
        assert torch.allclose(exact[:, k], alone, atol=1e-2)
        alone = fit_sgd(two, rows, found[:, k].long(), **sgd)[:, 1]
        assert torch.allclose(steps[:, k], alone, atol=1e-9)
    none = torch.full_like(found, -1)
    zero = torch.zeros(8, 4, dtype=torch.float64)
    assert not fit_exact(many, rows, none).weights.any()
    assert torch.equal(many.gradient(zero, rows, none), zero)
    with pytest.raises(ValueError, match="svm and logistic"):
        fit_sgd(SoftmaxHead(num_classes=4, l2_reg=0.1, clip_norm=1.0), rows, found, **sgd)


def held(n: int = 600, *, unknown: bool = False, seed: int = 0) -> EmbeddingSet:
    x, y = rows_of(n, seed=seed)
    meta = {"class_names": ["a", "b", "c", "d"]} | ({"unknown": "ask"} if unknown else {})
    if unknown:
        y[::3, 0] = -1
    none = np.full(n, -1)
    return EmbeddingSet(embeddings=x, labels=none, findings=y, users=np.arange(n) // 20, meta=meta)


PUBLIC = PublicTransform.fit(rows_of(2000, seed=5)[0])


@pytest.mark.parametrize(
    ("options", "privacy"),
    [
        ({}, Privacy(5.0, 1e-5)),
        ({"sums": 1}, Privacy(5.0, 1e-5, unit="user", noise_by="servers")),
        ({"user_clip": (8.0, 8.0)}, Privacy(5.0, 1e-5, unit="user")),
        ({"prior": (0.2, 0.3, 0.3, 0.9)}, Privacy(5.0, 1e-5, group_size=2)),
    ],
)
@pytest.mark.parametrize("unknown", [False, True])
def test_a_release_of_findings(
    options: dict, privacy: Privacy, unknown: bool, tmp_path: Path
) -> None:
    """The default method learns them: by sums, two or one, clipped, and for every unit."""
    rows = held(unknown=unknown)
    released = release(rows, "discriminant", privacy, transform=PUBLIC, **options)
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
    assert torch.allclose(
        moved, equal.prior_shift(released.prior or "private").neg().expand_as(moved)
    )


def test_neighbours_move_every_sum_by_no_more_than_is_planned() -> None:
    """Through the transform and the grid of the plan: one record opposite, with other findings."""
    rows = held()
    request = ReleaseRequest(
        embeddings=rows, method="findings", privacy=Privacy(3.0, 1e-5), transform=PUBLIC
    )
    planned = request.planned(discrete=True).sums[-1]
    x = rows.embeddings.copy() * 100  # all clipped
    findings, state = np.asarray(rows.findings), request.built
    assert state.transform is not None
    mapping = state.transform

    def sent(x: np.ndarray, y: np.ndarray) -> Tensor:
        mapped = mapping.map_rows(PUBLIC(x))
        chunk = Chunk(
            torch.zeros(1).long(), mapped[None], torch.from_numpy(y)[None], torch.tensor([len(x)])
        )
        return submissions(state.statistic, chunk, planned.mechanism.grid)[0]

    for row, y in ((3, findings[3]), (4, 1 - findings[4])):
        other, found = x.copy(), findings.copy()
        other[row], found[row] = -x[row], y
        moved = float((sent(x, findings) - sent(other, found)).norm())
        assert 0 < moved <= planned.guarantee.sensitivity


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"method": "softmax"}, "method must be one of findings, svm, logistic"),
        ({"embeddings": "classes"}, "must hold findings"),
        ({"method": "logistic", "prior": "equal"}, "prior must be private, got equal"),
        ({"most_findings": 0.5}, "most_findings must be in"),
        ({"unknown": "no"}, "unknown must be one of"),
        ({"rounds": 3}, "options must fit method 'findings'"),
        ({"prior": (0.2, 0.3, 0.3, 1.0)}, "prevalences < 1"),
        ({"num_classes": 5}, "num_classes must be 4"),
    ],
)
def test_refusals(change: dict, words: str) -> None:
    x, _ = rows_of(60)
    given = {"embeddings": held(60), "method": "findings", "privacy": Privacy(1.0, 1e-3)} | change
    if given["embeddings"] == "classes":
        meta = {"class_names": ["a", "b"]}
        given["embeddings"] = EmbeddingSet(
            embeddings=x, labels=np.arange(60) % 2, users=np.arange(60), meta=meta
        )
    with pytest.raises(ValueError, match=words):
        release(**given)


def test_findings_of_a_set() -> None:
    """Unknown ones only where the set says that they may be."""
    rows = held(20)
    assert rows.targets is rows.findings
    assert rows.findings is not None
    for findings, words in ((rows.findings - 1, "0 or 1"), (rows.findings[:5], "integers")):
        with pytest.raises(ValueError, match=words):
            replace(rows, findings=findings)
    with pytest.raises(ValueError, match="labels must be -1"):
        replace(rows, labels=np.zeros(20, np.int64))
    assert KNOWN > 0
