"""Coded class sums, as they are sent: worst neighbours, rounding grids, clips, noise, releases."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from embed import EmbeddingSet, PublicTransform
from train_distributed import Privacy, release
from train_distributed.one_shot.class_sums import ClassSums
from train_distributed.one_shot.registry import build_method
from train_distributed.one_shot.statistic import NoisedSum
from train_distributed.one_shot.summation import IntegerSum
from train_distributed.one_shot.users import Chunk
from train_distributed.privacy import Guarantee

FEATURES, CONSTANT = 4, 0.5
TRANSFORM = PublicTransform.identity(FEATURES, math.sqrt(1 + CONSTANT**2), CONSTANT)
METHODS: list[tuple[str, dict[str, Any]]] = [
    ("class-sums", {}),
    ("least-squares", {"alpha": 1.5}),
    ("discriminant", {}),
    ("discriminant", {"moments": "none"}),
]


def made(name: str, classes: int, options: dict[str, Any]) -> Any:
    return build_method(name, TRANSFORM, classes, {"class_code": 0.45} | options).statistic


def records(cosines: np.ndarray, labels: int, n: int = 1) -> Chunk:
    """Two users for each cosine, whose n equal records have it between them, and two labels."""
    turned = np.stack([cosines, np.sqrt(1 - cosines**2)], 1)
    u = torch.zeros(2 * len(cosines), n, FEATURES, dtype=torch.float64)
    u[::2, :, 0], u[1::2, :, :2] = 1, torch.from_numpy(turned)[:, None]
    x = torch.cat([torch.full((*u.shape[:2], 1), CONSTANT, dtype=torch.float64), u], 2)
    y = torch.tensor([0, labels]).repeat(len(cosines))[:, None].expand(-1, n)
    users = torch.arange(len(u))
    return Chunk(users, x, y, torch.full_like(users, n))


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize(("name", "options"), METHODS)
@pytest.mark.parametrize("n", [1, 5])
def test_no_neighbour_is_further_than_said_and_some_are_as_far(
    name: str, options: dict[str, Any], classes: int, n: int
) -> None:
    """One record, or all n of a user; with and without rounding to a grid that the plan takes."""
    statistic, sizes = made(name, classes, options), torch.full((100,), n)
    stated = float(statistic.user_sensitivity(sizes)[0])
    assert stated == n * statistic.record_sensitivity(sizes)
    guarantee = Guarantee.of(sizes, statistic, Privacy(1.0, 1e-5, unit="user"))
    for grid in (None, IntegerSum.of(statistic, guarantee, sizes).grid):
        largest = 0.0
        for other in (0, 1):
            chunk = records(np.linspace(-1, 1, 801), other, n).rounded(grid)
            sent = statistic.submit(chunk) * statistic.scale
            largest = max(largest, float((sent[::2] - sent[1::2]).norm(dim=1).max()))
            assert sent.abs().max() <= statistic.entry_bound(n)
            assert sent.norm(dim=1).max() <= float(statistic.norm_bounds(sizes)[0]) * (1 + 1e-12)
        assert 0.999 * stated <= largest <= stated * (1 + 1e-12)


@pytest.mark.parametrize(("name", "options"), METHODS)
def test_a_plain_code_is_no_code(name: str, options: dict[str, Any]) -> None:
    coded = made(name, 3, options | {"class_code": 1.0})
    bare = build_method(name, TRANSFORM, 3, options).statistic
    assert coded == bare
    assert not coded.report()
    assert coded.common_noise == 0
    chunk = records(np.linspace(-1, 1, 5), 1)
    assert torch.equal(coded.submit(chunk), bare.submit(chunk))


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_decoded_noise_is_as_common_as_said(classes: int) -> None:
    """Covariance s² (I + c 1 1ᵀ) of sums, and s² a²/c₀² I of the constant row."""
    statistic = made("discriminant", classes, {"moments": "none"})
    draw, std = torch.Generator().manual_seed(classes), 0.7
    noise = torch.randn(8000, statistic.dimension, generator=draw, dtype=torch.float64) * std
    sums = torch.stack([statistic.sums(NoisedSum(z / statistic.scale, 1, std)) for z in noise])
    expected = std**2 * (torch.eye(classes) + statistic.common_noise).double()
    found = sums[:, 1:].flatten(0, 1).T.cov()
    assert torch.allclose(found, expected, atol=0.05 * float(expected.max()))
    counted = (std * CONSTANT / statistic.constant) ** 2 * torch.eye(classes).double()
    assert torch.allclose(sums[:, 0].T.cov(), counted, atol=0.08 * float(counted.max()))


@pytest.mark.parametrize("by", ["users", "servers"])
@pytest.mark.parametrize("clip", [None, 0.8])
def test_integers_give_the_sums_back(by: Any, clip: float | None) -> None:
    """Exact without a clip; servers prove lengths of what is sent."""
    options = {} if clip is None else {"user_clip": clip}
    unit = "record" if clip is None else "user"
    method = build_method("discriminant", TRANSFORM, 3, {"class_code": 0.45} | options)
    coded: Any = method.statistic.unclipped
    assert isinstance(coded, ClassSums)
    privacy = Privacy(1.0, 1e-5, unit=unit, noise_by=by, honest_fraction=None)
    sizes = torch.full((40,), 1)
    guarantee = Guarantee.of(sizes, method.statistic, privacy)
    summation = IntegerSum.of(
        method.statistic, guarantee, sizes, sampler=lambda std, count: np.zeros(count, np.int64)
    )
    chunk = records(np.linspace(-0.9, 0.9, 20), 1).rounded(summation.grid)
    sent = method.statistic.submit(chunk) * method.statistic.scale
    summation.add(chunk.users, sent)
    step = float(np.max(summation.plan.step)) if by == "servers" else 0.0
    assert torch.allclose(summation.total(), sent.sum(0), atol=1e-12 + 40 * step)
    if by == "servers":
        longest = torch.tensor(summation.norm_bounds(method.statistic, sizes)) * step
        encoded = [summation.decode(summation.encode(each.numpy())) for each in sent]
        assert (torch.stack(encoded).norm(dim=1) <= longest).all()
        assert (torch.stack(encoded).norm(dim=1) > 0.8 * longest).all()
    elif clip is None:
        opened = method.opened(summation.total(), 40, 0.0)
        plain = build_method("discriminant", TRANSFORM, 3, {}).statistic.submit(chunk).sum(0)
        expected = plain[: TRANSFORM.dim * 3].unflatten(0, (TRANSFORM.dim, 3))
        assert torch.allclose(coded.sums(opened), expected, atol=1e-9)


@pytest.mark.parametrize("code", [1.0, 0.45])
def test_noise_alone_makes_no_class_of_a_ridge_regression_likelier(code: float) -> None:
    """Rows about 0, two in ten of one class: intercepts are shares on average, whatever is sent."""
    method = build_method("least-squares", TRANSFORM, 2, {"ridge": 40.0, "class_code": code})
    statistic: Any = method.statistic
    rows, std, draw = 200, 6.0, torch.Generator().manual_seed(0)
    coded = torch.zeros(TRANSFORM.dim, 2, dtype=torch.float64)
    coded[0] = CONSTANT * statistic.code.encode(torch.tensor([160.0, 40.0]).double())
    found = []
    for _ in range(2000):
        noise = std * torch.randn(statistic.dimension, generator=draw, dtype=torch.float64)
        noise /= statistic.scale
        noise[:2], noise[coded.numel() :] = 0, 0  # counts and moments as they are
        noise[: coded.numel()] += coded.flatten()
        fitted = method.fit(NoisedSum(noise, rows, std))
        counts = statistic.counts(NoisedSum(noise, rows, std)) / rows
        found.append(CONSTANT * fitted.weights[0] - counts)
    error = torch.stack(found).std(0) / math.sqrt(len(found))
    assert (torch.stack(found).mean(0).abs() < 5 * error).all()


@pytest.mark.parametrize(("name", "options"), METHODS)
def test_a_release_says_it_and_learns_as_well(name: str, options: dict[str, Any]) -> None:
    """At so large an ε both find the classes; at any, the coded sum has a fifth less noise."""
    draw = np.random.default_rng(0)
    labels = np.arange(400) % 2
    x = draw.normal(size=(400, FEATURES)) / 3 + (2 * labels[:, None] - 1) * np.eye(FEATURES)[0]
    rows = EmbeddingSet(
        embeddings=x.astype(np.float32),
        labels=labels,
        users=np.arange(400) // 8,
        split=(np.arange(400) >= 320).astype(np.uint8),
        meta={"class_names": ["a", "b"]},
    )
    given: dict[str, Any] = {key: value for key, value in options.items() if key != "alpha"}
    codes: tuple[dict[str, Any], ...] = ({}, {"class_code": 0.45})
    plain, coded = (
        release(rows, name, Privacy(20.0, 1e-5), transform=TRANSFORM, **given, **code)
        for code in codes
    )
    assert coded.report["class_code"] == coded.report.class_code == 0.45
    assert "class_code" not in plain.report
    assert coded.report["sensitivity"] < 0.81 * plain.report["sensitivity"]
    assert coded.report["local_noise_std"] < 0.81 * plain.report["local_noise_std"]
    assert coded.report["bytes_per_user"] == plain.report["bytes_per_user"]
    assert min(coded.report["test_accuracy"], plain.report["test_accuracy"]) > 0.95


@pytest.mark.parametrize("code", [0.05, 1.5, math.nan])
def test_a_code_out_of_range_is_refused(code: float) -> None:
    with pytest.raises(ValueError, match=r"class_code must be in \[0.1, 1\]"):
        made("discriminant", 2, {"class_code": code})
    with pytest.raises(ValueError, match="options must fit method 'softmax'"):
        build_method("softmax", TRANSFORM, 2, {"class_code": 0.5})
