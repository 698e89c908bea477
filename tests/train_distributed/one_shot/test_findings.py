"""Several findings a picture: the sensitivity of their sums, what is read back, and models."""

import itertools
import math
from dataclasses import replace
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
from tests.train_distributed.one_shot.builders import embedded, made, several
from train_distributed import Privacy, Release, release
from train_distributed.one_shot.findings import FindingMoments
from train_distributed.one_shot.statistic import Chunk, NoisedSum

FEATURES = 3


def transform(features: int = FEATURES) -> PublicTransform:
    return PublicTransform.identity(features, math.hypot(1, 0.5), 0.5)


def statistic(k: int, **options: object) -> FindingMoments:
    return made("findings", transform(), k, **options).statistic


def records(x: Tensor, y: Tensor) -> Chunk:
    """One user for every row: (n, q) features and (n, K) findings."""
    rows = torch.nn.functional.pad(x, (1, 0), value=0.5)[:, None]
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
    own, y = statistic(k, most_findings=m, unknown=ask), several(k)
    features = torch.zeros(len(y), FEATURES, dtype=torch.float64)
    sent = own.submit(records(features, y)) * own.scale / 0.5
    b = sent[:, k : k + own.columns]
    places = torch.cdist((y == 1).double(), (y == 1).double()).square()
    assert (places <= own.spread * torch.cdist(b, b).square() + 1e-9).all()
    assert float(b.square().sum(1).max()) <= own.length2 + 1e-12


@pytest.mark.parametrize("ask", [None, "ask"])
def test_sums_and_counts_are_read_back(ask: str | None) -> None:
    own, y = statistic(3, unknown=ask, most_findings=2), torch.tensor([[1, 1, 1], [0, -1, 1]] * 40)
    x = torch.eye(2, FEATURES, dtype=torch.float64).repeat(40, 1)
    total = own.submit(records(x, y).pooled())[0]
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
    method = made("findings", transform(8), 4, most_findings=4)
    chunk = records(torch.from_numpy(x).double(), torch.from_numpy(y)).pooled()
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
    if unknown:
        y[::3, 0] = -1
    meta = {"class_names": list("abcd")} | ({"unknown": "ask"} if unknown else {})
    users = np.arange(n) // 20
    return embedded(x, np.full(n, -1), 4, findings=y, users=users, meta=meta)


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
def test_a_release_of_findings(options, privacy, unknown, tmp_path):
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
